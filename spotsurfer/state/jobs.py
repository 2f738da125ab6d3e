"""Jobs and attempts: load, and save where nobody else did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, and_, exists, func, insert, or_, select, update

from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.model.ids import AttemptNumber, JobId
from spotsurfer.model.job import ENDED, OVER, Attempt, Job, JobState
from spotsurfer.model.snapshot import Held
from spotsurfer.state.codec import attempt_from_row, attempt_to_row, job_from_row, job_to_row
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import job as J

BUSY = exists().where(and_(A.c.job == J.c.id, A.c.state.not_in([str(s) for s in OVER])))
OPEN = select(J).where(or_(J.c.state.not_in([str(s) for s in ENDED]), BUSY)).order_by(J.c.submitted_at, J.c.id)


class Stale(Conflict):
    """The row changed since it was read: decide again."""


def add_job(connection: Connection, job: Job) -> None:
    """Insert; raises sqlalchemy.exc.IntegrityError for an id that exists."""
    connection.execute(insert(J).values(**job_to_row(job)))


def add_attempt(connection: Connection, attempt: Attempt) -> None:
    """Insert; raises sqlalchemy.exc.IntegrityError for a number that exists."""
    connection.execute(insert(A).values(**attempt_to_row(attempt)))


def load_job(connection: Connection, job: JobId) -> Job:
    """One job by id; raises NotFound."""
    row = connection.execute(select(J).where(J.c.id == job)).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job!r}; `spotsurfer list` shows all")
    return job_from_row(row)


def named_job(connection: Connection, name: str) -> Job:
    """One job by its exact id or name, for what changes it; of several of a name the newest that is active, else the newest.

    Raises NotFound, with the jobs that may have been meant.
    """
    ended = J.c.state.in_([str(s) for s in ENDED])
    query = select(J).where(or_(J.c.id == name, J.c.spec["name"].as_string() == name))
    query = query.order_by((J.c.id == name).desc(), ended, J.c.submitted_at.desc(), J.c.id)
    row = connection.execute(query.limit(1)).mappings().first()
    if row is not None:
        return job_from_row(row)
    begin = [j.id for j in _beginning(connection, name)]
    if begin:
        raise NotFound(f"there is no job {name!r}: write its whole id or name; did you mean {' or '.join(begin)}?")
    raise NotFound(f"there is no job {name!r}; `spotsurfer list` shows all")


def find_job(connection: Connection, name: str) -> Job:
    """As `named_job`, or by the beginning of an id that only one job has, for what only looks. Raises NotFound."""
    try:
        return named_job(connection, name)
    except NotFound:
        begin = _beginning(connection, name)
        if len(begin) == 1:
            return begin[0]
        raise


def _beginning(connection: Connection, name: str) -> list[Job]:
    """Some of the jobs with ids that begin so."""
    if not name:
        return []
    query = select(J).where(J.c.id.startswith(name, autoescape=True)).order_by(J.c.submitted_at.desc(), J.c.id).limit(3)
    return [job_from_row(r) for r in connection.execute(query).mappings()]


def all_jobs(connection: Connection) -> list[Job]:
    """Every job, newest first."""
    rows = connection.execute(select(J).order_by(J.c.submitted_at.desc(), J.c.id)).mappings()
    return [job_from_row(r) for r in rows]


def succeeded(connection: Connection, name: str, most: int) -> list[Job]:
    """Jobs of this name that did, the latest first."""
    query = select(J).where(and_(J.c.state == str(JobState.SUCCEEDED), J.c.spec["name"].as_string() == name))
    return [job_from_row(r) for r in connection.execute(query.order_by(J.c.ended_at.desc()).limit(most)).mappings()]


def open_jobs(connection: Connection) -> list[Job]:
    """Jobs that have not ended, or still have machines."""
    return [job_from_row(r) for r in connection.execute(OPEN).mappings()]


def attempts(connection: Connection, jobs: Sequence[JobId]) -> dict[JobId, list[Attempt]]:
    """Attempts of these jobs, oldest first."""
    found: dict[JobId, list[Attempt]] = {j: [] for j in jobs}
    query = select(A).where(A.c.job.in_(list(jobs))).order_by(A.c.job, A.c.number)
    for row in connection.execute(query).mappings():
        one = attempt_from_row(row)
        found[one.job].append(one)
    return found


def ended_since(connection: Connection, at: datetime) -> list[Attempt]:
    """Attempts of all jobs whose machines ended after that."""
    over = [str(state) for state in OVER]
    query = select(A).where(A.c.state.in_(over), A.c.released_at > at.isoformat())
    return [attempt_from_row(r) for r in connection.execute(query).mappings()]


def held_since(connection: Connection, at: datetime) -> list[Held]:
    """When jobs had machines that ended after that."""
    query = (
        select(A.c.job, func.coalesce(J.c.spec["priority"].as_integer(), 0), J.c.submitted_at, A.c.granted_at, A.c.released_at)
        .join(J, J.c.id == A.c.job)
        .where(A.c.granted_at.is_not(None), A.c.released_at > at.isoformat())
        .order_by(A.c.granted_at)
    )
    time = datetime.fromisoformat
    return [Held(JobId(j), p, time(s), time(a), time(b)) for j, p, s, a, b in connection.execute(query)]


def living_attempts(connection: Connection) -> list[Attempt]:
    """Attempts of all jobs that are not over, oldest first."""
    query = select(A).where(A.c.state.not_in([str(s) for s in OVER])).order_by(A.c.planned_at, A.c.job, A.c.number)
    return [attempt_from_row(r) for r in connection.execute(query).mappings()]


def load_attempt(connection: Connection, job: JobId, number: AttemptNumber) -> Attempt:
    """One attempt; raises NotFound."""
    row = connection.execute(select(A).where(and_(A.c.job == job, A.c.number == number))).mappings().first()
    if row is None:
        raise NotFound(f"job {job!r} has no attempt {number}")
    return attempt_from_row(row)


def has_attempt(connection: Connection, job: str, number: int) -> bool:
    """Whether there ever was one."""
    return connection.execute(select(A.c.number).where(and_(A.c.job == job, A.c.number == number))).first() is not None


def tokens(connection: Connection) -> frozenset[str]:
    """Launch tokens of attempts that are not over: a machine of any other, however late it shows, belongs to nobody."""
    over = [str(state) for state in OVER]
    return frozenset(connection.execute(select(A.c.token).where(A.c.state.not_in(over))).scalars())


def attempts_with_machines(connection: Connection) -> dict[str, Attempt]:
    """Attempts that are not over, by their instance."""
    over = [str(state) for state in OVER]
    found = connection.execute(select(A).where(A.c.instance.is_not(None), A.c.state.not_in(over))).mappings()
    return {str(r["instance"]): attempt_from_row(r) for r in found}


def save_job(connection: Connection, job: Job) -> Job:
    """Write, guarded by `version`; raises Stale where the row has moved on."""
    after = replace(job, version=job.version + 1)
    where = and_(J.c.id == job.id, J.c.version == job.version)
    if connection.execute(update(J).where(where).values(**job_to_row(after))).rowcount != 1:
        raise Stale(f"job {job.id} was changed by somebody else meanwhile")
    return after


def save_attempt(connection: Connection, attempt: Attempt) -> Attempt:
    """Write, guarded by `version`; raises Stale where the row has moved on."""
    after = replace(attempt, version=attempt.version + 1)
    where = and_(A.c.job == attempt.job, A.c.number == attempt.number, A.c.version == attempt.version)
    if connection.execute(update(A).where(where).values(**attempt_to_row(after))).rowcount != 1:
        raise Stale(f"attempt {attempt.job}/{attempt.number} was changed by somebody else meanwhile")
    return after
