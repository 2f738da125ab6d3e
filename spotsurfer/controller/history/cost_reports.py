"""What the cost report needs of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from spotsurfer_wire.messages import Report
from sqlalchemy import Connection

from spotsurfer.ledger.cost_report import Period, cost_report, day_of, idle_seconds, key_of
from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.time_by_use import AttemptFacts, JobFacts
from spotsurfer.model.cost_report import CostReport
from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Offer
from spotsurfer.model.timeline_events import Kind
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline, usage_history


def report(
    connection: Connection, costs: Costs, offers: Sequence[Offer], wanted: Sequence[Job] | None, period: Period, by: str
) -> CostReport:
    """The cost report of these jobs, or of everything. Raises UsageError."""
    check(period, by)
    lines = costs.lines(connection, wanted, period.now, period.since, period.until)
    jobs = rows.all_jobs(connection) if wanted is None else wanted
    begins = _month_of(period.now)
    month = costs.lines(connection, None, period.now, begins) if wanted is None else None
    return cost_report(lines, _facts(connection, jobs, period), period, offers=offers, by=by, month=month)


def check(period: Period, by: str) -> None:
    """Whether there is such a report. Raises UsageError."""
    if by:
        key_of(by)
    if period.since and period.until and period.until <= period.since:
        raise UsageError("The period ends before it begins: --until must be later than --since.")


def _month_of(now: datetime) -> datetime:
    return day_of(now).replace(day=1)


def _facts(connection: Connection, jobs: Sequence[Job], period: Period) -> list[JobFacts]:
    ids = [j.id for j in jobs]
    attempts = rows.attempts(connection, ids)
    said = observations.last_reports(connection, ids)
    used = usage_history.peaks(connection, ids)
    idle = [j.id for j in jobs if j.spec.idle_seconds is not None]
    moments = timeline.of_kinds(connection, idle, [str(Kind.WISH), str(Kind.ENDED)])
    return [
        JobFacts(
            j,
            [attempt_facts(a, said) for a in attempts[j.id]],
            idle_seconds(moments.get(j.id, []), period),
            int(used.get(j.id, (0, 0))[0]),
            used.get(j.id, (0, 0))[1],
        )
        for j in jobs
    ]


def attempt_facts(attempt: Attempt, said: Mapping[tuple[str, int], Report]) -> AttemptFacts:
    """An attempt with the last words of its agent."""
    r = said.get((attempt.job, attempt.number))
    if r is None:
        return AttemptFacts(attempt)
    return AttemptFacts(attempt, str(r.state), r.frozen_seconds, r.restore_seconds or 0.0, r.save_age_seconds or 0.0)
