"""Jobs and attempts in the database: rows, loading, and saving unless another writer changed the row meanwhile."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, func, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from spotsurfer.model.arrays import read_array
from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.model.job import (
    ENDED,
    OVER,
    Attempt,
    AttemptNumber,
    AttemptState,
    HeldBy,
    InputFetch,
    Job,
    JobId,
    JobPort,
    JobSpec,
    JobState,
    JobStep,
    MarketChoice,
    MoveRequest,
    Parent,
    Rewind,
    SharedMount,
    Wish,
)
from spotsurfer.model.machine import GONE, Machine, MachineState, machine_of
from spotsurfer.model.market import Market, Pool
from spotsurfer.model.snapshot import Held, Waiting
from spotsurfer.state import dependencies
from spotsurfer.state.queue import BEGIN
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import machine as M


def instant(text: str | None) -> datetime | None:
    """A time from its text."""
    return None if text is None else datetime.fromisoformat(text)


def text_of(at: datetime | None) -> str | None:
    """A time as text."""
    return None if at is None else at.isoformat()


def spec_to_doc(spec: JobSpec) -> dict[str, Any]:
    """A specification as JSON."""
    return dataclasses.asdict(spec)


def spec_from_doc(doc: Mapping[str, Any]) -> JobSpec:
    """A specification from JSON."""
    lists = {k: tuple(v) for k, v in doc.items() if isinstance(v, list)}
    steps = tuple(JobStep(**{**s, "command": tuple(s["command"])}) for s in doc.get("steps", ()))
    goods = {
        "fetches": tuple(InputFetch(**f) for f in doc.get("fetches", ())),
        "mounts": tuple(SharedMount(**m) for m in doc.get("mounts", ())),
        "ports": tuple(JobPort(**p) for p in doc.get("ports", ())),
    }
    return JobSpec(**{**doc, **lists, **goods, "steps": steps, "market": MarketChoice(doc["market"])})


def job_to_row(job: Job) -> dict[str, Any]:
    """A row of the job table."""
    row: dict[str, Any] = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
    row["spec"] = spec_to_doc(job.spec)
    row["move"] = None if (m := job.move) is None else {**dataclasses.asdict(m), "asked_at": text_of(m.asked_at)}
    row["rewind"] = None if job.rewind is None else dataclasses.asdict(job.rewind)
    row["parent"] = None if job.parent is None else dataclasses.asdict(job.parent)
    row["state"], row["wish"], row["held_by"] = str(job.state), str(job.wish), str(job.held_by)
    row |= {name: text_of(getattr(job, name)) for name in JOB_TIMES}
    return row | of_spec(job)


def of_spec(job: Job) -> dict[str, Any]:
    """The columns that repeat something of the specification."""
    spec = job.spec
    return {
        **{name: getattr(spec, name) for name in COPIED},
        "array_limit": read_array(spec.array).limit if job.array else 0,
        "pressing": spec.deadline_seconds is not None,
        "shape": shape_of(job),
    }


def shape_of(job: Job) -> str:
    """Jobs of one shape fit the same machines, and the same budgets pay for them."""
    spec = job.spec
    fits = (spec.cpus, spec.memory_bytes, spec.gpus, spec.gpu, spec.market, spec.instance_types, spec.price_max_usd_micros)
    pays = (job.owner, spec.project, sorted(spec.tags.items()), spec.budget_usd_micros)
    more = (spec.devices, spec.size_policy, spec.cpu, bool(job.parent))
    return hashlib.sha256(repr((fits, pays, more)).encode()).hexdigest()[:16]


def job_from_row(row: Any) -> Job:
    """A job from its row."""
    values = {name: row[name] for name in FIELDS}
    values["spec"] = spec_from_doc(row["spec"])
    if (m := row["move"]) is not None:
        market = None if m["market"] is None else Market(m["market"])
        values["move"] = MoveRequest(m["number"], datetime.fromisoformat(m["asked_at"]), m["instance_type"], market)
    values["rewind"] = None if row["rewind"] is None else Rewind(**row["rewind"])
    values["parent"] = None if row["parent"] is None else Parent(**row["parent"])
    values["state"], values["wish"], values["held_by"] = JobState(row["state"]), Wish(row["wish"]), HeldBy(row["held_by"])
    values |= {name: instant(row[name]) for name in JOB_TIMES}
    return Job(**values)


JOB_TIMES = ("submitted_at", "ended_at", "resumed_at", "stuck_since", "begins_at")
FIELDS = tuple(f.name for f in dataclasses.fields(Job))
COPIED = ("name", "project", "priority", "cpus", "memory_bytes", "gpus", "time_limit_seconds")
TIMES = ("since", "planned_at", "granted_at", "launched_at", "released_at")


# Of an attempt these are read from its machine's row.
FACTS = [M.c[c.name] for c in M.columns if c.name in {f.name for f in dataclasses.fields(Attempt)} - set(A.c.keys())]
ATTEMPTS = select(A, *FACTS).join(M, M.c.token == A.c.token)


def attempt_to_row(attempt: Attempt) -> dict[str, Any]:
    """A row of the attempt table."""
    row: dict[str, Any] = {name: getattr(attempt, name) for name in A.c.keys()}  # noqa: SIM118 - a collection, no dict
    row["state"] = str(attempt.state)
    return row | {name: text_of(row[name]) for name in TIMES}


def attempt_from_row(row: Any) -> Attempt:
    """An attempt from a row of ATTEMPTS."""
    values = dict(row)
    values["state"], values["market"] = AttemptState(row["state"]), Market(row["market"])
    values["pool"] = Pool(**row["pool"])
    values |= {name: instant(row[name]) for name in TIMES}
    return Attempt(**values)


LIVING = A.c.state.not_in([str(s) for s in OVER])
THERE = M.c.state.not_in([str(s) for s in GONE])
BUSY = exists().where(and_(A.c.job == J.c.id, LIVING))
OPEN = select(J).where(or_(J.c.state.not_in([str(s) for s in ENDED]), BUSY)).order_by(J.c.submitted_at, J.c.id)


class Stale(Conflict):
    """The row changed since it was read: decide again."""


def add_job(connection: Connection, job: Job) -> Job:
    """Insert, with the next number; raises sqlalchemy.exc.IntegrityError for an id that exists."""
    return add_jobs(connection, [job])[0]


def add_jobs(connection: Connection, jobs: Sequence[Job]) -> list[Job]:
    """Insert the jobs of one submission, with the next number for all; raises sqlalchemy.exc.IntegrityError."""
    first, *others = jobs
    after = select(func.coalesce(func.max(J.c.number), 0) + 1).scalar_subquery()
    connection.execute(insert(J).values(**{**job_to_row(first), "number": after}))
    number = connection.execute(select(J.c.number).where(J.c.id == first.id)).scalar_one()
    numbered = [replace(job, number=number) for job in jobs]
    if others:
        connection.execute(insert(J), [job_to_row(job) for job in numbered[1:]])
    return numbered


def add_attempt(connection: Connection, attempt: Attempt) -> None:
    """Insert, and its machine if that has no row; raises sqlalchemy.exc.IntegrityError for a number that exists."""
    known = {str(s): MachineState(s) for s in MachineState}
    made = upsert(M).values(**machine_to_row(machine_of(attempt, known.get(str(attempt.state), MachineState.UP))))
    connection.execute(made.on_conflict_do_nothing(index_elements=["token"]))
    connection.execute(insert(A).values(**attempt_to_row(attempt)))


# ---- Machines

MACHINE_TIMES = ("since", "launched_at", "released_at", "idle_since")


def machine_to_row(machine: Machine) -> dict[str, Any]:
    """A row of the machine table."""
    row: dict[str, Any] = {f.name: getattr(machine, f.name) for f in dataclasses.fields(machine)}
    row |= {"state": str(machine.state), "market": str(machine.market), "pool": dataclasses.asdict(machine.pool)}
    return row | {name: text_of(row[name]) for name in MACHINE_TIMES}


def machine_from_row(row: Any) -> Machine:
    """A machine from its row."""
    values = {**row, "state": MachineState(row["state"]), "market": Market(row["market"]), "pool": Pool(**row["pool"])}
    return Machine(**values | {name: instant(row[name]) for name in MACHINE_TIMES})


def add_machine(connection: Connection, machine: Machine) -> None:
    """Insert; raises sqlalchemy.exc.IntegrityError for a token that exists."""
    connection.execute(insert(M).values(**machine_to_row(machine)))


def load_machine(connection: Connection, token: str) -> Machine:
    """One machine; raises NotFound."""
    row = connection.execute(select(M).where(M.c.token == token)).mappings().first()
    if row is None:
        raise NotFound(f"there is no machine {token!r}")
    return machine_from_row(row)


def save_machine(connection: Connection, machine: Machine) -> Machine:
    """Write, guarded by `version`; raises Stale if the row has moved on."""
    after = replace(machine, version=machine.version + 1)
    where = and_(M.c.token == machine.token, M.c.version == machine.version)
    if connection.execute(update(M).where(where).values(**machine_to_row(after))).rowcount != 1:
        raise Stale(f"machine {machine.token} was changed by somebody else meanwhile")
    return after


def living_machines(connection: Connection) -> list[Machine]:
    """Machines that are not gone, oldest first."""
    query = select(M).where(THERE).order_by(M.c.since, M.c.token)
    return [machine_from_row(r) for r in connection.execute(query).mappings()]


def waiting(connection: Connection) -> list[Waiting]:
    """What queued jobs ask for, each kind once; without those that may not begin yet."""
    columns = (J.c.owner, J.c.cpus, J.c.memory_bytes, J.c.gpus)
    queued = (J.c.state == str(JobState.QUEUED), J.c.wish == str(Wish.RUN), J.c.waits_for != BEGIN)
    return [Waiting(*row) for row in connection.execute(select(*columns).where(*queued).distinct())]


def is_kept(connection: Connection, token: str) -> bool:
    """Whether this is a machine that takes further jobs."""
    return connection.execute(select(M.c.token).where(M.c.token == token, M.c.keep_seconds > 0)).first() is not None


def is_used(connection: Connection, token: str) -> bool:
    """Whether a machine has an attempt that is not over."""
    return connection.execute(select(A.c.number).where(A.c.token == token, LIVING).limit(1)).first() is not None


def tenants(connection: Connection, tokens: Sequence[str]) -> dict[str, list[Attempt]]:
    """All attempts that were ever on these machines, by token, in the order of their slots."""
    query = ATTEMPTS.where(A.c.token.in_(list(tokens))).order_by(A.c.token, A.c.slot)
    found: dict[str, list[Attempt]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["token"], []).append(attempt_from_row(row))
    return found


def load_job(connection: Connection, job: JobId) -> Job:
    """One job by id; raises NotFound."""
    row = connection.execute(select(J).where(J.c.id == job)).mappings().first()
    if row is None:
        raise NotFound(f"there is no job {job!r}; `spotsurfer list` shows all")
    return job_from_row(row)


def named_job(connection: Connection, name: str, owner: str | None = None) -> Job:
    """One job by its exact id or name, for commands that change it; for a shared name the newest active job, else the newest.

    `owner`: among the jobs of theirs alone.

    Raises NotFound, with a list of similar jobs.
    """
    ended = J.c.state.in_([str(s) for s in ENDED])
    query = _of(owner).where(or_(J.c.id == name, J.c.name == name))
    query = query.order_by((J.c.id == name).desc(), ended, J.c.submitted_at.desc(), J.c.id)
    row = connection.execute(query.limit(1)).mappings().first()
    if row is not None:
        return job_from_row(row)
    begin = [j.id for j in _beginning(connection, name, owner)]
    if begin:
        raise NotFound(f"there is no job {name!r}: write its whole id or name; did you mean {' or '.join(begin)}?")
    raise NotFound(f"there is no job {name!r}; `spotsurfer list` shows all")


def find_job(connection: Connection, name: str, owner: str | None = None) -> Job:
    """As `named_job`, or by an unambiguous beginning of an id, for queries. Raises NotFound."""
    try:
        return named_job(connection, name, owner)
    except NotFound:
        begin = _beginning(connection, name, owner)
        if len(begin) == 1:
            return begin[0]
        raise


def job_or_array(connection: Connection, name: str, owner: str | None = None) -> str:
    """The id of a job or array by its id, its number ("12"; of a task "12_3"), or its name. NotFound."""
    number, _, task = name.partition("_")
    if connection.execute(_of(owner).where(J.c.array == name).limit(1)).first() is not None:
        return name
    if number.isdecimal() and (not task or task.isdecimal()) and len(name) < 19:
        query = _of(owner).where(J.c.number == int(number))
        row = connection.execute((query.where(J.c.task == int(task)) if task else query).limit(1)).mappings().first()
        if row is not None:
            return str(row["id"] if task else row["array"] or row["id"])
    job = named_job(connection, name, owner)
    return job.array if job.array and job.id != name else job.id


def tasks(connection: Connection, array: str) -> set[int]:
    """Numbers of the tasks of an array."""
    return set(connection.execute(select(J.c.task).where(J.c.array == array, J.c.task.is_not(None))).scalars())


def _beginning(connection: Connection, name: str, owner: str | None) -> list[Job]:
    """Some of the jobs with ids that begin with `name`."""
    if not name:
        return []
    query = _of(owner).where(J.c.id.startswith(name, autoescape=True)).order_by(J.c.submitted_at.desc(), J.c.id).limit(3)
    return [job_from_row(r) for r in connection.execute(query).mappings()]


def _of(owner: str | None) -> Select[Any]:
    return select(J) if owner is None else select(J).where(J.c.owner == owner)


def all_jobs(connection: Connection, owner: str | None = None) -> list[Job]:
    """Every job, or every job of an owner, newest first."""
    rows = connection.execute(_of(owner).order_by(J.c.submitted_at.desc(), J.c.id)).mappings()
    return [job_from_row(r) for r in rows]


def succeeded(connection: Connection, name: str, most: int) -> list[Job]:
    """Jobs of this name that succeeded, the latest first."""
    query = select(J).where(and_(J.c.state == str(JobState.SUCCEEDED), J.c.name == name))
    return [job_from_row(r) for r in connection.execute(query.order_by(J.c.ended_at.desc()).limit(most)).mappings()]


def open_jobs(connection: Connection) -> list[Job]:
    """Jobs that have not ended, or still have machines."""
    return [job_from_row(r) for r in connection.execute(OPEN).mappings()]


def attempts(connection: Connection, jobs: Sequence[JobId]) -> dict[JobId, list[Attempt]]:
    """Attempts of these jobs, oldest first."""
    found: dict[JobId, list[Attempt]] = {j: [] for j in jobs}
    query = ATTEMPTS.where(A.c.job.in_(list(jobs))).order_by(A.c.job, A.c.number)
    for row in connection.execute(query).mappings():
        one = attempt_from_row(row)
        found[one.job].append(one)
    return found


def ended_since(connection: Connection, at: datetime) -> list[Attempt]:
    """Attempts of all jobs with machines that ended after `at`."""
    query = ATTEMPTS.where(~LIVING, A.c.released_at > at.isoformat())
    return [attempt_from_row(r) for r in connection.execute(query).mappings()]


def held_since(connection: Connection, at: datetime) -> list[Held]:
    """The tenancies of jobs on machines that ended after `at`."""
    query = (
        select(A.c.job, J.c.priority, J.c.submitted_at, A.c.granted_at, A.c.released_at)
        .join(J, J.c.id == A.c.job)
        .where(A.c.granted_at.is_not(None), A.c.released_at > at.isoformat())
        .order_by(A.c.granted_at)
    )
    time = datetime.fromisoformat
    return [Held(JobId(j), p, time(s), time(a), time(b)) for j, p, s, a, b in connection.execute(query)]


def living_attempts(connection: Connection) -> list[Attempt]:
    """Attempts of all jobs that are not over, oldest first."""
    query = ATTEMPTS.where(LIVING).order_by(A.c.planned_at, A.c.job, A.c.number)
    return [attempt_from_row(r) for r in connection.execute(query).mappings()]


def load_attempt(connection: Connection, job: JobId, number: AttemptNumber) -> Attempt:
    """One attempt; raises NotFound."""
    row = connection.execute(ATTEMPTS.where(and_(A.c.job == job, A.c.number == number))).mappings().first()
    if row is None:
        raise NotFound(f"job {job!r} has no attempt {number}")
    return attempt_from_row(row)


def has_attempt(connection: Connection, job: str, number: int) -> bool:
    """Whether the attempt ever existed."""
    return connection.execute(select(A.c.number).where(and_(A.c.job == job, A.c.number == number))).first() is not None


def tokens(connection: Connection) -> frozenset[str]:
    """Launch tokens of machines that are not gone: one with another token, however late it appears, is an orphan."""
    return frozenset(connection.execute(select(M.c.token).where(THERE)).scalars())


def attempts_with_machines(connection: Connection) -> dict[str, Attempt]:
    """Attempts that are not over, by their instance; of several on one machine the newest."""
    found = connection.execute(ATTEMPTS.where(M.c.instance.is_not(None), LIVING).order_by(A.c.slot)).mappings()
    return {str(r["instance"]): attempt_from_row(r) for r in found}


def save_job(connection: Connection, job: Job) -> Job:
    """Write, guarded by `version`; raises Stale where the row has moved on."""
    after = replace(job, version=job.version + 1)
    where = and_(J.c.id == job.id, J.c.version == job.version)
    row = job_to_row(after)
    del row["number"]  # given once
    if connection.execute(update(J).where(where).values(**row)).rowcount != 1:
        raise Stale(f"job {job.id} was changed by somebody else meanwhile")
    if after.state in ENDED:
        dependencies.ended(connection, [after])
    return after


def save_attempt(connection: Connection, attempt: Attempt) -> Attempt:
    """Write, guarded by `version`; raises Stale where the row has moved on. Of the machine only what became known meanwhile is
    written."""
    after = replace(attempt, version=attempt.version + 1)
    where = and_(A.c.job == attempt.job, A.c.number == attempt.number, A.c.version == attempt.version)
    if connection.execute(update(A).where(where).values(**attempt_to_row(after))).rowcount != 1:
        raise Stale(f"attempt {attempt.job}/{attempt.number} was changed by somebody else meanwhile")
    learned = {"instance": after.instance, "public_address": after.public_address}
    if learned := {name: value for name, value in learned.items() if value}:
        connection.execute(update(M).where(M.c.token == after.token).values(**learned))
    return after
