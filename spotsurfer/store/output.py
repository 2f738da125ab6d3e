"""A job's output and results as a user sees them: across all moves, each byte once."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from spotsurfer_agent import logpieces, objectkeys, times
from spotsurfer_agent.logpieces import Piece, Segment
from spotsurfer_agent.protocol import Head, HeadKind
from spotsurfer_agent.storeport import FileStore, Listed, StoreError

T = TypeVar("T")
PIECE_BYTES = 4 << 20
STREAMS = ("out", "err")
LOOKS_MAX = 5  # of one reader whose pieces are merged under its eyes
LOOKS_KEPT = 100  # jobs that are followed


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


def attempts_with_output(entries: Sequence[Head]) -> list[int]:
    """All attempts that ever had the job."""
    return sorted({e.epoch for e in entries if e.kind is HeadKind.GRANT})


def earlier_runs(entries: Sequence[Head]) -> set[int]:
    """Attempts with output that is not all part of the present one: the job ended there, or began anew after them."""
    found: set[int] = set()
    owner, newest = 0, max((n for n, e in enumerate(entries) if e.kind is HeadKind.GRANT), default=0)
    for number, e in enumerate(entries):
        if e.kind is HeadKind.GRANT:
            if owner and e.checkpoint is None:
                found.add(owner)
            owner = e.epoch
        if e.done is not None and number < newest:
            found.add(e.epoch)
    return found


def segments(pieces: Iterable[Listed], stream: str, attempts: Sequence[int]) -> list[Segment]:
    """What to read, in order. A later attempt's first piece cuts what an earlier one wrote beyond it: that work was undone."""
    own, found = _by_attempt(pieces), list[Segment]()
    for attempt in attempts:
        mine = logpieces.cover(own.get((attempt, stream), []))
        if mine:
            first = mine[0].start
            found = [Segment(s.start, min(s.end, first), s.key, s.skip) for s in found if s.start < first] + mine
    return found


def _by_attempt(pieces: Iterable[Listed]) -> dict[tuple[int, str], list[Piece]]:
    """Pieces by attempt and stream."""
    found: dict[tuple[int, str], list[Piece]] = {}
    for attempt, stream, piece in filter(None, map(logpieces.parse, pieces)):
        found.setdefault((attempt, stream), []).append(piece)
    return found


def printed_bytes(pieces: Iterable[Listed]) -> int:
    """Bytes of output in all these pieces, those that several hold once for each attempt."""
    own = _by_attempt(pieces)
    return sum(s.end - s.start for (_, stream), mine in own.items() if stream in STREAMS for s in logpieces.cover(mine))


class Gone(Exception):
    """A piece was merged with others while it was to be read: look again."""


class Printed:
    """A job's output as one look into the store shows it.

    `holders`: the attempts that have printed something. `is_recorded`: the newest one's agent records when.
    """

    def __init__(self, store: FileStore, pieces: Sequence[Listed], attempts: Sequence[int]) -> None:
        self._store = store
        self._segments = {stream: segments(pieces, stream, attempts) for stream in (*STREAMS, times.NAME)}
        own = _by_attempt(pieces)
        self.holders = {attempt for attempt, stream in own if stream in STREAMS}
        holders = {a for a, _ in own}
        self.is_recorded = (next((a for a in reversed(attempts) if a in holders), 0), times.NAME) in own

    @property
    def has_gap(self) -> bool:
        """Whether a stream goes on behind bytes that are in no piece."""
        return any(found and found[-1].end > self.end(stream) for stream, found in self._segments.items())

    def end(self, stream: str) -> int:
        """How far a stream goes without a gap."""
        end = 0
        for s in self._segments[stream]:
            if s.start > end:
                break
            end = max(end, s.end)
        return end

    def read(self, stream: str, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset`, a request a piece; empty = nothing there. Raises StoreError, Gone."""
        out = bytearray()
        for s in self._segments[stream]:
            want = offset + len(out)
            if s.end <= want:
                continue
            if s.start > want or len(out) >= limit:
                break
            length = min(s.end - want, limit - len(out))
            data = self._store.get_range(s.key, want - s.start + s.skip, length)
            if data is None:
                raise Gone(s.key)
            out += data
            if len(data) < length:
                break
        return bytes(out)


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    found: list[Listed]


class Output:
    """Reads output and results from the store."""

    def __init__(self, store: FileStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._looks: OrderedDict[str, _Look] = OrderedDict()

    def read(self, job: str, stream: str, attempts: Sequence[int], offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset`; empty = nothing there yet. Raises StoreError."""
        return self.with_look(job, attempts, lambda printed: printed.read(stream, offset, limit))

    def with_look(self, job: str, attempts: Sequence[int], use: Callable[[Printed], T], old_seconds: float = 0.0) -> T:
        """What `use` makes of the output as it is, or was so many seconds ago. Raises StoreError."""
        for looks_left in reversed(range(LOOKS_MAX)):
            printed = Printed(self._store, self._look(job, attempts, old_seconds), attempts)
            old_seconds = 0.0
            if printed.has_gap and looks_left:
                continue  # a listing takes a while: small pieces were removed when it had passed the larger one's place
            try:
                return use(printed)
            except Gone:
                continue
        raise StoreError("pieces of it are merged faster than they are read")

    def _look(self, job: str, attempts: Sequence[int], old_seconds: float) -> list[Listed]:
        """One listing, shared by all who follow a job. What those had printed who had it before the present one is known."""
        known, now = self._looks.get(job), self._now()
        if known is not None and now - known.at < old_seconds:
            return known.found
        prefix = objectkeys.log_prefix(job)
        if known is not None and known.found and old_seconds > 0:
            newest = known.found[-1].key.removeprefix(prefix).partition("/")[0]
            if attempts:  # it may have come back to one that is not the newest
                newest = min(newest, objectkeys.attempt_log_prefix(job, attempts[-1]).removeprefix(prefix).rstrip("/"))
            before = [x for x in known.found if x.key < f"{prefix}{newest}"]
            found = before + self._store.list(prefix, f"{prefix}{newest}")
        else:
            found = self._store.list(prefix)
        with self._lock:
            self._looks[job] = _Look(now, found)
            self._looks.move_to_end(job)
            while len(self._looks) > LOOKS_KEPT:
                self._looks.popitem(last=False)
        return found

    def result(self, job: str, attempt: int, path: str) -> Iterator[bytes]:
        """One published file in pieces, from a copy on disk: a result may be larger than memory. Raises StoreError."""
        return self.fetched(objectkeys.output_prefix(job, attempt) + path)

    def fetched(self, key: str) -> Iterator[bytes]:
        """One object in pieces. Raises StoreError."""
        with tempfile.NamedTemporaryFile() as copy:
            self._store.get_file(key, Path(copy.name))
            while piece := copy.read(PIECE_BYTES):
                yield piece
