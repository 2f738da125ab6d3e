"""HTTP routes that carry bytes: uploads, logs, results, partial results. Memory holds only one piece at a time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from itertools import chain
from typing import Annotated

from anyio import from_thread
from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from spotsurfer_wire.home_tree import HomeChanges
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import JobId
from spotsurfer.ports.service import LogAsk, LogFound, LogPlace, PartialSeen
from spotsurfer.web import response_models as m
from spotsurfer.web.request_models import WAIT_MAX_SECONDS, HomeBody
from spotsurfer.web.routes import Controller, JobPath, NewJobPath, long_poll

LOG_PIECE_BYTES = 1 << 20
LOG_LOOK_SECONDS = 2.0  # of a waiting request: one listing of the store, for any number of followers
TAIL_MAX = 1_000_000
RAW = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)


class Stream(StrEnum):
    """Of a job's output."""

    OUT = "out"
    ERR = "err"


class PrintedQuery(BaseModel):
    """Which part of the output. Places count bytes from the job's beginning, across all moves."""

    only: Stream | None = Field(None, description="One stream alone")
    out: int = Field(0, ge=0, description="Where to begin in stdout: `next` of the answer before")
    err: int = Field(0, ge=0, description="Where to begin in stderr")
    times: int = Field(0, ge=0, description="Where to begin in the record of times")
    out_end: int | None = Field(None, ge=0, description="Where stdout ends; goes with err_end")
    err_end: int | None = Field(None, ge=0, description="Where stderr ends")
    attempt: int | None = Field(None, ge=1, description="The output as it was under this attempt")
    since: float | None = Field(
        None, ge=0, description="Only what was printed since then, seconds since 1970", allow_inf_nan=False
    )
    tail: int | None = Field(None, ge=0, le=TAIL_MAX, description="Of that the last lines")
    limit: int = Field(LOG_PIECE_BYTES, ge=1, le=LOG_PIECE_BYTES)
    wait: float = Field(0, ge=0, le=WAIT_MAX_SECONDS, description="Seconds to wait for more before an empty answer")

    def to_ask(self) -> LogAsk:
        """As the service takes it."""
        until = None if self.out_end is None or self.err_end is None else LogPlace(self.out_end, self.err_end)
        streams = tuple(Stream) if self.only is None else (self.only,)
        return LogAsk(
            tuple(s.value for s in streams),
            LogPlace(self.out, self.err, self.times),
            until,
            self.attempt,
            self.since,
            self.tail,
            self.limit,
        )


class LogQuery(BaseModel):
    """Which piece of one stream."""

    offset: int = Field(0, ge=0, description="Bytes from the job's beginning, across all moves")
    limit: int = Field(LOG_PIECE_BYTES, ge=1, le=LOG_PIECE_BYTES)
    attempt: int | None = Field(None, ge=1, description="The output as it was under this attempt")
    wait: float = Field(0, ge=0, le=WAIT_MAX_SECONDS, description="Seconds to wait for more before an empty answer")


Length = Annotated[int | None, Header(alias="Content-Length", ge=0)]


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


@router.get("/jobs/{job}/log", response_class=Response, responses={200: RAW}, tags=["files"])
async def printed(job: JobPath, service: Controller, request: Request, query: Annotated[PrintedQuery, Query()]) -> Response:
    """Both streams in the order in which the job printed them.

    The answer is lines of JSON. One with `bytes` says which stream the bytes right behind it are of, `seconds` since 1970 when
    they were printed (null: not known), and whether their place among those of the other stream was `recorded`. The last one
    has `next`, where to go on, `ended`, whether nothing more will come, and `earlier`, attempts with output that this one does
    not show. While the job runs, a request that waits holds back what has no place yet.
    """
    end = time.monotonic() + query.wait
    old_seconds = LOG_LOOK_SECONDS / 2 if query.wait else 0.0  # followers ask again and again
    ask = replace(query.to_ask(), in_order=query.wait > 0, old_seconds=old_seconds)
    while True:
        found = await run_in_threadpool(service.printed, JobId(job), ask)
        over = not ask.in_order or request.app.state.stopping or await request.is_disconnected()
        if found.parts or found.ended or over:
            return Response(b"".join(_framed(found)), media_type="application/octet-stream")
        left = end - time.monotonic()
        ask = replace(ask, place=found.place, since=None, tail=None, in_order=left > 0)
        await asyncio.sleep(max(0.0, min(LOG_LOOK_SECONDS, left)))


def _framed(found: LogFound) -> Iterator[bytes]:
    for part in found.parts:
        head = {"stream": part.stream, "bytes": len(part.data), "seconds": part.seconds, "recorded": part.recorded}
        yield json.dumps(head).encode() + b"\n"
        yield part.data
    last = {"next": asdict(found.place), "ended": found.ended, "earlier": found.earlier}
    yield json.dumps(last).encode() + b"\n"


@router.get("/jobs/{job}/log/{stream}", response_class=Response, responses={200: RAW}, tags=["files"])
async def log(
    job: JobPath, stream: Stream, service: Controller, request: Request, ask: Annotated[LogQuery, Query()]
) -> Response:
    """A piece of one stream of the job's output; X-Next-Offset says where to go on."""

    def look() -> bytes:
        return service.log(JobId(job), stream.value, ask.offset, ask.limit, ask.attempt)

    data = await long_poll(request, ask.wait, LOG_LOOK_SECONDS, look)
    headers = {"X-Next-Offset": str(ask.offset + len(data))}
    return Response(data, media_type="application/octet-stream", headers=headers)


@router.get("/jobs/{job}/outputs", tags=["files"])
def outputs(job: JobPath, service: Controller) -> m.OutputsOut:
    """All published results; 409 while there are none yet."""
    return m.OutputsOut(outputs=list(service.outputs(JobId(job))))


@router.get("/jobs/{job}/outputs/{path:path}", response_class=StreamingResponse, responses={200: RAW}, tags=["files"])
def output(job: JobPath, path: str, service: Controller) -> StreamingResponse:
    """One published result. Its first piece is read before the answer begins: an absent file is a 404, not a torn 200."""
    return _streamed(service.output(JobId(job), path))


def _streamed(pieces: Iterator[bytes]) -> StreamingResponse:
    first = next(pieces, b"")
    return StreamingResponse(chain([first], pieces), media_type="application/octet-stream")


def _from_thread(pieces: AsyncIterator[bytes]) -> Iterator[bytes]:
    """The request's pieces for a worker thread: it waits for the loop, so that a slow store slows the sender."""

    async def following() -> bytes | None:
        return await anext(pieces, None)

    while (piece := from_thread.run(following)) is not None:
        if piece:
            yield piece


Number = Annotated[int, Path(ge=1, description="Of the request")]


@router.post("/jobs/{job}/partials", status_code=202, tags=["files"])
def ask_partial(job: JobPath, service: Controller) -> m.NumberOut:
    """Ask for what the job has written so far; the answer is the number of the request."""
    return m.NumberOut(number=service.ask_partial(JobId(job)))


@router.get("/jobs/{job}/partials/{number}", tags=["files"])
def partial(job: JobPath, number: Number, service: Controller) -> PartialSeen:
    """What became of a request; 409 where nothing will."""
    return service.partial(JobId(job), number)


@router.get("/jobs/{job}/partials/{number}/{path:path}", response_class=StreamingResponse, responses={200: RAW}, tags=["files"])
def partial_output(job: JobPath, number: Number, path: str, service: Controller) -> StreamingResponse:
    """One of these files."""
    return _streamed(service.partial_output(JobId(job), number, path))


Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Of the file's bytes, in hexadecimal digits")]
Digest = Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file's bytes, in hexadecimal digits")]
Home = Annotated[str, Query(min_length=1, max_length=4096, description="Absolute path of the folder on the submit host")]


@router.post("/homes/lacks", tags=["submit"])
def home_lacks(body: HomeBody, service: Controller) -> m.LacksOut:
    """Which files of a folder that jobs are to work in must be sent; a tree is sent last."""
    return m.LacksOut(lacks=list(service.home_lacks(body.home, body.digests)), shared=service.shares_home(body.home))


@router.put("/homes/files", status_code=204, tags=["submit"], openapi_extra={"requestBody": {**RAW, "required": True}})
async def upload_home(sha256: Digest, home: Home, service: Controller, request: Request, content_length: Length = None) -> None:
    """Store one of these files, or a tree. The body is the file as it is; its length must be announced."""
    if content_length is None:
        raise UsageError("An upload needs the header Content-Length.")
    pieces = request.stream()
    await run_in_threadpool(lambda: service.upload_home(home, sha256, _from_thread(pieces), content_length))


@router.get("/jobs/{job}/home", tags=["files"])
def home_changes(job: JobPath, service: Controller) -> HomeChanges:
    """What an ended job made of its folder; 409 while it has not ended, or its machine still sends."""
    return service.home_changes(JobId(job))


@router.get("/jobs/{job}/home/{sha256}", response_class=StreamingResponse, responses={200: RAW}, tags=["files"])
def home_result(job: JobPath, sha256: Sha256, service: Controller) -> StreamingResponse:
    """One of these files."""
    return _streamed(service.home_result(JobId(job), sha256))
