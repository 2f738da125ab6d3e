"""Jobs, wishes, questions: the routes that speak JSON."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import AwareDatetime
from starlette.concurrency import run_in_threadpool

from spotsurfer.model.errors import Denied
from spotsurfer.model.ids import JOB_ID, JobId
from spotsurfer.model.job import Job, fetched
from spotsurfer.ports.service import Moment, Service
from spotsurfer.web import asked
from spotsurfer.web import models as m
from spotsurfer.web.info import InfoOut
from spotsurfer.web.listing import JobsQuery

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
def info(service: Controller) -> InfoOut:
    """The controller itself, its operator's limits, and how much of them is in use."""
    return InfoOut.of(service.info())


@router.post("/ids", status_code=201, tags=["submit"])
def new_id(body: asked.NameBody, service: Controller) -> m.IdOut:
    """An id for a job to come: upload its inputs under it, then submit."""
    return m.IdOut(job=service.new_job_id(body.name))


@router.put("/jobs/{job}", status_code=201, tags=["submit"])
def submit(job: NewJobPath, body: asked.SubmitBody, service: Controller, request: Request) -> m.JobOut:
    """Make the job. Everything it names must have been uploaded."""
    spec = body.spec.to_spec()
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
def machine(job: JobPath, service: Controller) -> m.MachineOut:
    """How to log in to the machine that it is on, or comes to."""
    return m.MachineOut.of(service.machine(JobId(job)))


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
def move(job: JobPath, body: asked.MoveBody, service: Controller) -> m.NumberOut:
    """Ask for another machine; the answer is the number of the request."""
    return m.NumberOut(number=service.move(JobId(job), body.instance_type, body.market))


@router.post("/jobs/{job}/checkpoint", status_code=202, tags=["wishes"])
def checkpoint(job: JobPath, service: Controller) -> m.NumberOut:
    """Ask for a live checkpoint; the answer is the sequence that it will have at least."""
    return m.NumberOut(number=service.checkpoint(JobId(job)))


@router.put("/jobs/{job}/priority", tags=["wishes"])
def priority(job: JobPath, body: asked.PriorityBody, service: Controller) -> m.PriorityOut:
    """How much it counts from now on where limits leave no room for all."""
    changed = service.prioritize(JobId(job), body.priority)
    return m.PriorityOut(job=changed.id, priority=changed.spec.priority)


@router.put("/jobs/{job}/budget", tags=["wishes"])
def budget(job: JobPath, body: asked.BudgetBody, service: Controller) -> m.BudgetOut:
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
    return m.CostsOut(costs=[m.CostOut.of(x) for x in service.costs(JobId(job) if job else None, since)])


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
