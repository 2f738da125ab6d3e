"""The record of when a job printed what, as it is written."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from spotsurfer_agent import clock
from spotsurfer_agent.segments import Segments
from spotsurfer_agent.times import NAME, ROW_BYTES, Row

GATHER_SECONDS = 0.1  # a stream that grows alone gets one row in so long


ROWS_A_SECOND = 1000  # more are not kept: 2 GB a day of a job that does nothing but change between its streams


class Times:
    """The writing side. `position` counts bytes of this stream since the job's beginning."""

    def __init__(
        self, folder: Path, position: int, out: int, err: int, now: Callable[[], datetime.datetime] = clock.utc
    ) -> None:
        """What was printed before is `out` and `err` bytes; where nobody kept rows of it, the first row says so."""
        self.position, self._now = position, now
        self.disk = Segments(folder, NAME, position, GATHER_SECONDS)
        self._open: str | None = None  # the stream that the last row is of, while more may be put into that row
        self._second, self._count = 0, 0
        self._add(Row(0 if position == 0 and (out or err) else self._milliseconds(), out, err))

    def note(self, stream: str, out: int, err: int) -> None:
        """This stream was just read; both are so long now."""
        row = Row(self._milliseconds(), out, err)
        second = row.milliseconds // 1000
        if second != self._second:
            self._second, self._count = second, 0
        same = self._open == stream or (self._open is not None and self._count >= ROWS_A_SECOND)
        if not (same and self.disk.amend(row.packed())):
            self._add(row)
        self._open = stream

    def _add(self, row: Row) -> None:
        self.disk.add(row.packed())
        self.position += ROW_BYTES
        self._count += 1

    def _milliseconds(self) -> int:
        return max(1, int(self._now().timestamp() * 1000))

    def close_row(self) -> None:
        """Whoever tells positions calls this: what the job prints later is no part of a row before them."""
        self._open = None
