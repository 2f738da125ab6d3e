"""A job's output and results across all moves, each byte once, and stdout/stderr in the order of printing."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from spotsurfer_wire import log_pieces, object_keys
from spotsurfer_wire.log_pieces import ROW_BYTES, Piece, Row, Segment, time_rows
from spotsurfer_wire.messages import Head, HeadKind
from spotsurfer_wire.store.port import FileStore, Listed, StoreError

from spotsurfer.model.errors import Conflict
from spotsurfer.ports.service import LogAsk, LogPart, LogPlace

T = TypeVar("T")
PIECE_BYTES = 4 << 20
STREAMS = ("out", "err")
LOOKS_MAX = 5  # of one reader if pieces are merged during the read
LOOKS_KEPT = 100  # jobs that are followed


def chain(entries: Sequence[Head], attempt: int | None) -> list[int]:
    """The attempts with the output of the job's present life, or of the life of `attempt`, oldest first."""
    lives: list[list[int]] = []
    for e in entries:
        if e.kind is HeadKind.COMMIT and e.epoch == 0:
            lives.append([0])  # a copy: its origin's output is kept as that of an attempt 0
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
    """The head entry of the command's end with the valid results: the newest one, if it ended the job. If the job was resumed
    or closed since then, the newest successful one; None = there is none.
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
    """Attempts with output outside the present one: the job ended there, or began anew after them."""
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
    """The segments to read, in order. A later attempt's first piece cuts earlier output beyond it: that work was undone."""
    own, found = _by_attempt(pieces), list[Segment]()
    for attempt in attempts:
        mine = log_pieces.cover(own.get((attempt, stream), []))
        if mine:
            first = mine[0].start
            found = [Segment(s.start, min(s.end, first), s.key, s.skip) for s in found if s.start < first] + mine
    return found


def _by_attempt(pieces: Iterable[Listed]) -> dict[tuple[int, str], list[Piece]]:
    """Pieces by attempt and stream."""
    found: dict[tuple[int, str], list[Piece]] = {}
    for attempt, stream, piece in filter(None, map(log_pieces.parse_piece, pieces)):
        found.setdefault((attempt, stream), []).append(piece)
    return found


def printed_bytes(pieces: Iterable[Listed]) -> int:
    """Bytes of output in all these pieces; bytes in several pieces count once per attempt."""
    own = _by_attempt(pieces)
    return sum(s.end - s.start for (_, stream), mine in own.items() if stream in STREAMS for s in log_pieces.cover(mine))


class Gone(Exception):
    """A piece was merged with others during the read: list the pieces again."""


class Printed:
    """A job's output as one listing of the store shows it.

    `holders`: the attempts with output. `is_recorded`: whether the newest one's agent records the times of printing.
    """

    def __init__(self, store: FileStore, pieces: Sequence[Listed], attempts: Sequence[int]) -> None:
        self._store = store
        self._segments = {stream: segments(pieces, stream, attempts) for stream in (*STREAMS, log_pieces.TIMES)}
        own = _by_attempt(pieces)
        self.holders = {attempt for attempt, stream in own if stream in STREAMS}
        holders = {a for a, _ in own}
        self.is_recorded = (next((a for a in reversed(attempts) if a in holders), 0), log_pieces.TIMES) in own

    @property
    def has_gap(self) -> bool:
        """Whether a stream goes on behind bytes that no piece holds."""
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


class Output:
    """Reads output and results from the store."""

    def __init__(self, store: FileStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._looks: OrderedDict[str, tuple[float, list[Listed]]] = OrderedDict()  # job -> its last listing, and when

    def read(self, job: str, stream: str, attempts: Sequence[int], offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset`; empty = nothing there yet. Raises StoreError."""
        return self.with_look(job, attempts, lambda printed: printed.read(stream, offset, limit))

    def with_look(self, job: str, attempts: Sequence[int], use: Callable[[Printed], T], old_seconds: float = 0.0) -> T:
        """The result of `use` on the output as it is, or was up to `old_seconds` ago. Raises StoreError."""
        for looks_left in reversed(range(LOOKS_MAX)):
            printed = Printed(self._store, self._look(job, attempts, old_seconds), attempts)
            old_seconds = 0.0
            if printed.has_gap and looks_left:
                continue  # small pieces were merged during the listing, after it had passed the place of the merged piece
            try:
                return use(printed)
            except Gone:
                continue
        raise StoreError("pieces of it are merged faster than they are read")

    def _look(self, job: str, attempts: Sequence[int], old_seconds: float) -> list[Listed]:
        """One listing, shared by all readers of a job. The pieces of earlier attempts are kept from earlier listings."""
        (at, known), now = self._looks.get(job, (0.0, None)), self._now()
        if known is not None and now - at < old_seconds:
            return known
        prefix = object_keys.log_prefix(job)
        if known and old_seconds > 0:
            newest = known[-1].key.removeprefix(prefix).partition("/")[0]
            if attempts:  # it may have come back to one that is not the newest
                newest = min(newest, object_keys.attempt_log_prefix(job, attempts[-1]).removeprefix(prefix).rstrip("/"))
            before = [x for x in known if x.key < f"{prefix}{newest}"]
            found = before + self._store.list(prefix, f"{prefix}{newest}")
        else:
            found = self._store.list(prefix)
        with self._lock:
            self._looks[job] = (now, found)
            self._looks.move_to_end(job)
            while len(self._looks) > LOOKS_KEPT:
                self._looks.popitem(last=False)
        return found

    def result(self, job: str, attempt: int, path: str) -> Iterator[bytes]:
        """One published file in pieces, from a copy on disk: a result may be larger than memory. Raises StoreError."""
        return self.fetched(object_keys.output_prefix(job, attempt) + path)

    def fetched(self, key: str) -> Iterator[bytes]:
        """One object in pieces. Raises StoreError."""
        with tempfile.NamedTemporaryFile() as copy:
            self._store.get_file(key, Path(copy.name))
            while piece := copy.read(PIECE_BYTES):
                yield piece


# ---- Order: output in the order of printing, with places in it by time and by number of lines
#
# The streams stay as they are. The record of times (`spotsurfer_wire.log_pieces`) holds the length of each stream at each time,
# and so the order of the bytes of both. Output that it does not cover is shown, too: first the output of older agents, stdout
# before stderr, and last the output that is so recent that no row covers it yet.

BLOCK_ROWS = 2048
AHEAD_BYTES = 1 << 20
BEHIND_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes [start, end) of one stream with no bytes of the other in between.

    `row`: its place in the record, `row_after`: the place of the next run.
    """

    stream: str
    start: int
    end: int
    row: int
    row_after: int
    seconds: float | None
    recorded: bool


def begin(printed: Printed, ask: LogAsk) -> LogPlace:
    """Where the wanted part begins, by time and number of lines. Raises Conflict, StoreError, Gone."""
    record, place = _Record(printed), ask.place
    if ask.since is not None:
        found = record.since(ask.since)
        place = LogPlace(max(place.out, found.out), max(place.err, found.err), max(place.times, found.times))
    return place if ask.tail is None else _last_lines(printed, record, replace(ask, place=place), ask.tail)


def pick(printed: Printed, ask: LogAsk) -> tuple[list[LogPart], LogPlace]:
    """The output from `ask.place` on, at most `ask.limit` bytes, and the place to go on. Raises StoreError, Gone."""
    reader, parts, place, room = _Reader(printed), list[LogPart](), ask.place, ask.limit
    for run in runs(printed, _Record(printed), ask):
        data = reader.ahead(run.stream, run.start, min(run.end, run.start + room))
        if data:
            second, last = None if run.seconds is None else int(run.seconds), parts[-1] if parts else None
            before = None if last is None else (last.stream, last.recorded, None if last.seconds is None else int(last.seconds))
            if last is not None and before == (run.stream, run.recorded, second):  # one part for each stream and second
                parts[-1] = replace(last, data=last.data + data)
            else:
                parts.append(LogPart(run.stream, data, run.seconds, run.recorded))
            whole = len(data) == run.end - run.start
            place = replace(place, times=run.row_after if whole else run.row, **{run.stream: run.start + len(data)})
            room -= len(data)
        if room <= 0 or len(data) < run.end - run.start:
            break
    return parts, place


def runs(printed: Printed, record: _Record, ask: LogAsk) -> Iterator[Run]:
    """The runs from `ask.place` on, in order. With `ask.in_order`, of two streams only the part that the record covers."""
    at = {"out": ask.place.out, "err": ask.place.err}
    end = {s: printed.end(s) for s in STREAMS}
    until = {s: getattr(ask.until, s) if ask.until is not None else sys.maxsize for s in STREAMS}
    waits = ask.in_order and printed.is_recorded and len(ask.streams) > 1
    next_row = record.place(ask.place)
    for row_at, row in record.rows(next_row):
        if all(at[s] >= until[s] for s in ask.streams):
            return
        next_row = row_at + ROW_BYTES
        for s in ask.streams:
            goal = min(getattr(row, s), until[s])
            if goal <= at[s]:
                continue
            start, at[s] = at[s], max(at[s], min(goal, end[s]))
            if start < at[s]:
                whole = all(at[x] >= min(getattr(row, x), until[x]) for x in ask.streams)
                yield Run(
                    s,
                    start,
                    at[s],
                    row_at,
                    next_row if whole else row_at,
                    row.milliseconds / 1000 or None,
                    row.milliseconds > 0,
                )
            if at[s] < goal and waits:
                return  # missing bytes are on their way into the store, and come before those of the other stream
    if not waits:
        for s in ask.streams:
            if at[s] < min(end[s], until[s]):
                yield Run(s, at[s], min(end[s], until[s]), next_row, next_row, None, printed.is_recorded)


def _last_lines(printed: Printed, record: _Record, ask: LogAsk, lines: int) -> LogPlace:
    """Where the last lines begin: it reads the record from its end, and more of it until there are enough lines."""
    block = BLOCK_ROWS
    while True:
        first = max(0, record.count - block)
        base, after = ask.place, record.after(first) if first else ask.place
        if after.out >= base.out and after.err >= base.err:
            base = after
        found = _count_back(_Reader(printed), list(runs(printed, record, replace(ask, place=base))), base, lines)
        if found is not None:
            return found
        if base == ask.place:
            return base
        block *= 8


def _count_back(reader: _Reader, found: list[Run], base: LogPlace, lines: int) -> LogPlace | None:
    """Where the last lines of these runs begin; None if there are fewer."""
    place = base
    for run in found:
        place = replace(place, times=run.row_after, **{run.stream: run.end})
    if lines == 0:
        return place
    last = True
    for run in reversed(found):
        end = run.end
        while end > run.start:
            data = reader.behind(run.stream, run.start, end)
            if not data:
                return place
            at = len(data)
            if last:  # the end of the last line is not the end of the one before it
                at, last = at - data.endswith(b"\n"), False
            while (newline := data.rfind(b"\n", 0, at)) >= 0:
                lines -= 1
                if lines == 0:
                    return replace(place, times=run.row, **{run.stream: end - len(data) + newline + 1})
                at = newline
            end -= len(data)
        place = replace(place, times=run.row, **{run.stream: run.start})
    return None


class _Record:
    """The record of times. A place in it is in bytes, `count` in rows."""

    def __init__(self, printed: Printed) -> None:
        self._printed = printed
        self.count = printed.end("times") // ROW_BYTES
        self._block: tuple[int, list[Row]] = (0, [])

    def rows(self, place: int) -> Iterator[tuple[int, Row]]:
        """Each row from a place on, with its place."""
        for number in range(place // ROW_BYTES, self.count):
            row = self._row(number, number)
            if row is None:
                return
            yield number * ROW_BYTES, row

    def _row(self, number: int, block: int) -> Row | None:
        """One row; if it is not cached, it is read together with the rows that follow row `block`."""
        first, have = self._block
        if not first <= number < first + len(have):
            have = list(time_rows(self._printed.read("times", block * ROW_BYTES, BLOCK_ROWS * ROW_BYTES)))
            self._block, first = (block, have), block
        return have[number - first] if number - first < len(have) else None

    def _first(self, is_later: Callable[[Row], bool]) -> int:
        """The number of the first row that is later; `count` = none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            row = self._row(middle, middle - middle % BLOCK_ROWS)
            if row is not None and is_later(row):
                high = middle
            else:
                low = middle + 1
        return low

    def after(self, number: int) -> LogPlace:
        """How far the streams were after the row before this one."""
        row = self._row(number - 1, number - 1) if number else None
        return LogPlace(row.out, row.err, number * ROW_BYTES) if row is not None else LogPlace()

    def place(self, at: LogPlace) -> int:
        """Where to read on in the record: as given in `at`, if it is given and a job that went back still has that row."""
        if 0 < at.times <= self.count * ROW_BYTES or not (at.out or at.err):
            return at.times - at.times % ROW_BYTES
        return self._first(lambda row: row.out > at.out or row.err > at.err) * ROW_BYTES

    def since(self, seconds: float) -> LogPlace:
        """How far the streams were at that time. Raises Conflict if the job has output without a record."""
        if not self.count and any(self._printed.end(s) for s in STREAMS):
            raise Conflict("nobody recorded when it was printed: its machines ran an older agent. Leave --since out.")
        return self.after(self._first(lambda row: row.milliseconds >= seconds * 1000))


class _Reader:
    """Bytes of the streams: it requests each piece once, however short the runs are."""

    def __init__(self, printed: Printed) -> None:
        self._printed = printed
        self._have = {s: (0, b"") for s in STREAMS}

    def ahead(self, stream: str, start: int, end: int) -> bytes:
        """These bytes, for reading forward; fewer only at the end of the stream."""
        first, data = self._have[stream]
        if not first <= start <= end <= first + len(data):
            data = self._printed.read(stream, start, max(AHEAD_BYTES, end - start))
            self._have[stream], first = (start, data), start
        return data[start - first : end - first]

    def behind(self, stream: str, start: int, end: int) -> bytes:
        """Some bytes that end at `end`, for reading backward; none before `start`."""
        first, data = self._have[stream]
        if not first < end <= first + len(data):
            first = max(0, end - BEHIND_BYTES)
            data = self._printed.read(stream, first, end - first)
            self._have[stream] = (first, data)
        return data[max(0, start - first) : end - first]
