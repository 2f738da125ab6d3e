"""When the job printed what: a third stream beside its output, written as that is read.

A row says how long each stream was at some time. What lies between two rows was read between them; where both streams grew,
nobody knows which was first, and stdout comes first. The shim writes a row for each read, so that is the case only for what the
job wrote to both within the instant before one read.

Rows count from the job's beginning, as all positions do: one that a restore went back behind is cut like the output itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

NAME = "times"
_ROW = struct.Struct("<QQQ")
ROW_BYTES = _ROW.size


class Row(NamedTuple):
    """`milliseconds` since 1970 by the machine's clock, 0 = nobody knows; how many bytes each stream had then."""

    milliseconds: int
    out: int
    err: int

    def packed(self) -> bytes:
        """As it stands in the record."""
        return _ROW.pack(*self)


def rows(data: bytes) -> Iterator[Row]:
    """What whole rows say; the rest of a last one that is cut off is left out."""
    for values in _ROW.iter_unpack(data[: len(data) - len(data) % ROW_BYTES]):
        yield Row(*values)
