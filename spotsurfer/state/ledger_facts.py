"""What only bills need: stored bytes of jobs, and what agents counted each day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from spotsurfer_wire.messages import Report
from sqlalchemy import Connection, and_, or_, select
from sqlalchemy.dialects.sqlite import insert as upsert

from spotsurfer.model.charges import Stay
from spotsurfer.model.job import OVER, Attempt, AttemptNumber, JobId
from spotsurfer.model.machine import Machine
from spotsurfer.state.jobs import machine_from_row
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import counted as C
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import machine as M
from spotsurfer.state.schema import price as P
from spotsurfer.state.schema import stored as S

Key = tuple[JobId, AttemptNumber]
COUNTS = ["at", "read_bytes", "sent_bytes", "gets", "puts"]
NEW = upsert(C)
PUT = NEW.on_conflict_do_update(index_elements=list(C.primary_key), set_={name: NEW.excluded[name] for name in COUNTS})


def add_counts(connection: Connection, report: Report, at: datetime) -> None:
    """Keep what an agent counted, as the last word of this UTC day. `at`: in UTC."""
    values: dict[str, Any] = {
        "job": report.job,
        "attempt": report.attempt,
        "day": at.date().isoformat(),
        "at": at.isoformat(),
        "read_bytes": report.store_read_bytes,
        "sent_bytes": report.store_sent_bytes,
        "gets": report.store_gets,
        "puts": report.store_puts,
    }
    connection.execute(PUT, values)


def counts(connection: Connection, jobs: Sequence[JobId]) -> dict[Key, list[tuple[datetime, int, int, int, int]]]:
    """Of each attempt of these jobs the last counts of each day, oldest first: time, bytes read and sent, gets, puts."""
    found: dict[Key, list[tuple[datetime, int, int, int, int]]] = {}
    for r in connection.execute(select(C).where(C.c.job.in_(list(jobs))).order_by(C.c.job, C.c.attempt, C.c.day)):
        key = JobId(r.job), AttemptNumber(r.attempt)
        found.setdefault(key, []).append((datetime.fromisoformat(r.at), r.read_bytes, r.sent_bytes, r.gets, r.puts))
    return found


def counted_since(connection: Connection, oldest: datetime) -> set[Key]:
    """Attempts of which an agent's report came then or later."""
    rows = connection.execute(select(C.c.job, C.c.attempt).where(C.c.at >= oldest.isoformat()))
    return {(JobId(r.job), AttemptNumber(r.attempt)) for r in rows}


def billed_since(connection: Connection, oldest: datetime) -> set[JobId]:
    """Jobs with machines that cost money then or later."""
    rows = connection.execute(
        select(A.c.job)
        .where(A.c.launched_at.is_not(None), or_(A.c.released_at.is_(None), A.c.released_at >= oldest.isoformat()))
        .distinct()
    )
    return {JobId(job) for job in rows.scalars()}


def shared(
    connection: Connection, attempts: Sequence[Attempt]
) -> dict[str, tuple[Machine, list[tuple[datetime, int]], list[Stay]]]:
    """Of those of these attempts' machines that are kept, by token: prices from a moment on, and the stays of all that were on
    it with one of these attempts, or later."""
    since: dict[str, str] = {}
    for a in attempts:
        if a.launched_at is not None:
            at = min(a.launched_at, a.released_at or a.launched_at).isoformat()
            since[a.token] = min(at, since.get(a.token, at))
    rows = connection.execute(select(M).where(M.c.token.in_(list(since)), M.c.keep_seconds > 0)).mappings()
    kept = {row["token"]: machine_from_row(row) for row in rows}
    found: dict[str, tuple[Machine, list[tuple[datetime, int]], list[Stay]]] = {t: (m, [], []) for t, m in kept.items()}
    if not kept:
        return found
    when = datetime.fromisoformat
    priced = select(A.c.token, P.c.at, P.c.usd_micros_per_hour).join(A, and_(A.c.job == P.c.job, A.c.number == P.c.attempt))
    for token, at, price in connection.execute(priced.where(A.c.token.in_(list(kept))).order_by(P.c.at)):
        found[token][1].append((when(at), int(price)))
    asked = J.c.spec["cpus"].as_integer()
    columns = (A.c.token, A.c.launched_at, A.c.job, A.c.number, A.c.state, A.c.released_at, asked)
    lived = select(*columns).join(J, J.c.id == A.c.job).where(A.c.token.in_(list(kept)), A.c.launched_at.is_not(None))
    for token, begins, job, number, state, ends, cpus in connection.execute(lived):
        if ends is None or ends >= since[token]:
            over = when(ends) if ends and state in map(str, OVER) else None
            came = min(when(begins), over) if over is not None else when(begins)  # its order may come too late
            found[token][2].append(Stay(came, JobId(job), AttemptNumber(number), over, max(cpus or 1, 1)))
    return found


def set_stored(connection: Connection, job: JobId, at: datetime, size: int) -> None:
    """From `at` on a job has so many bytes in the store; a size that was known already adds nothing."""
    last = connection.execute(select(S.c.bytes).where(S.c.job == job).order_by(S.c.at.desc()).limit(1)).scalar()
    if size != (last or 0):
        row = upsert(S).values(job=job, at=at.isoformat(), bytes=size)
        connection.execute(row.on_conflict_do_update(index_elements=["job", "at"], set_={"bytes": size}))


def stored_since(connection: Connection, oldest: datetime) -> list[JobId]:
    """Jobs of which the stored bytes changed then or later."""
    return [JobId(x) for x in connection.execute(select(S.c.job).where(S.c.at >= oldest.isoformat()).distinct()).scalars()]


def stored(connection: Connection, jobs: Sequence[JobId] | None = None) -> dict[JobId, list[tuple[datetime, int]]]:
    """The stored bytes of these jobs, or of all, from a moment on; oldest first."""
    query = select(S).order_by(S.c.job, S.c.at)
    found: dict[JobId, list[tuple[datetime, int]]] = {}
    for r in connection.execute(query if jobs is None else query.where(S.c.job.in_(list(jobs)))):
        found.setdefault(JobId(r.job), []).append((datetime.fromisoformat(r.at), int(r.bytes)))
    return found
