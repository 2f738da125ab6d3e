"""From files to chunks in the store: cut, drop zeros, hash, leave out what is known, compress, create."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path

from spotsurfer_agent import protocol
from spotsurfer_agent.chunks import codec
from spotsurfer_agent.chunks.cut import cut
from spotsurfer_agent.chunks.pool import Pool
from spotsurfer_agent.manifest import Chunk, Entry
from spotsurfer_agent.store import ObjectStore


class ShortFile(OSError):
    """A file became shorter while it was read: it was not frozen."""


class Sender:
    """Sends files of one job. `known` are digests that the store holds for certain; it grows with what was sent."""

    def __init__(self, store: ObjectStore, job: str, known: set[str]) -> None:
        self._store, self._job, self._known = store, job, known
        self._lock = threading.Lock()
        self.new_bytes = 0

    def send(self, entries: Iterable[Entry], where: Callable[[Entry], Path]) -> list[Entry]:
        """The entries with their chunks filled in; those that have chunks or hold no data pass unread.

        Raises StoreError when the store fails and OSError when a file can't be read.
        """
        with Pool() as pool:
            jobs = [(e, self._file(pool, where(e)) if e.kind == "file" and e.size and not e.chunks else None) for e in entries]
        out = []
        for entry, pieces in jobs:
            if pieces is None:
                out.append(entry)
                continue
            chunks = [c for p in pieces if (c := p.result()) is not None]
            out.append(dataclasses.replace(entry, chunks=chunks))
        return out

    def _file(self, pool: Pool, path: Path) -> list[Future[Chunk | None]]:
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

    def _piece(self, offset: int, data: bytes) -> Chunk | None:
        if data == bytes(len(data)):
            return None
        name = codec.digest(data)
        with self._lock:
            known = name in self._known
        if not known:
            stored = codec.encode(data)
            fresh = self._store.create(protocol.chunk_key(self._job, name), stored)
            with self._lock:
                self._known.add(name)
                self.new_bytes += len(stored) if fresh else 0
        return Chunk(name, offset, len(data))
