"""The HTTP API as an ASGI application."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

import spotsurfer
from spotsurfer.ports.service import Service
from spotsurfer.web import errors, files, partials, plans, routes, shelf, usage
from spotsurfer.web.guard import Guard

DESCRIPTION = """Jobs that surf across spot machines. Amounts are micro-dollars, sizes bytes, durations seconds, times UTC.

To submit: POST /v1/ids, PUT each input below /v1/jobs/{job}/inputs/, then PUT /v1/jobs/{job}. Over TCP every request shows
`Authorization: Bearer <token>`; on the Unix socket the file's permissions decide."""


def make_app(
    service: Service, *, token: str | None, allow_on_end: bool | None = None, allow_fetch: bool | None = None
) -> FastAPI:
    """The API over `service`. With a `token` (TCP) every request must show it, and jobs may bring no on_end command unless
    `allow_on_end`, no secret that the controller fetches unless `allow_fetch`; without one (Unix socket) none of this holds.
    """
    app = FastAPI(
        title="spotsurfer",
        version=spotsurfer.__version__,
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # those pages would load scripts from strangers
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    app.state.allow_on_end = token is None if allow_on_end is None else allow_on_end
    app.state.allow_fetch = token is None if allow_fetch is None else allow_fetch
    app.state.stopping = False  # set at shutdown: long polls answer at once
    app.include_router(routes.router)
    app.include_router(files.router)
    app.include_router(shelf.router)
    app.include_router(partials.router)
    app.include_router(plans.router)
    app.include_router(usage.router)
    errors.install(app)
    app.add_middleware(Guard, token=token)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
