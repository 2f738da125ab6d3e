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
    """Steady within a process: the wall clock is read once, then only time that passed is added, also in a suspended host.

    A wall clock that is set back or forward while the controller runs therefore moves no lease and no bill. While this host is
    suspended, its machines run and cost money, and credentials lapse.
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
