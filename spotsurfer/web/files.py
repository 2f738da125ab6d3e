"""Bytes: inputs up, logs and results down. Nothing is held in memory but a piece."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from itertools import chain
from typing import Annotated

from anyio import from_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from spotsurfer.model.errors import UsageError
from spotsurfer.model.ids import JobId
from spotsurfer.web import models as m
from spotsurfer.web.routes import LOOK_AGAIN_SECONDS, WAIT_MAX_SECONDS, Controller, JobPath, NewJobPath

LOG_PIECE_BYTES = 1 << 20
RAW = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)


class LogQuery(BaseModel):
    """Which piece of the output."""

    offset: int = Field(0, ge=0, description="Bytes from the job's beginning, across all moves")
    limit: int = Field(LOG_PIECE_BYTES, ge=1, le=LOG_PIECE_BYTES)
    attempt: int | None = Field(None, ge=1, description="The output as it was under this attempt")
    wait: float = Field(0, ge=0, le=WAIT_MAX_SECONDS, description="Seconds to wait for more before an empty answer")


Length = Annotated[int | None, Header(alias="Content-Length", ge=0)]


class Stream(StrEnum):
    """Of a job's output."""

    OUT = "out"
    ERR = "err"


@router.put(
    "/jobs/{job}/inputs/{path:path}", status_code=204, tags=["submit"], openapi_extra={"requestBody": {**RAW, "required": True}}
)
async def upload(
    job: NewJobPath,
    path: str,
    service: Controller,
    request: Request,
    content_length: Length = None,
) -> None:
    """Store one input of a job to come. The body is the file as it is; its length must be announced."""
    if content_length is None:
        raise UsageError("An upload needs the header Content-Length.")
    pieces = request.stream()
    await run_in_threadpool(lambda: service.upload(JobId(job), path, _from_thread(pieces), content_length))


@router.delete("/jobs/{job}/inputs", status_code=204, tags=["submit"])
def discard(job: NewJobPath, service: Controller) -> None:
    """Remove the uploads of a job that was never submitted."""
    service.discard(JobId(job))


@router.get("/jobs/{job}/log/{stream}", response_class=Response, responses={200: RAW}, tags=["files"])
async def log(
    job: JobPath, stream: Stream, service: Controller, request: Request, ask: Annotated[LogQuery, Query()]
) -> Response:
    """A piece of the job's output; X-Next-Offset says where to go on."""
    end = time.monotonic() + ask.wait
    while True:
        data = await run_in_threadpool(service.log, JobId(job), stream.value, ask.offset, ask.limit, ask.attempt)
        if data or time.monotonic() >= end or request.app.state.stopping or await request.is_disconnected():
            headers = {"X-Next-Offset": str(ask.offset + len(data))}
            return Response(data, media_type="application/octet-stream", headers=headers)
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


@router.get("/jobs/{job}/outputs", tags=["files"])
def outputs(job: JobPath, service: Controller) -> m.OutputsOut:
    """All published results; 409 while there are none yet."""
    return m.OutputsOut(outputs=[m.OutputOut.of(x) for x in service.outputs(JobId(job))])


@router.get("/jobs/{job}/outputs/{path:path}", response_class=StreamingResponse, responses={200: RAW}, tags=["files"])
def output(job: JobPath, path: str, service: Controller) -> StreamingResponse:
    """One published result. Its first piece is read before the answer begins: an absent file is a 404, not a torn 200."""
    pieces = iter(service.output(JobId(job), path))
    first = next(pieces, b"")
    return StreamingResponse(chain([first], pieces), media_type="application/octet-stream")


def _from_thread(pieces: AsyncIterator[bytes]) -> Iterator[bytes]:
    """The request's pieces for a worker thread: it waits for the loop, so that a slow store slows the sender."""

    async def following() -> bytes | None:
        return await anext(pieces, None)

    while (piece := from_thread.run(following)) is not None:
        if piece:
            yield piece
