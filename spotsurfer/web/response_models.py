"""Bodies answered over HTTP, version 1.

A value that is answered unchanged has no model here; the models' other fields are those of the values that they are made of.
tests/web/openapi.json holds the wire format: a test fails if a value changes it. Amounts are integer micro-dollars, sizes
bytes, durations seconds, times ISO 8601 in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model
from spotsurfer_wire.final_save_forecast import Fit
from spotsurfer_wire.usage import Window

from spotsurfer.common.timeline_words import say
from spotsurfer.model.actions import Preview
from spotsurfer.model.charges import ChargeLine
from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Offer, Pool
from spotsurfer.model.snapshot import SpotSeen
from spotsurfer.ports.service import (
    AttemptStatus,
    Checkpoint,
    CostLine,
    Foretold,
    JobBrief,
    JobStatus,
    Moment,
    OutputFile,
    Submitted,
    UsageSeen,
    Why,
)

_PARTS: dict[tuple[type, ...], dict[str, int]] = {}  # model and kinds of nouns -> which noun each field is from


class Wire(BaseModel):
    """Base of everything sent."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def of(cls, *nouns: object, **own: object) -> Self:
        """From the values of the nouns, the last one that has a field, and from fields of its own."""
        kinds = (cls, *map(type, nouns))
        if kinds not in _PARTS:
            _PARTS[kinds] = {name: i for i, noun in enumerate(nouns) for name in cls.model_fields if hasattr(noun, name)}
        parts = {name: getattr(nouns[i], name) for name, i in _PARTS[kinds].items()}
        return cls.model_validate(parts | own)


Model = TypeVar("Model", bound=type[Wire])


def fields_of(noun: type, *, only: str = "", without: str = "", **own: object) -> Callable[[Model], Model]:
    """Decorates a model with the fields of a dataclass: all, `only` those named, or all `without` those. Each is required.

    `own`: types of fields that the dataclass lacks, or has with another type.
    """

    def with_fields(model: Model) -> Model:
        wanted = only.split() or [f.name for f in fields(noun) if f.name not in without.split()]
        kinds = {**{name: kind for name, kind in get_type_hints(noun).items() if name in wanted}, **own}
        made: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items()}
        return cast(Model, create_model(model.__name__, __base__=model, __doc__=model.__doc__, __module__=__name__, **made))

    return with_fields


class ErrorBody(Wire):
    """Every answer that is not 2xx. `exit_code` is the command line's; docs/reference/exit-codes.md lists them."""

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


@fields_of(Job, only="state wish reason")
class CommandOut(Wire):
    """A wish was recorded."""

    job: str


class NumberOut(Wire):
    """The number of a request, to be looked for in the timeline or in `checkpoint`."""

    number: int


@fields_of(Fit, without="live_seconds")
class FitOut(Wire):
    """A final save now, forecast."""


@fields_of(Foretold)
class ForetoldOut(Wire):
    """What a notice of so many seconds would do if it came now; 0 = the machine goes without one."""


@fields_of(Window, without="number")
class UsageOut(Wire):
    """What a job used within some seconds; what a kernel or machine does not tell is null. See `spotsurfer_wire.usage`."""


@fields_of(UsageSeen, without="window")
class WindowOut(UsageOut):
    """A window of an attempt."""


class UsagesOut(Wire):
    """All windows of a job, oldest first: of ten seconds for the last hour, of a minute before."""

    windows: list[WindowOut]


@fields_of(AttemptStatus, without="attempt", fit=FitOut | None, usage=UsageOut | None, foretold=list[ForetoldOut])
@fields_of(Pool)
@fields_of(
    Attempt,
    only="number state since market price_usd_micros_per_hour list_price_usd_micros_per_hour purpose reason instance for_move "
    "restore_failed restore_refused planned_at granted_at launched_at released_at from_checkpoint pause_seconds pace_seconds "
    "pace_why gave_way_to",
)
class AttemptOut(Wire):
    """One machine's try at a job."""


@fields_of(JobStatus, without="job", attempts=list[AttemptOut])
@fields_of(
    Job,
    only="id number array task owner state wish reason held_by submitted_at begins_at ended_at exit_code ended_by failures "
    "move stuck_since spec",
    name=str,
)
class JobOut(Wire):
    """A job with everything there is to know at a glance."""

    @classmethod
    def of_status(cls, status: JobStatus) -> JobOut:
        """From the record of the job and those of its attempts, and what agents said."""
        attempts = [AttemptOut.of(a.attempt.pool, a.attempt, a) for a in status.attempts]
        return cls.of(status.job, status, name=status.job.spec.name, attempts=attempts)


@fields_of(Submitted)
class SubmittedOut(Wire):
    """A job that was made, or an array with so many tasks."""


class SubmittedManyOut(Wire):
    """In the order in which they were given."""

    jobs: list[SubmittedOut]


class BriefsOut(Wire):
    """All jobs in short, newest first."""

    jobs: list[JobBrief]


class JobsOut(Wire):
    """All jobs, newest first."""

    jobs: list[JobOut]


@fields_of(Moment)
class MomentOut(Wire):
    """One line of the timeline. `sentence` tells it to people, `text` is what the controller recorded."""

    number: int
    sentence: str
    inner: bool
    """A step in between, or what another line says as well."""

    @classmethod
    def of_moment(cls, number: int, moment: Moment) -> MomentOut:
        """With its sentence."""
        said = say(moment.kind, moment.text, moment.data)
        return cls.of(moment, number=number, sentence=said.text, inner=said.inner)


class TimelineOut(Wire):
    """Moments after the number asked for; `next` is what to ask for next time."""

    moments: list[MomentOut]
    next: int


class RejectedOut(Wire):
    """Something that was considered and not done."""

    what: str
    why: str


@fields_of(Why, rejected=list[RejectedOut])
class WhyOut(Wire):
    """One decision."""


class WhysOut(Wire):
    """The last decisions, newest last."""

    decisions: list[WhyOut]


class LacksOut(Wire):
    """Digests of files that are not here yet. `shared`: machines see the folder, so nothing of it is sent."""

    lacks: list[str]
    shared: bool


class OutputsOut(Wire):
    """All published results of a job."""

    outputs: list[OutputFile]


class CostsOut(Wire):
    """The bill, by attempt."""

    costs: list[CostLine]


class ChargesOut(Wire):
    """The lines of the bill."""

    charges: list[ChargeLine]


@fields_of(SpotSeen)
class SpotOut(Wire):
    """From `at` on spot could be had in the pool, or not; null = nobody knew any more."""

    pool: str


class SpotsOut(Wire):
    """The record of all pools."""

    spots: list[SpotOut]


@fields_of(
    Offer,
    only="market cpus memory_bytes interruption_band placement_score",
    gpus=int,
    gpu=str,
    gpu_memory_bytes=int,
    usd_micros_per_hour=int,
    list_usd_micros_per_hour=int,
)
@fields_of(Pool)
class OfferOut(Wire):
    """A machine that could be bought. Band and score are the cloud's advice, where it gives any."""

    @classmethod
    def of_offer(cls, o: Offer) -> OfferOut:
        """From the noun, its pool and its GPUs."""
        gpus = {"gpus": o.gpus.count, "gpu": o.gpus.chip, "gpu_memory_bytes": o.gpus.memory_bytes}
        prices = {
            "usd_micros_per_hour": o.price_usd_micros_per_hour,
            "list_usd_micros_per_hour": o.list_price_usd_micros_per_hour,
        }
        return cls.of(o.pool, o, **gpus, **prices)


class RejectedOfferOut(Wire):
    """An offer that would not be taken."""

    offer: OfferOut
    why: str


class PlanOut(Wire):
    """`choices`, best first; the first would be ordered, unless there is an obstacle."""

    choices: list[OfferOut]
    rejected: list[RejectedOfferOut]
    obstacle: str

    @classmethod
    def of_preview(cls, found: Preview) -> PlanOut:
        """From the noun."""
        rejected = [RejectedOfferOut(offer=OfferOut.of_offer(o), why=why) for o, why in found.rejected]
        return cls(choices=[OfferOut.of_offer(o) for o in found.choices], rejected=rejected, obstacle=found.obstacle)


@fields_of(Checkpoint)
class CheckpointOut(Wire):
    """One checkpoint. `why` says why it is kept, or why it will go."""


class CheckpointsOut(Wire):
    """Oldest first."""

    checkpoints: list[CheckpointOut]


class NameOut(Wire):
    """The full name of a checkpoint."""

    checkpoint: str
