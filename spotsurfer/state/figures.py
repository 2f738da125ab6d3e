"""Counts over all jobs and attempts, by the database itself."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, func, select

from spotsurfer.model.figures import Figures, Labels
from spotsurfer.model.job import OVER, AttemptState, JobState
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import machine
from spotsurfer.state.schema import moment as M
from spotsurfer.state.schema import stored as S
from spotsurfer.state.schema import usage as U

PROVIDER = machine.c.pool["provider"].as_string()
REHEARSAL = func.coalesce(J.c.parent["rehearsal"].as_boolean(), False)


def figures(connection: Connection, now: datetime) -> Figures:
    """All of them, at `now`. Reads every row of four tables once: some ten milliseconds for a thousand jobs."""
    jobs = {state: 0 for state in map(str, JobState)}
    jobs |= _counts(connection, select(J.c.state, func.count()).where(~REHEARSAL).group_by(J.c.state))
    waits = select(func.min(J.c.submitted_at)).where(J.c.state == str(JobState.QUEUED), ~REHEARSAL)
    since = connection.execute(waits).scalar()
    use = connection.execute(select(func.sum(U.c.saves), func.sum(U.c.frozen_seconds), func.sum(U.c.cpu_seconds))).one()
    newest = select(S.c.job, func.max(S.c.at).label("at")).group_by(S.c.job).subquery()
    sizes = select(func.sum(S.c.bytes)).join(newest, (S.c.job == newest.c.job) & (S.c.at == newest.c.at))
    return Figures(
        at=now,
        jobs=jobs,
        machines=_by(connection, A.c.state.not_in([str(s) for s in OVER]), state=True),
        launched=_by(connection, A.c.launched_at.is_not(None)),
        reclaimed=_by(connection, A.c.reclaimed),
        refused=_by(connection, A.c.state == str(AttemptState.REFUSED)),
        restores_failed=connection.execute(select(func.count()).where(A.c.restore_failed)).scalar_one(),
        moments=_counts(connection, select(M.c.kind, func.count()).group_by(M.c.kind)),
        stuck=connection.execute(select(func.count()).where(J.c.stuck_since.is_not(None))).scalar_one(),
        saves=int(use[0] or 0),
        frozen_seconds=float(use[1] or 0.0),
        cpu_seconds=float(use[2] or 0.0),
        stored_bytes=int(connection.execute(sizes).scalar() or 0),
        oldest_queued_at=datetime.fromisoformat(since) if since else None,
    )


def _counts(connection: Connection, query: object) -> dict[str, int]:
    return {key: int(count) for key, count in connection.execute(query)}  # type: ignore[call-overload]


def _by(connection: Connection, condition: ColumnElement[bool], *, state: bool = False) -> dict[Labels, int]:
    """Attempts that meet it, by provider and market (and state)."""
    keys = [PROVIDER, machine.c.market, *([A.c.state] if state else [])]
    there = A.join(machine, machine.c.token == A.c.token)
    query = select(*keys, func.count()).select_from(there).where(condition).group_by(*keys)
    return {tuple(map(str, row[:-1])): int(row[-1]) for row in connection.execute(query)}
