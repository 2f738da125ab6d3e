"""From the stream of a dump to chunks: pages known from the base are dropped as they pass, new ones are gathered, cut and sent.

Readers (one a page file) fill spans of reserved memory; one thread turns full spans into chunks. While a job that is to run on
stands still that thread rests, so that the readers have the processors to themselves, unless memory gets short.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.cut import Cutter
from spotsurfer_agent.chunks.prints import PRINT, Pairs, is_zero, of_pages, pairs
from spotsurfer_agent.engines.fingerprints import NEW, ZERO, Follower, Index, Numbers, joined
from spotsurfer_agent.engines.reserve import Reserve, Span
from spotsurfer_agent.engines.stream import Sink, StreamError
from spotsurfer_agent.manifest import Entry, Extents, Stored

WINDOW_BYTES = 1 << 20  # compared with the base at once
_UNSEEN = -3  # nothing was said of this page yet


class Taker(Protocol):
    """What chunks are given to: `chunks.writer.Writer`."""

    def add(self, data: memoryview, done: Callable[[], None]) -> Future[Stored]:
        """One chunk; `done` is called when the memory is no longer needed."""
        ...

    def index_of(self, chunk: Stored) -> int:
        """Its number in the manifest's table."""
        ...


@dataclass(slots=True)
class PageFile:
    """One file of memory pages: what is known of each page so far, by number."""

    name: str
    follower: Follower | None
    count: int = 0
    prints: list[bytes] = field(default_factory=list)
    where: list[Numbers] = field(default_factory=list)  # positions in the base, as they passed
    found: list[tuple[Numbers, Numbers]] = field(default_factory=list)  # numbers, and positions that were found later
    sent: list[tuple[Numbers, Future[Stored]]] = field(default_factory=list)  # numbers of the pages of a chunk, in its order


@dataclass(slots=True)
class Batch:
    """Gathered pages of one file on their way to chunks. `prints` is empty where they are yet to be made, in `slot`."""

    file: PageFile
    span: Span
    numbers: Numbers
    prints: bytes
    slot: int


class Pages:
    """The page files of one save."""

    def __init__(self, reserve: Reserve, writer: Taker, base: Index | None) -> None:
        self._reserve, self._writer, self._base = reserve, writer, base
        self._files: list[PageFile] = []
        self._batches: deque[Batch] = deque()
        self._change = threading.Condition()
        self._open, self._ended = False, False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="page chunks", daemon=True)
        self._thread.start()

    def sink(self, name: str) -> Sink:
        """Where a reader puts a page file."""
        file = PageFile(name, Follower(self._base, name) if self._base is not None else None)
        with self._change:
            self._files.append(file)
        return _Matching(self, file) if file.follower is not None else _Plain(self, file)

    def release(self) -> None:
        """Make chunks now: the job does not wait for the readers any more, or it waits for the chunks."""
        with self._change:
            self._open = True
            self._change.notify_all()

    def finish(self) -> None:
        """All files were read: wait until all chunks were handed over. Raises what went wrong."""
        self.release()
        with self._change:
            self._ended = True
            self._change.notify_all()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._files.sort(key=lambda f: f.name)

    def abandon(self) -> None:
        """Give up what was not handed over yet; the readers have ended. Idempotent."""
        with self._change:
            self._ended = True
            self._batches.clear()
            self._change.notify_all()
        self._thread.join()

    def free(self) -> None:
        """Let the memory go; readers that wait for some get an error."""
        self._reserve.close()

    def prints(self) -> list[tuple[str, bytes]]:
        """The fingerprints of the pages of each file; after `finish`."""
        return [(f.name, b"".join(f.prints)) for f in self._files]

    def entries(self) -> list[Entry]:
        """Each file as an entry; after `finish`, and once the writer was flushed. Raises what its chunks raise."""
        return [self._entry(f) for f in self._files]

    @property
    def read_bytes(self) -> int:
        """Of all pages that were read so far."""
        return sum(f.count for f in self._files) * PAGE

    @property
    def new_share(self) -> float:
        """Which part of all pages had to be sent; after `finish`."""
        return sum(len(numbers) for f in self._files for numbers, _ in f.sent) / max(1, sum(f.count for f in self._files))

    # ------------------------------------------------------------ for the sinks

    def take(self) -> Span:
        """Memory for new pages; may wait until some was sent. Raises reserve.Closed."""
        if self._reserve.is_short:
            with self._change:
                self._change.notify_all()
        return self._reserve.take()

    def hand_over(self, batch: Batch) -> None:
        """These pages are complete; the span's rest is free for others."""
        self._reserve.rest(batch.span, len(batch.numbers) * PAGE)
        with self._change:
            self._batches.append(batch)
            self._change.notify_all()

    # ------------------------------------------------------------ to chunks

    def _work(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._chunks(batch)
        except BaseException as e:
            self.failure = e
            self._reserve.close()  # a reader that waits for memory must hear of it

    def _next(self) -> Batch | None:
        with self._change:
            while not (self._batches and (self._open or self._reserve.is_short)):
                if self._ended and not self._batches:
                    return None
                self._change.wait()
            return self._batches.popleft()

    def _chunks(self, batch: Batch) -> None:
        view, numbers, prints = batch.span.view[: len(batch.numbers) * PAGE], batch.numbers, batch.prints
        if not prints:
            prints = batch.file.prints[batch.slot] = of_pages(view)
        here = pairs(prints)
        known = self._base.find(here) if self._base is not None else np.where(is_zero(here), ZERO, NEW)
        kept = np.flatnonzero(known == NEW)
        if len(kept) < len(numbers):
            drop = known != NEW
            batch.file.found.append((numbers[drop], known[drop]))
            compact(view, kept)
            numbers, prints = numbers[kept], here[kept].tobytes()
        self._send(batch, view, numbers, prints)

    def _send(self, batch: Batch, view: memoryview, numbers: Numbers, prints: bytes) -> None:
        begin = 0
        for end in _ends(prints) if prints else ():
            self._reserve.use(batch.span)
            future = self._writer.add(view[begin * PAGE : end * PAGE], partial(self._reserve.give, batch.span))
            batch.file.sent.append((numbers[begin:end], future))
            begin = end
        self._reserve.give(batch.span)

    # ------------------------------------------------------------ what became of it

    def _entry(self, f: PageFile) -> Entry:
        chunk = np.full(f.count, _UNSEEN, dtype=np.int64)
        page = np.zeros(f.count, dtype=np.int64)
        if self._base is not None:
            self._refer(self._base, np.concatenate(f.where) if f.where else chunk[:0], f, chunk, page)
        else:
            for numbers, _ in f.found:
                chunk[numbers] = ZERO
        for numbers, future in f.sent:
            chunk[numbers] = self._writer.index_of(future.result())
            page[numbers] = np.arange(len(numbers))
        if (chunk == _UNSEEN).any():
            raise StreamError(0, f"pages of {f.name} got lost on the way")
        extents = Extents.of_table(joined(chunk, page))
        return Entry(f.name, "file", 0o600, size=f.count * PAGE, extents=extents)

    def _refer(self, base: Index, where: Numbers, f: PageFile, chunk: Numbers, page: Numbers) -> None:
        """Fill in the pages that the base has."""
        for numbers, positions in f.found:
            where[numbers] = positions
        chunk[where == ZERO] = ZERO
        there = np.flatnonzero(where >= 0)
        refs = base.refs[where[there]]
        places = {int(c): self._writer.index_of(base.table[int(c)]) for c in np.unique(refs[:, 0]) if c >= 0}
        moved = np.full(len(base.table) + 1, ZERO, dtype=np.int64)  # the last one: what ZERO as a number refers to
        for old, new in places.items():
            moved[old] = new
        chunk[there] = moved[np.where(refs[:, 0] >= 0, refs[:, 0], -1)]
        page[there] = refs[:, 1]


def _ends(prints: bytes) -> list[int]:
    """Where chunks end, by the content of the pages; the last one where these pages end."""
    ends, count = Cutter().cuts(pairs(prints)), len(prints) // PRINT
    return ends if ends and ends[-1] == count else [*ends, count]


def compact(view: memoryview, kept: Numbers) -> None:
    """Move the pages with these numbers to the front, in place."""
    begins = np.concatenate(([0], np.flatnonzero(np.diff(kept) != 1) + 1, [len(kept)])).tolist()
    for begin, end in pairwise(begins):
        if begin != end and (first := int(kept[begin])) != begin:
            view[begin * PAGE : end * PAGE] = view[first * PAGE : (first + end - begin) * PAGE]


class _Plain:
    """Straight into reserved memory; fingerprints are made later."""

    def __init__(self, pages: Pages, file: PageFile) -> None:
        self._pages, self._file = pages, file
        self._span: Span | None = None
        self._have = 0

    def room(self) -> memoryview:
        if self._span is None:
            self._span, self._have = self._pages.take(), 0
        return self._span.view[self._have :]

    def filled(self, count: int) -> None:
        self._have += count
        if self._span is not None and self._have == self._span.size:
            self._push()

    def _push(self) -> None:
        if self._span is None or not self._have:
            return
        if self._have % PAGE:
            raise StreamError(0, f"{self._file.name} ended in the middle of a page")
        count, f = self._have // PAGE, self._file
        numbers = np.arange(f.count, f.count + count)
        f.count += count
        f.prints.append(b"")
        self._pages.hand_over(Batch(f, self._span, numbers, b"", len(f.prints) - 1))
        self._span = None

    def end(self) -> None:
        self._push()

    def abort(self) -> None:
        self._span = None


class _Matching:
    """Past the base, through a small window; only pages that are not at their place there are kept."""

    def __init__(self, pages: Pages, file: PageFile) -> None:
        assert file.follower is not None
        self._pages, self._file, self._follower = pages, file, file.follower
        self._window = memoryview(bytearray(WINDOW_BYTES))
        self._rows = np.frombuffer(self._window, dtype=np.uint8).reshape(-1, PAGE)
        self._filled = 0
        self._span: Span | None = None
        self._numbers: list[Numbers] = []
        self._prints: list[bytes] = []
        self._have = 0  # pages in the span

    def room(self) -> memoryview:
        return self._window[self._filled :]

    def filled(self, count: int) -> None:
        self._filled += count
        if self._filled == len(self._window):
            self._turn()

    def _turn(self) -> None:
        if self._filled % PAGE:
            raise StreamError(0, f"{self._file.name} ended in the middle of a page")
        f, prints = self._file, of_pages(self._window[: self._filled])
        where = self._follower.match(prints)
        f.prints.append(prints)
        f.where.append(where.astype(np.int32))
        new = np.flatnonzero(where == NEW)
        here = pairs(prints)
        while len(new):
            new = self._keep(new, here, f.count)
        f.count += len(where)
        self._filled = 0

    def _keep(self, new: Numbers, here: Pairs, first: int) -> Numbers:
        """Copy as many pages of the window as fit; returns the rest."""
        if self._span is None:
            self._span, self._have = self._pages.take(), 0
        room = self._span.size // PAGE - self._have
        now, rest = new[:room], new[room:]
        target = np.frombuffer(self._span.view, dtype=np.uint8).reshape(-1, PAGE)
        np.take(self._rows, now, axis=0, out=target[self._have : self._have + len(now)], mode="clip")
        self._numbers.append(now + first)
        self._prints.append(here[now].tobytes())
        self._have += len(now)
        if len(now) == room:
            self._push()
        return rest

    def _push(self) -> None:
        if self._span is None or not self._have:
            return
        batch = Batch(self._file, self._span, np.concatenate(self._numbers), b"".join(self._prints), -1)
        self._pages.hand_over(batch)
        self._span, self._numbers, self._prints = None, [], []

    def end(self) -> None:
        if self._filled:
            self._turn()
        self._push()

    def abort(self) -> None:
        self._span = None
