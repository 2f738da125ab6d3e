"""Errors over HTTP: one table from our error types to statuses, and one form of body."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from spotsurfer.model import errors as e

_log = structlog.get_logger(room="web")
# The nearest ancestor with an entry counts.
STATUS: dict[type[e.SpotsurferError], int] = {
    e.SpotsurferError: 500,
    e.UsageError: 400,
    e.ConfigError: 422,
    e.JobFileError: 422,
    e.InputMissing: 422,
    e.HostUnfit: 503,
    e.DiskFull: 507,
    e.StoreUnwritable: 503,
    e.StoreOwned: 409,
    e.NoController: 503,
    e.Denied: 403,
    e.NotFound: 404,
    e.Conflict: 409,
    e.ControllerRunning: 409,
    e.JobEndedBadly: 409,
    e.MoveFailed: 409,
    e.ProviderError: 502,
    e.NoCapacity: 503,
    e.QuotaExceeded: 503,
    e.Throttled: 503,
}


_ROUTING = {
    404: "There is no such address in this API; /v1/openapi.json lists them.",
    405: "This address does not know the method.",
}


def status_of(error: e.SpotsurferError) -> int:
    """The HTTP status of one of our errors."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def answer(error: e.SpotsurferError, status: int | None = None) -> JSONResponse:
    """The response for one of our errors."""
    code = status or status_of(error)
    body = {"error": type(error).__name__, "exit_code": error.exit_code, "message": str(error)}
    return JSONResponse(body, status_code=code, headers={"WWW-Authenticate": "Bearer"} if code == 401 else None)


def install(app: FastAPI) -> None:
    """Make every failure of `app` answer with the one body."""
    app.add_exception_handler(e.SpotsurferError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _bug)


def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, e.SpotsurferError)
    response = answer(error)
    if response.status_code >= 500:
        _log.warning("request.failed", path=request.url.path, error=type(error).__name__, message=str(error))
    return response


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(x) for x in first["loc"] if x != "body") or "the body"
    return answer(e.UsageError(f"{where}: {first['msg'].lower()}; /v1/openapi.json describes what is expected."), 422)


def _routing(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = e.NotFound if error.status_code == 404 else e.UsageError
    return answer(kind(_ROUTING.get(error.status_code, str(error.detail))), error.status_code)


def _gone(_: Request, __: Exception) -> JSONResponse:
    """Who asked has hung up: nobody reads this, and nothing failed inside."""
    return answer(e.UsageError("The body ended too early: send it again."), 400)


def _bug(request: Request, error: Exception) -> JSONResponse:
    # The framework raises it again to the server below us, which logs the traceback.
    _log.error("request.failed", path=request.url.path, error=type(error).__name__, message=str(error))
    return answer(e.SpotsurferError(f"The controller failed inside ({type(error).__name__}); its log has the details."), 500)
