"""What stands before all routes: who asks, how large a body may be, and the audit log. Plain ASGI: it buffers nothing."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import pwd
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import structlog
from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spotsurfer.dashboard.sessions import Sessions, cookie_of
from spotsurfer.dashboard.site import is_open, is_page
from spotsurfer.model.access import OWNER, Principal, Role
from spotsurfer.model.errors import Denied, UsageError
from spotsurfer.ports.access import Access
from spotsurfer.web.error_responses import answer
from spotsurfer.web.oidc import Oidc

BODY_MAX_BYTES = 8 << 20  # of JSON
STREAMED = re.compile(r"/inputs/|^/v1/homes/files$")  # files, which only the store limits
SILENT_SECONDS = 60.0  # within a body
PEER = "uid"  # the first half of a client's address on a Unix socket; the other is the user's number
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
READS = ("GET", "HEAD", "OPTIONS")
UNRECORDED = frozenset({"upload"})  # a job may have thousands of inputs; what counts is the submission after them
REMEDY = (
    "Token missing or wrong (or expired, or revoked): set SPOTSURFER_TOKEN to what `spotsurfer token make` printed, or to "
    "the text of the controller's token file."
)
_log = structlog.get_logger(room="web")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that says who asks, in a header of its own. It is believed from its addresses alone."""

    header: str
    addresses: Sequence[Network]

    def names(self, headers: Mapping[bytes, bytes], client: str) -> str:
        """Whom it names; "" if nobody, or if somebody else than the proxy sent this."""
        name = headers.get(self.header.lower().encode(), b"").decode("latin-1").strip()
        return name if OWNER.fullmatch(name) and _within(client, self.addresses) else ""


@dataclass(slots=True)
class Door:
    """How people are told on one listener. Without a token it is a Unix socket, and the kernel says who asks.

    A reload of the configuration may change the proxy and the operators.
    """

    token: str | None = None  # of the token file: an operator's
    access: Access | None = None
    proxy: Proxy | None = None
    operators: frozenset[str] = frozenset()  # users of this host, and names that the proxy says, who are operators
    oidc: Oidc | None = None

    def who(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Principal | None:
        """Who asks; None if nobody knows. Takes constant time for a wrong token."""
        host, number = scope.get("client") or ("", 0)
        if self.token is None:
            uid = int(number) if host == PEER else os.geteuid()
            return self._named(user_name(uid), "socket", sure=uid in (0, os.geteuid()))
        if self.proxy is not None and (name := self.proxy.names(headers, host)):
            return self._named(name, "proxy")
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer":
            return None
        return self.who_has(given.strip())

    def who_has(self, token: bytes) -> Principal | None:
        """Whom a token names; None if it is not good (any more)."""
        if self.token is not None and secrets.compare_digest(token, self.token.encode()):
            return Principal(user_name(os.geteuid()), Role.OPERATOR, "token file")
        text = token.decode("latin-1")
        who = self.access.who(text) if self.access is not None else None
        return self.oidc.who(text) if who is None and self.oidc is not None else who

    def _named(self, name: str, via: str, *, sure: bool = False) -> Principal:
        return Principal(name, Role.OPERATOR if sure or name in self.operators else Role.USER, via)


def user_name(uid: int) -> str:
    """The name of a user of this host."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


class Guard:
    """Tells who asks and checks the announced length of the body before any route; records changes and refusals after it."""

    def __init__(self, app: ASGIApp, door: Door, sessions: Sessions) -> None:
        self._app, self._door, self._sessions = app, door, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, client = dict(scope["headers"]), (scope.get("client") or ("?",))[0]
        if (foreign := _foreign(scope, headers, self._door)) is not None:
            return await foreign(scope, receive, send)
        who = (
            await run_in_threadpool(who_asks, self._door, self._sessions, scope)
            if self._door.token
            else self._door.who(scope, headers)
        )
        if who is None and not is_open(scope["path"]):
            _log.warning("request.denied", path=scope["path"], client=client)
            return await _unknown(scope, headers)(scope, receive, send)
        scope["state"] = {**scope.get("state", {}), "who": who}
        if not STREAMED.search(scope["path"]) and (refusal := _too_much(headers)) is not None:
            return await refusal(scope, receive, send)
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            status = message["status"] if message["type"] == "http.response.start" else status
            await send(message)

        try:
            await self._app(scope, _patient(receive), sent)
        finally:
            if who is not None:
                await self._record(scope, who, client, status)

    async def _record(self, scope: Scope, who: Principal, client: str, status: int) -> None:
        """Changes that were done, refused or failed, and looks that were forbidden."""
        access, route = self._door.access, getattr(scope.get("route"), "name", "")
        if access is None or (scope["method"] in READS and status != 403) or (route in UNRECORDED and status < 400):
            return
        job = str(scope.get("path_params", {}).get("job", ""))
        address = "" if client == PEER else client
        await run_in_threadpool(access.record, who, address, route or "?", job, status)


def _patient(receive: Receive) -> Receive:
    """Gives up a sender that falls silent within its body: each one would keep a thread waiting."""
    whole = False

    async def received() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"Nothing more of the body came within {SILENT_SECONDS:g} s: send it again.") from None
        whole = not message.get("more_body", False)
        return message

    return received


def who_asks(door: Door, sessions: Sessions, scope: Scope) -> Principal | None:
    """Who asks, by the door, or by a browser's session on the pages. The API takes no cookie: no other page can use it so."""
    headers = dict(scope["headers"])
    if (who := door.who(scope, headers)) is not None or not is_page(scope["path"]):
        return who
    token = sessions.token(cookie_of(headers.get(b"cookie", b"")))
    return door.who_has(token.encode("utf-8")) if token is not None else None


def _foreign(scope: Scope, headers: Mapping[bytes, bytes], door: Door) -> Response | None:
    """The answer to what a page of another site made a browser send; None if nothing speaks for that.

    A name with a dot on the socket: somebody forwards a port to it, and a page of that name was made to mean this host.
    """
    if scope["method"] not in READS and headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
        return answer(Denied("Another site sent this: nothing was done."))
    host, _, port = headers.get(b"host", b"").decode("latin-1").rpartition(":")
    host = host if port.isdecimal() else f"{host}:{port}"
    if door.token is None and "." in host and not host.replace(".", "").strip(":").isdecimal():
        return answer(Denied("Ask for localhost: this socket has no other name."))
    return None


def _unknown(scope: Scope, headers: Mapping[bytes, bytes]) -> Response:
    """The answer to somebody nobody knows: browsers on their way to a page may log in."""
    if scope["method"] == "GET" and is_page(scope["path"]) and b"text/html" in headers.get(b"accept", b""):
        query = scope.get("query_string", b"").decode("latin-1")
        place = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(place, safe='')}", 303, {"Cache-Control": "no-store"})
    return answer(Denied(REMEDY), 401)


def _within(client: str, networks: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return False
    return any(address in network for network in networks)


def _too_much(headers: Mapping[bytes, bytes]) -> Response | None:
    """The answer to a body that is or may be too large: servers read no more than was announced, if that was a length."""
    if b"transfer-encoding" in headers:
        return answer(UsageError("The body has no Content-Length: send it in one piece, with its length."), 411)
    if int(headers.get(b"content-length", b"0")) > BODY_MAX_BYTES:
        return answer(UsageError(f"The body is larger than {BODY_MAX_BYTES >> 20} MiB."), 413)
    return None
