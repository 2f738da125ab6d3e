"""A job's output and results as a user sees them: across all moves, each byte once."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent import protocol
from spotsurfer_agent.protocol import Head, HeadKind
from spotsurfer_agent.store import FileStore, Listed

PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes [start, end) of the output lie in `key` from its byte `skip` on."""

    start: int
    end: int
    key: str
    skip: int


def chain(entries: Sequence[Head], attempt: int | None) -> list[int]:
    """The attempts whose output makes up the job's present life, or the life that `attempt` belonged to, oldest first."""
    lives: list[list[int]] = []
    for e in entries:
        if e.kind is HeadKind.COMMIT and e.epoch == 0:
            lives.append([0])  # a copy: what its origin had printed is kept as that of an attempt 0
        if e.kind is HeadKind.GRANT:
            if e.checkpoint is None or not lives:
                lives.append([])
            lives[-1].append(e.epoch)
    if attempt is None:
        return lives[-1] if lives else []
    for life in lives:
        if attempt in life:
            return life[: life.index(attempt) + 1]
    return []


def published(entries: Sequence[Head]) -> Head | None:
    """The end of the command with the results that count: the newest one, if the job has ended by it. Where it was resumed or
    closed since then, the newest good one; None = there never was one.
    """
    ends = [e for e in entries if e.done is not None and e.done.reason == "exited"]
    if ends and ends[-1] is entries[-1]:
        return ends[-1]
    good = [e for e in ends if e.done is not None and e.done.exit_code == 0]
    return good[-1] if good else None


def segments(pieces: Sequence[Listed], stream: str, attempts: Sequence[int]) -> list[Segment]:
    """What to read, in order. A later attempt's first piece cuts what an earlier one wrote beyond it: that work was undone."""
    found: list[Segment] = []
    for attempt in attempts:
        mine = sorted(_parse(p) for p in pieces if _of(p, stream, attempt))
        if not mine:
            continue
        first = mine[0][0]
        found = [Segment(s.start, min(s.end, first), s.key, s.skip) for s in found if s.start < first]
        for offset, size, key in mine:
            found.append(Segment(offset, offset + size, key, 0))
    return found


def _of(piece: Listed, stream: str, attempt: int) -> bool:
    return re.fullmatch(rf"jobs/[^/]+/log/{attempt:06d}/{stream}-[0-9]{{16}}", piece.key) is not None


def _parse(piece: Listed) -> tuple[int, int, str]:
    return int(piece.key.rpartition("-")[2]), piece.size, piece.key


class Output:
    """Reads output and results from the store."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def read(self, job: str, stream: str, attempts: Sequence[int], offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset`; empty = nothing there yet. Raises StoreError."""
        out = bytearray()
        for s in segments(self._store.list(protocol.log_prefix(job)), stream, attempts):
            want = offset + len(out)
            if s.end <= want:
                continue
            if s.start > want or len(out) >= limit:
                break
            data = self._store.get(s.key)
            if data is None:
                break
            skip = want - s.start + s.skip
            out += data[skip : s.skip + (s.end - s.start)][: limit - len(out)]
        return bytes(out)

    def result(self, job: str, attempt: int, path: str) -> Iterator[bytes]:
        """One published file in pieces, from a copy on disk: a result may be larger than memory. Raises StoreError."""
        return self.fetched(protocol.output_prefix(job, attempt) + path)

    def fetched(self, key: str) -> Iterator[bytes]:
        """One object in pieces. Raises StoreError."""
        with tempfile.NamedTemporaryFile() as copy:
            self._store.get_file(key, Path(copy.name))
            while piece := copy.read(PIECE_BYTES):
                yield piece
