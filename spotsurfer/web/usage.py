"""What a job used, over time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from spotsurfer.model.ids import JobId
from spotsurfer.web import models as m
from spotsurfer.web.routes import Controller, JobPath

router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)
Since = Annotated[datetime | None, Query(description="Only windows that began then or later")]


class WindowOut(m.UsageOut):
    """A window of an attempt."""

    attempt: int
    at: datetime


class UsagesOut(m.Wire):
    """All windows of a job, oldest first: of ten seconds for the last hour, of a minute before."""

    windows: list[WindowOut]


@router.get("/jobs/{job}/usage", tags=["jobs"])
def usage(job: JobPath, service: Controller, since: Since = None) -> UsagesOut:
    """What it used."""
    found = service.usage(JobId(job), since)
    rows = [m.UsageOut.model_validate(u.window).model_dump() for u in found]
    return UsagesOut(windows=[WindowOut(attempt=u.attempt, at=u.at, **row) for u, row in zip(found, rows, strict=True)])
