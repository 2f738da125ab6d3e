"""Moments of the timeline in people's words: each kind has some, none is the controller's own, and nothing is told twice."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from simulation.chances import calm
from simulation.world import World

import spotsurfer.core
from spotsurfer.cli.timeline_lines import TimelineLines
from spotsurfer.common import timeline_words
from spotsurfer.common.timeline_words import KINDS, ORDERS, STATES, STEPS, plainly, say
from spotsurfer.model.job import JobState
from spotsurfer.model.state_machine import AttemptEvent
from spotsurfer.model.timeline_events import Kind
from spotsurfer.state import timeline
from spotsurfer.web.response_models import MomentOut

ROOT = Path(__file__).parent.parent

INNER = re.compile(
    r"\b(epochs?|holders?|standby|stands by|fit|silent|paced|nonces?|ticks?|heads?|drain(s|ed|ing)?|agents?|attempts?|grants?"
    r"|granted|fenc\w+|warm|head log|snapshots?|workloads?)\b",
    re.IGNORECASE,
)
NUMBERS: dict[str, Any] = {
    **dict.fromkeys(("image_bytes", "new_bytes"), 3 << 30),
    **dict.fromkeys(("frozen_seconds", "durable_seconds", "seconds_left", "wait_seconds"), 12.5),
    **{f"{part}_seconds": 2.5 for part in ("pause", "save", "handover", "restore", "unseen")},
    "usd_micros": 1_500_000,
    "usd_micros_per_hour": 40_000,
    "usd_micros_per_hour_before": 30_000,
    "checkpoint": "000001-000002",
}


def every_shape() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A moment of each kind, with all data that it may have, and as an old database has it."""
    for data in ({}, NUMBERS):
        for kind in Kind:
            yield kind, "", data
            yield kind, "some reason", data
        for event in AttemptEvent:
            for state in ("planned", "running", "releasing"):
                yield "attempt", f"{event}: some reason", {**data, "event": str(event), "from": state}
        for job in JobState:
            yield "ended", f"{job}: some reason", {**data, "state": str(job)}
        for want in ("drain", "run", "hurry"):
            yield "asked", f"{want}: suspended: by its user", {**data, "want": want}
        for kind in ("interruption", "rebalance", "retirement", "odd"):
            yield "notice", "some text", {**data, "kind": kind}
        for order in (*ORDERS, "move to m6i.large (spot)", "priority 3 instead of 0"):
            yield "wish", f"{order}, asked by its user", data
        yield (
            "planned",
            "spot aws/eu-1a/m6i.large: the job needs a machine",
            {**data, "rejected": "spot a (no capacity); 3 more"},
        )
        yield "granted", "owns the job, from the beginning", data
        yield "granted", "owns the job, from checkpoint 000001-000002, as its user asked", data
        yield "granted", "has the job again: attempt 3 could not go on with it: no report for 13 s", data
        yield "refused", "no capacity in a/b/c; a/b/c is left alone for 60 s", data
        yield "saved", "final checkpoint", {**data, "kind": "final"}
        yield "fit", "some forecast", {**data, "verdict": "never"}


def test_each_kind_of_moment_has_words() -> None:
    """Whoever adds a kind, a step of a machine or a state of a job, says what people read."""
    assert set(KINDS) == set(Kind)
    assert set(STEPS) == set(AttemptEvent)
    assert set(STATES) == set(JobState)


def test_no_sentence_has_an_inner_word() -> None:
    said = [say(*shape).text for shape in every_shape()]
    assert all(said) and len(said) > 100
    assert {text for text in said if INNER.search(text)} == set()
    assert all(text[0].isupper() and not text.endswith((" ", ".", ": ")) for text in said)


def test_no_template_has_an_inner_word() -> None:
    """Nor one that no moment above brings up."""
    tree = ast.parse(Path(timeline_words.__file__).read_text())
    ours = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    sentences = {
        text for text in ours if text[:1].isupper() and " " in text and not text.startswith(("A moment", "The ", "A "))
    }
    assert len(sentences) > 25
    assert {text for text in sentences if INNER.search(text) and "recorded" not in text} == set()


def reasons() -> Iterator[str]:
    """Texts of `core` that reach people as reasons: literals of several words, with something put for their values."""
    for path in Path(spotsurfer.core.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docs = {
            id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, HAS_DOC) and n.body and isinstance(n.body[0], ast.Expr)
        }
        parts = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(v.value) if isinstance(v, ast.Constant) else "7" for v in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | parts):
                yield node.value


HAS_DOC = (ast.Module, ast.ClassDef, ast.FunctionDef)


def test_no_reason_keeps_an_inner_word() -> None:
    found = [text for text in reasons() if text.count(" ") >= 2]
    assert len(found) > 80
    assert {(text, plainly(text)) for text in found if INNER.search(plainly(text))} == set()


PRICES = {"usd_micros_per_hour_before": 30_000, "usd_micros_per_hour": 45_000}
STORY: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "attempt",
        "epoch granted: from the beginning",
        {"event": "epoch granted"},
        "(The machine gets the job: from the beginning)",
    ),
    ("granted", "owns the job, from the beginning", {}, "Starts from the beginning"),
    ("granted", "owns the job, from checkpoint 1-2", {}, "Is brought back from checkpoint 1-2"),
    ("attempt", "instance gone: the machine is gone", {"event": "instance gone"}, "The machine is gone"),
    (
        "attempt",
        "instance gone: the machine is gone",
        {"event": "instance gone", "from": "releasing", "usd_micros": 12_300},
        "The machine is given back; 0.0123 USD so far",
    ),
    ("notice", "sudden", {"kind": "interruption", "seconds_left": 118.0}, "The cloud takes this machine back in 1m58s"),
    (
        "asked",
        "drain: the cloud gave notice",
        {"want": "drain", "seconds_left": 30.0},
        "Is saved now and leaves its machine: the cloud gave notice, 30s left",
    ),
    (
        "asked",
        "drain: suspended: by its user",
        {"want": "drain"},
        "Is saved now and leaves its machine, to be paused by its user",
    ),
    ("wish", "suspend, asked by its user", {}, "Its user asked to pause it: it is saved, and its machine given back"),
    ("wish", "over its budget", {"wish": "hold"}, "(Will be paused: over its budget)"),
    ("ended", "held: by its user", {"state": "held"}, "Paused by its user"),
    ("ended", "held: no money", {"state": "held", "usd_micros": 2_000_000}, "Paused: no money; 2.0000 USD so far"),
    ("ended", "active: resumed", {"state": "active"}, "Goes on"),
    ("ended", "failed: code 3", {"state": "failed", "usd_micros": 10_000}, "Failed: code 3; 0.0100 USD so far"),
    ("price", "", PRICES, "The price of its machine rose from 0.0300 to 0.0450 USD an hour"),
    (
        "price",
        "",
        {**PRICES, "usd_micros_per_hour": 29_900},
        "(The price of its machine fell from 0.0300 to 0.0299 USD an hour)",
    ),
    ("from tomorrow", "something new", {}, "From tomorrow: something new"),
]


@pytest.mark.parametrize(("kind", "text", "data", "said"), STORY)
def test_sentences(kind: str, text: str, data: dict[str, Any], said: str) -> None:
    """In brackets: a step in between."""
    told = say(kind, text, data)
    assert (f"({told.text})" if told.inner else told.text) == said


def test_a_choice_tells_price_reason_and_what_was_not_taken() -> None:
    data = {"usd_micros_per_hour": 31_200, "rejected": "spot aws/eu-1b/m6i.large (no capacity); 3 more"}
    told = say("planned", "spot aws/eu-1a/m6i.large: the cloud gave notice on the present machine", data)
    assert told.text == (
        "Chose spot m6i.large in eu-1a (aws) at 0.0312 USD an hour, because the cloud gave notice on its machine. "
        "Not taken: spot aws/eu-1b/m6i.large (no capacity); 3 more"
    )


def test_what_users_say_stays_as_it_is() -> None:
    assert say("submitted", "silent: agent --drain head", {}).text == "Submitted: silent: agent --drain head"
    assert say("stage", "warm the epoch", {}).text == "The job says: warm the epoch"


@pytest.mark.parametrize("seed", [19, 14])
def test_a_played_life_is_told_once_and_plainly(seed: int) -> None:
    world = World(seed)
    world.run(quiet_after=900)
    with world.engine.connect() as connection:
        moments = [m for _, m in timeline.read(connection, None, 0)]
    said = [(m, say(m.kind, m.text, m.data)) for m in moments]
    assert {s.text for m, s in said if INNER.search(s.text) and m.kind != "fit"} == set()
    for job in world.ids:
        told = [(m, s.text) for m, s in said if m.job == job and not s.inner]
        assert len(told) > 50
        doubled = [
            (a, b) for (before, a), (m, b) in pairwise(told) if a == b and m.attempt == before.attempt and m.kind != "wish"
        ]
        assert doubled == []


def sample(monkeypatch: pytest.MonkeyPatch) -> str:
    """What `watch` prints of a job that got a notice and moved, on 100 columns."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    world = World(11, jobs=1, work=150, chances=calm(notice=0.01))
    world.users_ask = world.stormy = False
    world.loop.apply.spent = world.loop._observer.costs.of_job
    assert world.run() == "ok"
    with world.engine.connect() as connection:
        moments = [MomentOut.of_moment(n, m).model_dump(mode="json") for n, m in timeline.read(connection, world.ids[0], 0)]
    lines = TimelineLines(with_job=False)
    return "\n".join(line for m in lines.shown(moments) for line in lines.lines(m, 100))


def test_the_sample_of_the_page_is_what_watch_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "timeline.md").read_text()
    assert sample(monkeypatch) == page.split("```text\n")[1].split("\n```")[0]
