"""Jobs that are submitted together: the rows of arrays, and what must come before each of them. No I/O but one look-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from graphlib import CycleError, TopologicalSorter

from spotsurfer_wire import object_keys
from sqlalchemy import Connection

from spotsurfer.jobspec.queueing import begins_at
from spotsurfer.jobspec.validate import WORK_MIN_SECONDS
from spotsurfer.model.errors import Conflict, JobFileError, NotFound
from spotsurfer.model.job import ASKED, Job, JobId, JobSpec, JobState, MarketChoice, Wish
from spotsurfer.model.queueing import arrays
from spotsurfer.model.queueing.dependencies import After, Dependency, read_after
from spotsurfer.ports.service import NewJob
from spotsurfer.state import jobs as rows

WORK_SHARE = 0.5  # of a time limit: users ask for about twice the time that a job takes


def limited(spec: JobSpec, meaning: str) -> JobSpec:
    """With the time limit as the operator means it: the end of the job, or a deadline for it. One of its own stays."""
    limit = spec.time_limit_seconds
    if meaning != "deadline" or limit is None or spec.deadline_seconds is not None or spec.market is MarketChoice.SPOT:
        return spec
    work = max(limit * WORK_SHARE, WORK_MIN_SECONDS)
    return replace(spec, time_limit_seconds=None, deadline_seconds=max(limit, work), work_seconds=work, warn_signal="")


def numbered(new: NewJob, number: int) -> NewJob:
    """The job with its number, which stands in its environment for "{number}"."""
    environment = {k: str(number) if v == "{number}" else v for k, v in new.spec.environment.items()}
    return replace(new, number=number, spec=replace(new.spec, environment=environment))


def rows_of(id: JobId, spec: JobSpec, now: datetime, owner: str, new: NewJob | None = None) -> list[Job]:
    """A job, or all tasks of an array. Tasks were submitted a microsecond after one another: all orders are by that."""
    begins = begins_at(spec, now)
    job = Job(id, spec, JobState.QUEUED, 1, now, owner=owner, begins_at=begins)
    if new is not None:
        job = replace(job, number=new.number)
        job = replace(job, wish=Wish.HOLD, reason=ASKED) if new.held else job
    if not spec.array:
        return [job]
    return [
        replace(
            job,
            id=arrays.task_id(id, task),
            spec=arrays.of_task(spec, task),
            array=str(id),
            task=task,
            submitted_at=now + timedelta(microseconds=n),
        )
        for n, task in enumerate(arrays.read_array(spec.array).tasks)
    ]


def check_ids(connection: Connection, jobs: Iterable[JobId]) -> None:
    """Raises Conflict for a job that would pass for a task of another one: machines of tasks read the inputs of their array."""
    for id in jobs:
        array = object_keys.array_of(id)
        if rows.is_taken(connection, id, array):
            raise Conflict(f"the id {id!r} can't be told from that of another job or its tasks: submit it again")


def of_task(conditions: Sequence[Dependency], task: int | None) -> list[Dependency]:
    """The conditions of one task."""
    return [
        Dependency(After.OK, c.on if task is None else arrays.task_id(c.on, task)) if c.kind is After.CORRESPONDING else c
        for c in conditions
    ]


def resolved(connection: Connection, jobs: Mapping[JobId, NewJob], within: str | None) -> list[list[Dependency]]:
    """What each of the jobs waits for, by id. Raises JobFileError for unknown jobs and tasks, ambiguous names, and cycles."""
    named: dict[str, list[str]] = {}
    for id, new in jobs.items():
        named.setdefault(new.spec.name, []).append(str(id))
    look = _Places(connection, jobs, named, within)
    found = [look.conditions(new.spec) if new.spec.after else [] for new in jobs.values()]
    waits = {str(id): [c.on for c in some if c.on in jobs] for id, some in zip(jobs, found, strict=True)}
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as e:
        circle = " waits for ".join(reversed(e.args[1]))
        raise JobFileError(f"after goes round in a circle, and none of these jobs could ever begin: {circle}") from None
    return found


@dataclass(frozen=True, slots=True)
class _Places:
    """What the names in `after` mean: first one of the jobs that are submitted together."""

    connection: Connection
    batch: Mapping[JobId, NewJob]
    named: Mapping[str, Sequence[str]]
    within: str | None

    def conditions(self, spec: JobSpec) -> list[Dependency]:
        found = [replace(c, on=self.place(spec, c.on)) if c.on else c for c in read_after(spec.after)]
        for c in found:
            if c.kind is After.CORRESPONDING and (missing := self.missing(spec, c.on)):
                raise JobFileError(f"after has {c}, which has no task {min(missing)}")
        return found

    def place(self, spec: JobSpec, name: str) -> str:
        here = self.named.get(name, [name] if name in self.batch else [])
        if len(here) > 1:
            raise JobFileError(f"after names {name!r}, and {len(here)} of the jobs submitted with {spec.name} have that name")
        if here:
            return here[0]
        try:
            return rows.job_or_array(self.connection, name, self.within)
        except NotFound:
            raise JobFileError(f"after names {name!r}, and there is no such job; `spotsurfer list` shows all") from None

    def missing(self, spec: JobSpec, on: str) -> set[int]:
        """Tasks of the one that the other does not have."""
        there = _tasks(self.batch[JobId(on)].spec) if on in self.batch else rows.tasks(self.connection, on)
        return _tasks(spec) - there


def _tasks(spec: JobSpec) -> set[int]:
    return set(arrays.read_array(spec.array).tasks) if spec.array else set()
