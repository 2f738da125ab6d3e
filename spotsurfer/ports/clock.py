"""The controller's only reader of clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day (UTC, aware)."""

    def now(self) -> datetime:
        """The time of day in UTC."""
        ...


class SystemClock:
    """Steady within a process: it reads the wall clock once and then adds elapsed time, including time in suspend.

    So a wall clock that is set back or forward while the controller runs changes no lease and no bill. Time in suspend counts,
    because machines run on and cost money while this host is suspended, and credentials expire.
    """

    def __init__(self) -> None:
        self._origin = datetime.now(UTC)
        self._start = time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> datetime:
        """The time of day in UTC."""
        return self._origin + timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - self._start)


class ManualClock:
    """A clock that moves when told; for tests and the virtual world."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        """The time of day in UTC."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`."""
        self._now += timedelta(seconds=seconds)
