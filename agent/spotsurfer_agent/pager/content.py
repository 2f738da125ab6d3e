"""The bytes of image files, straight from their chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from spotsurfer_agent import terminals
from spotsurfer_agent.buffers import Buffer
from spotsurfer_agent.extents import Extent
from spotsurfer_agent.manifest import Entry, Manifest, Stored
from spotsurfer_agent.pager import changes, images
from spotsurfer_agent.pager.images import Pagemap
from spotsurfer_agent.pager.layout import Layout, in_order

ZEROS = bytes(1 << 20)


class Chunks(Protocol):
    """Where plain bytes come from. Every method may raise StoreError, and BadChunk for what no repetition mends."""

    def plain(self, chunk: Stored, keep: bool = True) -> Buffer:
        """The verified bytes of a chunk, not to be changed. `keep`: they may be wanted again soon."""
        ...

    def ahead(self, chunks: Iterable[Stored]) -> None:
        """These will be asked for in this order."""
        ...


class Content:
    """The image of one manifest. Safe to use from several threads."""

    def __init__(self, image: Manifest, chunks: Chunks) -> None:
        self._table, self._chunks = image.chunks, chunks
        self._instead: dict[str, bytes] = {}  # files that CRIU gets in another form than it wrote
        self.files = {e.path: e for e in image.image if e.kind == "file"}

    def once(self, chunk: int) -> Buffer:
        """A chunk by its number, for somebody who puts it to all its places at once."""
        return self._chunks.plain(self._table[chunk], keep=False)

    def ahead(self, chunks: Iterable[int], most_bytes: int) -> None:
        """The first of these, so many bytes of them, will be wanted soon."""
        wanted = [self._table[c] for c in chunks]
        until = itertools.accumulate(c.size for c in wanted)
        self._chunks.ahead([c for c, end in zip(wanted, until, strict=True) if end <= most_bytes])

    def maps(self) -> dict[int, Pagemap]:
        """Which pages each process has, by its number in the image. Raises BadImage, BadChunk, StoreError."""
        names = (name.removeprefix("pagemap-").removesuffix(".img") for name in self.files if name.startswith("pagemap-"))
        return {int(number): self._map(number) for number in names if number.isdigit()}

    def terminals(self) -> list[images.Unread]:
        """What nobody had read of the job's terminals. CRIU gets none of it: whoever restores puts it back.

        Raises BadImage, BadChunk, StoreError.
        """
        if not {terminals.DATA, terminals.INFO} <= self.files.keys():
            return []
        data = self._small(terminals.DATA)
        found = images.unread(self._small(terminals.INFO), data)
        self._instead[terminals.DATA] = images.without_messages(data)
        lines = terminals.lines(self._small(terminals.LINES)) if terminals.LINES in self.files else {}
        return [replace(u, line=lines.get(u.number, b"")) for u in found]

    def noted(self, name: str) -> bytes:
        """A small file of ours in the image; empty where it has none of that name. Raises BadChunk, StoreError."""
        return self._small(name) if name in self.files else b""

    def bringable(self, maps: Mapping[int, Pagemap]) -> tuple[dict[int, Pagemap], Layout]:
        """Of these, the processes that have pages, and where those lie."""
        layout = Layout({m.file: self.files[m.file].extents for m in maps.values() if m.file in self.files})
        return {number: m for number, m in maps.items() if m.file in layout.files}, layout

    def _map(self, number: str) -> Pagemap:
        name, areas = f"pagemap-{number}.img", f"mm-{number}.img"
        data = self._small(name)
        found = images.pagemap(data)
        better = found
        if areas in self.files:
            memory = self._small(areas)
            better = images.first(images.later(found, images.areas(memory)), images.words(memory))
        if better != found:
            self._instead[name] = images.encoded(data, better)
        return better

    def _small(self, name: str) -> bytes:
        entry = self.files[name]
        return b"".join(self.pieces(entry, [(0, entry.size)]))

    def whole(self, name: str) -> Iterator[memoryview] | None:
        """A file from its beginning to its end; None where the image has none of that name. Raises BadImage."""
        if (data := self._instead.get(name)) is not None:
            return iter([memoryview(data)])
        entry = self.files.get(name)
        if entry is not None and (change := changes.change(name)) is not None:
            return iter([memoryview(change(name, self._small(name)))])
        return None if entry is None else self.pieces(entry, [(0, entry.size)])

    def pieces(self, entry: Entry, parts: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
        """Parts of a file (first and last byte), one after the other."""
        wanted = list(parts)
        rows = list(itertools.chain.from_iterable(_between(entry, first, last) for first, last in wanted))
        self._chunks.ahead([self._table[c] for c in in_order([[e.chunk for e in rows]])])
        for first, last in wanted:
            at = first
            for e in _between(entry, first, last):
                yield from _zeros(e.offset - at)
                yield memoryview(self._chunks.plain(self._table[e.chunk]))[e.skip : e.skip + e.length]
                at = e.offset + e.length
            yield from _zeros(last - at)


def _between(entry: Entry, first: int, last: int) -> Iterator[Extent]:
    """The extents of a part of a file, cut to it."""
    table = entry.extents.table
    lower = int((table[:, 0] + table[:, 1]).searchsorted(first, side="right")) if len(table) else 0
    for offset, length, chunk, skip in table[lower:].tolist():
        if offset >= last:
            return
        begin, end = max(offset, first), min(offset + length, last)
        yield Extent(begin, end - begin, chunk, skip + begin - offset)


def _zeros(count: int) -> Iterator[memoryview]:
    while count > 0:
        piece = memoryview(ZEROS)[:count]
        yield piece
        count -= len(piece)
