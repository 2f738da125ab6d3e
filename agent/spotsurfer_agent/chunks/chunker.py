"""Files to chunks: holes and zero pages are left out, and the content decides where chunks end."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Entry, Extents, Stored

from spotsurfer_agent.chunks.fingerprints import Pairs, Printer, empty, pairs
from spotsurfer_agent.chunks.writer import Content, Writer
from spotsurfer_agent.linux.file_copy import ShortFile, next_data

# ---- Cuts: a chunk ends after a page that the content selects, so data that moved is cut at the same places again
#
# The rule uses fingerprints of pages, which the reader of memory needs anyway to recognize pages. Only this code knows the
# rule. A new rule changes nothing else, but the first save after it recognizes no chunk.

PAGES_MIN, PAGES_MAX = 256, 1024
MASK = np.uint64(0xFF)  # one page in 256 ends a chunk that is long enough: 1.9 MiB on average


class Cutter:
    """Cuts one stream of pages. Zero pages and pages that are known already are not part of it."""

    def __init__(self) -> None:
        self._pages = 0  # since the last cut

    def cuts(self, prints: Pairs) -> list[int]:
        """The pages (counted within these) at which a chunk ends: `n` means that page n-1 is its last one."""
        out, begun = list[int](), -self._pages  # where the chunk that is being filled began
        for last in np.flatnonzero((prints[:, 0] & MASK) == 0).tolist():
            begun = self._forced(begun, last + 1, out)
            if last + 1 - begun >= PAGES_MIN:
                begun = last + 1
                out.append(begun)
        begun = self._forced(begun, len(prints), out)
        self._pages = len(prints) - begun
        return out

    def _forced(self, begun: int, until: int, out: list[int]) -> int:
        """Cut what would become too long before page `until`."""
        while until - begun >= PAGES_MAX:
            begun += PAGES_MAX
            out.append(begun)
        return begun

    def end(self) -> None:
        """Cut the stream here, whatever its content."""
        self._pages = 0


PIECE_BYTES = 64 << 10  # of data that is not cut by its content
READ_BYTES = 8 << 20  # at a time; a multiple of every page size in use

Placed = list[tuple[int, int]]  # offset in the file and length, in the order in which they follow each other in the chunk


class Sender:
    """Sends files of one job through a writer that others may use as well."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._printer = writer, Printer(writer.keys.prints)

    def send(
        self, entries: Iterable[Entry], where: Callable[[Entry], Path], known: Mapping[str, Content] | None = None
    ) -> list[Entry]:
        """The entries with their extents filled in, once all their chunks were written.

        Files with known content (by path) and files without data are not read.
        Raises StoreError when the store fails and OSError when a file can't be read.
        """
        filled = self.begin(entries, where, known)
        self._writer.flush()
        return filled()

    def begin(
        self, entries: Iterable[Entry], where: Callable[[Entry], Path], known: Mapping[str, Content] | None = None
    ) -> Callable[[], list[Entry]]:
        """`send` without waiting: reads all files. Call the result after `flush` or `close`; it returns the entries."""
        known = known or {}
        sent: list[tuple[Entry, _File | Content | None]] = []
        for e in entries:
            content = known.get(e.path)
            if content is None and e.kind == "file" and e.size:
                sent.append((e, _File(self._writer, self._printer, where(e))))
            else:
                sent.append((e, content))
        return lambda: [self._filled(e, content) for e, content in sent]

    def begin_bytes(self, path: str, data: bytes) -> Callable[[], Entry]:
        """A file in memory only, in equal pieces. Call the result after `flush` or `close`; it returns its entry."""
        view = memoryview(data)
        pieces = [(at, view[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)]
        futures = [(at, len(piece), self._writer.add(piece)) for at, piece in pieces]

        def entry() -> Entry:
            rows = [(at, size, self._writer.index_of(future.result()), 0) for at, size, future in futures]
            return Entry(path, "file", 0o600, size=len(data), extents=Extents.of(rows))

        return entry

    def _filled(self, e: Entry, content: _File | Content | None) -> Entry:
        if content is None:
            return e
        extents = content.extents() if isinstance(content, _File) else self._writer.table.extents_of(content)
        return dataclasses.replace(e, extents=extents)


class _File:
    """One file, read and handed in when made."""

    def __init__(self, writer: Writer, printer: Printer, path: Path) -> None:
        self._writer = writer
        self._chunks: list[tuple[Future[Stored], Placed]] = []
        self._parts: list[memoryview] = []
        self._placed: Placed = []
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._read(fd, path, printer)
        finally:
            os.close(fd)

    def extents(self) -> Extents:
        """What the file consists of; waits for the writer."""
        rows = []
        for future, placed in self._chunks:
            chunk, skip = self._writer.index_of(future.result()), 0
            for offset, length in placed:
                rows.append((offset, length, chunk, skip))
                skip += length
        return Extents.of(rows)

    def _read(self, fd: int, path: Path, printer: Printer) -> None:
        cutter = Cutter()
        for offset, length in _pieces(fd, os.fstat(fd).st_size):
            data = os.pread(fd, length, offset)
            if len(data) != length:
                raise ShortFile(0, f"{path} became shorter while it was read")
            view = memoryview(data)
            self._cut(cutter, view, pairs(printer.of_pages(view)), offset)
        self._hand_in()

    def _cut(self, cutter: Cutter, data: memoryview, prints: Pairs, offset: int) -> None:
        pages = np.flatnonzero(~empty(data))
        begun = 0
        for end in (*cutter.cuts(prints[pages]), None):
            for first, last in _runs(pages[begun:end]):
                part = data[first * PAGE : (last + 1) * PAGE]
                self._parts.append(part)
                self._placed.append((offset + first * PAGE, len(part)))
            if end is not None:
                self._hand_in()
                begun = end

    def _hand_in(self) -> None:
        if not self._parts:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._chunks.append((self._writer.add(data), self._placed))
        self._parts, self._placed = [], []


def _pieces(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each piece of a file that may hold data; holes are left out."""
    at = 0
    while at < size:
        at = next_data(fd, at, size)
        first = at - at % PAGE
        length = min(READ_BYTES, size - first)
        if at < size:
            yield first, length
        at = first + length


def _runs(pages: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """First and last page of each run of neighbours."""
    if not len(pages):
        return []
    breaks = np.flatnonzero(np.diff(pages) != 1)
    firsts = pages[np.concatenate(([0], breaks + 1))]
    lasts = pages[np.concatenate((breaks, [len(pages) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
