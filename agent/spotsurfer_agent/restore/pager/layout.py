"""Which page comes from where: the address space of a process, and the chunks of its pages."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Extents

from spotsurfer_agent.criu.images import Pagemap

# ---- Space: what of a process's memory must be brought, and what of it is there. Pure: addresses and page numbers, no memory.
#
# A *run* is a stretch of addresses whose original content is contiguous in a file of pages. The process goes on while its
# memory arrives: it moves runs, frees parts of them, and forks. Addresses outside of all runs are zeros.


@dataclass(slots=True, eq=False)
class Run:
    """`start` is an address, `at` a page number in the file, `done` has a byte for each page: 1 when it is there."""

    start: int
    at: int
    done: bytearray

    @property
    def end(self) -> int:
        """The first address behind the run."""
        return self.start + len(self.done) * PAGE


class Stretch(NamedTuple):
    """Pages first to last (exclusive) of a run, none of which is there."""

    run: Run
    first: int
    last: int


def _start(run: Run) -> int:
    return run.start


def _at(run: Run) -> int:
    return run.at


class Space:
    """The runs of one process. Not safe for several threads."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._by_address = sorted(runs, key=_start)
        self._by_place = sorted(self._by_address, key=_at)
        self.missing = sum(run.done.count(0) for run in self._by_address)  # pages

    def copy(self) -> Space:
        """A copy for a child that was just forked."""
        return Space(Run(run.start, run.at, bytearray(run.done)) for run in self._by_address)

    def find(self, address: int) -> tuple[Run, int] | None:
        """The run at an address and the page in it; None if the address is in no run."""
        i = bisect_right(self._by_address, address, key=_start) - 1
        if i < 0 or address >= self._by_address[i].end:
            return None
        run = self._by_address[i]
        return run, (address - run.start) // PAGE

    def gap(self, address: int, reach: int) -> tuple[int, int]:
        """Start and end of the zeros around an address, within its block of `reach` bytes."""
        lower = address - address % reach
        upper = lower + reach
        i = bisect_right(self._by_address, address, key=_start)
        if i:
            lower = max(lower, self._by_address[i - 1].end)
        if i < len(self._by_address):
            upper = min(upper, self._by_address[i].start)
        return lower, upper

    def stretches(self, first: int, last: int) -> Iterator[Stretch]:
        """Missing parts of the file's pages `first` to `last`. Between two of them the space may be marked, but not changed."""
        i = max(bisect_right(self._by_place, first, key=_at) - 1, 0)
        while i < len(self._by_place) and self._by_place[i].at < last:
            run = self._by_place[i]
            yield from _missing(run, max(first - run.at, 0), min(last - run.at, len(run.done)))
            i += 1

    def left(self) -> Iterator[Stretch]:
        """Everything that is missing."""
        for run in self._by_place:
            yield from _missing(run, 0, len(run.done))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First address of each run, and the one behind it."""
        return ((run.start, run.end) for run in self._by_address)

    def mark(self, run: Run, first: int, last: int) -> None:
        """These pages are there now."""
        self.missing -= run.done.count(0, first, last)
        run.done[first:last] = b"\1" * (last - first)

    def drop(self, start: int, end: int) -> None:
        """The process freed these addresses: they hold zeros, or nothing."""
        for run in self._cut(start, end):
            self.missing -= run.done.count(0)

    def move(self, source: int, to: int, length: int) -> None:
        """The process moved its memory."""
        moved = self._cut(source, source + length)
        self.drop(to, to + length)
        for run in moved:
            run.start += to - source
            self._add(run)

    def _cut(self, start: int, end: int) -> list[Run]:
        """Remove the range; runs across its edges are split."""
        i = bisect_right(self._by_address, start, key=_start) - 1
        i = i if i >= 0 and self._by_address[i].end > start else i + 1
        touched = self._by_address[i : bisect_left(self._by_address, end, lo=i, key=_start)] if end > start else []
        out = []
        for run in touched:
            self._forget(run)
            first, last = max(start - run.start, 0) // PAGE, (min(end, run.end) - run.start + PAGE - 1) // PAGE
            for lower, upper in ((0, first), (last, len(run.done))):
                if lower < upper:
                    self._add(_part(run, lower, upper))
            out.append(_part(run, first, last))
        return out

    def _add(self, run: Run) -> None:
        insort(self._by_address, run, key=_start)
        insort(self._by_place, run, key=_at)

    def _forget(self, run: Run) -> None:
        del self._by_address[bisect_left(self._by_address, run.start, key=_start)]
        del self._by_place[bisect_left(self._by_place, run.at, key=_at)]


def _part(run: Run, first: int, last: int) -> Run:
    return Run(run.start + first * PAGE, run.at + first, run.done[first:last])


def _missing(run: Run, first: int, last: int) -> Iterator[Stretch]:
    while first < last and (lower := run.done.find(0, first, last)) >= 0:
        upper = run.done.find(1, lower, last)
        first = upper if upper >= 0 else last
        yield Stretch(run, lower, first)


# ---- Layout: which chunk holds which page of an image, and which pages consist of a chunk


class Use(NamedTuple):
    """Pages `page` to `page + pages` of a file are the bytes from `skip` on of a chunk."""

    file: str
    page: int
    pages: int
    skip: int


def is_aligned(extents: Extents) -> bool:
    """Whether each page lies wholly in one chunk, page-aligned, so that pages can be brought one by one."""
    rows = extents.table
    return not len(rows) or not (rows[:, [0, 1, 3]] % PAGE).any()


class PagesFile:
    """One file of pages; extents are aligned."""

    def __init__(self, name: str, extents: Extents) -> None:
        rows = extents.table.astype(np.int64)
        self.name = name
        self._first: npt.NDArray[np.int64] = rows[:, 0] // PAGE
        self._last: npt.NDArray[np.int64] = (rows[:, 0] + rows[:, 1]) // PAGE
        self._chunk: npt.NDArray[np.int64] = rows[:, 2]
        self._skip: npt.NDArray[np.int64] = rows[:, 3]

    def chunk_of(self, page: int) -> int | None:
        """The chunk of a page; None for zeros."""
        i = int(np.searchsorted(self._first, page, side="right")) - 1
        return int(self._chunk[i]) if i >= 0 and page < self._last[i] else None

    def chunks(self, first: int, last: int) -> list[int]:
        """Chunks of the pages from `first` to `last`, in order; repeated neighbours count once."""
        lower = int(np.searchsorted(self._last, first, side="right"))
        upper = int(np.searchsorted(self._first, last, side="left"))
        found = self._chunk[lower:upper]
        return [int(c) for c in found[np.concatenate(([True], found[1:] != found[:-1]))]] if len(found) else []

    def covered(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The longest parts of pages `first` to `last` that are not zeros."""
        lower = int(np.searchsorted(self._last, first, side="right"))
        upper = int(np.searchsorted(self._first, last, side="left"))
        starts, ends = self._first[lower:upper], self._last[lower:upper]
        if not len(starts):
            return
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        edges = [0, *(int(b) for b in breaks), len(starts)]
        for i, j in itertools.pairwise(edges):
            yield max(int(starts[i]), first), min(int(ends[j - 1]), last)

    def uses(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Chunk numbers, with rows of page, count and skip."""
        return self._chunk, np.stack((self._first, self._last - self._first, self._skip), axis=1)


class Layout:
    """All files of pages that are brought page by page, and their chunks."""

    def __init__(self, files: Mapping[str, Extents]) -> None:
        self.files = {name: PagesFile(name, extents) for name, extents in files.items()}
        self._names = list(self.files)
        parts = [f.uses() for f in self.files.values()]
        owner = np.concatenate([np.full(len(c), i) for i, (c, _) in enumerate(parts)]) if parts else np.zeros(0, np.int64)
        chunk = np.concatenate([c for c, _ in parts]) if parts else np.zeros(0, np.int64)
        rows = np.concatenate([r for _, r in parts]) if parts else np.zeros((0, 3), np.int64)
        order = np.argsort(chunk, kind="stable")
        self._chunk, self._owner, self._rows = chunk[order], owner[order], rows[order]

    def uses(self, chunk: int) -> list[Use]:
        """The places of a chunk's bytes."""
        lower, upper = np.searchsorted(self._chunk, chunk, side="left"), np.searchsorted(self._chunk, chunk, side="right")
        rows = zip(self._owner[lower:upper].tolist(), self._rows[lower:upper].tolist(), strict=True)
        return [Use(self._names[owner], *row) for owner, row in rows]


def runs(pages: Pagemap, file: PagesFile) -> Iterator[Run]:
    """The runs to bring for a process: its lazy pages without those that are zeros."""
    for r in pages.runs:
        if r.lazy:
            for first, last in file.covered(r.at, r.at + r.pages):
                yield Run(r.start + (first - r.at) * PAGE, first, bytearray(last - first))


def in_order(lists: Iterable[list[int]]) -> Iterator[int]:
    """The numbers of all lists, each once, in order."""
    seen: set[int] = set()
    for numbers in lists:
        for number in numbers:
            if number not in seen:
                seen.add(number)
                yield number
