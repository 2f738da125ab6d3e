"""The HTTP API as an ASGI application, with access control and request limits."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import structlog
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import spotsurfer
from spotsurfer.model.errors import ConfigError, Denied, UsageError
from spotsurfer.ports.service import Service
from spotsurfer.web import file_routes, routes
from spotsurfer.web.error_responses import answer, install

# ---- Guard: checks access and announced sizes before any route.

BODY_MAX_BYTES = 8 << 20  # of JSON; inputs are streamed, and only the store limits them
_log = structlog.get_logger(room="web")


class Guard:
    """Checks the token, if there is one, and the announced length of the body. Plain ASGI: it buffers nothing."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if not self._may_enter(headers.get(b"authorization", b"")):
                _log.warning("request.denied", path=scope["path"], client=(scope.get("client") or ("?",))[0])
                remedy = "Token missing or wrong: set SPOTSURFER_TOKEN to the text of the controller's token file."
                return await answer(Denied(remedy), 401)(scope, receive, send)
            if "/inputs/" not in scope["path"] and (refusal := _too_much(headers)) is not None:
                return await refusal(scope, receive, send)
        return await self._app(scope, receive, send)

    def _may_enter(self, header: bytes) -> bool:
        """Takes constant time: the time for a wrong token tells a stranger nothing."""
        if self._token is None:
            return True
        kind, _, given = header.partition(b" ")
        return kind.lower() == b"bearer" and secrets.compare_digest(given.strip(), self._token.encode())


def _too_much(headers: Mapping[bytes, bytes]) -> Response | None:
    """The answer to a body that is or may be too large: servers read no more than was announced, if that was a length."""
    if b"transfer-encoding" in headers:
        return answer(UsageError("The body has no Content-Length: send it in one piece, with its length."), 411)
    if int(headers.get(b"content-length", b"0")) > BODY_MAX_BYTES:
        return answer(UsageError(f"The body is larger than {BODY_MAX_BYTES >> 20} MiB."), 413)
    return None


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

DESCRIPTION = """Jobs that surf across spot machines. Amounts are micro-dollars, sizes bytes, durations seconds, times UTC.

To submit: POST /v1/ids, PUT each input below /v1/jobs/{job}/inputs/, then PUT /v1/jobs/{job}. Over TCP every request shows
`Authorization: Bearer <token>`; on the Unix socket the file's permissions decide."""


def make_app(
    service: Service, *, token: str | None, allow_on_end: bool | None = None, allow_fetch: bool | None = None
) -> FastAPI:
    """The API over `service`. With a `token` (TCP) every request must show it, and jobs may bring an on_end command only if
    `allow_on_end`, and secrets that the controller fetches only if `allow_fetch`. Without one (Unix socket) nothing is refused.
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
    app.state.service = service
    app.state.allow_on_end = token is None if allow_on_end is None else allow_on_end
    app.state.allow_fetch = token is None if allow_fetch is None else allow_fetch
    app.state.stopping = False  # set at shutdown: long polls answer at once
    app.include_router(routes.router)
    app.include_router(file_routes.router)
    install(app)
    app.add_middleware(Guard, token=token)
    return app
