"""Points in time for --since: a duration before now, or a date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from spotsurfer.model.errors import UsageError
from spotsurfer.ports.clock import SystemClock

EXPECTED = 'expected so long ago, like "2h" or "7d", or a time like 2026-11-25 or "2026-11-25 14:30"'


def since(text: str) -> datetime:
    """That time in UTC. Without a zone it is local time. Raises UsageError."""
    from spotsurfer.common.units import parse_seconds

    try:
        if "-" in text:
            return datetime.fromisoformat(text.strip()).astimezone(UTC)
        return SystemClock().now() - timedelta(seconds=parse_seconds(text))
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"--since is {text!r}, {EXPECTED}.") from None
