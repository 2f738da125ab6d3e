"""Who is told what, and when: a storm is a handful of messages, a quiet day none, and a restart loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from sqlalchemy import Engine
from support.fake_service import START
from support.http_server import HttpServer, running

from spotsurfer.controller.notifications.messages import Messages, apprise_sender
from spotsurfer.core.notifications import USUAL, Message, Rules, topic_of
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.job import JobId
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.service import Moment
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database


class World:
    """A controller's database, its clock, and what was sent."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.engine: Engine = open_database(None)
        self.clock = ManualClock(START)
        self.rules = rules or Rules()
        self.sent: list[Message] = []
        self.works = True
        self.messages = self.made()
        self.messages.look()  # from now on

    def made(self) -> Messages:
        return Messages(self.engine, self.clock, self.rules, self.send)

    def send(self, message: Message) -> bool:
        if self.works:
            self.sent.append(message)
        return self.works

    def say(self, what: Kind, job: str, text: str = "", **data: Any) -> None:
        with self.engine.begin() as c:
            timeline.add(c, Moment(self.clock.now(), JobId(job), 1, str(what), text, data))

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds // 5)):
            self.clock.advance(5)
            self.messages.look()


def test_a_storm_of_500_notices_is_a_handful_of_messages_with_counts() -> None:
    world = World()
    for n in range(500):  # within four minutes, and each job moves and some fail to
        world.say(Kind.NOTICE, f"job-{n}", "interruption: 120 s left", kind="interruption")
        world.say(Kind.MOVED, f"job-{n}", "it runs elsewhere")
        if n % 100 == 0:
            world.say(Kind.ATTEMPT, f"job-{n}", "restore failed: no room", event="restore failed")
        if n % 10 == 0:
            world.wait(5)
    world.wait(3600)
    assert 1 <= len(world.sent) <= 5, [m.title for m in world.sent]
    counts = [int(m.title.split()[1]) for m in world.sent if "machine" in m.title]
    assert sum(counts) == 500
    assert "job-0, job-1, job-2, job-3, job-4 and" in world.sent[0].body


def test_everyday_life_is_no_news() -> None:
    world = World()
    for n in range(9):
        world.say(Kind.NOTICE, f"job-{n}", kind="interruption")
        world.say(Kind.SAVED, f"job-{n}")
        world.say(Kind.NOTICE, f"job-{n}", kind="rebalance")
        world.say(Kind.ENDED, f"job-{n}", state="succeeded")
        world.say(Kind.ENDED, f"job-{n}", state="failed")
        world.say(Kind.ENDED, f"job-{n}", state="held", asked=True)
    world.wait(3600)
    assert world.sent == []


def test_a_held_job_is_told_once_with_its_reason() -> None:
    world = World()
    world.say(Kind.ENDED, "assembly-1", "held: its inputs can't be read", state="held", asked=False)
    world.wait(30)
    assert world.sent == [], "more may come"
    world.wait(3600)
    (only,) = world.sent
    assert only.title == "spotsurfer: 1 job is held"
    assert only.body == "1 job is held since 2026-03-01 12:00 UTC (assembly-1): Paused: its inputs can't be read"


def test_a_topic_is_silent_for_a_while_and_then_tells_the_rest() -> None:
    world = World()
    for n in range(20):
        world.say(Kind.STUCK, f"job-{n}", "no progress", stuck=True)
        world.wait(120)
    titles = [m.title for m in world.sent]
    assert titles[0] == "spotsurfer: 1 job makes no progress"
    assert len(titles) <= 3
    world.wait(3600)
    assert sum(int(m.title.split()[1]) for m in world.sent) == 20


def test_what_lies_behind_the_first_start_is_no_news_and_a_restart_goes_on() -> None:
    world = World()
    with world.engine.begin() as c:
        timeline.add(c, Moment(START, JobId("old"), 1, str(Kind.ALERT), "long ago", {}))
    fresh = World()
    with fresh.engine.begin() as c:
        timeline.add(c, Moment(START, JobId("a"), 1, str(Kind.ALERT), "look", {}))
    fresh.messages.look()
    fresh.messages = fresh.made()  # the controller was restarted before it was told
    fresh.wait(120)
    assert [m.title for m in fresh.sent] == ["spotsurfer: 1 event needs a person"]
    fresh.messages = fresh.made()
    fresh.wait(3600)
    assert len(fresh.sent) == 1


def test_what_could_not_be_sent_is_sent_later_with_what_came_meanwhile() -> None:
    world = World()
    world.works = False
    world.say(Kind.ALERT, "a", "one")
    world.wait(300)
    world.say(Kind.ALERT, "b", "two")
    world.works = True
    world.wait(300)
    (only,) = world.sent
    assert "2 events need a person" in only.title
    assert "a, b" in only.body


def test_each_usual_topic_has_an_event() -> None:
    events: list[tuple[Kind, dict[str, Any]]] = [
        (Kind.NOTICE, {"kind": "interruption"}),
        (Kind.ENDED, {"state": "held"}),
        (Kind.STUCK, {"stuck": True}),
        (Kind.ATTEMPT, {"event": "restore failed"}),
        (Kind.BUDGET, {}),
        (Kind.ALERT, {}),
    ]
    made = {topic_of(Moment(START, JobId("j"), 1, str(kind), "", data)) for kind, data in events}
    assert made == set(USUAL)


# ---- Real apprise


class Mailbox(HttpServer):
    """Keeps what it is sent."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(_Keeps)
        self.status = status
        self.got: list[dict[str, Any]] = []


class _Keeps(BaseHTTPRequestHandler):
    server: Mailbox  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def mailbox(status: int = 200) -> Iterator[Mailbox]:
    with running(Mailbox(status)) as server:
        yield server


def test_apprise_brings_it() -> None:
    with mailbox() as server:
        assert apprise_sender([server.url.replace("http", "json")])(Message("a title", "a <b>body</b>"))
    (got,) = server.got
    assert (got["title"], got["message"]) == ("a title", "a <b>body</b>")


def test_apprise_says_when_it_was_not_taken() -> None:
    with mailbox(500) as server:
        assert not apprise_sender([server.url.replace("http", "json")])(Message("a", "b"))


def test_an_unknown_address_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="'nosuch'") as found:
        apprise_sender(["nosuch://user:hidden@host"])
    assert "hidden" not in str(found.value)
