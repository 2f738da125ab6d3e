"""The little of CRIU's image format that a pager must know: where the pages of a process belong.

An image is a magic number of 8 bytes and then messages: a length of 4 bytes, protobuf. See images/pagemap.proto of CRIU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from spotsurfer_agent.pager.uffd import PAGE

_MAGIC = 8
_LAZY, _PRESENT = 2, 4
_ADDRESS, _PAGES, _FLAGS, _PAGES_LONG = 1, 2, 4, 5
_MESSAGE_MAX = 1 << 20


class BadImage(Exception):
    """An image file is not what CRIU writes; a sentence."""


@dataclass(frozen=True, slots=True)
class PageRun:
    """`pages` pages of a process at address `start`; `at` is their place in the file of pages, in pages."""

    start: int
    pages: int
    at: int
    lazy: bool


@dataclass(frozen=True, slots=True)
class Pagemap:
    """All pages of one process, or of one piece of shared memory; `file` is the name of the image that holds them."""

    file: str
    runs: tuple[PageRun, ...]

    @property
    def lazy_pages(self) -> int:
        """Pages that can come when they are needed."""
        return sum(r.pages for r in self.runs if r.lazy)

    @property
    def pages(self) -> int:
        """All pages in the file."""
        return sum(r.pages for r in self.runs)


def pagemap(data: bytes) -> Pagemap:
    """Read a `pagemap-*.img`. Raises BadImage."""
    try:
        messages = [_fields(m) for m in _messages(data)]
        head, runs, at = messages[0], [], 0
        for fields in messages[1:]:
            flags, pages = fields.get(_FLAGS, _PRESENT), fields.get(_PAGES_LONG, fields.get(_PAGES, 0))
            if flags & _PRESENT:
                runs.append(PageRun(fields[_ADDRESS], pages, at, bool(flags & _LAZY)))
                at += pages
        if any(r.start % PAGE or not 0 < r.pages < 1 << 40 for r in runs):
            raise BadImage("a map of pages names addresses that can't be")
        return Pagemap(f"pages-{head[_ADDRESS]}.img", tuple(runs))
    except (IndexError, KeyError, struct.error) as e:
        raise BadImage(f"a map of pages can't be read: {type(e).__name__}") from e


def _messages(data: bytes) -> Iterator[bytes]:
    at = _MAGIC
    while at < len(data):
        (length,) = struct.unpack_from("=I", data, at)
        at += 4
        if length > _MESSAGE_MAX or at + length > len(data):
            raise BadImage("a map of pages is cut off")
        yield data[at : at + length]
        at += length


def _fields(message: bytes) -> dict[int, int]:
    """Fields of a message that are plain numbers."""
    at, out = 0, dict[int, int]()
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            out[key >> 3], at = _varint(message, at)
        elif wire == 2:
            length, at = _varint(message, at)
            at += length
        else:
            at += 8 if wire == 1 else 4
    return out


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
