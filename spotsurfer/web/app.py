"""The HTTP API and the pages as an ASGI application, with access control and request limits."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI, Request

import spotsurfer
from spotsurfer.dashboard import pages
from spotsurfer.dashboard.sessions import Sessions
from spotsurfer.dashboard.site import Policy, Site
from spotsurfer.model.access import Principal
from spotsurfer.model.errors import ConfigError
from spotsurfer.ports.service import Service
from spotsurfer.web import access_routes, file_routes, metrics, operator_routes, routes
from spotsurfer.web.access import Makers
from spotsurfer.web.error_responses import install, status_of
from spotsurfer.web.guard import Door, Guard, who_asks


def load_token(path: Path) -> str:
    """The token in `path`, made on first use with mode 0600.

    Raises ConfigError if the file is empty, unreadable, or readable by others.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    except FileExistsError:
        pass
    except OSError as e:
        raise ConfigError(f"Token file {path} can't be made: {e.strerror}. Set [controller] token_file.") from None
    try:
        mode, token = path.stat().st_mode, path.read_text().strip()
    except OSError as e:
        raise ConfigError(f"Token file {path} can't be read: {e.strerror}.") from None
    if mode & 0o077:
        raise ConfigError(f"Token file {path} can be read by others: chmod 600 {path}.")
    if len(token) < 16:
        raise ConfigError(f"Token file {path} holds less than 16 characters: remove it, and a good one is made.")
    return token


# ---- Application

LOCAL = Door()  # a Unix socket
DESCRIPTION = """Jobs that surf across spot machines. Amounts are micro-dollars, sizes bytes, durations seconds, times UTC.

To submit: POST /v1/ids, PUT each input below /v1/jobs/{job}/inputs/, then PUT /v1/jobs/{job}. Over TCP every request shows
`Authorization: Bearer <token>`; on the Unix socket the kernel says who asks. Users see their own jobs alone."""


def make_app(
    service: Service,
    door: Door = LOCAL,
    *,
    makers: Makers | None = None,
    allow_on_end: bool = True,
    allow_fetch: bool = True,
    policies: Sequence[Policy] = (),
) -> FastAPI:
    """The API and the pages over `service`, for those whom `door` knows; by default on a Unix socket.

    Operators' jobs may bring an on_end command only if `allow_on_end`, and secrets that the controller fetches only if
    `allow_fetch`; other people's never. `makers`: to be shared by all doors of a controller.
    """
    app = FastAPI(
        title="spotsurfer",
        version=spotsurfer.__version__,
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # those pages would load foreign scripts
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service, app.state.access, app.state.makers = service, door.access, makers or Makers()
    app.state.door = door
    app.state.allow_on_end, app.state.allow_fetch = allow_on_end, allow_fetch
    app.state.stopping = False  # set at shutdown: long polls answer at once
    routers = (routes.router, file_routes.router, access_routes.router, operator_routes.router, metrics.router)
    for router in routers:
        app.include_router(router)
    sessions = Sessions()
    site = Site(
        service=routes.the_service,
        principal=_principal,
        again=lambda request: who_asks(door, sessions, request.scope),
        status_of=status_of,
        stopping=lambda: bool(app.state.stopping),
        sessions=sessions,
        by_token=None if door.token is None else lambda token: door.who_has(token.encode()),
        provider=lambda: door.oidc,
        public_url=lambda: door.oidc.public_url if door.oidc is not None else None,
        policies=policies,
    )
    pages.mount(app, site)
    install(app)
    app.add_middleware(Guard, door=door, sessions=sessions)
    return app


def _principal(request: Request) -> Principal | None:
    """Whom the guard found to ask."""
    found: Principal | None = request.scope["state"]["who"]
    return found
