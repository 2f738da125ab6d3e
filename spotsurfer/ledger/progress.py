"""How much of a job's work is done: the time it ran, without what was lost with a machine and has to be done again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from spotsurfer_agent.protocol import Report

from spotsurfer.model.job import HOLDS, Attempt, AttemptState

KEPT_ALL = ("keeping", "drained", "finished")  # what an agent says last when nothing is lost with its machine


def done_seconds(attempts: Sequence[Attempt], told: Mapping[int, tuple[datetime, Report]], saved: bool, now: datetime) -> float:
    """Seconds of running that count, over all attempts. `told`: the last report of each, and when it came, on our clock.

    `saved` False: the job can't be saved, so that only what runs now counts. Machines are reckoned to be equally fast.
    """
    granted = [a for a in attempts if a.granted_at is not None]
    total = 0.0
    for a in granted:
        at, report = told.get(a.number, (a.granted_at, None))
        runs = a.state in HOLDS and a.state is not AttemptState.RESTORING
        ran = _ran(a, now if runs else at, report)
        if runs or (report is not None and str(report.state) in KEPT_ALL and saved):
            total += ran
        elif saved and report is not None and report.save_age_seconds is not None:
            total += max(0.0, ran - report.save_age_seconds)
    return total


def at_risk_seconds(
    attempts: Sequence[Attempt], told: Mapping[int, tuple[datetime, Report]], saved: bool, now: datetime
) -> float:
    """Of `done_seconds`, those that would have to be done again if the job's machine were gone now without a word."""
    holder = next((a for a in attempts if a.state in HOLDS and a.state is not AttemptState.RESTORING and a.granted_at), None)
    if holder is None or holder.granted_at is None:
        return 0.0
    at, report = told.get(holder.number, (holder.granted_at, None))
    ran = _ran(holder, now, report)
    if not saved or report is None or report.save_age_seconds is None:
        return ran
    return min(ran, report.save_age_seconds + max(0.0, (now - at).total_seconds()))


def _ran(a: Attempt, until: datetime | None, report: Report | None) -> float:
    """From the job's start there until then."""
    if a.granted_at is None or until is None:
        return 0.0
    restored = (report.restore_seconds or 0.0) if report is not None else 0.0
    return max(0.0, (until - a.granted_at).total_seconds() - restored)
