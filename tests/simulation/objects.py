"""Shared storage of the virtual world."""

from __future__ import annotations

from collections.abc import Iterable

from spotsurfer_agent.buffers import Buffer
from spotsurfer_agent.store import Listed, StoreError


class Objects:
    """A store in memory. `down` makes every call fail."""

    def __init__(self) -> None:
        self.data: dict[str, tuple[bytes, int]] = {}
        self.down = False
        self._writes = 0

    def _check(self) -> None:
        if self.down:
            raise StoreError("the store is down")

    def create(self, key: str, data: bytes) -> bool:
        self._check()
        if key in self.data:
            return False
        self._write(key, data)
        return True

    def create_later(self, key: str, data: Buffer) -> bool:
        return self.create(key, bytes(data))

    def sync(self) -> None:
        self._check()

    def put(self, key: str, data: bytes) -> None:
        self._check()
        self._write(key, data)

    def _write(self, key: str, data: bytes) -> None:
        self._writes += 1
        self.data[key] = (data, self._writes)

    def get(self, key: str) -> bytes | None:
        self._check()
        return self.data[key][0] if key in self.data else None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        data = self.get(key)
        return None if data is None else data[start : start + length]

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        self._check()
        found = sorted(k for k in self.data if k.startswith(prefix) and (after is None or k > after))
        return [Listed(k, len(self.data[k][0]), str(self.data[k][1])) for k in found]

    def delete(self, keys: Iterable[str]) -> None:
        self._check()
        for key in keys:
            self.data.pop(key, None)
