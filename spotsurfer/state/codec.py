"""Nouns to rows and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from spotsurfer.model.goods import InputFetch, SharedMount
from spotsurfer.model.job import (
    Attempt,
    AttemptState,
    HeldBy,
    Job,
    JobSpec,
    JobState,
    MarketChoice,
    MoveRequest,
    Parent,
    Rewind,
    Wish,
)
from spotsurfer.model.market import Cooldown, Market, Pool
from spotsurfer.model.ports import JobPort
from spotsurfer.model.steps import JobStep


def instant(text: str | None) -> datetime | None:
    """A time from its text."""
    return None if text is None else datetime.fromisoformat(text)


def text_of(at: datetime | None) -> str | None:
    """A time as text."""
    return None if at is None else at.isoformat()


def spec_to_doc(spec: JobSpec) -> dict[str, Any]:
    """A specification as JSON."""
    return dataclasses.asdict(spec)


def spec_from_doc(doc: Mapping[str, Any]) -> JobSpec:
    """A specification from JSON."""
    lists = {k: tuple(v) for k, v in doc.items() if isinstance(v, list)}
    steps = tuple(JobStep(**{**s, "command": tuple(s["command"])}) for s in doc.get("steps", ()))
    goods = {
        "fetches": tuple(InputFetch(**f) for f in doc.get("fetches", ())),
        "mounts": tuple(SharedMount(**m) for m in doc.get("mounts", ())),
        "ports": tuple(JobPort(**p) for p in doc.get("ports", ())),
    }
    return JobSpec(**{**doc, **lists, **goods, "steps": steps, "market": MarketChoice(doc["market"])})


def job_to_row(job: Job) -> dict[str, Any]:
    """A row of the job table."""
    row: dict[str, Any] = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
    row["spec"] = spec_to_doc(job.spec)
    row["move"] = None if job.move is None else _move_to_doc(job.move)
    row["rewind"] = None if job.rewind is None else dataclasses.asdict(job.rewind)
    row["parent"] = None if job.parent is None else dataclasses.asdict(job.parent)
    row["state"], row["wish"], row["held_by"] = str(job.state), str(job.wish), str(job.held_by)
    row |= {name: text_of(getattr(job, name)) for name in JOB_TIMES}
    return row


def job_from_row(row: Any) -> Job:
    """A job from its row."""
    values = dict(row)
    values["spec"] = spec_from_doc(row["spec"])
    values["move"] = None if row["move"] is None else _move_from_doc(row["move"])
    values["rewind"] = None if row["rewind"] is None else Rewind(**row["rewind"])
    values["parent"] = None if row["parent"] is None else Parent(**row["parent"])
    values["state"], values["wish"], values["held_by"] = JobState(row["state"]), Wish(row["wish"]), HeldBy(row["held_by"])
    values |= {name: instant(row[name]) for name in JOB_TIMES}
    return Job(**values)


def _move_to_doc(move: MoveRequest) -> dict[str, Any]:
    market = None if move.market is None else str(move.market)
    return {**dataclasses.asdict(move), "asked_at": text_of(move.asked_at), "market": market}


def _move_from_doc(doc: Mapping[str, Any]) -> MoveRequest:
    asked = instant(doc["asked_at"])
    assert asked is not None
    market = None if doc["market"] is None else Market(doc["market"])
    return MoveRequest(doc["number"], asked, doc["instance_type"], market)


JOB_TIMES = ("submitted_at", "ended_at", "resumed_at")
TIMES = ("since", "planned_at", "granted_at", "launched_at", "released_at")


def attempt_to_row(attempt: Attempt) -> dict[str, Any]:
    """A row of the attempt table."""
    row: dict[str, Any] = {f.name: getattr(attempt, f.name) for f in dataclasses.fields(attempt)}
    row["state"], row["market"] = str(attempt.state), str(attempt.market)
    row["pool"] = dataclasses.asdict(attempt.pool)
    for name in TIMES:
        row[name] = text_of(row[name])
    return row


def attempt_from_row(row: Any) -> Attempt:
    """An attempt from its row."""
    values = dict(row)
    values["state"], values["market"] = AttemptState(row["state"]), Market(row["market"])
    values["pool"] = Pool(**row["pool"])
    for name in TIMES:
        values[name] = instant(row[name])
    return Attempt(**values)


def cooldown_to_doc(c: Cooldown) -> dict[str, Any]:
    """A cool-down as JSON."""
    return {
        "pool": dataclasses.asdict(c.pool),
        "market": str(c.market),
        "until": text_of(c.until),
        "strikes": c.strikes,
        "reason": c.reason,
    }


def cooldown_from_doc(doc: Mapping[str, Any]) -> Cooldown:
    """A cool-down from JSON."""
    until = instant(doc["until"])
    assert until is not None
    return Cooldown(Pool(**doc["pool"]), Market(doc["market"]), until, doc["strikes"], doc["reason"])
