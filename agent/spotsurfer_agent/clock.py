"""The agent's only reader of clocks."""

from __future__ import annotations

import datetime
import time


def monotonic() -> float:
    """Seconds that never jump; for durations and leases."""
    return time.monotonic()


def utc() -> datetime.datetime:
    """The time of day in UTC, aware; never compared with another machine's where there is any other way."""
    return datetime.datetime.now(datetime.UTC)


def utc_text() -> str:
    """The time of day in UTC, for people; never compared with another machine's."""
    return utc().isoformat(timespec="milliseconds")
