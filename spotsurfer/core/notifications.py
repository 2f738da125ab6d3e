"""What people are told by message, and when: quiet by default, never a flood. Pure.

Events of a topic are gathered for a while and told together, with their number. Then the topic is silent for a longer while,
in which more are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from spotsurfer.common.timeline_words import say
from spotsurfer.common.units import counted
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Moment

NAMED = 5  # jobs in a message by name
Data = Mapping[str, Any]


class Topic(StrEnum):
    """What a message may be about."""

    RECLAIMS = "reclaims"  # many machines at once; one alone is everyday life
    HELD = "held"  # a job was stopped by something else than its user
    FAILED = "failed"  # a job's command failed
    STUCK = "stuck"
    RESTORES = "restores"  # a job could not be brought back from a checkpoint
    BUDGETS = "budgets"
    TROUBLE = "trouble"  # whatever else a person should look at


USUAL = tuple(t for t in Topic if t is not Topic.FAILED)  # who submitted a job is told by its `on_end`
_EVENTS: tuple[tuple[Topic, Kind, Callable[[Data], bool]], ...] = (
    (Topic.RECLAIMS, Kind.NOTICE, lambda d: d.get("kind") != "rebalance"),
    (Topic.HELD, Kind.ENDED, lambda d: d.get("state") == "held" and not d.get("asked")),
    (Topic.FAILED, Kind.ENDED, lambda d: d.get("state") == "failed"),
    (Topic.STUCK, Kind.STUCK, lambda d: bool(d.get("stuck"))),
    (Topic.RESTORES, Kind.ATTEMPT, lambda d: d.get("event") == "restore failed"),
    (Topic.BUDGETS, Kind.BUDGET, lambda _: True),
    (Topic.TROUBLE, Kind.ALERT, lambda _: True),
)
_WORDS: dict[Topic, tuple[str, str]] = {  # of one, and of several
    Topic.RECLAIMS: ("machine is taken away", "machines are taken away"),
    Topic.HELD: ("job is held", "jobs are held"),
    Topic.FAILED: ("job failed", "jobs failed"),
    Topic.STUCK: ("job makes no progress", "jobs make no progress"),
    Topic.RESTORES: ("restore failed", "restores failed"),
    Topic.BUDGETS: ("budget warns", "budgets warn"),
    Topic.TROUBLE: ("event needs a person", "events need a person"),
}


@dataclass(frozen=True, slots=True)
class Rules:
    """When a topic is told."""

    topics: Sequence[Topic] = USUAL
    gather_seconds: float = 60.0
    again_seconds: float = 1800.0  # at least between two messages about a topic
    reclaims_min: int = 10  # fewer within `reclaims_seconds` are no news
    reclaims_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """Events of a topic that wait to be told."""

    since: datetime
    count: int
    jobs: tuple[str, ...]  # the first ones
    text: str  # the sentence of the newest


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the messages are. `number`: of the newest event that was read."""

    number: int
    gathered: Mapping[Topic, Gathered] = field(default_factory=dict)
    told_at: Mapping[Topic, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent."""

    title: str
    body: str


def topic_of(moment: Moment) -> Topic | None:
    """The topic of an event; None = nobody is told of it."""
    return next((topic for topic, kind, fits in _EVENTS if moment.kind == kind and fits(moment.data)), None)


def gathered(progress: Progress, moments: Sequence[tuple[int, Moment]], rules: Rules) -> Progress:
    """After these numbered events, oldest first."""
    found = dict(progress.gathered)
    for _, moment in moments:
        topic = topic_of(moment)
        if topic is None or topic not in rules.topics:
            continue
        before = found.get(topic, Gathered(moment.at, 0, (), ""))
        job = str(moment.job or "")
        new = (job,) if job and job not in before.jobs and len(before.jobs) < NAMED else ()
        sentence = say(moment.kind, moment.text, moment.data).text
        found[topic] = Gathered(before.since, before.count + 1, before.jobs + new, sentence)
    return replace(progress, number=max([progress.number, *(n for n, _ in moments)]), gathered=found)


def due(progress: Progress, now: datetime, rules: Rules) -> tuple[Message | None, Progress]:
    """The message to send now, if there is one, and the progress once it is sent."""
    kept = {topic: g for topic, g in progress.gathered.items() if not _is_past(topic, g, now, rules)}
    told = [topic for topic in Topic if (g := kept.get(topic)) is not None and _is_due(topic, g, progress, now, rules)]
    left = replace(progress, gathered={topic: g for topic, g in kept.items() if topic not in told})
    if not told:
        return None, left
    title = ", ".join(_headline(topic, kept[topic].count) for topic in told)
    body = "\n".join(_line(topic, kept[topic]) for topic in told)
    return Message(f"spotsurfer: {title}", body), replace(left, told_at={**left.told_at, **dict.fromkeys(told, now)})


def _is_due(topic: Topic, g: Gathered, progress: Progress, now: datetime, rules: Rules) -> bool:
    told_at = progress.told_at.get(topic)
    if told_at is not None and now - told_at < timedelta(seconds=rules.again_seconds):
        return False
    enough = topic is not Topic.RECLAIMS or g.count >= rules.reclaims_min
    return enough and now - g.since >= timedelta(seconds=rules.gather_seconds)


def _is_past(topic: Topic, g: Gathered, now: datetime, rules: Rules) -> bool:
    """Reclaims that stayed few."""
    few = topic is Topic.RECLAIMS and g.count < rules.reclaims_min
    return few and now - g.since >= timedelta(seconds=rules.reclaims_seconds)


def _headline(topic: Topic, count: int) -> str:
    one, several = _WORDS[topic]
    return f"{count} {one if count == 1 else several}"


def _line(topic: Topic, g: Gathered) -> str:
    more = f" and {counted(g.count - len(g.jobs), 'more event')}" if g.count > len(g.jobs) > 0 else ""
    jobs = f" ({', '.join(g.jobs)}{more})" if g.jobs else ""
    text = g.text if g.count == 1 else f"the last: {g.text}"
    return f"{_headline(topic, g.count)} since {g.since:%Y-%m-%d %H:%M} UTC{jobs}: {text}"
