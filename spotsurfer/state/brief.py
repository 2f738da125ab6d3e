"""Rows for a list of very many jobs: columns alone, without their specifications."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from spotsurfer.model.job import ENDED, Job, JobId
from spotsurfer.state import queue
from spotsurfer.state.jobs import job_from_row
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import dependency as D
from spotsurfer.state.schema import job as J

COLUMNS = (
    *(J.c[name] for name in (
        "id", "number", "array", "task", "name", "owner", "project", "state", "wish", "held_by", "reason", "exit_code",
        "ended_by", "submitted_at", "ended_at", "cpus", "memory_bytes", "gpus", "time_limit_seconds", "array_limit",
        "waits_for",
    )),
    func.coalesce(J.c.spec["home"].as_string(), "").label("home"),
    func.coalesce(J.c.spec["market"].as_string(), "").label("market"),
)  # fmt: skip


def listed(connection: Connection, include_ended: bool, owner: str | None, only_tasks: bool) -> Sequence[RowMapping]:
    """Jobs that are no rehearsals, or tasks of arrays alone, newest first."""
    query = select(*COLUMNS).where(func.coalesce(J.c.parent["rehearsal"].as_boolean(), False).is_(False))
    if not include_ended:
        query = query.where(J.c.state.not_in([str(s) for s in ENDED]))
    if owner is not None:
        query = query.where(J.c.owner == owner)
    if only_tasks:
        query = query.where(J.c.array != "")
    return connection.execute(query.order_by(J.c.submitted_at.desc(), J.c.id)).mappings().all()


def with_machines(connection: Connection) -> list[Job]:
    """Jobs that have attempts which are not over."""
    return [job_from_row(r) for r in connection.execute(select(J).where(J.c.id.in_(queue.LIVING))).mappings()]


def started(connection: Connection) -> dict[JobId, str]:
    """When each job was first granted to a machine."""
    query = select(A.c.job, func.min(A.c.granted_at)).where(A.c.granted_at.is_not(None)).group_by(A.c.job)
    return {JobId(job): at for job, at in connection.execute(query)}


def conditions(connection: Connection) -> dict[str, list[tuple[str, str]]]:
    """What each job still waits for, and why that will never be ("" = it may)."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    rows: Any = connection.execute(select(D.c.job, D.c.kind, D.c.on, D.c.never).order_by(D.c.job, D.c.kind, D.c.on))
    for job, kind, on, never in rows:
        found[job].append((kind if kind == "singleton" else f"{kind}:{on}", never))
    return found
