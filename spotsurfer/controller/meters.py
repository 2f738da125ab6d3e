"""What agents tell of usage, as windows on our clock. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from spotsurfer_agent.protocol import Report
from spotsurfer_agent.usage.kept import KEPT
from spotsurfer_agent.usage.window import WINDOW_SECONDS, Window

OLD_SECONDS = (KEPT + 1) * WINDOW_SECONDS * 12  # a job that stood still for an hour has old windows; more is nonsense
ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)  # where only the windows matter


def windows(report: Report, heard_at: datetime, known: int = -1) -> Iterator[tuple[datetime, Window]]:
    """Each window with when it began, from number `known` on; what can't be read or can't be is left out."""
    if report.usage is None:
        return
    for row in report.usage.rows[-KEPT - 1 :]:
        try:
            window = Window.from_row(row)
        except ValueError:
            continue
        age = report.usage.at - window.number * WINDOW_SECONDS
        if window.number >= known and 0 <= age <= OLD_SECONDS:
            yield heard_at - timedelta(seconds=age), window


def newest(report: Report | None) -> int:
    """Number of the newest window that a report tells; -1 = none."""
    found = [w.number for _, w in windows(report, ANY_TIME)] if report is not None else []
    return max(found, default=-1)


def lately(report: Report | None) -> Window | None:
    """What the job used in the newest window that covers some seconds."""
    if report is None:
        return None
    found = [w for _, w in windows(report, ANY_TIME)]
    return next((w for w in reversed(found) if w.seconds >= WINDOW_SECONDS / 2), found[-1] if found else None)
