"""Intervals that the controller wishes: written once, kept through other orders, and what ended machines teach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Desired
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from sqlalchemy import Connection, Engine, event
from support.builders import JOB, NOW, POOL, a_job, ago, an_attempt

from spotsurfer.config.settings import Settings
from spotsurfer.controller.apply import Apply
from spotsurfer.controller.history.past_attempts import AttemptOutcomes
from spotsurfer.controller.wiring import _policies
from spotsurfer.model.actions import Ask, Pace
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.job import Attempt, AttemptNumber, InstanceId, JobId, JobState
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.lifetimes import Fates
from spotsurfer.model.market import Market
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database

KIND = (POOL, Market.SPOT)
ONE = AttemptNumber(1)


@pytest.fixture
def engine() -> Engine:
    made = open_database(None)
    with made.begin() as c:
        rows.add_job(c, a_job())
        rows.add_attempt(c, an_attempt())
    return made


@pytest.fixture
def store(tmp_path: Path) -> ObstoreStore:
    return open_store((tmp_path / "store").as_uri())


def applied(engine: Engine, store: ObstoreStore, *actions: Any) -> list[str]:
    unused: Any = None
    apply = Apply(engine, unused, store, unused, ManualClock(NOW), "f", unused, unused, lambda _token, _id: None)
    return [apply.carry_out(a) for a in actions]


def desired(store: ObstoreStore) -> Desired | None:
    data = store.get(object_keys.desired_key(JOB, 1))
    return None if data is None else json_codec.decode(Desired, data)


def load(engine: Engine) -> Attempt:
    with engine.connect() as c:
        return rows.load_attempt(c, JOB, ONE)


def paced(engine: Engine) -> list[str]:
    with engine.connect() as c:
        return [m.text for _, m in timeline.read(c, JOB, 0) if m.kind == "paced"]


def test_a_wish_is_told_and_remembered_and_one_that_changes_nothing_only_remembered(
    engine: Engine, store: ObstoreStore
) -> None:
    applied(engine, store, Pace(JOB, ONE, 300.0, 0, "because"))
    first = desired(store)
    assert first is not None
    assert (first.sequence, first.want, first.save_every_seconds) == (1, "run", 300.0)
    applied(engine, store, Pace(JOB, ONE, 300.0, 1, "still"))
    assert desired(store) == first
    row = load(engine)
    assert (row.pace_seconds, row.pace_saves, row.pace_why, row.desired_sequence) == (300.0, 1, "still", 1)
    assert paced(engine) == ["because"]


def test_other_orders_keep_it_and_it_keeps_theirs(engine: Engine, store: ObstoreStore) -> None:
    save = Ask(JOB, ONE, "run", 7, None, None, "a checkpoint was asked for", partial=2)
    applied(engine, store, Pace(JOB, ONE, 300.0, 0, "because"), save, Pace(JOB, ONE, 900.0, 1, "calmer"))
    said = desired(store)
    assert said is not None
    assert (said.sequence, said.save_at_least, said.partial, said.save_every_seconds) == (3, 7, 2, 900.0)


def test_the_same_order_is_not_given_again_after_a_crash(engine: Engine, store: ObstoreStore) -> None:
    """The object was written, its row not: the next tick wishes the same again, with the same number."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(rows, "save_attempt", raises)
        applied(engine, store, Pace(JOB, ONE, 300.0, 0, "because"))
    assert load(engine).pace_seconds is None
    applied(engine, store, Pace(JOB, ONE, 300.0, 0, "because"))
    said = desired(store)
    assert said is not None
    assert (said.sequence, load(engine).desired_sequence) == (1, 1)


def raises(*_: object) -> None:
    raise MemoryError


# ---------------------------------------------------------------- what ended machines teach


def add(engine: Engine, job: str, number: int, state: A = A.RELEASED, **changes: Any) -> None:
    made = an_attempt(number, state, token=f"{job}-{number}", granted_at=ago(200), **changes)
    with engine.begin() as c:
        if number == 1:
            rows.add_job(c, a_job(id=JobId(job), state=JobState.ACTIVE))
        rows.add_attempt(c, replace(made, job=JobId(job), instance=InstanceId(f"i-{job}-{number}")))


def look(annals: AttemptOutcomes, engine: Engine) -> Fates:
    with engine.connect() as c:
        jobs = [j.id for j in rows.open_jobs(c)]
        return annals.past(c, rows.attempts(c, jobs), NOW).get(KIND, Fates())


def end(engine: Engine, job: str, state: JobState | None, **changes: Any) -> None:
    """The running attempt is over, and maybe the job with it."""
    with engine.begin() as c:
        for a in rows.attempts(c, [JobId(job)])[JobId(job)]:
            if a.state is A.RUNNING:
                rows.save_attempt(c, replace(a, state=A.RELEASED, released_at=NOW, **changes))
        if state is not None:
            rows.save_job(c, replace(rows.load_job(c, JobId(job)), state=state))


def test_machines_of_ended_jobs_count_and_old_ones_do_not(engine: Engine) -> None:
    add(engine, "b", 1, released_at=ago(10), reclaimed=True)
    add(engine, "b", 2, released_at=ago(10), reclaimed=True, drained=True)
    add(engine, "b", 3, released_at=NOW - timedelta(days=200), reclaimed=True)
    end(engine, "b", JobState.SUCCEEDED)
    fates = look(AttemptOutcomes(), engine)
    assert (fates.noticed, fates.unnoticed, fates.lives.losses) == (1, 1, 2)


@pytest.mark.parametrize("state", [None, JobState.SUCCEEDED], ids=["its job goes on", "its job ended with it"])
def test_each_machine_counts_once_as_it_ends(engine: Engine, state: JobState | None) -> None:
    annals = AttemptOutcomes()
    add(engine, "b", 1, A.RUNNING)
    assert look(annals, engine) == Fates()
    end(engine, "b", state, reclaimed=True)
    for _ in range(3):
        assert look(annals, engine).unnoticed == 1
    assert look(annals, engine) == look(AttemptOutcomes(), engine), "a controller that starts anew knows the same"


def test_a_look_at_many_jobs_asks_nothing(engine: Engine) -> None:
    annals = AttemptOutcomes()
    for n in range(20):
        add(engine, f"j{n}", 1, A.RUNNING)
    look(annals, engine)
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *a: asked.append(a[2]))
    with engine.connect() as c:
        open_ones = attempts(c)
        asked.clear()
        annals.past(c, open_ones, NOW)
    assert asked == []


def attempts(c: Connection) -> dict[JobId, list[Attempt]]:
    jobs: Sequence[JobId] = [j.id for j in rows.open_jobs(c)]
    return rows.attempts(c, jobs)


# ---------------------------------------------------------------- settings


def test_the_operators_interval_wins_and_the_policy_is_not_asked() -> None:
    assert _policies(Settings()).interval is not None
    assert _policies(Settings.model_validate({"agent": {"checkpoint_interval": "5m"}})).interval is None


def test_policies_of_one_name_take_what_is_theirs_of_its_table() -> None:
    both = {"policy": {"name": "surf", "surf": {"strange": 0.05, "margin": 0.3}}}
    assert _policies(Settings.model_validate(both)).interval is not None
    with pytest.raises(ConfigError, match="wrong"):
        _policies(Settings.model_validate({"policy": {"surf": {"wrong": 1}}}))


def test_the_operators_size_policy_and_its_table() -> None:
    off = _policies(Settings()).sizes
    assert off is not None
    assert off.usual == "off"
    both = {"policy": {"size": "surf", "surf": {"stretch": 1.5, "strange": 0.05}}, "size": {"moves_per_hour": 4}}
    sizes = _policies(Settings.model_validate(both)).sizes
    assert sizes is not None
    assert (sizes.usual, sizes.rules.moves_per_hour) == ("surf", 4)
    usual: Any = sizes.make("surf", {})
    own: Any = sizes.make("surf", {"stretch": False})
    assert usual._rental._stretch == 1.5
    assert own._rental._stretch == 1, "the job's own wins, and an old job's false is the strictest bound"
    with pytest.raises(ConfigError, match="stretch must be a number"):
        _policies(Settings.model_validate({"policy": {"size": "surf", "surf": {"stretch": "5"}}}))
    with pytest.raises(ValueError, match="10, 20, 30 or 60"):
        Settings.model_validate({"size": {"look_seconds": 25}})
