"""A user changes a job's priority or budget: what is kept and told, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine
from support.builders import JOB, NOW, a_job
from support.dict_store import DictStore

from spotsurfer.controller.jobs.commands import FRONT, USER, Commands
from spotsurfer.model.errors import Conflict, UsageError
from spotsurfer.model.job import HeldBy, JobState, Wish
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.head_logs import HeadLogs


def world(pokes: list[None], **changes: Any) -> tuple[Engine, Commands]:
    engine = open_database(None)
    with engine.begin() as c:
        rows.add_job(c, a_job({"priority": 3}, **changes))
    return engine, Commands(engine, ManualClock(NOW), HeadLogs(DictStore()), lambda: pokes.append(None))


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.ACTIVE, JobState.HELD])
def test_it_counts_from_now_on_and_is_told(state: JobState) -> None:
    pokes: list[None] = []
    engine, commands = world(pokes, state=state)
    assert commands.prioritize("job", -100).spec.priority == -100
    with engine.connect() as c:
        assert rows.load_job(c, JOB).spec.priority == -100
        (moment,) = [m for _, m in timeline.read(c, JOB, 0)]
        (why,) = timeline.decisions(c, JOB, 10)
    told = "priority -100 instead of 3, asked by its user"
    assert (moment.kind, moment.text, why.done) == ("wish", told, (told,))
    assert pokes, "the next look comes at once"


@pytest.mark.parametrize(("by", "who"), [(HeldBy.BUDGET, USER), (HeldBy.BUDGET, FRONT), (HeldBy.USER, FRONT)])
def test_who_may_not_wake_a_job(by: HeldBy, who: str) -> None:
    engine, commands = world([], state=JobState.HELD, wish=Wish.HOLD, held_by=by, reason="the budget of all is used up")
    with pytest.raises(Conflict, match="when there is money again: the budget of all" if who == USER else "is not suspended"):
        commands.resume("job", who)
    with engine.connect() as c:
        assert rows.load_job(c, JOB).wish is Wish.HOLD
    assert commands.hold("job").held_by is HeldBy.USER, "its user keeps it"
    assert commands.resume("job").wish is Wish.RUN


def test_what_it_is_already_is_not_told() -> None:
    engine, commands = world([])
    assert commands.prioritize("job", 3).version == 1
    with engine.connect() as c:
        assert timeline.read(c, JOB, 0) == []


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_value_out_of_range_is_refused(priority: int) -> None:
    _, commands = world([])
    with pytest.raises(UsageError, match=f"priority is {priority}, expected -100 to 100"):
        commands.prioritize("job", priority)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": JobState.SUCCEEDED}, "job job has succeeded already: another priority comes too late"),
        ({"wish": Wish.CANCEL}, "job job is being cancelled already: another priority comes too late"),
    ],
)
def test_a_job_that_is_over_is_refused(changes: dict[str, Any], why: str) -> None:
    _, commands = world([], **changes)
    with pytest.raises(Conflict, match=why):
        commands.prioritize("job", 5)


@pytest.mark.parametrize(
    ("budget", "told"), [(5_000_000, "budget 5.0000 USD instead of none"), (None, None)], ids=["another", "as it is"]
)
def test_a_budget_is_changed(budget: int | None, told: str | None) -> None:
    pokes: list[None] = []
    engine, commands = world(pokes, state=JobState.HELD)
    assert commands.set_budget("job", budget).spec.budget_usd_micros == budget
    with engine.connect() as c:
        assert rows.load_job(c, JOB).spec.budget_usd_micros == budget
        assert [m.text for _, m in timeline.read(c, JOB, 0)] == ([f"{told}, asked by its user"] if told else [])
    assert pokes


@pytest.mark.parametrize("budget", [0, -1, 1 << 63])
def test_a_budget_that_none_could_be(budget: int) -> None:
    _, commands = world([])
    with pytest.raises(UsageError, match="expected more than nothing"):
        commands.set_budget("job", budget)


def test_a_budget_of_a_job_that_is_over() -> None:
    _, commands = world([], state=JobState.FAILED)
    with pytest.raises(Conflict, match="job job has failed already: another budget comes too late"):
        commands.set_budget("job", 1)
