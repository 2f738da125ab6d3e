"""Posts events to programs, signed as the specification Standard Webhooks has it (standardwebhooks.com), until they are taken.

Each webhook gets its events in order, at least once; `webhook-id` is the same for each try.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Engine

from spotsurfer import __version__
from spotsurfer.common.timeline_words import say
from spotsurfer.model.errors import ConfigError
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment
from spotsurfer.state import db, timeline

log = structlog.get_logger()
PREFIX = "whsec_"
LIMIT_SECONDS = 10.0  # for an answer
FIRST_SECONDS, LAST_SECONDS = 5.0, 900.0  # between two tries: twice as long each time
KEPT = timedelta(days=3)  # an event that is older is given up, so that the others come through
AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where events of these kinds go. `key`: the secret's bytes."""

    url: str
    key: bytes
    kinds: Sequence[str]


def key_of(secret: str) -> bytes:
    """The bytes of a secret, `whsec_` and base64. Raises ConfigError."""
    try:
        key = base64.b64decode(secret.strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not 24 <= len(key) <= 64:
        remedy = f"make one: echo {PREFIX}$(openssl rand -base64 32)"
        raise ConfigError(f"The secret of a webhook is not {PREFIX} and 24 to 64 bytes in base64; {remedy}")
    return key


def signature(key: bytes, identifier: str, at: int, body: bytes) -> str:
    """The value of `webhook-signature`. `at`: seconds since 1970."""
    signed = f"{identifier}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


@dataclass(frozen=True, slots=True)
class Try:
    """How far a webhook is. `number`: of the newest event that was taken or was none of its own."""

    number: int
    failures: int = 0
    next_at: datetime | None = None


class Webhooks:
    """Posts what is due. `hooks` may change while it works."""

    def __init__(self, engine: Engine, clock: Clock, hooks: Sequence[Webhook]) -> None:
        self._engine, self._clock, self.hooks = engine, clock, hooks
        self._opener = urllib.request.build_opener(_NoRedirects)

    def look(self) -> None:
        """Once, for each of them; the trouble of one is not that of another."""
        for hook in self.hooks:
            self._go_on(hook)

    def _go_on(self, hook: Webhook) -> None:
        began = self._clock.now()
        with self._engine.connect() as connection:
            kept = db.recalled(connection, _key(hook))
            before = _of_text(kept) if kept is not None else Try(timeline.newest(connection))
            if before.next_at is not None and began < before.next_at:
                return
            news = timeline.next_ones(connection, before.number, AT_ONCE)
        now = before
        for number, moment in news:
            now = self._posted(hook, now, number, moment)
            if now.failures or (self._clock.now() - began).total_seconds() >= LIMIT_SECONDS:  # the others have their turn
                break
        if now != before or kept is None:
            with self._engine.begin() as connection:
                db.keep(connection, _key(hook), json.dumps(_doc(now)))

    def _posted(self, hook: Webhook, before: Try, number: int, moment: Moment) -> Try:
        if moment.kind not in hook.kinds:
            return Try(number)
        now = self._clock.now()
        why = self._post(hook, number, moment, now)
        if not why:
            return Try(number)
        if now - moment.at > KEPT:
            log.error("webhook.given-up", url=hook.url, event_number=number, why=why)
            return Try(number)
        failures = before.failures + 1
        wait = min(FIRST_SECONDS * 2.0 ** min(failures - 1, 20), LAST_SECONDS)
        log.warning("webhook.failed", url=hook.url, event_number=number, why=why, again_seconds=wait)
        return replace(before, failures=failures, next_at=now + timedelta(seconds=wait))

    def _post(self, hook: Webhook, number: int, moment: Moment, now: datetime) -> str:
        """Why it was not taken; "" if it was."""
        body, identifier, at = body_of(number, moment), f"evt_{number}", int(now.timestamp())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"spotsurfer/{__version__}",
            "webhook-id": identifier,
            "webhook-timestamp": str(at),
            "webhook-signature": signature(hook.key, identifier, at, body),
        }
        request = urllib.request.Request(hook.url, body, headers, method="POST")  # noqa: S310 - the settings allow http(s)
        try:
            with self._opener.open(request, timeout=LIMIT_SECONDS) as answer:
                return "" if 200 <= answer.status < 300 else f"it answered {answer.status}"
        except urllib.error.HTTPError as e:
            return f"it answered {e.code}"
        except (OSError, http.client.HTTPException, ValueError) as e:
            return str(e) or type(e).__name__


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect counts as a failure: what is signed for one place is not sent to another."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:  # noqa: ARG002
        """None."""
        return


def body_of(number: int, moment: Moment) -> bytes:
    """The event as JSON."""
    data = {"number": number, "job": moment.job, "attempt": moment.attempt, "text": moment.text, "data": moment.data}
    data["sentence"] = say(moment.kind, moment.text, moment.data).text
    doc = {"type": f"spotsurfer.{moment.kind.replace(' ', '_')}", "timestamp": moment.at.isoformat(), "data": data}
    return json.dumps(doc, sort_keys=True).encode()


def _key(hook: Webhook) -> str:
    """A new address begins with what is new then."""
    return f"webhook/{hashlib.sha256(hook.url.encode()).hexdigest()[:16]}"


def _of_text(text: str) -> Try:
    doc = json.loads(text)
    return Try(doc["number"], doc["failures"], datetime.fromisoformat(doc["next_at"]) if doc["next_at"] else None)


def _doc(one: Try) -> dict[str, Any]:
    return {"number": one.number, "failures": one.failures, "next_at": one.next_at.isoformat() if one.next_at else None}
