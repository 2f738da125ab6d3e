"""Bodies answered over HTTP, version 1.

A value that is answered unchanged has no model of its own here. tests/web/openapi.json holds the wire format: a test fails if a
value changes it. Amounts are integer micro-dollars, sizes bytes, durations seconds, times ISO 8601 in UTC.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict
from spotsurfer_wire.messages import StepRun, Warm

from spotsurfer.model.job import AttemptState, HeldBy, JobSpec, JobState, MoveRequest, Wish
from spotsurfer.model.market import Market
from spotsurfer.ports.policies import Forecast
from spotsurfer.ports.service import AttemptStatus, CostLine, JobStatus, Moment, OutputFile, PortStatus, Why

Value = str | int | float | bool | None


class Wire(BaseModel):
    """Base of everything sent."""

    model_config = ConfigDict(from_attributes=True)


class ErrorBody(Wire):
    """Every answer that is not 2xx. `exit_code` is the command line's; the README lists them."""

    error: str
    exit_code: int
    message: str


class IdOut(Wire):
    """The id of a job to come."""

    job: str


class PriorityOut(Wire):
    """What a job counts from now on."""

    job: str
    priority: int


class BudgetOut(Wire):
    """What a job may cost in all from now on."""

    job: str
    budget_usd_micros: int | None


class CommandOut(Wire):
    """A wish was recorded."""

    job: str
    state: JobState
    wish: Wish
    reason: str


class NumberOut(Wire):
    """The number of a request, to be looked for in the timeline or in `checkpoint`."""

    number: int


class FitOut(Wire):
    """A final save now, forecast."""

    start_seconds: float
    frozen_seconds: float
    send_bytes: int
    durable_seconds: float
    window_seconds: float | None
    verdict: str
    reserve_seconds: float
    gain_seconds: float
    base_age_seconds: float
    base_age_max_seconds: float | None
    interval_seconds: float | None
    hastened: bool


class UsageOut(Wire):
    """What a job used within some seconds; what a kernel or machine does not tell is null. See `spotsurfer_wire.usage`."""

    seconds: float
    cpu_cores: float
    cpu_cores_max: float
    memory_bytes: float
    resident_bytes: float
    resident_last_bytes: float
    working_bytes: float
    cache_bytes: float
    growth_bytes_per_second: float
    swap_bytes: float | None
    stalled_cpu: float | None
    stalled_memory: float | None
    stalled_io: float | None
    read_bytes: float | None
    write_bytes: float | None
    received_bytes: float | None
    sent_bytes: float | None
    processes: float | None
    gpu_share: float | None
    gpu_memory_bytes: float | None
    gpu_watts: float | None
    arriving_bytes: float | None


class AttemptOut(Wire):
    """One machine's try at a job."""

    number: int
    state: AttemptState
    since: datetime
    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market
    price_usd_micros_per_hour: int
    list_price_usd_micros_per_hour: int
    purpose: str
    reason: str
    instance: str | None
    for_move: int
    restore_failed: bool
    restore_refused: bool
    planned_at: datetime
    granted_at: datetime | None
    launched_at: datetime | None
    released_at: datetime | None
    from_checkpoint: str | None
    agent_state: str | None
    silent_seconds: float | None
    frozen: bool
    cpu_seconds: float
    memory_bytes: int
    saves: int
    frozen_seconds: float
    save_stage: str
    unsaved_seconds: float | None
    pause_seconds: float | None
    pace_seconds: float | None
    pace_why: str
    gave_way_to: str
    fit: FitOut | None
    fit_text: str
    warm: Warm | None
    error: str
    usd_micros: int
    protection: str
    unprotected: str
    processor: str
    stage: str
    usage: UsageOut | None

    @classmethod
    def of(cls, status: AttemptStatus) -> AttemptOut:
        """From the noun: the record, its pool, and what the agent said, in one."""
        parts: dict[str, object] = {}
        for noun in (status.attempt.pool, status.attempt, status):
            parts |= {name: getattr(noun, name) for name in cls.model_fields if hasattr(noun, name)}
        return cls.model_validate(parts)


class JobOut(Wire):
    """A job with everything there is to know at a glance."""

    id: str
    name: str
    state: JobState
    phase: str
    note: str
    wish: Wish
    reason: str
    held_by: HeldBy
    submitted_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    failures: int
    checkpoint: str | None
    checkpoint_failed: str
    checkpoints: list[str]
    moves: int
    steps: list[StepRun]
    ports: list[PortStatus]
    size: str
    image_digest: str
    level: int
    forecast: Forecast | None
    move: MoveRequest | None
    usd_micros: int
    usd_micros_on_demand: int
    spec: JobSpec
    attempts: list[AttemptOut]

    @classmethod
    def of(cls, status: JobStatus) -> JobOut:
        """From the noun."""
        parts: dict[str, object] = {}
        for noun in (status.job, status):
            parts |= {name: getattr(noun, name) for name in cls.model_fields if hasattr(noun, name)}
        parts |= {
            "name": status.job.spec.name,
            "spec": status.job.spec,
            "attempts": [AttemptOut.of(a) for a in status.attempts],
        }
        return cls.model_validate(parts)


class JobsOut(Wire):
    """All jobs, newest first."""

    jobs: list[JobOut]


class MomentOut(Wire):
    """One line of the timeline."""

    number: int
    at: datetime
    job: str | None
    attempt: int | None
    kind: str
    text: str
    data: dict[str, Value]

    @classmethod
    def of(cls, number: int, moment: Moment) -> MomentOut:
        """From the noun and its number."""
        parts = {name: getattr(moment, name) for name in cls.model_fields if name != "number"}
        return cls.model_validate(parts | {"number": number})


class TimelineOut(Wire):
    """Moments after the number asked for; `next` is what to ask for next time."""

    moments: list[MomentOut]
    next: int


class RejectedOut(Wire):
    """Something that was considered and not done."""

    what: str
    why: str


class WhyOut(Wire):
    """One decision."""

    at: datetime
    done: list[str]
    rejected: list[RejectedOut]
    note: str

    @classmethod
    def of(cls, why: Why) -> WhyOut:
        """From the noun."""
        rejected = [RejectedOut(what=what, why=reason) for what, reason in why.rejected]
        return cls(at=why.at, done=list(why.done), rejected=rejected, note=why.note)


class WhysOut(Wire):
    """The last decisions, newest last."""

    decisions: list[WhyOut]


class OutputsOut(Wire):
    """All published results of a job."""

    outputs: list[OutputFile]


class CostsOut(Wire):
    """The bill, by attempt."""

    costs: list[CostLine]


class SpotOut(Wire):
    """From `at` on spot could be had in the pool, or not; null = nobody knew any more."""

    pool: str
    at: datetime
    up: bool | None


class SpotsOut(Wire):
    """The record of all pools."""

    spots: list[SpotOut]
