"""What of a process's memory has to be brought, and what of it is there. Pure: addresses and page numbers, no memory.

A *run* is a stretch of addresses whose first contents lie in a row in a file of pages. The process goes on while its memory
arrives: it moves runs, gives parts of them back, and has children. Whatever is in no run is zeros.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spotsurfer_agent.buffers import PAGE


@dataclass(slots=True, eq=False)
class Run:
    """`start` is an address, `at` a page number in the file, `done` has a byte for each page: 1 when it is there."""

    start: int
    at: int
    done: bytearray

    @property
    def end(self) -> int:
        """The first address behind it."""
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
        """The same for a child that was just born."""
        return Space(Run(run.start, run.at, bytearray(run.done)) for run in self._by_address)

    def find(self, address: int) -> tuple[Run, int] | None:
        """The run at an address and the page in it; None where there are zeros."""
        i = bisect_right(self._by_address, address, key=_start) - 1
        if i < 0 or address >= self._by_address[i].end:
            return None
        run = self._by_address[i]
        return run, (address - run.start) // PAGE

    def gap(self, address: int, reach: int) -> tuple[int, int]:
        """First and last address of the zeros around one, no further than the `reach` bytes aligned to their size."""
        lower = address - address % reach
        upper = lower + reach
        i = bisect_right(self._by_address, address, key=_start)
        if i:
            lower = max(lower, self._by_address[i - 1].end)
        if i < len(self._by_address):
            upper = min(upper, self._by_address[i].start)
        return lower, upper

    def stretches(self, first: int, last: int) -> Iterator[Stretch]:
        """What is missing of the file's pages `first` to `last`. The space may be marked, not changed, between two of them."""
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
        """The process gave these addresses back: zeros are there, or nothing."""
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
        """Take out what lies in the range; runs across its edges are split."""
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
