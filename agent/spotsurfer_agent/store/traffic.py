"""Bytes and requests between this machine and the store, for the bill.

Several processes of an attempt open the store. Each counts in a file of its own, so that none waits for another, and what one
that ended has counted stays.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.store.obstore import requests_to_get, requests_to_put
from spotsurfer_wire.store.port import FileStore, Listed

from spotsurfer_agent.store.layers import StoreLayer

PAGE_KEYS = 1000  # of a listing's answer
COUNTS = struct.Struct("=QQQQ")


class Traffic(NamedTuple):
    """Bytes of objects, without what a protocol adds, and requests as S3 bills them: those that list count as `puts`."""

    read: int = 0
    sent: int = 0
    gets: int = 0
    puts: int = 0


class Counter:
    """Of one process. Safe for several threads."""

    def __init__(self, folder: Path) -> None:
        """On a disk without room nothing is counted: no job ends because of its bill."""
        self._counts, self._lock, self._file = Traffic(), threading.Lock(), -1
        name = folder / f"{os.getpid()}-{os.urandom(4).hex()}"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def add(self, read: int = 0, sent: int = 0, gets: int = 0, puts: int = 0) -> None:
        """Count more."""
        with self._lock, contextlib.suppress(OSError):  # what fails now is in the next number
            self._counts = Traffic(*map(sum, zip(self._counts, (read, sent, gets, puts), strict=True)))
            os.pwrite(self._file, COUNTS.pack(*self._counts), 0)


def total(folder: Path) -> Traffic:
    """What all processes counted there so far."""
    each = [COUNTS.unpack(data) for path in folder.glob("*") if len(data := path.read_bytes()) == COUNTS.size]
    return Traffic(*map(sum, zip(*each, strict=True)))


class CountingStore(StoreLayer):
    """A store whose traffic is counted. What was sent counts even if the store did not keep it."""

    def __init__(self, behind: FileStore, counter: Counter) -> None:
        super().__init__(behind)
        self._counter = counter

    def create(self, key: str, data: bytes) -> bool:
        """Write durably if absent."""
        self._counter.add(sent=len(data), puts=1)
        return self.behind.create(key, data)

    def create_later(self, key: str, data: Buffer) -> bool:
        """Write if absent; durable only once `sync` returned."""
        self._counter.add(sent=memoryview(data).nbytes, puts=1)
        return self.behind.create_later(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite."""
        self._counter.add(sent=len(data), puts=1)
        self.behind.put(key, data)

    def put_file(self, key: str, path: Path) -> int:
        """Write or overwrite from a file."""
        size = self.behind.put_file(key, path)
        self._counter.add(sent=size, puts=requests_to_put(size))
        return size

    def get(self, key: str) -> bytes | None:
        """The whole object, or None."""
        data = self.behind.get(key)
        self._counter.add(read=len(data or b""), gets=1)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of the object, or None."""
        data = self.behind.get_range(key, start, length)
        self._counter.add(read=len(data or b""), gets=1)
        return data

    def get_file(self, key: str, path: Path) -> int | None:
        """The object into a file."""
        size = self.behind.get_file(key, path)
        self._counter.add(read=size or 0, gets=requests_to_get(size or 0))
        return size

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        """All objects below `prefix` in key order."""
        found = self.behind.list(prefix, after)
        self._counter.add(puts=len(found) // PAGE_KEYS + 1)
        return found
