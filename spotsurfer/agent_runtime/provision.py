"""The runtime that the settings name: finds or builds it, and pushes it to the store, from which machines fetch it by hash."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from spotsurfer_wire import object_keys
from spotsurfer_wire.store.port import FileStore

from spotsurfer.agent_runtime.builder import Runtime, build, find
from spotsurfer.common import private_files
from spotsurfer.config.settings import Settings
from spotsurfer.model.errors import DISK_FULL, DiskFull, HostUnfit

# ---- Store: the uploaded runtimes.

_KEY = re.compile(r"([0-9a-f]{64})\.tar\.gz")


@dataclass(frozen=True, slots=True)
class Stored:
    """One runtime in the store. `modified` is the store's own time, seconds since 1970; None if it keeps none."""

    sha256: str
    size_bytes: int
    modified: float | None


def stored(store: FileStore) -> list[Stored]:
    """All runtimes in the store, newest first; skips other objects. Raises StoreError."""
    prefix = object_keys.runtime_prefix()
    found = [(_KEY.fullmatch(x.key.removeprefix(prefix)), x) for x in store.list(prefix)]
    runtimes = [Stored(match[1], x.size, x.modified) for match, x in found if match is not None]
    return sorted(runtimes, key=lambda r: (-(r.modified or 0.0), r.sha256))


def push(store: FileStore, runtime: Runtime) -> bool:
    """Upload the runtime; False if the store has it already. Raises StoreError.

    It looks before it sends: an upload of tens of megabytes at each start of a controller would hurt on a slow line. An object
    of another size was left by an interrupted upload to a plain disk, and is replaced: the name says what belongs into it.
    """
    size = runtime.path.stat().st_size
    if any(x.sha256 == runtime.sha256 and x.size_bytes == size for x in stored(store)):
        return False
    store.put_file(object_keys.runtime_key(runtime.sha256), runtime.path)
    return True


# ---- Settings: find the runtime, or build it.


def ready(settings: Settings, say: Callable[[str], None]) -> Runtime:
    """The runtime of the installed agent. Builds it if it is absent or of another version, and reports that to `say`.

    Building takes a minute or two and a network. Raises RuntimeBuildError, HostUnfit, DiskFull.
    """
    out = settings.runtime_dir
    try:
        found = find(out)
        if found is not None:
            return found
        if settings.controller.data_dir in out.parents:  # whoever makes it first, it is its owner's alone
            private_files.make(settings.controller.data_dir)
        say(f"build the agent's runtime in {out}, once for each version: a minute or two, 100 MiB to fetch")
        return build(out, mirror=settings.runtime.mirror, say=say)
    except OSError as e:
        if e.errno in DISK_FULL:
            raise DiskFull(f"{out}: no space left for the agent's runtime; free some, or set [runtime] path elsewhere") from e
        raise HostUnfit(
            f"the agent's runtime can't be kept in {out}: {e.strerror or e}; set [runtime] path to a folder that "
            f"user {os.geteuid()} may write"
        ) from e
