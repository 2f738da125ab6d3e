"""Sessions of browsers: a random name in a cookie stands for a token, which is asked again at each request. Kept in memory."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from http.cookies import CookieError, SimpleCookie

from spotsurfer.model.access import Principal
from spotsurfer.ports.clock import SystemClock

COOKIE = "spotsurfer_session"
LIVES = timedelta(days=7)
KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Session:
    """Whom a browser shows. `token` is as its user typed it."""

    token: str
    ends_at: datetime


def cookie_of(header: bytes) -> str:
    """The session's name in a Cookie header; "" = none."""
    try:
        found = SimpleCookie(header.decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


class Sessions:
    """All sessions, in memory alone: a restart ends them. May be called from several threads."""

    def __init__(self, now: Callable[[], datetime] | None = None) -> None:
        """`now`: None = the system's clock."""
        self._now, self._lock = now or SystemClock().now, threading.Lock()
        self._all: OrderedDict[str, Session] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def begin(self, token: str) -> str:
        """A session that stands for the token; returns its name."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._all[_digest(name)] = Session(token, self._now() + LIVES)
            while len(self._all) > KEPT_MAX:
                self._all.popitem(last=False)
        return name

    def token(self, name: str) -> str | None:
        """The token that it stands for; None if there is no such session any more."""
        found = self._all.get(_digest(name)) if name else None
        if found is not None and self._now() >= found.ends_at:
            self.end(name)
            return None
        return found.token if found is not None else None

    def end(self, name: str) -> None:
        """Forget it."""
        with self._lock:
            self._all.pop(_digest(name), None)

    def form_key(self, who: Principal, name: str) -> str:
        """What a form must bring along: only a page that was made for this person, in this session, holds it."""
        text = "\0".join((who.name, str(who.role), who.via, name))
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
