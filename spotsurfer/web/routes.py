"""HTTP routes that speak JSON: jobs, commands, queries, dry runs, usage, checkpoints, the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import AwareDatetime, BaseModel, Field
from starlette.concurrency import run_in_threadpool

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.core.facts.attempt_view import PHASES
from spotsurfer.model.actions import Preview
from spotsurfer.model.errors import Denied, UsageError
from spotsurfer.model.job import JOB_ID, Job, JobId, JobState, fetched
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.service import Checkpoint, Info, JobStatus, Machine, Moment, Progress, Service
from spotsurfer.web import request_models
from spotsurfer.web import response_models as m
from spotsurfer.web.request_models import Asked, PlanBody

# ---- Filter of the list of jobs

STATES = (*PHASES, *(s for s in JobState if s not in PHASES))


class JobsQuery(BaseModel):
    """What jobs must be like to be listed; the newest `limit` of those that are."""

    ended: bool = Field(True, description="Those that have ended, too")
    state: list[str] = Field([], description="Their phase or state is one of these")
    tag: list[str] = Field([], description="They have all these tags, name=value; or name alone, with any value")
    name: str | None = Field(None, description="Their name; * and ? are wildcards")
    limit: int | None = Field(None, ge=1)

    def of(self, jobs: Sequence[JobStatus]) -> Sequence[JobStatus]:
        """Those of the jobs; raises UsageError for a state that none can have."""
        for word in self.state:
            if word not in STATES:
                raise UsageError(f"The state is {word!r}. {did_you_mean(word, STATES)}")
        return [x for x in jobs if self._wants(x)][: self.limit]

    def _wants(self, status: JobStatus) -> bool:
        spec = status.job.spec
        return (
            (not self.state or not {status.phase, str(status.job.state)}.isdisjoint(self.state))
            and (self.name is None or fnmatchcase(spec.name, self.name))
            and all(_has(spec.tags, tag) for tag in self.tag)
        )


def _has(tags: dict[str, str], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in tags and (not equals or tags[name] == value)


# ---- Jobs: commands and questions

WAIT_MAX_SECONDS = 30.0
LOOK_AGAIN_SECONDS = 0.3  # of a long poll; costs one indexed query

JobPath = Annotated[str, Path(max_length=100, description="A job's id or name; of several the newest active one")]
NewJobPath = Annotated[str, Path(pattern=f"^{JOB_ID.pattern}$", description="An id from POST /v1/ids")]
router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)


def the_service(request: Request) -> Service:
    """The service behind this app."""
    service: Service = request.app.state.service
    return service


Controller = Annotated[Service, Depends(the_service)]


@router.get("/info", tags=["controller"])
def info(service: Controller) -> Info:
    """The controller itself, its operator's limits, and how much of them is in use."""
    return service.info()


@router.post("/ids", status_code=201, tags=["submit"])
def new_id(body: request_models.NameBody, service: Controller) -> m.IdOut:
    """An id for a job to come: upload its inputs under it, then submit."""
    return m.IdOut(job=service.new_job_id(body.name))


@router.put("/jobs/{job}", status_code=201, tags=["submit"])
def submit(job: NewJobPath, body: request_models.SubmitBody, service: Controller, request: Request) -> m.JobOut:
    """Make the job. Everything it names must have been uploaded."""
    spec = request_models.checked(body.spec)
    if spec.on_end and not request.app.state.allow_on_end:
        raise Denied(
            "on_end runs a command on the controller's host and is not allowed over TCP: remove it from the job, submit on "
            "that host, or let its operator set [hooks] allow_remote = true."
        )
    if fetched(spec) and not request.app.state.allow_fetch:
        raise Denied(
            "Secrets of a cloud are fetched with the controller's own credentials, which is not allowed over TCP: give them as "
            "file: or env:, submit on that host, or let its operator set [secrets] allow_remote = true."
        )
    made = service.submit(JobId(job), spec, dict(body.modes), body.opened())
    return m.JobOut.of(service.job(made.id))


@router.get("/jobs", tags=["jobs"])
def jobs(service: Controller, wanted: Annotated[JobsQuery, Query()]) -> m.JobsOut:
    """All jobs, or those that are wanted, newest first."""
    return m.JobsOut(jobs=[m.JobOut.of(x) for x in wanted.of(service.jobs(wanted.ended))])


@router.get("/jobs/{job}", tags=["jobs"])
def job(job: JobPath, service: Controller) -> m.JobOut:
    """One job."""
    return m.JobOut.of(service.job(JobId(job)))


@router.get("/jobs/{job}/machine", tags=["jobs"])
def machine(job: JobPath, service: Controller) -> Machine:
    """How to log in to the machine that it is on, or comes to."""
    return service.machine(JobId(job))


@router.get("/jobs/{job}/why", tags=["jobs"])
def why(job: JobPath, service: Controller, last: Annotated[int, Query(ge=1, le=1000)] = 10) -> m.WhysOut:
    """The last decisions that changed something about it."""
    return m.WhysOut(decisions=[m.WhyOut.of(x) for x in service.why(JobId(job), last)])


@router.post("/jobs/{job}/hold", tags=["wishes"])
def hold(job: JobPath, service: Controller) -> m.CommandOut:
    """Save it and keep it in storage."""
    return command(service.hold(JobId(job)))


@router.post("/jobs/{job}/resume", tags=["wishes"])
def resume(job: JobPath, service: Controller) -> m.CommandOut:
    """Undo a hold."""
    return command(service.resume(JobId(job)))


@router.post("/jobs/{job}/cancel", tags=["wishes"])
def cancel(job: JobPath, service: Controller) -> m.CommandOut:
    """End it without results."""
    return command(service.cancel(JobId(job)))


@router.post("/jobs/{job}/move", status_code=202, tags=["wishes"])
def move(job: JobPath, body: request_models.MoveBody, service: Controller) -> m.NumberOut:
    """Ask for another machine; the answer is the number of the request."""
    return m.NumberOut(number=service.move(JobId(job), body.instance_type, body.market))


@router.post("/jobs/{job}/checkpoint", status_code=202, tags=["wishes"])
def checkpoint(job: JobPath, service: Controller) -> m.NumberOut:
    """Ask for a live checkpoint; the answer is the sequence that it will have at least."""
    return m.NumberOut(number=service.checkpoint(JobId(job)))


@router.put("/jobs/{job}/priority", tags=["wishes"])
def priority(job: JobPath, body: request_models.PriorityBody, service: Controller) -> m.PriorityOut:
    """How much it counts from now on where limits leave no room for all."""
    changed = service.prioritize(JobId(job), body.priority)
    return m.PriorityOut(job=changed.id, priority=changed.spec.priority)


@router.put("/jobs/{job}/budget", tags=["wishes"])
def budget(job: JobPath, body: request_models.BudgetBody, service: Controller) -> m.BudgetOut:
    """What it may cost in all from now on. One that is held for its budget still wants to be resumed."""
    changed = service.set_budget(JobId(job), body.usd_micros)
    return m.BudgetOut(job=changed.id, budget_usd_micros=changed.spec.budget_usd_micros)


After = Annotated[int, Query(ge=0, description="Only moments with a greater number")]
Since = Annotated[AwareDatetime | None, Query(description="Only what was then or later; with a zone")]
Last = Annotated[int | None, Query(ge=1, le=100_000, description="Of these only the newest so many")]
Wait = Annotated[float, Query(ge=0, le=WAIT_MAX_SECONDS, description="Seconds to wait for news before an empty answer")]


@router.get("/timeline", tags=["timeline"])
async def timeline(
    service: Controller, request: Request, after: After = 0, since: Since = None, last: Last = None, wait: Wait = 0
) -> m.TimelineOut:
    """What happened, of all jobs."""
    return _timeline(await _moments(service, request, Part(None, after, since, last), wait), after)


@router.get("/jobs/{job}/timeline", tags=["timeline"])
async def job_timeline(  # noqa: PLR0913 - one parameter a key of the query
    job: JobPath,
    service: Controller,
    request: Request,
    after: After = 0,
    since: Since = None,
    last: Last = None,
    wait: Wait = 0,
) -> m.TimelineOut:
    """What happened to one job."""
    return _timeline(await _moments(service, request, Part(JobId(job), after, since, last), wait), after)


@router.get("/costs", tags=["costs"])
def costs(service: Controller, job: Annotated[str | None, Query(max_length=100)] = None, since: Since = None) -> m.CostsOut:
    """What was spent, by attempt; running ones up to now. `since`: only machines that were launched then or later."""
    return m.CostsOut(costs=list(service.costs(JobId(job) if job else None, since)))


@router.get("/spots", tags=["costs"])
def spots(service: Controller) -> m.SpotsOut:
    """When spot could be had, by pool: what policies can be trained on."""
    found = service.spots()
    return m.SpotsOut(spots=[m.SpotOut(pool=pool, at=s.at, up=s.up) for pool in sorted(found) for s in found[pool]])


def command(job: Job) -> m.CommandOut:
    """The answer to a wish."""
    return m.CommandOut(job=job.id, state=job.state, wish=job.wish, reason=job.reason)


class Part(NamedTuple):
    """Which part of the timeline; see `Service.timeline`."""

    job: JobId | None
    after: int
    since: datetime | None
    last: int | None


async def _moments(service: Service, request: Request, part: Part, wait: float) -> list[tuple[int, Moment]]:
    end = time.monotonic() + wait
    while True:
        found = list(await run_in_threadpool(service.timeline, *part))
        if found or time.monotonic() >= end or request.app.state.stopping or await request.is_disconnected():
            return found
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _timeline(found: list[tuple[int, Moment]], after: int) -> m.TimelineOut:
    moments = [m.MomentOut.of(number, moment) for number, moment in found]
    return m.TimelineOut(moments=moments, next=max((number for number, _ in found), default=after))


# ---- Dry runs


class OfferOut(m.Wire):
    """A machine that could be bought. Band and score are the cloud's advice, where it gives any."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market
    cpus: int
    memory_bytes: int
    gpus: int
    gpu: str
    gpu_memory_bytes: int
    usd_micros_per_hour: int
    list_usd_micros_per_hour: int
    interruption_band: int | None
    placement_score: int | None

    @classmethod
    def of(cls, o: Offer) -> OfferOut:
        """From the noun."""
        p = o.pool
        return cls(
            provider=p.provider,
            region=p.region,
            zone=p.zone,
            instance_type=p.instance_type,
            market=o.market,
            cpus=o.cpus,
            memory_bytes=o.memory_bytes,
            gpus=o.gpus.count,
            gpu=o.gpus.chip,
            gpu_memory_bytes=o.gpus.memory_bytes,
            usd_micros_per_hour=o.price_usd_micros_per_hour,
            list_usd_micros_per_hour=o.list_price_usd_micros_per_hour,
            interruption_band=o.interruption_band,
            placement_score=o.placement_score,
        )


class RejectedOut(m.Wire):
    """An offer that would not be taken."""

    offer: OfferOut
    why: str


class PlanOut(m.Wire):
    """`choices`, best first; the first would be ordered, unless there is an obstacle."""

    choices: list[OfferOut]
    rejected: list[RejectedOut]
    obstacle: str

    @classmethod
    def of(cls, found: Preview) -> PlanOut:
        """From the noun."""
        rejected = [RejectedOut(offer=OfferOut.of(o), why=why) for o, why in found.rejected]
        return cls(choices=[OfferOut.of(o) for o in found.choices], rejected=rejected, obstacle=found.obstacle)


@router.post("/plans", tags=["submit"])
def plan(body: PlanBody, service: Controller) -> PlanOut:
    """What would be launched for this job now. Nothing is kept of the question."""
    return PlanOut.of(service.preview(request_models.checked(body.spec)))


# ---- Usage of a job over time

UsageSince = Annotated[datetime | None, Query(description="Only windows that began then or later")]


class WindowOut(m.UsageOut):
    """A window of an attempt."""

    attempt: int
    at: datetime


class UsagesOut(m.Wire):
    """All windows of a job, oldest first: of ten seconds for the last hour, of a minute before."""

    windows: list[WindowOut]


@router.get("/jobs/{job}/usage", tags=["jobs"])
def usage(job: JobPath, service: Controller, since: UsageSince = None) -> UsagesOut:
    """What it used."""
    found = service.usage(JobId(job), since)
    rows = [m.UsageOut.model_validate(u.window).model_dump() for u in found]
    return UsagesOut(windows=[WindowOut(attempt=u.attempt, at=u.at, **row) for u, row in zip(found, rows, strict=True)])


# ---- Checkpoints, forks, rehearsals and the store


class CheckpointOut(m.Wire):
    """One checkpoint. `why` says why it is kept, or why it will go."""

    id: str
    at: str
    kind: str
    image_bytes: int | None
    new_bytes: int | None
    base: str | None
    proven: bool
    protected: bool
    counted: bool
    keep: bool
    why: str
    damage: str
    failed: str

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CheckpointOut:
        """From the noun."""
        return cls.model_validate(checkpoint)


class CheckpointsOut(m.Wire):
    """Oldest first."""

    checkpoints: list[CheckpointOut]


class FromBody(Asked):
    """The checkpoint to go on from: its name, or its sequence number."""

    checkpoint: str


class ForkBody(Asked):
    """Both empty: the newest checkpoint, under the same name."""

    checkpoint: str | None = None
    name: str | None = None


class NameOut(m.Wire):
    """The full name of a checkpoint."""

    checkpoint: str


class StoreBody(Asked):
    """Of one job, or of all."""

    job: str | None = None
    read: bool = False
    dry_run: bool = False


class ProgressOut(m.Wire):
    """A long command: ask for it again until it is done. A failed one answers with its error."""

    id: str
    what: str
    done: bool
    stage: str
    at: int
    of: int
    result: dict[str, Any] | None

    @classmethod
    def of_progress(cls, progress: Progress) -> ProgressOut:
        """From the noun; `of` is one of its fields."""
        return cls.model_validate(progress)


@router.get("/jobs/{job}/checkpoints", tags=["checkpoints"])
def checkpoints(job: JobPath, service: Controller) -> CheckpointsOut:
    """What there is, what is proven, and what will go."""
    return CheckpointsOut(checkpoints=[CheckpointOut.of(x) for x in service.checkpoints(JobId(job))])


@router.post("/jobs/{job}/go-back", tags=["wishes"])
def go_back(job: JobPath, body: FromBody, service: Controller) -> m.CommandOut:
    """Go on from a checkpoint, whatever came after it: a held, ended or running job."""
    return command(service.go_back(JobId(job), body.checkpoint))


@router.put("/jobs/{job}/checkpoints/{checkpoint}/protection", tags=["checkpoints"])
def protect(job: JobPath, checkpoint: str, service: Controller) -> NameOut:
    """Keep it whatever the rules say."""
    return NameOut(checkpoint=service.protect(JobId(job), checkpoint, True))


@router.delete("/jobs/{job}/checkpoints/{checkpoint}/protection", tags=["checkpoints"])
def unprotect(job: JobPath, checkpoint: str, service: Controller) -> NameOut:
    """Leave it to the rules again."""
    return NameOut(checkpoint=service.protect(JobId(job), checkpoint, False))


@router.post("/jobs/{job}/forks", status_code=202, tags=["checkpoints"])
def fork(job: JobPath, body: ForkBody, service: Controller) -> ProgressOut:
    """A copy of the job that goes its own way from a checkpoint."""
    return ProgressOut.of_progress(service.fork(JobId(job), body.checkpoint, body.name))


@router.post("/jobs/{job}/rehearsals", status_code=202, tags=["checkpoints"])
def rehearse(job: JobPath, service: Controller) -> ProgressOut:
    """Show that the newest checkpoint lives elsewhere, while the job runs on."""
    return ProgressOut.of_progress(service.rehearse(JobId(job)))


@router.post("/store/{what}", status_code=202, tags=["store"])
def store_work(what: str, body: StoreBody, service: Controller) -> ProgressOut:
    """`check`, `stats` or `gc`."""
    job = JobId(body.job) if body.job is not None else None
    return ProgressOut.of_progress(service.store_work(what, job, body.read, body.dry_run))


Patience = Annotated[float, Query(ge=0, le=WAIT_MAX_SECONDS, description="Seconds to wait for its end")]


@router.get("/work/{number}", tags=["store"])
def progress(number: str, service: Controller, wait: Patience = 0) -> ProgressOut:
    """How far a long command is."""
    return ProgressOut.of_progress(service.progress(number, wait))


@router.delete("/work/{number}", status_code=204, tags=["store"])
def call_off(number: str, service: Controller) -> None:
    """It need not go on."""
    service.call_off(number)
