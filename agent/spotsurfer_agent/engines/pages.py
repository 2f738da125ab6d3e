"""From the stream of a dump to chunks: pages known from the base are dropped as they pass, new ones are gathered, cut and sent.

Readers (one a page file, see `sinks`) fill spans of reserved memory; one thread turns full spans into chunks. While a job that
is to run on stands still that thread rests, so that the readers have the processors to themselves, unless memory gets short.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.cut import Cutter
from spotsurfer_agent.chunks.prints import PRINT, is_zero, of_pages, pairs
from spotsurfer_agent.engines.fingerprints import NEW, ZERO, Follower, Index, Numbers, joined
from spotsurfer_agent.engines.reserve import Reserve, Span
from spotsurfer_agent.engines.sinks import Batch, Matching, PageFile, Plain
from spotsurfer_agent.engines.stream import Sink, StreamError
from spotsurfer_agent.manifest import Entry, Extents, Stored

_UNSEEN = -3  # nothing was said of this page yet


class Taker(Protocol):
    """What chunks are given to: `chunks.writer.Writer`."""

    def add(self, data: memoryview, done: Callable[[], None]) -> Future[Stored]:
        """One chunk; `done` is called when the memory is no longer needed."""
        ...

    def index_of(self, chunk: Stored) -> int:
        """Its number in the manifest's table."""
        ...


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
        return Matching(self, file) if file.follower is not None else Plain(self, file)

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
