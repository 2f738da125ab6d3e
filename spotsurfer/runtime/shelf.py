"""The agent's runtimes in the store, where machines fetch them by their hash."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spotsurfer_agent import objectkeys
from spotsurfer_agent.storeport import FileStore

from spotsurfer.runtime.builder import Runtime

_KEY = re.compile(r"([0-9a-f]{64})\.tar\.gz")


@dataclass(frozen=True, slots=True)
class Stored:
    """One of them. `modified` is the store's own time, seconds since 1970; None where it keeps none."""

    sha256: str
    size_bytes: int
    modified: float | None


def stored(store: FileStore) -> list[Stored]:
    """What is there, newest first; other objects are passed over. Raises StoreError."""
    prefix = objectkeys.runtime_prefix()
    found = [(_KEY.fullmatch(x.key.removeprefix(prefix)), x) for x in store.list(prefix)]
    runtimes = [Stored(match[1], x.size, x.modified) for match, x in found if match is not None]
    return sorted(runtimes, key=lambda r: (-(r.modified or 0.0), r.sha256))


def push(store: FileStore, runtime: Runtime) -> bool:
    """Have it in the store; False where it was there already. Raises StoreError.

    Looked for before it is sent: tens of megabytes at each start of a controller would be felt on a slow line. One of another
    size is what an interrupted upload to a plain disk left, and is replaced; the name says what belongs into it.
    """
    size = runtime.path.stat().st_size
    if any(x.sha256 == runtime.sha256 and x.size_bytes == size for x in stored(store)):
        return False
    store.put_file(objectkeys.runtime_key(runtime.sha256), runtime.path)
    return True
