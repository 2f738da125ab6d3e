"""Which bytes of a file are which bytes of which chunk. Rows of plain numbers: an image may have hundreds of thousands."""

from __future__ import annotations

import base64
import binascii
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spotsurfer_agent.coding import ProtocolError

COLUMNS = 4
ROW_BYTES = 8 * COLUMNS


class Extent(NamedTuple):
    """file[offset:offset+length] = plain(chunks[chunk])[skip:skip+length]."""

    offset: int
    length: int
    chunk: int
    skip: int


class Extents:
    """Extents of one file, sorted by offset, never overlapping; what lies between them is zeros. Immutable by agreement."""

    __slots__ = ("rows",)

    def __init__(self, rows: array[int] | None = None) -> None:
        self.rows: array[int] = array("Q") if rows is None else rows

    @classmethod
    def of(cls, extents: Iterable[tuple[int, int, int, int]]) -> Extents:
        """From extents in any order; neighbours that continue each other become one."""
        rows = np.array(sorted(extents), dtype=np.uint64).reshape(-1, COLUMNS)
        return cls.of_table(rows)

    @classmethod
    def of_table(cls, rows: npt.NDArray[np.uint64]) -> Extents:
        """From rows of four numbers that are sorted by offset; neighbours that continue each other become one."""
        if len(rows) > 1:
            ends = rows[:, 0] + rows[:, 1]
            follows = (rows[1:, 0] == ends[:-1]) & (rows[1:, 2] == rows[:-1, 2]) & (rows[1:, 3] == rows[:-1, 3] + rows[:-1, 1])
            first = np.flatnonzero(np.concatenate(([True], ~follows)))
            merged = rows[first].copy()
            merged[:, 1] = np.add.reduceat(rows[:, 1], first)
            rows = merged
        out = array("Q")
        out.frombytes(np.ascontiguousarray(rows, dtype=np.uint64).tobytes())
        return cls(out)

    @property
    def table(self) -> npt.NDArray[np.uint64]:
        """The rows as an array of shape (n, 4), not to be written to."""
        return np.frombuffer(self.rows, dtype=np.uint64).reshape(-1, COLUMNS)

    @property
    def bytes(self) -> int:
        """Bytes of the file that are not left out as zeros."""
        return int(self.table[:, 1].sum())

    def chunks(self) -> list[int]:
        """Which chunks are referred to: each once, in ascending order."""
        return [int(x) for x in np.unique(self.table[:, 2])]

    def moved(self, places: Sequence[int] | dict[int, int]) -> Extents:
        """The same extents for another table: chunk i of the old one is `places[i]` of the new one."""
        rows = self.table.copy()
        used, inverse = np.unique(rows[:, 2], return_inverse=True)
        rows[:, 2] = np.array([places[int(x)] for x in used], dtype=np.uint64)[inverse]
        return Extents.of_table(rows)

    def validate(self, size: int, sizes: npt.NDArray[np.uint64]) -> None:
        """Raises ProtocolError for what no writer makes. `size`: of the file; `sizes`: of the chunks of the table."""
        if not self.rows:
            return
        rows, whole = self.table, np.uint64(size)
        offset, length, chunk, skip = rows.T
        if (chunk >= len(sizes)).any():
            raise ProtocolError("an extent refers to a chunk that the manifest does not list")
        of_chunk = sizes[chunk]
        # Subtractions only where they can't wrap: a sum of two hostile numbers could.
        inside = (length > 0) & (offset < whole) & (skip < of_chunk)
        if not inside.all() or (length > whole - offset).any() or (length > of_chunk - skip).any():
            raise ProtocolError("an extent lies outside of its file or of its chunk")
        if (offset[1:] < offset[:-1] + length[:-1]).any():
            raise ProtocolError("extents of a file overlap or are not in order")

    def to_wire(self) -> str:
        """Base64 of little-endian numbers."""
        return base64.b64encode(_little(self.rows)).decode("ascii")

    @classmethod
    def from_wire(cls, text: object) -> Extents:
        """The reverse; raises ProtocolError."""
        try:
            data = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
        except (binascii.Error, ValueError) as e:
            raise ProtocolError(f"extents are not base64: {e}") from e
        if len(data) % ROW_BYTES:
            raise ProtocolError("extents are not rows of four numbers")
        return cls(_numbers(data))

    def __iter__(self) -> Iterator[Extent]:
        return (Extent(*row) for row in self.table.tolist())

    def __len__(self) -> int:
        return len(self.rows) // COLUMNS

    def __getitem__(self, at: int) -> Extent:
        return Extent(*self.table[at].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extents) and self.rows == other.rows

    def __hash__(self) -> int:
        return hash(self.rows.tobytes())

    def __repr__(self) -> str:
        return f"Extents({list(self) if len(self) < 5 else len(self)})"

    def __deepcopy__(self, memo: object) -> Extents:
        return self


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        return numbers.tobytes()
    swapped = array("Q", numbers)
    swapped.byteswap()
    return swapped.tobytes()


def _numbers(data: bytes) -> array[int]:
    out = array("Q")
    out.frombytes(data)
    if sys.byteorder == "big":
        out.byteswap()
    return out
