"""The agent's only reader of clocks."""

from __future__ import annotations

import datetime
import time


def monotonic() -> float:
    """Seconds that never jump, and go on while the machine is suspended: a lease lapses meanwhile. For durations and leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def running() -> float:
    """Seconds in which this machine ran: who did nothing while it was suspended did not hang."""
    return time.monotonic()


def utc() -> datetime.datetime:
    """The time of day in UTC, aware; never compared with another machine's where there is any other way."""
    return datetime.datetime.now(datetime.UTC)


def utc_text() -> str:
    """The time of day in UTC, for people; never compared with another machine's."""
    return utc().isoformat(timespec="milliseconds")
