"""Shared storage of the virtual world."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.store.port import Listed, StoreUnreachable

WRITES = ("create", "put", "delete")
TRIES = 2  # clients of stores ask again by themselves where there was no answer
T = TypeVar("T")
Hook = Callable[[str, str, str], None]


def nothing(_who: str, _verb: str, _key: str) -> None:
    """No trouble."""


class Objects:
    """A store in memory. `down` makes every call fail.

    `before` and `after` are called around the effect of each call, with who calls ("controller" or "agent"), the verb and the
    key, and may raise: `after` loses the answer of a call that was carried out.
    """

    def __init__(self, whole: Objects | None = None, who: str = "controller", reach: Callable[[], None] = lambda: None) -> None:
        self.data: dict[str, tuple[bytes, int]] = {} if whole is None else whole.data
        self._down = False
        self.before: Hook = nothing
        self.after: Hook = nothing
        self._whole, self._who, self._reach = whole or self, who, reach
        self._writes = 0
        self._sorted: list[str] = []  # keys as they were when somebody listed them

    @property
    def down(self) -> bool:
        return self._whole._down

    @down.setter
    def down(self, down: bool) -> None:
        self._whole._down = down

    @property
    def is_well(self) -> bool:
        """No single call fails."""
        return self.before is nothing and self.after is nothing

    def seen_by(self, who: str, reach: Callable[[], None] = lambda: None) -> Objects:
        """The same store, used by somebody else. `reach` is called first, and raises where they don't reach it."""
        return Objects(self, who, reach)

    def _call(self, verb: str, key: str, effect: Callable[[], T]) -> T:
        for left in reversed(range(TRIES)):
            try:
                self._reach()
                if self.down:
                    raise StoreUnreachable("the store is down")
                self._whole.before(self._who, verb, key)
                result = effect()
                self._whole.after(self._who, verb, key)
            except StoreUnreachable:
                if not left:
                    raise
            else:
                return result
        raise AssertionError("unreachable")

    def create(self, key: str, data: bytes) -> bool:
        def effect() -> bool:
            absent = key not in self.data
            if absent:
                self._write(key, data)
            return absent

        return self._call("create", key, effect)

    def create_later(self, key: str, data: Buffer) -> bool:
        return self.create(key, bytes(data))

    def sync(self) -> None:
        self._call("sync", "", lambda: None)

    def put(self, key: str, data: bytes) -> None:
        self._call("put", key, lambda: self._write(key, data))

    def put_file(self, key: str, path: Path) -> int:
        data = path.read_bytes()
        self.put(key, data)
        return len(data)

    def _write(self, key: str, data: bytes) -> None:
        whole = self._whole
        whole._writes += 1
        if key not in self.data:
            whole._sorted = []
        self.data[key] = (data, whole._writes)

    def get(self, key: str) -> bytes | None:
        return self._call("get", key, lambda: self.data[key][0] if key in self.data else None)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        data = self.get(key)
        return None if data is None else data[start : start + length]

    def get_file(self, key: str, path: Path) -> int | None:
        data = self.get(key)
        return None if data is None else path.write_bytes(data)

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        def effect() -> list[Listed]:
            whole = self._whole
            if len(whole._sorted) != len(self.data):
                whole._sorted = sorted(self.data)
            keys = whole._sorted
            found = keys[bisect_left(keys, prefix) : bisect_left(keys, prefix + "\U0010ffff")]
            return [Listed(k, len(self.data[k][0]), str(self.data[k][1])) for k in found if after is None or k > after]

        return self._call("list", prefix, effect)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._call("delete", key, lambda key=key: self._remove(key))  # type: ignore[misc]

    def _remove(self, key: str) -> None:
        if self.data.pop(key, None) is not None:
            self._whole._sorted = []
