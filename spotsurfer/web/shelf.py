"""Checkpoints, copies, rehearsals and the store: routes and what travels over them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from spotsurfer.model.ids import JobId
from spotsurfer.ports.service import Checkpoint, Progress
from spotsurfer.web.asked import Asked
from spotsurfer.web.models import CommandOut, ErrorBody, Wire
from spotsurfer.web.routes import WAIT_MAX_SECONDS, Controller, JobPath, command

router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}, 422: {"model": ErrorBody}}
)


class CheckpointOut(Wire):
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


class CheckpointsOut(Wire):
    """Oldest first."""

    checkpoints: list[CheckpointOut]


class FromBody(Asked):
    """The checkpoint to go on from: its name, or its sequence number."""

    checkpoint: str


class ForkBody(Asked):
    """Both empty: the newest checkpoint, under the same name."""

    checkpoint: str | None = None
    name: str | None = None


class NameOut(Wire):
    """The full name of a checkpoint."""

    checkpoint: str


class StoreBody(Asked):
    """Of one job, or of all."""

    job: str | None = None
    read: bool = False
    dry_run: bool = False


class ProgressOut(Wire):
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
def go_back(job: JobPath, body: FromBody, service: Controller) -> CommandOut:
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
