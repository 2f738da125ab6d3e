"""What the pages need of the application that mounts them, and the frame around each page: headers, errors, forms."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spotsurfer import __version__
from spotsurfer.dashboard import words
from spotsurfer.dashboard.sessions import COOKIE, Sessions, cookie_of
from spotsurfer.model.access import Principal, Role, Use, may
from spotsurfer.model.errors import Denied, SpotsurferError, UsageError
from spotsurfer.model.job import JobId
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.service import Checkpoint, Service

HERE = Path(__file__).parent
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STATIC = {p.name: (data := p.read_bytes(), hashlib.sha256(data).hexdigest()[:12]) for p in sorted((HERE / "static").iterdir())}
FORM_BYTES_MAX = 64 << 10
SIGN_IN = "spotsurfer_sign_in"
BACK = "/login/oidc/back"  # where the provider sends people back to
TOPS = frozenset({"", "login", "logout", "static", "events", "jobs", "queue", "pools", "costs", "policies", "store"})
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_page(path: str) -> bool:
    """Whether the address is one of a page, and not the API's."""
    return path.split("/")[1] in TOPS if path.startswith("/") else False


def is_open(path: str) -> bool:
    """Whether it answers people who are not known yet."""
    return path in ("/login", "/login/provider", BACK) or path.startswith("/static/")


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that runs: of which kind, its name, and its settings with what they mean."""

    kind: str
    name: str
    settings: Sequence[tuple[str, str, str]]


class Provider(Protocol):
    """Where people sign in besides tokens; see `web.oidc.Oidc`."""

    def begin(self, callback: str, place: str) -> tuple[str, str]:
        """Where the browser must go, and what its cookie must hold when it comes back. Raises Denied."""
        ...

    def finish(self, url: str, state: str) -> tuple[str, str]:
        """The token and the place for a browser that came back to `url` with this cookie. Raises Denied."""
        ...


@dataclass(frozen=True)
class Site:
    """`service` is the one behind the guard; `principal` says who asks, None if nobody knows; `again` asks the door anew."""

    service: Callable[[Request], Service]
    principal: Callable[[Request], Principal | None]
    again: Callable[[Request], Principal | None]
    status_of: Callable[[SpotsurferError], int]
    stopping: Callable[[], bool]
    sessions: Sessions
    by_token: Callable[[str], Principal | None] | None = None  # None: nobody needs a token here
    provider: Callable[[], Provider | None] = lambda: None
    public_url: Callable[[], str | None] = lambda: None  # of this controller, for the provider; None = as the browser says it
    policies: Sequence[Policy] = ()
    now: Callable[[], datetime] = SystemClock().now
    streams: Counter[str] = field(default_factory=Counter)  # of news, open, by who asked
    checkpoints: dict[JobId, tuple[datetime | None, str | None, Sequence[Checkpoint]]] = field(default_factory=dict)
    works: dict[str, str] = field(default_factory=dict)  # numbers of the store's long commands, with what they do

    def who(self, request: Request) -> Principal:
        """Who asks; the guard has let them in."""
        found = self.principal(request)
        if found is None:
            raise Denied("Log in first.")
        return found

    @cached_property
    def templates(self) -> Environment:
        """Everything is escaped unless it was drawn here."""
        made = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        made.filters |= words.FILTERS
        made.globals |= {"version": __version__, "asset": asset, "job_url": job_url}
        return made

    def form_key(self, request: Request) -> str:
        """See `Sessions.form_key`."""
        return self.sessions.form_key(self.who(request), session_of(request))

    def page(self, request: Request, template: str, code: int = 200, /, **values: Any) -> Response:
        """A page in the frame that all have."""
        who = self.principal(request)
        frame = {
            "who": who,
            "path": request.url.path,
            "here": str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            "form_key": self.form_key(request) if who is not None else "",
            "may_change": who is not None and may(who.role, Use.CHANGE_JOB),
            "operator": who is not None and who.role is Role.OPERATOR,
            "now": self.now(),
            "has_session": bool(session_of(request)),
        }
        text = self.templates.get_template(template).render(**{**frame, **values})
        return HTMLResponse(text, code, HEADERS)

    def trouble(self, request: Request, error: SpotsurferError) -> Response:
        """A page that says what went wrong."""
        return self.page(request, "error.html", self.status_of(error), title=type(error).__name__, message=str(error))

    def check(self, request: Request, form: Mapping[str, str]) -> None:
        """Raise Denied unless the form comes from a page that was made for who asks now."""
        if not hmac.compare_digest(form.get("form_key", "").encode(), self.form_key(request).encode()):
            raise Denied("This form is not from your present session: go back, load the page again, and send it once more.")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name. Raises UsageError for another kind of body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded" or int(request.headers.get("content-length", "0")) > FORM_BYTES_MAX:
        raise UsageError("That is not a form of these pages.")
    body = await request.body()
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise UsageError("That is not a form of these pages.") from None


def session_of(request: Request) -> str:
    """The session's name that the browser sent; "" = none."""
    return cookie_of(request.headers.get("cookie", "").encode("latin-1"))


def safe_place(text: str) -> str:
    """Where to go after a login: a page of ours, whatever somebody wrote."""
    ours = (
        text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and is_page(text.partition("?")[0])
    )
    return text if ours and not text.startswith(("/login", "/logout", "/events", "/static")) else "/"


def moved(to: str) -> Response:
    """Go there with GET."""
    return RedirectResponse(to, 303, HEADERS)


def with_session(response: Response, name: str, secure: bool) -> Response:
    """The answer with the cookie; "" removes it."""
    lives = None if name else 0
    response.set_cookie(COOKIE, name, max_age=lives, path="/", secure=secure, httponly=True, samesite="strict")
    return response


def with_sign_in(response: Response, state: str, secure: bool) -> Response:
    """The answer with the cookie of a sign-in under way; it must come along from the provider's page. "" removes it."""
    lives = 600 if state else 0
    response.set_cookie(SIGN_IN, state, max_age=lives, path="/login", secure=secure, httponly=True, samesite="lax")
    return response


def is_secure(request: Request) -> bool:
    """Whether the browser speaks TLS, to us or to a proxy before us."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"


# ---- Addresses


def job_url(job: str, what: str = "") -> str:
    """The address of a job's page, or of one of its actions."""
    return f"/jobs/{quote(job, safe='')}" + (f"/{what}" if what else "")


def asset(name: str) -> str:
    """The address of a static file; it changes with the file, so browsers may keep it."""
    return f"/static/{name}?v={STATIC[name][1]}"
