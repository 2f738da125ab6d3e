"""What stands before all routes: who asks, how large a body may be, and the audit log. Plain ASGI: it buffers nothing."""

from __future__ import annotations

import ipaddress
import os
import pwd
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spotsurfer.model.access import OWNER, Principal, Role
from spotsurfer.model.errors import Denied, UsageError
from spotsurfer.ports.access import Access
from spotsurfer.web.error_responses import answer
from spotsurfer.web.oidc import Oidc

BODY_MAX_BYTES = 8 << 20  # of JSON; inputs are streamed, and only the store limits them
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
        if secrets.compare_digest(given.strip(), self.token.encode()):
            return Principal(user_name(os.geteuid()), Role.OPERATOR, "token file")
        text = given.strip().decode("latin-1")
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

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, client = dict(scope["headers"]), (scope.get("client") or ("?",))[0]
        who = await run_in_threadpool(self._door.who, scope, headers) if self._door.token else self._door.who(scope, headers)
        if who is None:
            _log.warning("request.denied", path=scope["path"], client=client)
            return await answer(Denied(REMEDY), 401)(scope, receive, send)
        scope["state"] = {**scope.get("state", {}), "who": who}
        if "/inputs/" not in scope["path"] and (refusal := _too_much(headers)) is not None:
            return await refusal(scope, receive, send)
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            status = message["status"] if message["type"] == "http.response.start" else status
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            await self._record(scope, who, client, status)

    async def _record(self, scope: Scope, who: Principal, client: str, status: int) -> None:
        """Changes that were done, refused or failed, and looks that were forbidden."""
        access, route = self._door.access, getattr(scope.get("route"), "name", "")
        if access is None or (scope["method"] in READS and status != 403) or (route in UNRECORDED and status < 400):
            return
        job = str(scope.get("path_params", {}).get("job", ""))
        address = "" if client == PEER else client
        await run_in_threadpool(access.record, who, address, route or "?", job, status)


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
