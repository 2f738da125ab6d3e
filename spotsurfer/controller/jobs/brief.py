"""A list of very many jobs, in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection, RowMapping

from spotsurfer.common.units import counted, ranges
from spotsurfer.core.facts.attempt_view import holder_of, phase
from spotsurfer.model.job import OVER, Attempt, HeldBy, Job, JobId, JobState, Wish
from spotsurfer.model.queueing.arrays import limit_of
from spotsurfer.model.queueing.dependencies import NEVER
from spotsurfer.ports.service import JobBrief
from spotsurfer.state import brief, dependencies, queue
from spotsurfer.state import jobs as rows
from spotsurfer.state.brief import Which
from spotsurfer.state.jobs import instant
from spotsurfer.state.queue import WAITS_WORDS


@dataclass(frozen=True, slots=True)
class Told:
    """What the last tick said of jobs: why they wait, and their level if it is not their priority."""

    notes: Mapping[JobId, str] = field(default_factory=dict)
    levels: Mapping[JobId, int] = field(default_factory=dict)


def jobs_brief(connection: Connection, which: Which, last: Told) -> Sequence[JobBrief]:
    """See `ports.service`."""
    busy = brief.with_machines(connection)
    found = rows.attempts(connection, [j.id for j in busy])
    phases = {j.id: phase(j, found[j.id]) for j in busy}
    machines = {j: _machine(some) for j, some in found.items()}
    listed = brief.listed(connection, which)
    started = brief.started(connection, [JobId(row["id"]) for row in listed])
    waits = dependencies.waiting(connection, [JobId(row["id"]) for row in listed if row["waits_for"] in queue.BEFORE_OTHERS])
    names = brief.numbers(connection, {one.on for some in waits.values() for one, _ in some if one.on})

    def of(row: RowMapping) -> JobBrief:
        id, told = JobId(row["id"]), waits.get(row["id"], ())
        started_at, before = started.get(id, (None, ""))
        tasks = ranges(map(int, row["tasks"].split(","))) if "," in row["tasks"] else ""
        never = next((why for _, why in told if why), "")
        reason = last.notes.get(id) or row["reason"] or WAITS_WORDS.get(row["waits_for"], "")
        return JobBrief(
            **{name: row[name] for name in AS_STORED},
            id=id,
            phase=phases.get(id) or _phase(row),
            reason=f"{NEVER}: {never}" if never else reason,
            submitted_at=datetime.fromisoformat(row["submitted_at"]),
            started_at=None if started_at is None else instant(started_at),
            ended_at=instant(row["ended_at"]),
            after=[str(replace(one, on=names.get(one.on, one.on))) for one, _ in told],
            machine=machines.get(id) or ("" if tasks else before),
            waits_for="never" if never else row["waits_for"],
            level=last.levels.get(id, row["priority"]),
            tasks=tasks,
        )

    return [of(row) for row in listed]


AS_STORED = (
    "number", "array", "task", "name", "owner", "project", "state", "wish", "exit_code", "ended_by", "cpus", "memory_bytes",
    "gpus", "time_limit_seconds", "array_limit", "priority", "home", "market",
)  # fmt: skip


def _phase(row: RowMapping) -> str:
    """Of a job without a machine."""
    if row["state"] == JobState.HELD and row["held_by"] == HeldBy.IDLE:
        return "suspended"
    return "queued" if row["state"] == JobState.ACTIVE else str(row["state"])


def _machine(attempts: Sequence[Attempt]) -> str:
    """The instance that has the job, else the one that comes."""
    here = holder_of(attempts) or next((a for a in attempts if a.state not in OVER), None)
    return str(here.instance or "") if here is not None else ""


def hopeless(connection: Connection) -> dict[JobId, str]:
    """Why jobs never begin that wait for what can't come any more."""
    return {job: f"{NEVER}: {why}" for job, why in dependencies.never(connection).items()}


def why_it_waits(connection: Connection, job: Job) -> str:
    """Why a queued job waits behind others, or before a gate; "" = it does not, or the last tick has looked at it."""
    if job.state is not JobState.QUEUED or job.wish is not Wish.RUN:
        return ""
    some = dependencies.waiting(connection, [job.id]).get(job.id, [])
    if never := next((why for _, why in some if why), ""):
        return f"{NEVER}: {never}"
    if some:
        return f"it waits for {', '.join(str(condition) for condition, _ in some)}"
    gate = queue.gate_of(connection, job.id)
    if gate == queue.BEGIN and job.begins_at is not None:
        return f"it may not begin before {job.begins_at:%Y-%m-%d %H:%M:%S} UTC"
    if gate == queue.ARRAY:
        limit = limit_of(job.spec.array)
        return f"{queue.started(connection, job.array)} tasks of {job.array} have begun; {limit} may at a time"
    n = queue.before(connection, job.id)
    return f"{counted(n, 'job')} of the same size {'is' if n == 1 else 'are'} before it" if n else ""
