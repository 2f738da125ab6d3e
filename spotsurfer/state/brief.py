"""Rows for a list of very many jobs: columns alone, without their specifications."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    String,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
)

from spotsurfer.model.job import ENDED, Job, JobId, JobState
from spotsurfer.state import queue
from spotsurfer.state.dependencies import pieces
from spotsurfer.state.jobs import job_from_row
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import dependency as D
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import machine as M

# What tasks of an array that share a row have in common; `folded` adds what they wait for.
SHARED = (
    "number", "array", "name", "owner", "project", "state", "wish", "held_by", "reason", "exit_code", "ended_by", "cpus",
    "memory_bytes", "gpus", "time_limit_seconds", "array_limit", "priority", "waits_for",
)  # fmt: skip
OF_SPEC = tuple(func.coalesce(J.c.spec[name].as_string(), "").label(name) for name in ("home", "market"))
ONE = (*(J.c[name] for name in (*SHARED, "id", "task", "submitted_at", "ended_at")), *OF_SPEC, literal("").label("tasks"))


@dataclass(frozen=True, slots=True)
class Which:
    """Jobs to list: of `owner` (None = of all), tasks of arrays alone. `folded`: tasks that are alike share a row."""

    ended: bool = True
    owner: str | None = None
    only_tasks: bool = False
    folded: bool = False


def listed(connection: Connection, which: Which) -> Sequence[RowMapping]:
    """Jobs that are no rehearsals, newest first. `tasks`: those that share the row of the first of them, as "3,4"."""
    wanted: list[ColumnElement[bool]] = [func.coalesce(J.c.parent["rehearsal"].as_boolean(), False).is_(False)]
    if not which.ended:
        wanted.append(J.c.state.not_in([str(s) for s in ENDED]))
    if which.owner is not None:
        wanted.append(J.c.owner == which.owner)
    if which.only_tasks:
        wanted.append(J.c.array != "")
    if not which.folded:
        return connection.execute(select(*ONE).where(*wanted).order_by(J.c.submitted_at.desc(), J.c.id)).mappings().all()
    alike = _alike()
    apart = connection.execute(select(*ONE).where(*wanted, not_(alike))).mappings().all()
    found = [*apart, *_folded(connection, and_(*wanted, alike))]
    return sorted(found, key=lambda row: str(row["submitted_at"]), reverse=True)


def _alike() -> ColumnElement[bool]:
    """Tasks of arrays that have no machine, and either ended or never began: nothing but their numbers tells them apart."""
    began = exists().where(A.c.job == J.c.id, A.c.granted_at.is_not(None))
    rests = or_(J.c.state.in_([str(s) for s in ENDED]), and_(J.c.state != str(JobState.ACTIVE), ~began))
    return and_(J.c.array != "", rests, J.c.id.not_in(queue.LIVING))


def _folded(connection: Connection, wanted: ColumnElement[bool]) -> Sequence[RowMapping]:
    """Few rows: the specification, which is long, is read once for each of them."""
    waits = select(func.group_concat(D.c.kind + ":" + D.c.on + " " + D.c.never)).where(D.c.job == J.c.id).scalar_subquery()
    shared = [J.c[name] for name in SHARED]
    numbers = func.group_concat(J.c.task).label("tasks")
    times = (func.min(J.c.submitted_at).label("submitted_at"), func.max(J.c.ended_at).label("ended_at"))
    runs = select(*shared, numbers, func.min(J.c.task).label("task"), *times).where(wanted)
    of = runs.group_by(*shared, case((J.c.waits_for.in_(queue.BEFORE_OTHERS), waits), else_="")).subquery()
    first = of.c.array + "-" + cast(of.c.task, String)
    query = select(*of.c, J.c.id, *OF_SPEC).join_from(of, J, J.c.id == first)
    return connection.execute(query).mappings().all()


def with_machines(connection: Connection) -> list[Job]:
    """Jobs that have attempts which are not over."""
    return [job_from_row(r) for r in connection.execute(select(J).where(J.c.id.in_(queue.LIVING))).mappings()]


def started(connection: Connection, jobs: Sequence[JobId]) -> dict[JobId, tuple[str, str]]:
    """When each of the jobs was first granted to a machine, and the instance that had it last."""
    query = select(A.c.job, A.c.granted_at, M.c.instance).join(M, M.c.token == A.c.token).where(A.c.granted_at.is_not(None))
    found = dict[JobId, tuple[str, str]]()
    for some in pieces(jobs):
        for job, at, instance in connection.execute(query.where(A.c.job.in_(some)).order_by(A.c.job, A.c.number)):
            found[job] = found.get(job, (at, ""))[0], instance or ""
    return found


def numbers(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """Jobs and arrays in Slurm's words: "12"; all tasks of an array "12_*"; of a task "12_3"."""
    found = dict[str, str]()
    for some in pieces(ids):
        tasks = connection.execute(select(J.c.id, J.c.number, J.c.task).where(J.c.id.in_(some)))
        found |= {id: str(number) if task is None else f"{number}_{task}" for id, number, task in tasks}
        arrays = select(J.c.array, func.max(J.c.number)).where(J.c.array.in_(some)).group_by(J.c.array)
        found |= {array: f"{number}_*" for array, number in connection.execute(arrays)}
    return found
