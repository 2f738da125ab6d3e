"""From the stream of a dump to chunks: pages that the base has are dropped, new ones are gathered, cut and sent.

Readers (one a page file) fill spans of reserved memory; other threads, one for each worker that makes fingerprints, turn full
spans into chunks. While a job that is to run on stands still, these rest, so that the readers have the processors to
themselves, unless memory gets short.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Entry, Extents, Stored

from spotsurfer_agent.chunks.chunker import Cutter
from spotsurfer_agent.chunks.fingerprints import (
    NEW,
    PRINT,
    ZERO,
    Follower,
    Index,
    Numbers,
    Pairs,
    empty,
    joined,
    pairs,
)
from spotsurfer_agent.chunks.print_workers import Printing
from spotsurfer_agent.chunks.writer import Writer
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.save.memory_reserve import Reserve, Span
from spotsurfer_agent.save.stream import Sink

WINDOW_BYTES = 2 << 20  # compared with the base at once, for each worker: several lanes fill one with large pieces
WINDOWS = 3  # one is filled, one gets fingerprints, one is compared
_UNSEEN = -3  # nothing is known of this page yet


@dataclass(slots=True)
class PageFile:
    """One file of memory pages: what is known of each page so far, by number."""

    name: str
    count: int = 0
    prints: list[bytes] = field(default_factory=list)
    where: list[Numbers] = field(default_factory=list)  # positions in the base, as they passed
    found: list[tuple[Numbers, Numbers]] = field(default_factory=list)  # numbers, and positions that were found later
    sent: list[tuple[Numbers, Future[Stored]]] = field(default_factory=list)  # numbers of the pages of a chunk, in its order
    stale: npt.NDArray[np.bool_] | None = None  # pages that nobody wants any more: they need not be sent

    @property
    def sent_pages(self) -> int:
        """Pages that had to be sent."""
        return sum(len(numbers) for numbers, _ in self.sent)

    def all_prints(self) -> bytes:
        """The fingerprints of its pages, which are forgotten here: to be asked once."""
        whole, self.prints = b"".join(self.prints), []
        return whole

    def table(self, base: Index | None, writer: Writer) -> tuple[Numbers, Numbers]:
        """Of each page the chunk (ZERO for none) and the page within it. Raises what its chunks raise."""
        chunk = np.full(self.count, _UNSEEN, dtype=np.int32)
        page = np.zeros(self.count, dtype=np.int32)
        if base is not None:
            self._refer(base, writer, chunk, page)
        else:
            for numbers, _ in self.found:
                chunk[numbers] = ZERO
        for numbers, future in self.sent:
            chunk[numbers] = writer.index_of(future.result())
            page[numbers] = np.arange(len(numbers))
        return chunk, page

    def _refer(self, base: Index, writer: Writer, chunk: Numbers, page: Numbers) -> None:
        """Fill in the pages that the base has."""
        where = np.concatenate(self.where) if self.where else np.full(self.count, NEW, dtype=np.int64)
        for numbers, positions in self.found:
            where[numbers] = positions
        if self.stale is not None:
            where[self.stale] = NEW  # so that no chunk is kept for their sake
        chunk[where == ZERO] = ZERO
        there = np.flatnonzero(where >= 0)
        refs = base.refs[where[there]]
        used = np.zeros(len(base.table) + 2, dtype=np.bool_)  # the last two: what ZERO and NEW as numbers refer to
        used[refs[:, 0]] = True
        moved = np.full(len(used), _UNSEEN, dtype=np.int32)
        for old in np.flatnonzero(used[: len(base.table)]).tolist():
            moved[old] = writer.index_of(base.table[old])
        chunk[there] = moved[refs[:, 0]]
        page[there] = refs[:, 1]


@dataclass(frozen=True, slots=True)
class Composed:
    """A file made of two: pages that were copied before the freeze and not written since, and those read during it."""

    name: str
    early: PageFile
    late: PageFile
    source: Numbers  # of each page its number in `early`; where negative it is the next one of `late`

    @property
    def count(self) -> int:
        """Its pages."""
        return len(self.source)

    @property
    def sent_pages(self) -> int:
        """Pages that had to be sent."""
        return self.early.sent_pages + self.late.sent_pages

    def all_prints(self) -> bytes:
        """The fingerprints of its pages; to be asked once."""
        early, late = (np.frombuffer(f.all_prints(), dtype=np.uint64).reshape(-1, PRINT // 8) for f in (self.early, self.late))
        return self._chosen(early, late).tobytes()

    def table(self, base: Index | None, writer: Writer) -> tuple[Numbers, Numbers]:
        """As of a plain file."""
        (chunk, page), (late_chunk, late_page) = (f.table(base, writer) for f in (self.early, self.late))
        return self._chosen(chunk, late_chunk), self._chosen(page, late_page)

    def _chosen(self, early: npt.NDArray[np.generic], late: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
        if not len(early):
            return late
        out = early.take(self.source, axis=0)  # 20 times as fast as by masks; -1 takes the last one, which is mended at once
        out[self.source < 0] = late
        return out


@dataclass(slots=True)
class Batch:
    """Gathered pages of one file on their way to chunks. `prints` is empty if they are yet to be made, for `slot`."""

    file: PageFile
    span: Span
    numbers: Numbers
    prints: bytes
    slot: int


class Pages:
    """The page files of one save."""

    def __init__(
        self, reserve: Reserve, writer: Writer, base: Index | None, printing: Printing | None = None, *, compares: bool = True
    ) -> None:
        """`compares`: page files with the base as they pass, so that known pages take no memory; else when they are sent.

        `printing` makes the fingerprints and is ended with this; without one the readers' threads make them.
        """
        self._reserve, self._writer, self._base, self._compares = reserve, writer, base, compares
        self._printing = printing or Printing(writer.keys.prints)
        self._window_bytes = WINDOW_BYTES * max(1, self._printing.workers)
        self._files: list[PageFile | Composed] = []
        self._batches: deque[Batch] = deque()
        self._change = threading.Condition()
        self._open, self._ended = False, False
        self.failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._work, name="page chunks", daemon=True) for _ in range(max(1, self._printing.workers))
        ]
        for thread in self._threads:
            thread.start()

    def sink(self, name: str) -> Sink:
        """The sink into which a reader puts a page file."""
        sink, file = self.part(name, compared=self._compares)
        with self._change:
            self._files.append(file)
        return sink

    def part(self, name: str, *, compared: bool = True) -> tuple[Sink, PageFile]:
        """A sink for pages of a composed file. `compared` with the base as they pass, or only when they are sent."""
        file = PageFile(name)
        if compared and self._base is not None:
            return _Matching(self, file, Follower(self._base, name), self._printing, self._window_bytes), file
        return _Plain(self, file), file

    def composed(self, file: Composed) -> None:
        """Add this page file. Pages that it does not use are not sent, unless they were already."""
        file.early.stale = np.ones(file.early.count, dtype=np.bool_)
        file.early.stale[file.source[file.source >= 0]] = False
        with self._change:
            self._files.append(file)

    def release(self) -> None:
        """Make chunks now: the job does not wait for the readers any more, or it waits for the chunks."""
        self._reserve.prefer_used(True)
        with self._change:
            self._open = True
            self._change.notify_all()

    def hold(self) -> None:
        """Make no more chunks for now, unless memory gets short: the job stands still and waits for the readers."""
        self._reserve.prefer_used(False)
        with self._change:
            self._open = False

    def finish(self) -> None:
        """All files were read: wait until all chunks were handed over. Raises what went wrong."""
        self.release()
        with self._change:
            self._ended = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        self._printing.end()
        if self.failure is not None:
            raise self.failure
        self._files.sort(key=lambda f: f.name)

    def refuse(self) -> None:
        """No more pages: a reader that waits for memory gets `Closed`."""
        self._reserve.close()

    def abandon(self) -> None:
        """Give up what was not handed over yet; the readers have ended. Idempotent."""
        with self._change:
            self._ended = True
            self._batches.clear()
            self._change.notify_all()
        self._printing.end()
        for thread in self._threads:
            thread.join()

    def prints(self) -> list[tuple[str, bytes]]:
        """The fingerprints of the pages of each file; after `finish`, and once."""
        return [(f.name, f.all_prints()) for f in self._files]

    def entries(self) -> list[Entry]:
        """Each file as an entry; after `finish`, and once the writer was flushed. Raises what its chunks raise.

        Raises StreamError for a page of which nothing is known.
        """
        return [self._entry(f) for f in self._files]

    def _entry(self, file: PageFile | Composed) -> Entry:
        chunk, page = file.table(self._base, self._writer)
        if (chunk == _UNSEEN).any():
            raise StreamError(0, f"pages of {file.name} got lost on the way")
        return Entry(file.name, "file", 0o600, size=file.count * PAGE, extents=Extents.of_table(joined(chunk, page)))

    @property
    def read_bytes(self) -> int:
        """Of all pages that were read so far."""
        return sum(f.count for f in self._files) * PAGE

    @property
    def new_share(self) -> float:
        """Which part of all pages had to be sent; after `finish`."""
        return sum(f.sent_pages for f in self._files) / max(1, sum(f.count for f in self._files))

    # ------------------------------------------------------------ for the sinks

    def take(self) -> Span:
        """Memory for new pages; may wait until some was sent. Raises memory_reserve.Closed."""
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
                self._send(batch)
        except BaseException as e:
            self.failure = e
            self.refuse()

    def _next(self) -> Batch | None:
        with self._change:
            while not (self._batches and (self._open or self._reserve.is_short)):
                if self._ended and not self._batches:
                    return None
                self._change.wait()
            return self._batches.popleft()

    def _send(self, batch: Batch) -> None:
        """Drop what the base has or nobody wants, and cut the rest into chunks by the content of its pages."""
        view, numbers = batch.span.view[: len(batch.numbers) * PAGE], batch.numbers
        if not batch.prints:
            batch.prints = batch.file.prints[batch.slot] = self._printing.of_pages(view)
        here = pairs(batch.prints)
        known = self._base.find(here) if self._base is not None else np.full(len(here), NEW)
        known[empty(view)] = ZERO
        wanted = known == NEW if batch.file.stale is None else (known == NEW) & ~batch.file.stale[numbers]
        kept = np.flatnonzero(wanted)
        if len(kept) < len(numbers):
            drop = known != NEW
            batch.file.found.append((numbers[drop], known[drop]))
            compact(view, kept)
            numbers, here = numbers[kept], here[kept]
        begin, ends = 0, Cutter().cuts(here)
        for end in ends if ends[-1:] == [len(here)] else [*ends, len(here)]:
            if begin < end:
                self._reserve.use(batch.span)
                future = self._writer.add(view[begin * PAGE : end * PAGE], partial(self._reserve.give, batch.span))
                batch.file.sent.append((numbers[begin:end], future))
                begin = end
        self._reserve.give(batch.span)


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
    """Past the base, through a few small windows; only pages that are not at their place there are kept.

    While one window is filled, fingerprints are made of the one before, and the one before that is compared: a job that stands
    still waits for none of it.
    """

    def __init__(self, pages: Pages, file: PageFile, follower: Follower, printing: Printing, window_bytes: int) -> None:
        self._pages, self._file, self._follower, self._printing = pages, file, follower, printing
        self._free = [memoryview(bytearray(window_bytes)) for _ in range(WINDOWS)]
        self._window, self._filled = self._free.pop(), 0
        self._under_way: deque[tuple[memoryview, Future[None]]] = deque()
        self._failed = False
        self._printer, self._comparer = (
            ThreadPoolExecutor(1, thread_name_prefix=f"page {what}") for what in ("prints", "compare")
        )
        self._span: Span | None = None
        self._numbers: list[Numbers] = []
        self._prints: list[bytes] = []
        self._have = 0  # pages in the span

    def room(self) -> memoryview:
        return self._window[self._filled :]

    def filled(self, count: int) -> None:
        self._filled += count
        if self._filled == len(self._window):
            self._pass_on()
            if not self._free:
                self._settle()
            self._window = self._free.pop()

    def _pass_on(self) -> None:
        """Let what is in the window be compared, after the windows before it."""
        window = self._window[: self._filled]
        prints = self._printer.submit(self._printing.of_pages, window)
        self._under_way.append((self._window, self._comparer.submit(self._compare, window, prints)))
        self._filled = 0

    def _settle(self) -> None:
        """The oldest window was compared and is free. Raises what that raised."""
        window, compared = self._under_way.popleft()
        try:
            compared.result()
        finally:
            del compared  # or what it raises would hold itself, and with it the tables of the save
        self._free.append(window)

    def _compare(self, window: memoryview, printed: Future[bytes]) -> None:
        if self._failed:
            return  # a window before it failed: nobody may wait for memory now
        try:
            prints = printed.result()
            self._take_in(window, prints)
        except BaseException:
            self._failed = True
            raise
        finally:
            del printed  # or what it raises would hold itself

    def _take_in(self, window: memoryview, prints: bytes) -> None:
        if len(window) % PAGE:
            raise StreamError(0, f"{self._file.name} ended in the middle of a page")
        f = self._file
        where = self._follower.match(prints, empty(window))
        f.prints.append(prints)
        f.where.append(where.astype(np.int32))
        new = np.flatnonzero(where == NEW)
        here, rows = pairs(prints), np.frombuffer(window, dtype=np.uint8).reshape(-1, PAGE)
        while len(new):
            new = self._keep(new, here, rows)
        f.count += len(where)

    def _keep(self, new: Numbers, here: Pairs, rows: npt.NDArray[np.uint8]) -> Numbers:
        """Copy as many pages of the window as fit; returns the rest."""
        if self._span is None:
            self._span, self._have = self._pages.take(), 0
        room = self._span.size // PAGE - self._have
        now, rest = new[:room], new[room:]
        target = np.frombuffer(self._span.view, dtype=np.uint8).reshape(-1, PAGE)
        np.take(rows, now, axis=0, out=target[self._have : self._have + len(now)], mode="clip")
        self._numbers.append(now + self._file.count)
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
            self._pass_on()
        while self._under_way:
            self._settle()
        self._close()
        self._push()

    def abort(self) -> None:
        self._close()
        self._span = None

    def _close(self) -> None:
        self._printer.shutdown(cancel_futures=True)
        self._comparer.shutdown(cancel_futures=True)
        self._under_way.clear()  # what these raised holds us
