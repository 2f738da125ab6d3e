"""From chunks in the store to files. What a manifest says is hostile until checked."""

from __future__ import annotations

import os

from spotsurfer_agent import protocol
from spotsurfer_agent.chunks import codec
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.extents import Extent
from spotsurfer_agent.manifest import Stored
from spotsurfer_agent.store import ObjectStore


class BadChunk(Exception):
    """A chunk is missing, damaged or described in a way that can't be; the sentence names it."""


class Fetcher:
    """Reads chunks of one job."""

    def __init__(self, store: ObjectStore, job: str, keys: Keys) -> None:
        self._store, self._job, self._keys = store, job, keys

    def plain(self, chunk: Stored) -> bytes:
        """The verified bytes. Raises BadChunk and StoreError."""
        stored = self._store.get(protocol.chunk_key(self._job, chunk.digest))
        if stored is None:
            raise BadChunk(f"chunk {chunk.digest} is missing in the store")
        try:
            return codec.decode(chunk.digest, chunk.size, stored, self._keys)
        except codec.Damaged as e:
            raise BadChunk(f"chunk {chunk.digest} is damaged: {e}") from e

    def write(self, chunk: Stored, extents: list[Extent], fd: int) -> None:
        """Fetch, verify, and put it in its places. Raises BadChunk and StoreError."""
        data = self.plain(chunk)
        for e in extents:
            view, at = memoryview(data)[e.skip : e.skip + e.length], e.offset
            while view:
                n = os.pwrite(fd, view, at)
                view, at = view[n:], at + n
