"""The timeline of events and decisions: append-only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, RowMapping, func, insert, select

from spotsurfer.model.job import JobId
from spotsurfer.ports.service import Moment, Why
from spotsurfer.state.schema import decision as D
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import moment as M

STEPS = 100  # newest steps of a job's attempts to search; a hand-over takes a handful


def add(connection: Connection, moment: Moment) -> None:
    """Append one moment."""
    add_many(connection, [moment])


def add_many(connection: Connection, moments: Sequence[Moment]) -> None:
    """Append some."""
    names = ("job", "attempt", "kind", "text", "data")
    values = [{"at": m.at.isoformat(), **{name: getattr(m, name) for name in names}} for m in moments]
    if values:
        connection.execute(insert(M), values)


def read(
    connection: Connection,
    job: JobId | None,
    after: int,
    since: datetime | None = None,
    last: int | None = None,
    owner: str | None = None,
) -> list[tuple[int, Moment]]:
    """Moments numbered above `after`, of `since` or later, the `last` so many of these; oldest first. None: of all.

    `owner`: of the jobs of theirs alone.
    """
    query = select(M).where(M.c.number > after).order_by(M.c.number.desc())
    if job is not None:
        query = query.where(M.c.job == job)
    if owner is not None:
        query = query.where(M.c.job.in_(select(J.c.id).where(J.c.owner == owner)))
    if since is not None:
        query = query.where(M.c.at >= since.astimezone(UTC).isoformat())
    if last is not None:
        query = query.limit(last)
    return [(int(r["number"]), _moment(r)) for r in connection.execute(query).mappings()][::-1]


def newest(connection: Connection) -> int:
    """The number of the newest moment; 0 = there is none."""
    return connection.execute(select(func.max(M.c.number))).scalar() or 0


def next_ones(connection: Connection, after: int, most: int) -> list[tuple[int, Moment]]:
    """The next moments of all jobs behind number `after`, oldest first, at most so many."""
    query = select(M).where(M.c.number > after).order_by(M.c.number).limit(most)
    return [(int(r["number"]), _moment(r)) for r in connection.execute(query).mappings()]


def of_kinds(connection: Connection, jobs: Sequence[JobId], kinds: Sequence[str]) -> dict[JobId, list[Moment]]:
    """The moments of these kinds by job, oldest first; jobs without any are left out."""
    found: dict[JobId, list[Moment]] = {}
    query = select(M).where(M.c.job.in_(jobs), M.c.kind.in_(kinds)).order_by(M.c.number)
    for row in connection.execute(query).mappings():
        found.setdefault(row["job"], []).append(_moment(row))
    return found


def _moment(row: RowMapping) -> Moment:
    return Moment(datetime.fromisoformat(row["at"]), row["job"], row["attempt"], row["kind"], row["text"], row["data"])


def last_entered(connection: Connection, job: JobId, state: str) -> Moment | None:
    """When an attempt of this job last entered a state, and which."""
    query = select(M).where(M.c.job == job, M.c.kind == "attempt").order_by(M.c.number.desc()).limit(STEPS)
    return next((_moment(r) for r in connection.execute(query).mappings() if r["data"].get("to") == state), None)


def stopped_since(connection: Connection, job: JobId, state: str, since: datetime) -> bool:
    """Whether the job itself came to this state (held, say) then or later."""
    query = select(M.c.at, M.c.data).where(M.c.job == job, M.c.kind == "ended").order_by(M.c.number.desc()).limit(STEPS)
    found = ((datetime.fromisoformat(at), data.get("state")) for at, data in connection.execute(query))
    return any(at >= since and entered == state for at, entered in found)


def saved_at(connection: Connection, job: JobId, checkpoint: str) -> datetime | None:
    """When it was first seen that this checkpoint of the job is durable."""
    query = select(M.c.at, M.c.data).where(M.c.job == job, M.c.kind == "saved").order_by(M.c.number.desc()).limit(STEPS)
    found = [datetime.fromisoformat(at) for at, data in connection.execute(query) if data.get("checkpoint") == checkpoint]
    return min(found, default=None)


def last_before(connection: Connection, job: JobId, at: datetime) -> datetime | None:
    """The time of this job's last event before `at`."""
    query = select(M.c.at).where(M.c.job == job).order_by(M.c.number.desc()).limit(STEPS)
    return next((told for (text,) in connection.execute(query) if (told := datetime.fromisoformat(text)) < at), None)


def add_decision(connection: Connection, job: JobId, why: Why) -> None:
    """Append a decision about a job."""
    values = {
        "at": why.at.isoformat(),
        "job": job,
        "done": list(why.done),
        "rejected": [list(r) for r in why.rejected],
        "note": why.note,
    }
    connection.execute(insert(D).values(**values))


def decisions(connection: Connection, job: JobId, last: int) -> Sequence[Why]:
    """The newest `last` decisions about a job, oldest first."""
    rows = connection.execute(select(D).where(D.c.job == job).order_by(D.c.number.desc()).limit(last)).mappings()
    found = [(datetime.fromisoformat(r["at"]), tuple(r["done"]), r["rejected"], r["note"]) for r in rows]
    return [Why(at, done, tuple((what, why) for what, why in rejected), note) for at, done, rejected, note in reversed(found)]
