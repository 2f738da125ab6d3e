"""Webhooks: signed as Standard Webhooks has it, in order, again until they are taken."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from support.fake_service import START
from support.http_server import HttpServer, running

from spotsurfer.controller.notifications.webhooks import Webhook, Webhooks, key_of, signature
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.job import JobId
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.service import Moment
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver(HttpServer):
    """Answers with the next of `answers`, then with 204."""

    def __init__(self) -> None:
        super().__init__(_Receives)
        self.answers: list[int] = []
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []


class _Receives(BaseHTTPRequestHandler):
    server: Receiver  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {k.lower(): v for k, v in self.headers.items()}
        expected = signature(key_of(SECRET), headers["webhook-id"], int(headers["webhook-timestamp"]), body)
        assert headers["webhook-signature"] == expected
        self.server.got.append((headers, json.loads(body)))
        status = self.server.answers.pop(0) if self.server.answers else 204
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.url + "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running(Receiver()) as server:
        yield server


class World:
    def __init__(self, url: str, kinds: tuple[str, ...] = ("ended", "notice")) -> None:
        self.engine, self.clock = open_database(None), ManualClock(START)
        self.hook = Webhook(url, key_of(SECRET), kinds)
        self.hooks = self.made()
        self.hooks.look()

    def made(self) -> Webhooks:
        return Webhooks(self.engine, self.clock, [self.hook])

    def say(self, kind: str, text: str) -> None:
        with self.engine.begin() as c:
            timeline.add(c, Moment(self.clock.now(), JobId("j"), 1, kind, text, {"state": "failed"}))

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.hooks.look()


def test_the_signature_is_that_of_the_specification() -> None:
    """The example of the specification's libraries."""
    made = signature(key_of(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_short", "whsec_%%%", base64.b64encode(b"x" * 65).decode()])
def test_a_weak_secret_is_refused(secret: str) -> None:
    with pytest.raises(ConfigError, match="openssl rand"):
        key_of(secret)


def test_events_come_in_order_and_others_do_not(receiver: Receiver) -> None:
    world = World(receiver.url)
    for kind, text in (("notice", "one"), ("saved", "not this"), ("ended", "two")):
        world.say(kind, text)
    world.later(1)
    assert [body["data"]["text"] for _, body in receiver.got] == ["one", "two"]
    headers, body = receiver.got[1]
    assert body["type"] == "spotsurfer.ended"
    assert body["timestamp"] == START.isoformat()
    assert (body["data"]["job"], body["data"]["data"]) == ("j", {"state": "failed"})
    assert headers["webhook-timestamp"] == str(int(world.clock.now().timestamp()))
    world.later(100)
    assert len(receiver.got) == 2, "each comes once"


@pytest.mark.parametrize("answer", [500, 404, 302])
def test_what_is_not_taken_comes_again_with_its_id_and_holds_back_the_next(receiver: Receiver, answer: int) -> None:
    world = World(receiver.url)
    receiver.answers = [answer, answer]
    world.say("ended", "one")
    world.say("ended", "two")
    world.later(1)
    world.later(1)
    assert len(receiver.got) == 1, "it waits before it tries again"
    world.hooks = world.made()  # a restart changes nothing
    world.later(6)
    world.later(11)
    texts = [body["data"]["text"] for _, body in receiver.got]
    assert texts == ["one", "one", "one", "two"]
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(set(ids)) == 2


def test_a_receiver_that_is_away_for_hours_gets_all_when_it_is_back(receiver: Receiver) -> None:
    world = World(receiver.url)
    receiver.answers = [503] * 25
    for text in ("one", "two", "three"):
        world.say("ended", text)
    for _ in range(12 * 10):
        world.later(300)
    texts = [body["data"]["text"] for _, body in receiver.got]
    assert texts[-3:] == ["one", "two", "three"]
    assert texts[:-2] == ["one"] * 26


def test_an_event_that_nobody_takes_for_three_days_is_given_up(receiver: Receiver) -> None:
    world = World(receiver.url)
    receiver.answers = [400] * 2
    world.say("ended", "bad")
    world.later(1)
    world.say("ended", "good")
    world.later(3 * 86400.0)
    world.later(1)
    assert [body["data"]["text"] for _, body in receiver.got] == ["bad", "bad", "good"]


def test_nobody_there_is_a_failure_and_no_error() -> None:
    world = World("http://127.0.0.1:1/")
    world.say("ended", "one")
    world.later(1)
    world.later(100)


def test_a_new_address_begins_with_what_is_new(receiver: Receiver) -> None:
    world = World("http://127.0.0.1:1/")
    world.say("ended", "one")
    world.hook = Webhook(receiver.url, key_of(SECRET), ("ended",))
    world.hooks = world.made()
    world.later(1)
    world.say("ended", "two")
    world.later(1)
    assert [body["data"]["text"] for _, body in receiver.got] == ["two"]


def test_a_slow_receiver_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("http://slow.example/")
    other = Webhook("http://other.example/", key_of(SECRET), ("ended",))
    world.hooks = Webhooks(world.engine, world.clock, [world.hook, other])
    world.hooks.look()
    taken: list[str] = []

    def post(_: Webhooks, hook: Webhook, *__: Any) -> str:
        taken.append(hook.url)
        world.clock.advance(6 if hook is world.hook else 0)
        return ""

    monkeypatch.setattr(Webhooks, "_post", post)
    for text in ("one", "two", "three"):
        world.say("ended", text)
    world.hooks.look()
    assert taken == [world.hook.url] * 2 + [other.url] * 3
    world.hooks.look()
    assert taken[5:] == [world.hook.url], "it goes on from there"
