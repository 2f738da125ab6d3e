"""Jobs and attempts in the database: rows, loading, and saving unless another writer changed the row meanwhile."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, func, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from spotsurfer.common.units import ranges
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
from spotsurfer.model.queueing.arrays import limit_of, read_array
from spotsurfer.model.snapshot import Held, Waiting
from spotsurfer.model.timeline_events import Kind
from spotsurfer.state import dependencies
from spotsurfer.state.queue import BEGIN
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import machine as M
from spotsurfer.state.schema import meta, moment
from spotsurfer.state.spoilt_rows import Name, decoded


def instant(text: str | None) -> datetime | None:
    """A time from its text."""
    return None if text is None else datetime.fromisoformat(text)


def text_of(at: datetime | None) -> str | None:
    """A time as text."""
    return None if at is None else at.isoformat()


def spec_to_doc(spec: JobSpec) -> dict[str, Any]:
    """A specification as JSON."""
    return {name: _plain(getattr(spec, name)) for name in SPEC_FIELDS}


def _plain(value: Any) -> Any:
    """As `dataclasses.asdict`, for thousands of tasks in a second."""
    if isinstance(value, tuple):
        return tuple(dataclasses.asdict(x) if dataclasses.is_dataclass(x) and not isinstance(x, type) else x for x in value)
    return value


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
        "array_limit": limit_of(spec.array) if job.array else 0,
        "pressing": spec.deadline_seconds is not None,
        "shape": shape_of(job),
    }


def shape_of(job: Job) -> str:
    """Jobs of one shape fit the same machines, take the same licences, and the same budgets pay for them."""
    spec = job.spec
    fits = (spec.cpus, spec.memory_bytes, spec.gpus, spec.gpu, spec.market, spec.instance_types, spec.price_max_usd_micros)
    pays = (job.owner, spec.project, sorted(spec.tags.items()), spec.budget_usd_micros)
    more = (sorted(spec.licences.items()), spec.devices, spec.size_policy, spec.cpu, bool(job.parent))
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
SPEC_FIELDS = tuple(f.name for f in dataclasses.fields(JobSpec))
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


SOME_TASKS = re.compile(r"(.+)-\[([0-9,:-]+)\]")


@dataclass(frozen=True, slots=True)
class Selection:
    """Tasks of an array; None = all. Or one `job` that is no task."""

    array: str = ""
    tasks: frozenset[int] | None = None
    job: str = ""

    def __str__(self) -> str:
        if self.job:
            return self.job
        some = self.tasks
        if some is None:
            return self.array
        return f"{self.array}-{min(some)}" if len(some) == 1 else f"{self.array}-[{ranges(some)}]"


class Stale(Conflict):
    """The row changed since it was read: decide again."""


def add_job(connection: Connection, job: Job) -> Job:
    """Insert, with the next number; raises sqlalchemy.exc.IntegrityError for an id that exists."""
    return add_jobs(connection, [job])[0]


def add_jobs(connection: Connection, jobs: Sequence[Job]) -> list[Job]:
    """Insert the jobs of one submission, with their number or the next one; raises sqlalchemy.exc.IntegrityError."""
    return add_submissions(connection, [jobs])[0]


def add_submissions(connection: Connection, submissions: Sequence[Sequence[Job]]) -> list[list[Job]]:
    """Insert the jobs of several, with their numbers, or the next one for each; raises sqlalchemy.exc.IntegrityError."""
    without = sum(not jobs[0].number for jobs in submissions)
    free = itertools.count(next_numbers(connection, without)) if without else itertools.count()
    numbered = []
    for jobs in submissions:
        number = jobs[0].number or next(free)
        numbered.append([replace(job, number=number) for job in jobs])
    connection.execute(insert(J), [job_to_row(job) for jobs in numbered for job in jobs])
    return numbered


NUMBER = "number"  # in `meta`: the newest that was given


def next_numbers(connection: Connection, count: int) -> int:
    """The first of so many numbers that no submission has, nor will have: what they are for may fail."""
    used = connection.execute(select(func.coalesce(func.max(J.c.number), 0))).scalar_one()
    given = connection.execute(select(meta.c.value).where(meta.c.key == NUMBER)).scalar_one_or_none()
    first: int = max(used, int(given or 0)) + 1
    newest = str(first + count - 1)
    if given is None:
        connection.execute(insert(meta).values(key=NUMBER, value=newest))
    else:
        connection.execute(update(meta).where(meta.c.key == NUMBER).values(value=newest))
    return first


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
    values = dict(row)
    values |= {"state": MachineState(row["state"]), "market": Market(row["market"]), "pool": Pool(**row["pool"])}
    values |= {name: instant(row[name]) for name in MACHINE_TIMES}
    return Machine(**values)


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
    return decoded(connection, query, [M.c.token], machine_from_row)


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
    """One job by its exact id or name, for commands that change it; of several the newest active job, else the newest.

    An array's id is a name of its tasks.

    `owner`: among the jobs of theirs alone.

    Raises NotFound, with a list of similar jobs.
    """
    ended = J.c.state.in_([str(s) for s in ENDED])
    if (match := SOME_TASKS.fullmatch(name)) is not None:
        named = and_(J.c.array == match[1], J.c.task.in_(read_array(match[2]).tasks))
    else:
        named = or_(J.c.id == name, J.c.name == name, J.c.array == (name or "-"))
    query = _of(owner).where(named)
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


def is_there(connection: Connection, id: str) -> bool:
    """Whether this is the id of a job or of an array."""
    return connection.execute(select(J.c.id).where(or_(J.c.id == id, J.c.array == id)).limit(1)).first() is not None


def is_taken(connection: Connection, id: str, array: str) -> bool:
    """Whether `id` is an array's, has neighbours that look like its tasks, or looks like a task of a job or array `array`."""
    theirs = or_(J.c.array == id, J.c.id.op("GLOB")(f"{id}-[0-9]*"), J.c.array == (array or "-"), J.c.id == array)
    return connection.execute(select(J.c.id).where(theirs).limit(1)).first() is not None


def selected(connection: Connection, name: str, owner: str | None = None) -> Selection | None:
    """The tasks that an array's id, its name, "ARRAY-7" or "ARRAY-[3-9]" means; None = no array, or another name."""
    match = SOME_TASKS.fullmatch(name)
    array, some = (match[1], match[2]) if match is not None else (name, "")
    if connection.execute(_of(owner).where(J.c.array == array).limit(1)).first() is not None:
        return Selection(array, frozenset(read_array(some).tasks) if some else None)
    row = connection.execute(_of(owner).where(J.c.id == name)).mappings().first()
    if row is None and match is None:
        query = _of(owner).where(J.c.name == name).order_by(J.c.state.in_([str(s) for s in ENDED]), J.c.submitted_at.desc())
        row = connection.execute(query.limit(1)).mappings().first()
    if row is None or not row["array"]:
        return None
    return Selection(row["array"], frozenset({row["task"]}) if row["id"] == name else None)


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
    return decoded(connection, _of(owner).order_by(J.c.submitted_at.desc(), J.c.id), [J.c.id], job_from_row)


def with_objects(connection: Connection) -> list[Job]:
    """Every job that may have something in the store: all but tasks that never had a machine."""
    has = exists().where(A.c.job == J.c.id)
    return [job_from_row(r) for r in connection.execute(select(J).where(or_(J.c.array == "", has))).mappings()]


def ran(connection: Connection, owner: str, tag: tuple[str, str] | None, stem: str, most: int) -> list[Job]:
    """Jobs of an owner that succeeded, or were killed for want of memory, the latest first.

    They have this tag, or if there is none a name that begins like this.
    """
    killed = exists().where(moment.c.job == J.c.id, moment.c.kind == str(Kind.OUT_OF_MEMORY))
    ended = or_(J.c.state == str(JobState.SUCCEEDED), and_(J.c.state == str(JobState.FAILED), killed))
    spec = J.c.spec
    alike = (
        spec["name"].as_string().startswith(stem, autoescape=True)
        if tag is None
        else spec["tags"][tag[0]].as_string() == tag[1]
    )
    query = select(J).where(ended, J.c.owner == owner, alike).order_by(J.c.ended_at.desc()).limit(most)
    return [job_from_row(r) for r in connection.execute(query).mappings()]


def jobs_of(connection: Connection, ids: Sequence[JobId], spoilt: dict[JobId, str] | None = None) -> list[Job]:
    """These jobs, oldest first.

    One with a row that can't be decoded is left out; with `spoilt` it is noted there, and a job that is held stands for it.
    """
    return _jobs(connection, select(J).where(J.c.id.in_(list(ids))).order_by(J.c.submitted_at, J.c.id), spoilt)


def ended_in_home(connection: Connection, job: Job) -> list[Job]:
    """Jobs of the same owner and folder that ended after this one was submitted, in the order of their ends."""
    same = (J.c.owner == job.owner) & (J.c.spec["home"].as_string() == job.spec.home) & (J.c.id != job.id)
    over = J.c.state.in_([str(s) for s in ENDED]) & (J.c.ended_at >= text_of(job.submitted_at))
    return [job_from_row(r) for r in connection.execute(select(J).where(same, over).order_by(J.c.ended_at)).mappings()]


def homes_since(connection: Connection, at: datetime) -> set[tuple[str, str]]:
    """Owner and folder of all jobs that work in one, and have not ended before that time."""
    home = J.c.spec["home"].as_string()
    query = select(J.c.owner, home).where(home != "", or_(J.c.ended_at.is_(None), J.c.ended_at >= text_of(at))).distinct()
    return {(str(owner), str(folder)) for owner, folder in connection.execute(query)}


def open_outputs(connection: Connection, owner: str, home: str) -> Iterator[tuple[str, str, list[str]]]:
    """Id, folder and outputs of the owner's jobs in a home folder that have not ended."""
    same = (J.c.owner == owner) & (J.c.spec["home"].as_string() == home) & J.c.state.not_in([str(s) for s in ENDED])
    found = connection.execute(select(J.c.id, J.c.spec["folder"].as_string(), J.c.spec["outputs"]).where(same))
    return (
        (str(id), str(folder), outputs if isinstance(outputs, list) else json.loads(outputs)) for id, folder, outputs in found
    )


def open_jobs(connection: Connection) -> list[Job]:
    """Jobs that have not ended, or still have machines, but for those with a row that can't be decoded."""
    return _jobs(connection, OPEN, None)


def _jobs(connection: Connection, query: Select[Any], spoilt: dict[JobId, str] | None) -> list[Job]:
    bad = dict[Name, str]()
    found = decoded(connection, query, [J.c.id], job_from_row, bad)
    if bad and spoilt is not None:
        spoilt |= {JobId(name[0]): why for name, why in bad.items()}
        known = connection.execute(select(J.c.id, J.c.name, J.c.priority, J.c.version).where(J.c.id.in_(list(spoilt))))
        found += [_stands_for(JobId(job), name, priority, version) for job, name, priority, version in known]
    return found


def _stands_for(job: JobId, name: str, priority: int, version: int) -> Job:
    spec = JobSpec(name or job, (), priority=priority)
    return Job(job, spec, JobState.HELD, version, datetime.fromtimestamp(0, UTC), Wish.HOLD, "its row can't be decoded")


def attempts(
    connection: Connection, jobs: Sequence[JobId], spoilt: dict[JobId, str] | None = None
) -> dict[JobId, list[Attempt]]:
    """Attempts of these jobs, oldest first. One that can't be decoded is left out, and its job noted in `spoilt`."""
    found: dict[JobId, list[Attempt]] = {j: [] for j in jobs}
    query = ATTEMPTS.where(A.c.job.in_(list(jobs))).order_by(A.c.job, A.c.number)
    bad = dict[Name, str]()
    for one in decoded(connection, query, [A.c.job, A.c.number], attempt_from_row, bad):
        found[one.job].append(one)
    if spoilt is not None:
        spoilt |= {JobId(job): f"the row of attempt {number} can't be decoded ({why})" for (job, number), why in bad.items()}
    return found


def ended_since(connection: Connection, at: datetime) -> list[Attempt]:
    """Attempts of all jobs with machines that ended after `at`."""
    query = ATTEMPTS.where(~LIVING, A.c.released_at > at.isoformat())
    return decoded(connection, query, [A.c.job, A.c.number], attempt_from_row)


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
    return decoded(connection, query, [A.c.job, A.c.number], attempt_from_row)


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
    query = ATTEMPTS.where(M.c.instance.is_not(None), LIVING).order_by(A.c.slot)
    return {str(a.instance): a for a in decoded(connection, query, [A.c.job, A.c.number], attempt_from_row)}


def save_job(connection: Connection, job: Job) -> Job:
    """Write, guarded by `version`; raises Stale where the row has moved on."""
    after = replace(job, version=job.version + 1)
    where = and_(J.c.id == job.id, J.c.version == job.version)
    row = job_to_row(after)
    del row["number"]  # given once
    if connection.execute(update(J).where(where).values(**row)).rowcount != 1:
        raise Stale(f"job {job.id} was changed by somebody else meanwhile")
    if after.state in ENDED:
        dependencies.ended(connection, dependencies.names_of(after))
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
