"""A store that retries requests while it is unreachable."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from spotsurfer_wire import clock
from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.store.port import FileStore, Listed, StoreUnreachable

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0  # from the first failure of a call: half of the usual lease
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)  # the last one again and again

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How long to retry."""

    seconds: float = PATIENCE_SECONDS
    now: Callable[[], float] = clock.monotonic
    wait: Callable[[float], None] = time.sleep

    def ask(self, call: Callable[[], T]) -> T:
        """The result of `call`, which may run several times. Raises what it raises; StoreUnreachable only after a while."""
        until: float | None = None
        for pause in itertools.chain(PAUSES_SECONDS, itertools.repeat(PAUSES_SECONDS[-1])):
            try:
                return call()
            except StoreUnreachable as e:
                if until is None:
                    log.warning("the store can't be reached, it is asked again for %.0f s: %s", self.seconds, e)
                    until = self.now() + self.seconds
                if self.now() >= until:
                    raise
            self.wait(pause)
        raise AssertionError("unreachable")


class RetryingStore:
    """A store for saves and restores. Retries are harmless there: the same bytes go under the same name."""

    def __init__(self, store: FileStore, patience: Retry | None = None) -> None:
        self._store, self._ask = store, (patience or Retry()).ask

    def create(self, key: str, data: bytes) -> bool:
        """Write durably if absent."""
        return self._ask(lambda: self._store.create(key, data))

    def create_later(self, key: str, data: Buffer) -> bool:
        """Write if absent; durable only once `sync` returned."""
        return self._ask(lambda: self._store.create_later(key, data))

    def sync(self) -> None:
        """Everything that `create_later` wrote is durable when it returns."""
        self._ask(self._store.sync)

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, durably."""
        self._ask(lambda: self._store.put(key, data))

    def put_file(self, key: str, path: Path) -> int:
        """Write or overwrite from a file."""
        return self._ask(lambda: self._store.put_file(key, path))

    def get(self, key: str) -> bytes | None:
        """The whole object, or None."""
        return self._ask(lambda: self._store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of the object, or None."""
        return self._ask(lambda: self._store.get_range(key, start, length))

    def get_file(self, key: str, path: Path) -> int | None:
        """The object into a file."""
        return self._ask(lambda: self._store.get_file(key, path))

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        """All objects below `prefix` in key order."""
        return self._ask(lambda: self._store.list(prefix, after))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent ones are no error."""
        known = list(keys)  # each try needs them all
        self._ask(lambda: self._store.delete(known))
