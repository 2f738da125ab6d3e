"""A job's output in the store: the pieces it is stored in, and the record of when the job printed what."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotsurfer_wire.store.port import Listed

# ---- Times: a third stream beside the job's output, which records when the job printed what
#
# A row records how long each stream was at some time. Bytes between two rows were read between them. If both streams grew,
# their order is unknown, and stdout comes first. The shim writes a row for each read, so this affects only what the job wrote
# to both streams within the instant before one read.
#
# Rows count from the job's beginning, as all positions do. A restore that goes back cuts them like the output itself.

TIMES = "times"
_ROW = struct.Struct("<QQQ")
ROW_BYTES = _ROW.size


class Row(NamedTuple):
    """`milliseconds` since 1970 by the machine's clock, 0 = unknown; how many bytes each stream had then."""

    milliseconds: int
    out: int
    err: int

    def packed(self) -> bytes:
        """The row's bytes in the record."""
        return _ROW.pack(*self)


def time_rows(data: bytes) -> Iterator[Row]:
    """The whole rows; an incomplete last one is left out."""
    for values in _ROW.iter_unpack(data[: len(data) - len(data) % ROW_BYTES]):
        yield Row(*values)


# ---- Pieces: what their names mean, what to read if they overlap, and which ones are merged
#
# A piece never changes. To merge pieces, the agent writes one that holds all their bytes under a name of its own, and removes
# them only then. So between any two steps, and after a late request, every byte is there, and overlapping pieces agree.

FULL_BYTES = 4 << 20  # a piece of this size stays as it is
_NAME = re.compile(r"jobs/[^/]+/log/([0-9]{6,12})/([a-z]+)-([0-9]{16})(?:-([0-9]{16}))?")  # the end is missing in older ones
RATIO = 2  # a piece is merged with what follows unless it is more than so many times larger


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Bytes [start, end) of one stream, counted from the job's beginning."""

    start: int
    end: int
    key: str = ""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes [start, end) of the output lie in `key` from its byte `skip` on."""

    start: int
    end: int
    key: str
    skip: int


def parse_piece(x: Listed) -> tuple[int, str, Piece] | None:
    """Attempt, stream and piece of an object below a job's `log/`; None for an object that is no piece.

    An older agent's names have no end: it follows from the size.
    """
    if (named := _NAME.fullmatch(x.key)) is None:
        return None
    attempt, stream, start, end = named.groups()
    piece = Piece(int(start), int(end) if end else int(start) + x.size, x.key)
    return (int(attempt), stream, piece) if piece.size == x.size else None


def cover(pieces: Iterable[Piece]) -> list[Segment]:
    """What to read, in order and each byte once: at each position the piece that reaches farthest."""
    found: list[Segment] = []
    waiting = sorted(pieces, key=lambda p: (-p.start, p.end))  # the last one begins first
    best: Piece | None = None
    at = waiting[-1].start if waiting else 0
    while waiting or best is not None:
        while waiting and waiting[-1].start <= at:
            candidate = waiting.pop()
            if candidate.end > max(at, best.end if best is not None else 0):
                best = candidate
        if best is not None:
            found.append(Segment(at, best.end, best.key, at - best.start))
            at, best = best.end, None
        elif waiting:
            at = waiting[-1].start  # nobody has what is between
    return found


def merges_from(tail: Sequence[Piece], at: int, end: int, full_bytes: int = FULL_BYTES) -> int:
    """Where the piece that brings bytes [at, end) begins: it takes in those at the end of `tail` that are small beside it.

    Of a stream of S bytes no more than 2 S / full_bytes + 24 pieces remain: one that stays is full, or is followed by one
    that is, or is more than RATIO times as large as the next. Each byte is sent again at most once for each growth by half.
    """
    start = at
    for piece in reversed(tail):
        if piece.size >= full_bytes or piece.size > RATIO * (end - start) or end - piece.start > 2 * full_bytes:
            break
        start = piece.start
    return start
