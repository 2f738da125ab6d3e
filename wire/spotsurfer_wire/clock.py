"""The only code of the agent that reads clocks."""

from __future__ import annotations

import datetime
import time


def monotonic() -> float:
    """Seconds that never jump, and go on while the machine is suspended: a lease lapses meanwhile. For durations and leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def running() -> float:
    """Seconds in which this machine ran. Suspended time does not count: a process that slept with the machine did not hang."""
    return time.monotonic()


def utc() -> datetime.datetime:
    """The current time in UTC, with its time zone. Do not compare it with another machine's clock if any other way exists."""
    return datetime.datetime.now(datetime.UTC)


def utc_text() -> str:
    """The current time in UTC as text, for people. Never compare it with another machine's."""
    return utc().isoformat(timespec="milliseconds")
