"""News for open pages as server-sent events: moments of the jobs that one may see, and a ping. Each ping asks the door anew."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from spotsurfer.dashboard import words
from spotsurfer.dashboard.site import HEADERS, Site
from spotsurfer.model.errors import SpotsurferError

LOOK_SECONDS = 0.5  # one indexed query
PING_SECONDS = 5.0
AT_ONCE = 200  # moments; pages load anew anyway
RETRY_MILLIS = 1500
STREAMS_MAX = 50  # of one person: a browser closes those of pages that nobody sees
router = APIRouter(include_in_schema=False)


@router.get("/events")
async def events(request: Request) -> StreamingResponse:
    """A stream that ends when the server stops, or who asks is let in no more."""
    site: Site = request.app.state.site
    name = site.who(request).name
    if site.streams[name] >= STREAMS_MAX:
        raise HTTPException(429)
    given = request.headers.get("last-event-id") or request.query_params.get("after", "")
    after = int(given) if given.isascii() and given.isdecimal() and len(given) < 16 else 0
    headers = {**HEADERS, "X-Accel-Buffering": "no"}
    return StreamingResponse(_counted(name, site, _news(site, request, after)), media_type="text/event-stream", headers=headers)


async def _counted(name: str, site: Site, news: AsyncIterator[str]) -> AsyncIterator[str]:
    site.streams[name] += 1
    try:
        async for one in news:
            yield one
    finally:
        site.streams[name] -= 1


async def _news(site: Site, request: Request, after: int) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MILLIS}\n\n"
    pinged = 0.0
    while not site.stopping():
        if time.monotonic() - pinged >= PING_SECONDS:
            if await run_in_threadpool(site.again, request) != site.who(request):
                yield _event("bye", {})
                return
            yield _event("ping", {})
            pinged = time.monotonic()
        try:
            found = await run_in_threadpool(site.service(request).timeline, None, after, None, AT_ONCE)
        except SpotsurferError:
            return  # the browser comes back
        for number, moment in found:
            after = number
            said = words.told(moment)
            text = f"{moment.job}: {said[1]}" if said and moment.job else said[1] if said else ""
            yield _event("moment", {"job": moment.job, "text": text}, number)
        await asyncio.sleep(LOOK_SECONDS)


def _event(name: str, data: object, number: int | None = None) -> str:
    return f"event: {name}\n" + (f"id: {number}\n" if number is not None else "") + f"data: {json.dumps(data)}\n\n"
