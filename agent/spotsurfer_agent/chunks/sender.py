"""From files to chunks in the store: cut, drop zeros, hash, leave out what is known, compress, create."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path

from spotsurfer_agent import protocol
from spotsurfer_agent.chunks import codec
from spotsurfer_agent.chunks.cut import cut
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.pool import Pool
from spotsurfer_agent.chunks.table import Content, Table
from spotsurfer_agent.manifest import Entry, Extents, Stored
from spotsurfer_agent.store import ObjectStore


class ShortFile(OSError):
    """A file became shorter while it was read: it was not frozen."""


class Sender:
    """Sends files of one job. `known` are chunks that the store holds for certain, by digest."""

    def __init__(self, store: ObjectStore, job: str, keys: Keys, known: Mapping[str, Stored]) -> None:
        self._store, self._job, self._keys, self._known = store, job, keys, dict(known)
        self.table = Table()
        self._lock = threading.Lock()
        self.new_bytes = 0

    def send(
        self, entries: Iterable[Entry], where: Callable[[Entry], Path], known: Mapping[str, Content] | None = None
    ) -> list[Entry]:
        """The entries with their extents filled in; those whose content is known, by path, and those without data pass unread.

        Raises StoreError when the store fails and OSError when a file can't be read.
        """
        with Pool() as pool:
            jobs = [
                (e, self._file(pool, where(e)) if e.kind == "file" and e.size and e.path not in (known or {}) else [])
                for e in entries
            ]
        out = []
        for entry, pieces in jobs:
            if known and entry.path in known:
                out.append(dataclasses.replace(entry, extents=self.table.extents_of(known[entry.path])))
                continue
            rows = [(at, c.size, self.table.index_of(c), 0) for p in pieces for at, c in p.result()]
            out.append(dataclasses.replace(entry, extents=Extents.of(rows)))
        return out

    def _file(self, pool: Pool, path: Path) -> list[Future[list[tuple[int, Stored]]]]:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            pieces = []
            for offset, length in cut(fd, os.fstat(fd).st_size):
                data = os.pread(fd, length, offset)
                if len(data) != length:
                    raise ShortFile(0, f"{path} became shorter while it was read")
                pieces.append(pool.submit(self._piece, offset, data))
            return pieces
        finally:
            os.close(fd)

    def _piece(self, offset: int, data: bytes) -> list[tuple[int, Stored]]:
        if data == bytes(len(data)):
            return []
        name = codec.digest(data, self._keys)
        with self._lock:
            known = name in self._known
        if not known:
            stored = codec.encode(data)
            fresh = self._store.create(protocol.chunk_key(self._job, name), stored)
            with self._lock:
                self._known[name] = Stored(name, len(data))
                self.new_bytes += len(stored) if fresh else 0
        return [(offset, self._known[name])]
