"""What became of the pages of a file: from which chunk each one comes, and the file's entry in the manifest."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.prints import PRINT
from spotsurfer_agent.engines.fingerprints import NEW, ZERO, Follower, Index, Numbers, joined
from spotsurfer_agent.extents import Extents
from spotsurfer_agent.imagewire import StreamError
from spotsurfer_agent.manifest import Entry, Stored

_UNSEEN = -3  # nothing was said of this page yet


class Numbered(Protocol):
    """Who numbers chunks: `chunks.writer.Writer`."""

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
    stale: npt.NDArray[np.bool_] | None = None  # pages that nobody wants any more: they need not be sent

    @property
    def sent_pages(self) -> int:
        """Pages that had to be sent."""
        return sum(len(numbers) for numbers, _ in self.sent)

    def all_prints(self) -> bytes:
        """The fingerprints of its pages, which are forgotten here: to be asked once."""
        whole, self.prints = b"".join(self.prints), []
        return whole

    def table(self, base: Index | None, writer: Numbered) -> tuple[Numbers, Numbers]:
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

    def _refer(self, base: Index, writer: Numbered, chunk: Numbers, page: Numbers) -> None:
        """Fill in the pages that the base has."""
        where = np.concatenate(self.where) if self.where else np.full(self.count, NEW, dtype=np.int64)
        for numbers, positions in self.found:
            where[numbers] = positions
        if self.stale is not None:
            where[self.stale] = NEW  # so that no chunk is kept for their sake
        chunk[where == ZERO] = ZERO
        there = np.flatnonzero(where >= 0)
        refs = base.refs[where[there]]
        places = {int(c): writer.index_of(base.table[int(c)]) for c in np.unique(refs[:, 0]) if c >= 0}
        moved = np.full(len(base.table) + 2, _UNSEEN, dtype=np.int32)  # the last two: what ZERO and NEW as numbers refer to
        for old, new in places.items():
            moved[old] = new
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

    def table(self, base: Index | None, writer: Numbered) -> tuple[Numbers, Numbers]:
        """As of a plain file."""
        (chunk, page), (late_chunk, late_page) = (f.table(base, writer) for f in (self.early, self.late))
        return self._chosen(chunk, late_chunk), self._chosen(page, late_page)

    def _chosen(self, early: npt.NDArray[np.generic], late: npt.NDArray[np.generic]) -> npt.NDArray[Any]:
        if not len(early):
            return late
        out = early.take(self.source, axis=0)  # 20 times as fast as by masks; -1 takes the last one, which is mended at once
        out[self.source < 0] = late
        return out


def entry_of(file: PageFile | Composed, base: Index | None, writer: Numbered) -> Entry:
    """The file as an entry. Raises StreamError for a page of which nothing is known, and what its chunks raise."""
    chunk, page = file.table(base, writer)
    if (chunk == _UNSEEN).any():
        raise StreamError(0, f"pages of {file.name} got lost on the way")
    return Entry(file.name, "file", 0o600, size=file.count * PAGE, extents=Extents.of_table(joined(chunk, page)))
