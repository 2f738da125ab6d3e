"""What a job has written so far, while it runs on."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from spotsurfer.model.ids import JobId
from spotsurfer.web import models as m
from spotsurfer.web.files import RAW
from spotsurfer.web.routes import Controller, JobPath

router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)
Number = Annotated[int, Path(ge=1, description="Of the request")]


class PartialOut(m.Wire):
    """A request and, once it is `done`, the files as they were at one moment. Only the newest request's are kept."""

    number: int
    done: bool
    attempt: int
    step: str
    at: str
    outputs: list[m.OutputOut]
    missing: list[str]


@router.post("/jobs/{job}/partials", status_code=202, tags=["files"])
def ask_partial(job: JobPath, service: Controller) -> m.NumberOut:
    """Ask for what the job has written so far; the answer is the number of the request."""
    return m.NumberOut(number=service.ask_partial(JobId(job)))


@router.get("/jobs/{job}/partials/{number}", tags=["files"])
def partial(job: JobPath, number: Number, service: Controller) -> PartialOut:
    """What became of a request; 409 where nothing will."""
    return PartialOut.model_validate(service.partial(JobId(job), number))


@router.get("/jobs/{job}/partials/{number}/{path:path}", response_class=StreamingResponse, responses={200: RAW}, tags=["files"])
def partial_output(job: JobPath, number: Number, path: str, service: Controller) -> StreamingResponse:
    """One of these files."""
    pieces = iter(service.partial_output(JobId(job), number, path))
    first = next(pieces, b"")
    return StreamingResponse(chain([first], pieces), media_type="application/octet-stream")
