"""The usage of jobs, window by window: fine for the last hour, coarser before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from spotsurfer_wire.usage import NAMES, Window, merged
from sqlalchemy import Connection, and_, delete, func, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from spotsurfer.model.job import JobId
from spotsurfer.ports.service import UsageSeen
from spotsurfer.state.schema import usage_window as U

FINE = timedelta(hours=1)  # windows as agents send them
KEPT = timedelta(days=90)
SLICES = 6  # of ten seconds: older windows are merged to minutes
ONCE = 6000  # rows per call of `thin`, because other writers wait for the database meanwhile
NEW = upsert(U)
SECONDS = NAMES.index("seconds")
PUT = NEW.on_conflict_do_update(
    index_elements=["job", "attempt", "number"],
    set_={"row": NEW.excluded.row},
    where=NEW.excluded.row[SECONDS].as_float() >= U.c.row[SECONDS].as_float(),
)


def add(connection: Connection, job: str, attempt: int, windows: Iterable[tuple[datetime, Window]]) -> None:
    """Store reported windows, each with its start. A stored window is replaced if the new one covers more.

    After a restart of the agent within a window the new one may cover less: then the stored one stays.
    """
    told = [
        {"job": job, "attempt": attempt, "number": w.number, "at": at.isoformat(), "slices": 1, "row": w.to_row()}
        for at, w in windows
    ]
    if told:
        connection.execute(PUT, told)


def read(connection: Connection, job: JobId, since: datetime | None = None) -> list[UsageSeen]:
    """The windows of one job, oldest first."""
    query = select(U).where(U.c.job == job).order_by(U.c.attempt, U.c.number)
    if since is not None:
        query = query.where(U.c.at >= since.isoformat())
    return [_seen(r) for r in connection.execute(query)]


def peaks(connection: Connection, jobs: Sequence[JobId]) -> dict[JobId, tuple[float, float]]:
    """The highest use of each job: bytes of working memory of a window, and mean processors of one."""
    memory, cpus = (func.max(U.c.row[NAMES.index(name)].as_float()) for name in ("working_bytes", "cpu_cores"))
    query = select(U.c.job, memory, cpus).where(U.c.job.in_(jobs)).group_by(U.c.job)
    return {JobId(job): (m or 0.0, c or 0.0) for job, m, c in connection.execute(query)}


def thin(connection: Connection, now: datetime) -> int:
    """Merge windows older than an hour to minutes, and forget too old ones; returns the number of removed rows."""
    gone = connection.execute(delete(U).where(U.c.at < (now - KEPT).isoformat())).rowcount
    query = select(U).where(and_(U.c.at < (now - FINE).isoformat(), U.c.slices == 1))
    rows = connection.execute(query.order_by(U.c.job, U.c.attempt, U.c.number).limit(ONCE)).all()
    groups = [list(some) for _, some in groupby(rows, key=lambda r: (r.job, r.attempt, r.number // SLICES))]
    if len(rows) == ONCE and len(groups) > 1:
        groups.pop()  # it may continue behind the rows that were read
    for some in groups:
        _merge(connection, some)
        gone += len(some) - 1
    return gone


def _merge(connection: Connection, rows: Sequence[object]) -> None:
    seen, first = [_seen(r) for r in rows], rows[0]
    one = merged([s.window for s in seen])
    job, attempt = first.job, first.attempt  # type: ignore[attr-defined]
    numbers = [s.window.number for s in seen]
    connection.execute(delete(U).where(and_(U.c.job == job, U.c.attempt == attempt, U.c.number.in_(numbers))))
    values = {"job": job, "attempt": attempt, "number": one.number, "at": seen[0].at.isoformat()}
    connection.execute(insert(U).values(**values, slices=SLICES, row=one.to_row()))


def _seen(r: object) -> UsageSeen:
    at = datetime.fromisoformat(r.at)  # type: ignore[attr-defined]
    return UsageSeen(r.attempt, at, Window.from_row(r.row))  # type: ignore[attr-defined]
