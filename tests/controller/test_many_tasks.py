"""Commands on tasks of an array, and on jobs before a gate: all at once, and not the wrong ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from support.builders import NOW, a_job, an_attempt
from support.dict_store import DictStore

from spotsurfer.controller.jobs.batches import rows_of
from spotsurfer.controller.jobs.commands import Commands
from spotsurfer.model import errors as e
from spotsurfer.model.job import JobId, JobSpec, JobState, Wish
from spotsurfer.model.queueing.dependencies import read_after
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import dependencies, queue, timeline
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database
from spotsurfer.store.head_logs import HeadLogs


@pytest.fixture
def engine() -> Engine:
    return open_database(None)


@pytest.fixture
def commands(engine: Engine) -> Commands:
    """Five tasks, of which the first has a machine; and a job that waits for them."""
    spec = JobSpec(name="sweep", command=("work",), array="1-5")
    with engine.begin() as c:
        made = rows.add_jobs(c, rows_of(JobId("sweep"), spec, NOW, "ada"))
        after = rows.add_job(c, a_job(id=JobId("after"), state=JobState.QUEUED))
        dependencies.add(c, [*((job, ()) for job in made), (after, read_after(["afterany:sweep"]))])
        rows.save_job(c, replace(made[0], state=JobState.ACTIVE))
        rows.add_attempt(c, replace(an_attempt(1), job=made[0].id))
    return Commands(engine, ManualClock(NOW + timedelta(seconds=9)), HeadLogs(DictStore()), lambda: None)


def states(engine: Engine) -> dict[str, tuple[str, str]]:
    with engine.connect() as c:
        return {job.id: (str(job.state), str(job.wish)) for job in rows.all_jobs(c)}


def looked_at(engine: Engine) -> set[str]:
    with engine.connect() as c:
        return set(queue.to_look_at(c))


def test_cancel_ends_what_never_began_and_asks_what_did(engine: Engine, commands: Commands) -> None:
    assert commands.cancel("sweep").id == "sweep"
    found = states(engine)
    assert found.pop("sweep-1") == ("active", "cancel")
    assert found.pop("after") == ("queued", "run")
    assert set(found.values()) == {("cancelled", "cancel")}
    with engine.connect() as c:
        assert [m.kind for _, m in timeline.read(c, JobId("sweep-3"), 0)] == ["wish", "ended"]
    with pytest.raises(e.Conflict):
        commands.cancel("sweep-3")


def test_some_tasks_are_meant_by_their_numbers(engine: Engine, commands: Commands) -> None:
    assert commands.cancel("sweep-[2-3]").id == "sweep-[2-3]"
    assert commands.cancel("sweep-5").id == "sweep-5"
    assert [id for id, (state, _) in states(engine).items() if state == "cancelled"] == ["sweep-5", "sweep-3", "sweep-2"]


def test_suspended_tasks_cost_no_look_and_wait_again_when_resumed(engine: Engine, commands: Commands) -> None:
    commands.hold("sweep")
    assert states(engine)["sweep-4"] == ("held", "hold")
    assert looked_at(engine) == {"sweep-1"}
    commands.resume("sweep-4")
    assert states(engine)["sweep-4"] == ("queued", "run")
    assert looked_at(engine) == {"sweep-1", "sweep-4"}


def test_a_job_that_waits_for_others_still_does_after_it_was_suspended(engine: Engine, commands: Commands) -> None:
    """It went on at once: a job that was resumed is active, and the planner asks nobody."""
    commands.hold("after")
    commands.resume("after")
    assert states(engine)["after"] == ("queued", "run")
    assert "after" not in looked_at(engine)


def test_a_priority_is_for_all_tasks(engine: Engine, commands: Commands) -> None:
    commands.prioritize("sweep", 7)
    with engine.connect() as c:
        assert {job.spec.priority for job in rows.all_jobs(c) if job.array} == {7}


def test_a_time_opens_the_gate(engine: Engine, commands: Commands) -> None:
    begins = NOW + timedelta(hours=1)
    with engine.begin() as c:
        later = rows.add_job(c, a_job(id=JobId("later"), state=JobState.QUEUED, begins_at=begins))
        dependencies.add(c, [(later, ())])
    assert "later" not in looked_at(engine)
    with engine.begin() as c:
        queue.let_begin(c, begins)
    assert "later" in looked_at(engine)


def test_a_signal_needs_a_job_that_runs(engine: Engine, commands: Commands) -> None:
    with pytest.raises(e.UsageError, match="expected one like USR1"):
        commands.signal("sweep-1", "BOOM")
    with pytest.raises(e.Conflict):
        commands.signal("sweep-2", "USR1")
    assert commands.signal("sweep-1", "USR1") == 1
    with engine.connect() as c:
        job = rows.load_job(c, JobId("sweep-1"))
    assert (job.signal, job.signals_asked, job.wish) == ("USR1", 1, Wish.RUN)
