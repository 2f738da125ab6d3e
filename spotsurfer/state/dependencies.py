"""What queued jobs wait for: rows that go when they are fulfilled, in the transaction in which the job before them ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from sqlalchemy import Connection, delete, exists, func, insert, literal_column, or_, select, true, update

from spotsurfer.model.job import ENDED, Job, JobId, JobState
from spotsurfer.model.queueing.dependencies import After, Dependency
from spotsurfer.state.queue import ARRAY, BEGIN, DEPENDENCY
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import dependency as D
from spotsurfer.state.schema import job as J

T = TypeVar("T")
AT_ONCE = 10_000  # names in one query
OVER = [str(s) for s in ENDED]


def add(connection: Connection, jobs: Sequence[tuple[Job, Sequence[Dependency]]]) -> None:
    """Record what each of the new jobs waits for, by id; what is fulfilled already counts no more."""
    made = [(job, c.kind, c.on or _singleton(job)) for job, some in jobs for c in some]
    if made:
        connection.execute(insert(D), [{"job": job.id, "kind": str(kind), "on": on, "never": ""} for job, kind, on in made])
    closed = {job.id for job, _, _ in made}
    _gate(connection, closed, DEPENDENCY)
    for kind, on in {(kind, on) for _, kind, on in made}:
        _settle(connection, kind, on)
    _gate(connection, [job.id for job, _ in jobs if job.id not in closed and job.begins_at is not None], BEGIN)
    limited = [j for j, _ in jobs if j.id not in closed and j.begins_at is None and j.array and "%" in j.spec.array]
    _gate(connection, [job.id for job in limited], ARRAY)


def _gate(connection: Connection, jobs: Collection[JobId], why: str) -> None:
    for some in pieces(jobs):
        connection.execute(update(J).where(J.c.id.in_(some)).values(waits_for=why))


def names_of(job: Job) -> list[str]:
    """What others may wait for when they wait for it."""
    return [job.id, *([job.array] if job.array else []), _singleton(job)]


def ended(connection: Connection, names: Collection[str]) -> None:
    """Jobs of these names have ended: what waited for them may be able to go on, or never be."""
    for some in pieces(names):
        for kind, on in connection.execute(select(D.c.kind, D.c.on).where(D.c.on.in_(some)).distinct()).all():
            _settle(connection, After(kind), on)


def began(connection: Connection, job: Job) -> None:
    """The job has its first machine: what waited for that may go on."""
    for on in names_of(job):
        if connection.execute(select(D.c.job).where(D.c.on == on, D.c.kind == str(After.BEGUN)).limit(1)).first() is not None:
            _settle(connection, After.BEGUN, on)


def waiting(connection: Connection, jobs: Collection[JobId]) -> dict[JobId, list[tuple[Dependency, str]]]:
    """What the jobs wait for, by id, as their users wrote it, and why it can't be fulfilled any more ("" = it can)."""
    found = dict[JobId, list[tuple[Dependency, str]]]()
    query = select(D.c.job, D.c.kind, D.c.on, D.c.never).order_by(D.c.job, literal_column("dependency.rowid"))
    for some in pieces(jobs):
        for job, kind, on, never in connection.execute(query.where(D.c.job.in_(some))):
            one = Dependency(After(kind), "" if kind == After.SINGLETON else on)
            found.setdefault(job, []).append((one, never))
    return found


def never(connection: Connection) -> dict[JobId, str]:
    """Why jobs can't begin any more."""
    return {job: why for job, why in connection.execute(select(D.c.job, D.c.never).where(D.c.never != ""))}


def _settle(connection: Connection, kind: After, on: str) -> None:
    """Drop the condition if it is fulfilled, or say why it never will be."""
    mine = (D.c.kind == str(kind)) & (D.c.on == on)
    if kind is After.SINGLETON:
        other = J.alias()
        earlier = exists().where(
            other.c.name == J.c.name, other.c.owner == J.c.owner, other.c.number < J.c.number, other.c.state.not_in(OVER)
        )
        held = select(J.c.id).where(J.c.id == D.c.job, earlier)
        free = list(connection.execute(select(D.c.job).where(mine, ~held.exists())).scalars())
        mine &= D.c.job.in_(free)
    elif kind is After.BEGUN:
        had = exists().where(A.c.job == J.c.id, A.c.granted_at.is_not(None))
        fresh = select(J.c.id).where(or_(J.c.id == on, J.c.array == on), J.c.state.not_in(OVER), ~had)
        if connection.execute(fresh.limit(1)).first() is not None:
            return
        free = list(connection.execute(select(D.c.job).where(mine)).scalars())
    else:
        never = _never(kind, on, _states(connection, on))
        if never is None:
            return
        if never:
            connection.execute(update(D).where(mine).values(never=never))
            return
        free = list(connection.execute(select(D.c.job).where(mine)).scalars())
    for some in pieces(free):
        connection.execute(delete(D).where(mine, D.c.job.in_(some)))
    _open(connection, free)


def _never(kind: After, on: str, states: Counter[str]) -> str | None:
    """ "" = it is fulfilled, None = not yet, else why it can't be."""
    good, left = states[JobState.SUCCEEDED], sum(n for s, n in states.items() if s not in OVER)
    bad = sum(states.values()) - good - left
    many = f" ({bad} of its tasks)" if sum(states.values()) > 1 else ""
    if kind is After.OK and bad:
        return f"{on} did not succeed{many}"
    if left:
        return None
    return f"{on} succeeded" if kind is After.NOT_OK and not bad else ""


def _states(connection: Connection, on: str) -> Counter[str]:
    query = select(J.c.state, func.count()).where(or_(J.c.id == on, J.c.array == on)).group_by(J.c.state)
    return Counter({str(state): int(n) for state, n in connection.execute(query)})


def _open(connection: Connection, jobs: Collection[JobId]) -> None:
    """Let those of the jobs go on to their next gate that have no condition left."""
    for some in pieces(jobs):
        free = J.c.id.in_(some) & (J.c.waits_for == DEPENDENCY) & ~exists().where(D.c.job == J.c.id)
        for next_gate, why in ((J.c.begins_at.is_not(None), BEGIN), (J.c.array_limit > 0, ARRAY), (true(), "")):
            connection.execute(update(J).where(free, next_gate).values(waits_for=why))


def _singleton(job: Job) -> str:
    return f"{job.owner}/{job.spec.name}"


def pieces(jobs: Collection[T]) -> Iterator[list[T]]:
    """So many at a time as one query may name."""
    some = list(jobs)
    yield from (some[at : at + AT_ONCE] for at in range(0, len(some), AT_ONCE))
