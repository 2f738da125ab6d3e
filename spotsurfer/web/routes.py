"""HTTP routes that speak JSON: jobs, commands, queries, dry runs, usage, checkpoints, the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AwareDatetime, TypeAdapter
from starlette.concurrency import run_in_threadpool

from spotsurfer.jobspec.validate import checked, refuse_remote
from spotsurfer.model.access import Principal, Role
from spotsurfer.model.cost_report import CostReport
from spotsurfer.model.job import JOB_ID, Job, JobId, JobSpec
from spotsurfer.ports.service import Info, JobBrief, Machine, Moment, NewJob, Progress, Service
from spotsurfer.web import response_models as m
from spotsurfer.web.access import as_principal
from spotsurfer.web.access_routes import Who
from spotsurfer.web.request_models import (
    WAIT_MAX_SECONDS,
    BudgetBody,
    ForkBody,
    FromBody,
    JobsQuery,
    MoveBody,
    NameBody,
    PlanBody,
    PriorityBody,
    SignalBody,
    StoreBody,
    SubmitBody,
    SubmitManyBody,
    TimelineQuery,
    TreeBody,
)

LOOK_AGAIN_SECONDS = 0.3  # of a long poll; costs one indexed query

JobPath = Annotated[str, Path(max_length=100, description="A job's id or name; of several the newest active one")]
NewJobPath = Annotated[str, Path(pattern=f"^{JOB_ID.pattern}$", description="An id from POST /v1/ids")]
router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)


def the_service(request: Request) -> Service:
    """The service behind this app, as the one who asks may use it."""
    return as_principal(request.app.state.service, request.scope["state"]["who"], request.app.state.makers)


Controller = Annotated[Service, Depends(the_service)]
Timeline = Annotated[TimelineQuery, Query()]
Since = Annotated[AwareDatetime | None, Query(description="Only what was then or later; with a zone")]
T = TypeVar("T")
BRIEFS = TypeAdapter(dict[str, Sequence[JobBrief]])


@router.get("/info", tags=["controller"])
def info(service: Controller) -> Info:
    """The controller itself, its operator's limits, and how much of them is in use."""
    return service.info()


@router.post("/ids", status_code=201, tags=["submit"])
def new_id(body: NameBody, service: Controller) -> m.IdOut:
    """An id for a job to come: upload its inputs under it, then submit."""
    return m.IdOut(job=service.new_job_id(body.name))


@router.put("/jobs/{job}", status_code=201, tags=["submit"])
def submit(job: NewJobPath, body: SubmitBody, service: Controller, request: Request, who: Who) -> m.JobOut:
    """Make the job. Everything it names must have been uploaded."""
    spec = _checked(body, request, who)
    made = service.submit(JobId(job), spec, dict(body.modes), body.opened())
    return m.JobOut.of_status(service.job(made.id))


@router.post("/jobs", status_code=201, tags=["submit"])
def submit_many(body: SubmitManyBody, service: Controller, request: Request, who: Who) -> m.SubmittedManyOut:
    """Make all these jobs, or none. What must come before one of them may name another one of them."""
    new = [NewJob(_checked(x, request, who), JobId(x.job) if x.job else None, x.modes, x.opened(), x.held) for x in body.jobs]
    return m.SubmittedManyOut(jobs=[m.SubmittedOut.of(x) for x in service.submit_many(new)])


def _checked(body: SubmitBody, request: Request, who: Principal) -> JobSpec:
    spec, operator = checked(body.spec), who.role is Role.OPERATOR
    refuse_remote(spec, on_end=operator and request.app.state.allow_on_end, fetch=operator and request.app.state.allow_fetch)
    return spec


@router.get("/jobs", tags=["jobs"], response_model=m.JobsOut)
def jobs(service: Controller, wanted: Annotated[JobsQuery, Query()]) -> Response:
    """All jobs, or those that are wanted, newest first or as asked."""
    found = m.JobsOut(
        jobs=[m.JobOut.of_status(x) for x in wanted.of(service.jobs(wanted.ended, owner=wanted.owner, tasks=wanted.tasks))]
    )
    return Response(found.model_dump_json(), media_type="application/json")  # a thousand jobs are not checked a second time


@router.get("/brief", tags=["jobs"], response_model=m.BriefsOut)
def jobs_brief(
    service: Controller, ended: bool = True, owner: str | None = None, only_tasks: bool = False, folded: bool = False
) -> Response:
    """All jobs in short, or only tasks of arrays, newest first: thousands of them in no time.

    With `folded`, tasks without a machine that nothing but their numbers tells apart share the row of the first of them.
    """
    found = service.jobs_brief(ended, owner=owner, only_tasks=only_tasks, folded=folded)
    return Response(BRIEFS.dump_json({"jobs": found}), media_type="application/json")


@router.get("/jobs/{job}", tags=["jobs"])
def job(job: JobPath, service: Controller) -> m.JobOut:
    """One job."""
    return m.JobOut.of_status(service.job(JobId(job)))


@router.get("/jobs/{job}/machine", tags=["jobs"])
def machine(job: JobPath, service: Controller) -> Machine:
    """How to log in to the machine that it is on, or comes to."""
    return service.machine(JobId(job))


@router.get("/jobs/{job}/why", tags=["jobs"])
def why(job: JobPath, service: Controller, last: Annotated[int, Query(ge=1, le=1000)] = 10) -> m.WhysOut:
    """The last decisions that changed something about it."""
    found = service.why(JobId(job), last)
    return m.WhysOut(
        decisions=[m.WhyOut.of(x, rejected=[{"what": what, "why": why} for what, why in x.rejected]) for x in found]
    )


@router.post("/jobs/{job}/hold", tags=["wishes"])
def hold(job: JobPath, service: Controller) -> m.CommandOut:
    """Save it and keep it in storage."""
    return command(service.hold(JobId(job)))


@router.post("/jobs/{job}/resume", tags=["wishes"])
def resume(job: JobPath, service: Controller) -> m.CommandOut:
    """Undo a hold."""
    return command(service.resume(JobId(job)))


@router.post("/jobs/{job}/settle", tags=["wishes"])
def settle_home(job: JobPath, body: TreeBody, service: Controller) -> m.CommandOut:
    """A held job that never had a machine begins, with this tree of its folder, which was sent like its first one."""
    return command(service.settle_home(JobId(job), body.tree))


@router.post("/jobs/{job}/cancel", tags=["wishes"])
def cancel(job: JobPath, service: Controller) -> m.CommandOut:
    """End it without results."""
    return command(service.cancel(JobId(job)))


@router.post("/jobs/{job}/move", status_code=202, tags=["wishes"])
def move(job: JobPath, body: MoveBody, service: Controller) -> m.NumberOut:
    """Ask for another machine; the answer is the number of the request."""
    return m.NumberOut(number=service.move(JobId(job), body.instance_type, body.market))


@router.post("/jobs/{job}/signal", status_code=202, tags=["wishes"])
def signal(job: JobPath, body: SignalBody, service: Controller) -> m.NumberOut:
    """Send a signal to its processes; the answer is the number of the request."""
    return m.NumberOut(number=service.signal(JobId(job), body.signal))


@router.post("/jobs/{job}/checkpoint", status_code=202, tags=["wishes"])
def checkpoint(job: JobPath, service: Controller) -> m.NumberOut:
    """Ask for a live checkpoint; the answer is the sequence that it will have at least."""
    return m.NumberOut(number=service.checkpoint(JobId(job)))


@router.put("/jobs/{job}/priority", tags=["wishes"])
def priority(job: JobPath, body: PriorityBody, service: Controller) -> m.PriorityOut:
    """How much it counts from now on where limits leave no room for all."""
    changed = service.prioritize(JobId(job), body.priority)
    return m.PriorityOut(job=changed.id, priority=changed.spec.priority)


@router.put("/jobs/{job}/budget", tags=["wishes"])
def budget(job: JobPath, body: BudgetBody, service: Controller) -> m.BudgetOut:
    """What it may cost in all from now on. One that is held for its budget still wants to be resumed."""
    changed = service.set_budget(JobId(job), body.usd_micros)
    return m.BudgetOut(job=changed.id, budget_usd_micros=changed.spec.budget_usd_micros)


@router.get("/timeline", tags=["timeline"])
async def timeline(service: Controller, request: Request, asked: Timeline) -> m.TimelineOut:
    """What happened, of all jobs."""
    return await _timeline(service, request, None, asked)


@router.get("/jobs/{job}/timeline", tags=["timeline"])
async def job_timeline(job: JobPath, service: Controller, request: Request, asked: Timeline) -> m.TimelineOut:
    """What happened to one job."""
    return await _timeline(service, request, JobId(job), asked)


async def _timeline(service: Service, request: Request, job: JobId | None, asked: TimelineQuery) -> m.TimelineOut:
    def look() -> Sequence[tuple[int, Moment]]:
        return service.timeline(job, asked.after, asked.since, asked.last)

    found = await long_poll(request, asked.wait, LOOK_AGAIN_SECONDS, look)
    moments = [m.MomentOut.of_moment(number, moment) for number, moment in found]
    return m.TimelineOut(moments=moments, next=max((number for number, _ in found), default=asked.after))


@router.get("/costs", tags=["costs"])
def costs(service: Controller, job: Annotated[str | None, Query(max_length=100)] = None, since: Since = None) -> m.CostsOut:
    """What was spent, by attempt; running ones up to now. `since`: only machines that were launched then or later."""
    return m.CostsOut(costs=list(service.costs(JobId(job) if job else None, since)))


Until = Annotated[AwareDatetime | None, Query(description="Only UTC days that begin before this; with a zone")]
SinceDay = Annotated[AwareDatetime | None, Query(description="Only from this moment's UTC day on; with a zone")]


@router.get("/charges", tags=["costs"])
def charges(
    service: Controller,
    job: Annotated[str | None, Query(max_length=100)] = None,
    since: SinceDay = None,
    until: Until = None,
) -> m.ChargesOut:
    """The lines of the bill, each of one UTC day at most; running machines up to now."""
    return m.ChargesOut(charges=list(service.charges(JobId(job) if job else None, since, until)))


@router.get("/report", tags=["costs"])
def report(
    service: Controller,
    job: Annotated[list[str], Query(max_length=100, description="Only these jobs; none = everything")] = [],  # noqa: B006
    since: SinceDay = None,
    until: Until = None,
    by: Annotated[str, Query(max_length=100, description="owner, project, tag:NAME …: adds up by that, too")] = "",
) -> CostReport:
    """What was spent on what, what else would have cost, and what the month will come to."""
    return service.report([JobId(j) for j in job], since, until, by)


@router.get("/spots", tags=["costs"])
def spots(service: Controller) -> m.SpotsOut:
    """When spot could be had, by pool: what policies can be trained on."""
    found = service.spots()
    return m.SpotsOut(spots=[m.SpotOut.of(s, pool=pool) for pool in sorted(found) for s in found[pool]])


def command(job: Job) -> m.CommandOut:
    """The answer to a wish."""
    return m.CommandOut.of(job, job=job.id)


async def long_poll(request: Request, wait: float, pause: float, look: Callable[[], T]) -> T:
    """What `look` finds; if that is empty it looks again, for `wait` seconds or until the client or this server goes."""
    end = time.monotonic() + wait
    while True:
        found = await run_in_threadpool(look)
        if found or time.monotonic() >= end or request.app.state.stopping or await request.is_disconnected():
            return found
        await asyncio.sleep(pause)


@router.post("/plans", tags=["submit"])
def plan(body: PlanBody, service: Controller) -> m.PlanOut:
    """What would be launched for this job now. Nothing is kept of the question."""
    return m.PlanOut.of_preview(service.preview(checked(body.spec)))


UsageSince = Annotated[datetime | None, Query(description="Only windows that began then or later")]


@router.get("/jobs/{job}/usage", tags=["jobs"])
def usage(job: JobPath, service: Controller, since: UsageSince = None) -> m.UsagesOut:
    """What it used."""
    return m.UsagesOut(windows=[m.WindowOut.of(u.window, u) for u in service.usage(JobId(job), since)])


@router.get("/jobs/{job}/checkpoints", tags=["checkpoints"])
def checkpoints(job: JobPath, service: Controller) -> m.CheckpointsOut:
    """What there is, what is proven, and what will go."""
    return m.CheckpointsOut(checkpoints=[m.CheckpointOut.of(x) for x in service.checkpoints(JobId(job))])


@router.post("/jobs/{job}/go-back", tags=["wishes"])
def go_back(job: JobPath, body: FromBody, service: Controller) -> m.CommandOut:
    """Go on from a checkpoint, whatever came after it: a held, ended or running job."""
    return command(service.go_back(JobId(job), body.checkpoint))


@router.put("/jobs/{job}/checkpoints/{checkpoint}/protection", tags=["checkpoints"])
def protect(job: JobPath, checkpoint: str, service: Controller) -> m.NameOut:
    """Keep it whatever the rules say."""
    return m.NameOut(checkpoint=service.protect(JobId(job), checkpoint, True))


@router.delete("/jobs/{job}/checkpoints/{checkpoint}/protection", tags=["checkpoints"])
def unprotect(job: JobPath, checkpoint: str, service: Controller) -> m.NameOut:
    """Leave it to the rules again."""
    return m.NameOut(checkpoint=service.protect(JobId(job), checkpoint, False))


@router.post("/jobs/{job}/forks", status_code=202, tags=["checkpoints"])
def fork(job: JobPath, body: ForkBody, service: Controller) -> Progress:
    """A copy of the job that goes its own way from a checkpoint."""
    return service.fork(JobId(job), body.checkpoint, body.name)


@router.post("/jobs/{job}/rehearsals", status_code=202, tags=["checkpoints"])
def rehearse(job: JobPath, service: Controller) -> Progress:
    """Show that the newest checkpoint lives elsewhere, while the job runs on."""
    return service.rehearse(JobId(job))


@router.post("/store/{what}", status_code=202, tags=["store"])
def store_work(what: str, body: StoreBody, service: Controller) -> Progress:
    """`check`, `stats` or `gc`."""
    job = JobId(body.job) if body.job is not None else None
    return service.store_work(what, job, body.read, body.dry_run)


Patience = Annotated[float, Query(ge=0, le=WAIT_MAX_SECONDS, description="Seconds to wait for its end")]


@router.get("/work/{number}", tags=["store"])
def progress(number: str, service: Controller, wait: Patience = 0) -> Progress:
    """How far a long command is."""
    return service.progress(number, wait)


@router.delete("/work/{number}", status_code=204, tags=["store"])
def call_off(number: str, service: Controller) -> None:
    """It need not go on."""
    service.call_off(number)
