"""From chunks in the store to files. What a manifest says is hostile until checked."""

from __future__ import annotations

import os

from spotsurfer_agent import protocol
from spotsurfer_agent.chunks import codec
from spotsurfer_agent.chunks.cut import PIECE_BYTES_MAX
from spotsurfer_agent.manifest import Chunk
from spotsurfer_agent.store import ObjectStore


class BadChunk(Exception):
    """A chunk is missing, damaged or described in a way that can't be; the sentence names it."""


class Fetcher:
    """Reads chunks of one job."""

    def __init__(self, store: ObjectStore, job: str) -> None:
        self._store, self._job = store, job

    def check(self, chunk: Chunk, size: int) -> None:
        """Raises BadChunk for a description that no writer makes."""
        if not codec.is_digest(chunk.digest):
            raise BadChunk(f"chunk name {chunk.digest!r} is not a digest")
        if not (0 < chunk.length <= PIECE_BYTES_MAX and 0 <= chunk.offset <= size - chunk.length):
            raise BadChunk(f"chunk {chunk.digest} lies outside of its file ({chunk.offset}+{chunk.length} of {size} bytes)")

    def write(self, chunk: Chunk, fd: int) -> None:
        """Fetch, verify, and put it in its place. Raises BadChunk and StoreError."""
        stored = self._store.get(protocol.chunk_key(self._job, chunk.digest))
        if stored is None:
            raise BadChunk(f"chunk {chunk.digest} is missing in the store")
        try:
            data = codec.decode(chunk.digest, chunk.length, stored)
        except codec.Damaged as e:
            raise BadChunk(f"chunk {chunk.digest} is damaged: {e}") from e
        view, at = memoryview(data), chunk.offset
        while view:
            n = os.pwrite(fd, view, at)
            view, at = view[n:], at + n
