"""Caches on a machine's disk: how each finds room and keeps others out, and the one for objects fetched ahead.

That one keeps only objects that never change: chunks, packs, manifests. They are in their stored form, so a reader checks them
like any other. Missing objects come from the store. The folder is emptied when an agent begins, because its files are not
durable.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import xxhash

MARK_BYTES = 8  # behind each object: detects damage; the reader detects forgery
FREE_SHARE = 0.5  # of the free disk space may be used by default


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk that holds a folder, or will."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    return shutil.disk_usage(place).free


def evict(unused: Iterable[Path], remove: Callable[[Path], None], fits: Callable[[], bool]) -> bool:
    """Remove what is not in use, in this order, until something new fits; False if it does not fit then either."""
    for path in unused:
        if fits():
            return True
        remove(path)
    return fits()


@contextlib.contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock of flock(2) among processes, in a file of the cache's folder. Raises OSError."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


class DiskCache:
    """A folder of objects by key, of at most so many bytes. Safe for several threads, and to be read by other processes."""

    def __init__(self, folder: Path, bytes_max: int = 0) -> None:
        """`bytes_max` 0: half of what is free on the disk now."""
        self.folder = folder
        self.bytes_max = bytes_max or int(free_bytes(folder) * FREE_SHARE)
        self.spared_bytes = 0  # of the disk to leave free for others
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}  # what this process put there

    @property
    def held_bytes(self) -> int:
        """Bytes in the cache."""
        return sum(self._sizes.values())

    def has(self, key: str) -> bool:
        """Whether this process put it there."""
        return key in self._sizes

    def put(self, key: str, data: bytes) -> bool:
        """Keep an object; False if the disk or the limit has no room."""
        with self._lock:
            if self.held_bytes + len(data) > self.bytes_max or free_bytes(self.folder) - len(data) < self.spared_bytes:
                return False
            self._sizes[key] = len(data)
        path = self._path(key)
        fresh = path.with_name(f".{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as f:
                f.write(data)
                f.write(_mark(data))
            fresh.replace(path)
        except OSError:  # a disk that is full or fails: the store has it all the same
            fresh.unlink(missing_ok=True)
            with self._lock:
                self._sizes.pop(key, None)
            return False
        return True

    def get(self, key: str) -> bytes | None:
        """The object, or None if it is missing or damaged: a bad disk must not make an image look bad."""
        try:
            kept = self._path(key).read_bytes()
        except (OSError, ValueError):
            return None
        data = kept[:-MARK_BYTES]
        return data if _mark(data) == kept[-MARK_BYTES:] else None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of the object, or None if it is not complete."""
        data = self.get(key)
        return data[start : start + length] if data is not None and len(data) >= start + length else None

    def keep_only(self, keys: Collection[str]) -> None:
        """Remove all other objects."""
        with self._lock:
            for key in [k for k in self._sizes if k not in keys]:
                self._path(key).unlink(missing_ok=True)
                del self._sizes[key]

    def clear(self) -> None:
        """Remove everything, also what an earlier process left."""
        with self._lock:
            self._sizes.clear()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(p in ("", ".", "..") for p in parts):
            raise ValueError(f"{key!r} is no key of an object")
        return self.folder.joinpath(*parts)


def _mark(data: bytes) -> bytes:
    return xxhash.xxh3_64_digest(data)
