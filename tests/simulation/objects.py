"""Shared storage of the virtual world."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spotsurfer_agent.buffers import Buffer
from spotsurfer_agent.store import Listed, StoreError

WRITES = ("create", "put", "delete")


class Objects:
    """A store in memory. `down` makes every call fail; `fails` picks calls that do, by who calls, the verb and the key."""

    def __init__(self, whole: Objects | None = None, who: str = "controller") -> None:
        self.data: dict[str, tuple[bytes, int]] = {} if whole is None else whole.data
        self._down = False
        self.fails: Callable[[str, str, str], bool] = lambda who, verb, key: False
        self._whole, self._who = whole or self, who
        self._writes = 0

    @property
    def down(self) -> bool:
        return self._whole._down

    @down.setter
    def down(self, down: bool) -> None:
        self._whole._down = down

    def seen_by(self, who: str) -> Objects:
        """The same store, used by somebody else."""
        return Objects(self, who)

    def _check(self, verb: str, key: str) -> None:
        if self.down or self._whole.fails(self._who, verb, key):
            raise StoreError("the store is down")

    def create(self, key: str, data: bytes) -> bool:
        self._check("create", key)
        if key in self.data:
            return False
        self._write(key, data)
        return True

    def create_later(self, key: str, data: Buffer) -> bool:
        return self.create(key, bytes(data))

    def sync(self) -> None:
        self._check("sync", "")

    def put(self, key: str, data: bytes) -> None:
        self._check("put", key)
        self._write(key, data)

    def _write(self, key: str, data: bytes) -> None:
        self._whole._writes += 1
        self.data[key] = (data, self._whole._writes)

    def get(self, key: str) -> bytes | None:
        self._check("get", key)
        return self.data[key][0] if key in self.data else None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        data = self.get(key)
        return None if data is None else data[start : start + length]

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        self._check("list", prefix)
        found = sorted(k for k in self.data if k.startswith(prefix) and (after is None or k > after))
        return [Listed(k, len(self.data[k][0]), str(self.data[k][1])) for k in found]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._check("delete", key)
            self.data.pop(key, None)
