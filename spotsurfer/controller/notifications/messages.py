"""Sends messages to people, by apprise. How far they are is kept in the database: a restart repeats and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Engine

from spotsurfer.core import notifications
from spotsurfer.core.notifications import Gathered, Message, Progress, Rules, Topic
from spotsurfer.model.errors import ConfigError
from spotsurfer.ports.clock import Clock
from spotsurfer.state import db, timeline

log = structlog.get_logger()
KEY = "notifications"
AGAIN = timedelta(minutes=1)  # after a message that could not be sent
AT_ONCE = 5000  # events that are read together

Send = Callable[[Message], bool]  # returns whether everybody got it


def apprise_sender(urls: Sequence[str]) -> Send:
    """Sends to these addresses of apprise. Raises ConfigError for an unknown address, or without the library."""
    try:
        import apprise
    except ImportError:
        raise ConfigError("[notify] urls need the library apprise: pip install 'spotsurfer[notify]'") from None
    everybody = apprise.Apprise()
    for url in urls:
        if not everybody.add(url):
            scheme = url.partition(":")[0]
            raise ConfigError(
                f"[notify] urls has an address of {scheme!r} that apprise does not take: see docs/notifications.md"
            )
    return lambda message: bool(everybody.notify(title=message.title, body=message.body))


class Messages:
    """Looks at new events and sends what is due."""

    def __init__(self, engine: Engine, clock: Clock, rules: Rules, send: Send | None) -> None:
        """`send`: None = nobody wants to know. Both may change while it works."""
        self._engine, self._clock, self.rules, self.send = engine, clock, rules, send
        self._failed_at: datetime | None = None

    def look(self) -> None:
        """Once. What can't be sent is tried again later."""
        send = self.send
        if send is None:
            return
        with self._engine.connect() as connection:
            kept = db.recalled(connection, KEY)
            # The first time: what lies behind is no news.
            before = _of_text(kept) if kept is not None else Progress(timeline.newest(connection))
            news = timeline.next_ones(connection, before.number, AT_ONCE)
        progress = notifications.gathered(before, news, self.rules)
        now = self._clock.now()
        message, after = notifications.due(progress, now, self.rules)
        if message is not None:
            waits = self._failed_at is not None and now - self._failed_at < AGAIN
            if waits or not self._sent(send, message, now):
                after = progress
        if after != before or kept is None:
            with self._engine.begin() as connection:
                db.keep(connection, KEY, _to_text(after))

    def _sent(self, send: Send, message: Message, now: datetime) -> bool:
        """Whether everybody got it. If one address fails, all get the message again at the next try."""
        good = send(message)
        self._failed_at = None if good else now
        if not good:
            log.warning("notify.failed", title=message.title)
        return good


def _to_text(progress: Progress) -> str:
    return json.dumps(asdict(progress), default=lambda at: at.isoformat())


def _of_text(text: str) -> Progress:
    doc: dict[str, Any] = json.loads(text)
    waits = {
        Topic(t): Gathered(**{**g, "since": _at(g["since"]), "jobs": tuple(g["jobs"])}) for t, g in doc["gathered"].items()
    }
    return Progress(doc["number"], waits, {Topic(t): _at(at) for t, at in doc["told_at"].items()})


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
