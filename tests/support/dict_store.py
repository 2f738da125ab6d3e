"""A store in a dict, that can fail in every way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.store.port import Listed


class DictStore:
    """Objects in a dict. `before` and `after` are called with (verb, key) around each write or read, and may raise."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.writes: list[tuple[str, str]] = []
        self.modified: float | None = None  # of all objects
        self.before: Callable[[str, str], None] = lambda verb, key: None
        self.after: Callable[[str, str], None] = lambda verb, key: None

    def create(self, key: str, data: bytes) -> bool:
        self.before("create", key)
        made = key not in self.objects
        if made:
            self.objects[key] = data
            self.writes.append(("create", key))
        self.after("create", key)
        return made

    def put(self, key: str, data: bytes) -> None:
        self.before("put", key)
        self.objects[key] = data
        self.writes.append(("put", key))
        self.after("put", key)

    def create_later(self, key: str, data: Buffer) -> bool:
        return self.create(key, bytes(data))

    def sync(self) -> None: ...

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        data = self.get(key)
        return None if data is None else data[start : start + length]

    def put_file(self, key: str, path: Path) -> int:
        data = path.read_bytes()
        self.put(key, data)
        return len(data)

    def folders(self, prefix: str) -> tuple[str, ...]:
        below = (key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))
        return tuple(sorted({name.partition("/")[0] for name in below if "/" in name}))

    def copy(self, source: str, target: str) -> None:
        self.before("copy", target)
        self.objects[target] = self.objects[source]

    def get(self, key: str) -> bytes | None:
        self.before("get", key)
        return self.objects.get(key)

    def get_file(self, key: str, path: Path) -> int | None:
        data = self.get(key)
        return None if data is None else path.write_bytes(data)

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        self.before("list", prefix)
        keys = sorted(k for k in self.objects if k.startswith(prefix) and (after is None or k > after))
        return [Listed(k, len(self.objects[k]), "1", self.modified) for k in keys]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)
