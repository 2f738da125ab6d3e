"""Which chunk holds which page of an image, and which pages are made of a chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.extents import Extents
from spotsurfer_agent.pager.images import Pagemap
from spotsurfer_agent.pager.space import Run


class Use(NamedTuple):
    """Pages `page` to `page + pages` of a file are the bytes from `skip` on of a chunk."""

    file: str
    page: int
    pages: int
    skip: int


def is_aligned(extents: Extents) -> bool:
    """Whether whole pages are made of whole pages, so that they can be brought one by one."""
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
        """The chunk that holds a page; None for zeros."""
        i = int(np.searchsorted(self._first, page, side="right")) - 1
        return int(self._chunk[i]) if i >= 0 and page < self._last[i] else None

    def chunks(self, first: int, last: int) -> list[int]:
        """Chunks of the pages from `first` to `last`, in order, neighbours once."""
        lower = int(np.searchsorted(self._last, first, side="right"))
        upper = int(np.searchsorted(self._first, last, side="left"))
        found = self._chunk[lower:upper]
        return [int(c) for c in found[np.concatenate(([True], found[1:] != found[:-1]))]] if len(found) else []

    def covered(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The parts of pages `first` to `last` that are not zeros, as long as possible."""
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
        """Chunk numbers, and rows of page, count and skip."""
        return self._chunk, np.stack((self._first, self._last - self._first, self._skip), axis=1)


class Layout:
    """All files of pages that are brought page by page, and the chunks they consist of."""

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
        """Where the bytes of a chunk belong."""
        lower, upper = np.searchsorted(self._chunk, chunk, side="left"), np.searchsorted(self._chunk, chunk, side="right")
        rows = zip(self._owner[lower:upper].tolist(), self._rows[lower:upper].tolist(), strict=True)
        return [Use(self._names[owner], *row) for owner, row in rows]


def runs(pages: Pagemap, file: PagesFile) -> Iterator[Run]:
    """What has to be brought of a process: its lazy pages but for those that are zeros anyhow."""
    for r in pages.runs:
        if r.lazy:
            for first, last in file.covered(r.at, r.at + r.pages):
                yield Run(r.start + (first - r.at) * PAGE, first, bytearray(last - first))


def in_order(lists: Iterable[list[int]]) -> Iterator[int]:
    """Numbers of all lists, each once, as they come."""
    seen: set[int] = set()
    for numbers in lists:
        for number in numbers:
            if number not in seen:
                seen.add(number)
                yield number
