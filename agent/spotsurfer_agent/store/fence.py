"""A store that can be fenced off: the one place that enforces "upload nothing more" for an attempt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.store.port import FileStore, Listed, StoreDenied


class FenceClosed(StoreDenied):
    """This attempt may write no more."""


class WriteFence:
    """Passes everything on until it is shut; then reads still work and writes raise FenceClosed."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._reason: str | None = None

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

    def create(self, key: str, data: bytes) -> bool:
        """Write durably if absent."""
        self.check()
        return self._store.create(key, data)

    def create_later(self, key: str, data: Buffer) -> bool:
        """Write if absent; durable once `sync` returned."""
        self.check()
        return self._store.create_later(key, data)

    def sync(self) -> None:
        """What `create_later` wrote is durable when it returns."""
        self._store.sync()

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, durably."""
        self.check()
        self._store.put(key, data)

    def put_file(self, key: str, path: Path) -> int:
        """Write or overwrite from a file."""
        self.check()
        return self._store.put_file(key, path)

    def get(self, key: str) -> bytes | None:
        """The whole object, or None."""
        return self._store.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of an object, or None."""
        return self._store.get_range(key, start, length)

    def get_file(self, key: str, path: Path) -> int | None:
        """The object into a file."""
        return self._store.get_file(key, path)

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        """All objects below `prefix` in key order."""
        return self._store.list(prefix, after)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent ones are no error."""
        self.check()
        self._store.delete(keys)
