"""What a request to the store passes in the agent: retries, the fence, and the objects that were fetched ahead."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from spotsurfer_wire import clock
from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.store.port import FileStore, Listed, StoreDenied, StoreUnreachable

from spotsurfer_agent.store.cache import DiskCache

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS = 30.0  # from the first failure of a call: half of the usual lease
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)  # the last one again and again


def is_unreachable(e: Exception) -> bool:
    """Whether a store, or another server behind this interface, gave no whole answer."""
    return isinstance(e, StoreUnreachable)


@dataclass(frozen=True, slots=True)
class Retry:
    """How long to retry, and after which failures."""

    seconds: float = PATIENCE_SECONDS
    now: Callable[[], float] = clock.monotonic
    wait: Callable[[float], None] = time.sleep
    passes: Callable[[Exception], bool] = is_unreachable
    pauses: Sequence[float] = PAUSES_SECONDS

    def ask(self, call: Callable[[], T]) -> T:
        """The result of `call`, which may run several times. Raises what it raises; a failure that `passes` after a while."""
        until: float | None = None
        for pause in itertools.chain(self.pauses, itertools.repeat(self.pauses[-1])):
            try:
                return call()
            except Exception as e:
                if not self.passes(e):
                    raise
                if until is None:
                    log.warning("%s; asking again", e)
                    until = self.now() + self.seconds
                if self.now() >= until:
                    raise
            self.wait(pause)
        raise AssertionError("unreachable")


class StoreLayer:
    """A store that passes each request on to the one behind it. Its children change how, or answer some themselves."""

    def __init__(self, behind: FileStore) -> None:
        self.behind = behind

    def _pass(self, call: Callable[[], T], *, writes: bool = False) -> T:  # noqa: ARG002 -- for children
        """Carry a request out. `writes`: it changes an object."""
        return call()

    def create(self, key: str, data: bytes) -> bool:
        """Write durably if absent."""
        return self._pass(lambda: self.behind.create(key, data), writes=True)

    def create_later(self, key: str, data: Buffer) -> bool:
        """Write if absent; durable only once `sync` returned."""
        return self._pass(lambda: self.behind.create_later(key, data), writes=True)

    def sync(self) -> None:
        """Everything that `create_later` wrote is durable when it returns."""
        self._pass(self.behind.sync)

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, durably."""
        self._pass(lambda: self.behind.put(key, data), writes=True)

    def put_file(self, key: str, path: Path) -> int:
        """Write or overwrite from a file."""
        return self._pass(lambda: self.behind.put_file(key, path), writes=True)

    def get(self, key: str) -> bytes | None:
        """The whole object, or None."""
        return self._pass(lambda: self.behind.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of the object, or None."""
        return self._pass(lambda: self.behind.get_range(key, start, length))

    def get_file(self, key: str, path: Path) -> int | None:
        """The object into a file."""
        return self._pass(lambda: self.behind.get_file(key, path))

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        """All objects below `prefix` in key order."""
        return self._pass(lambda: self.behind.list(prefix, after))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent ones are no error."""
        known = list(keys)  # each try needs them all
        self._pass(lambda: self.behind.delete(known), writes=True)


class RetryingStore(StoreLayer):
    """A store for saves and restores. Retries are harmless there: the same bytes go under the same name."""

    def __init__(self, behind: FileStore, patience: Retry | None = None) -> None:
        super().__init__(behind)
        self._patience = patience or Retry()

    def _pass(self, call: Callable[[], T], *, writes: bool = False) -> T:  # noqa: ARG002
        return self._patience.ask(call)


class FenceClosed(StoreDenied):
    """This attempt may write no more."""


class WriteFence(StoreLayer):
    """The one place that enforces "upload nothing more" for an attempt: once shut, reads still work and writes fail."""

    _reason: str | None = None

    @property
    def is_shut(self) -> bool:
        """Whether writes are refused."""
        return self._reason is not None

    def shut(self, reason: str) -> None:
        """Refuse writes from now on; for good."""
        self._reason = self._reason or reason

    def check(self) -> None:
        """Raises FenceClosed after `shut`."""
        if self._reason is not None:
            raise FenceClosed(f"nothing is written any more: {self._reason}")

    def _pass(self, call: Callable[[], T], *, writes: bool = False) -> T:
        if writes:
            self.check()
        return call()


class CachedStore(StoreLayer):
    """A store that answers reads of objects and ranges from the cache if it can."""

    def __init__(self, behind: FileStore, cache: DiskCache) -> None:
        super().__init__(behind)
        self.cache = cache

    def get(self, key: str) -> bytes | None:
        """The whole object, or None."""
        found = self.cache.get(key) if never_changes(key) else None
        return super().get(key) if found is None else found

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of the object, or None."""
        found = self.cache.get_range(key, start, length) if never_changes(key) else None
        return super().get_range(key, start, length) if found is None else found


def never_changes(key: str) -> bool:
    """Whether a copy of the object is as good as the object."""
    return "/chunks/" in key or "/packs/" in key or key.endswith("/MANIFEST")
