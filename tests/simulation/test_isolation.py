"""One job's trouble stays its own: whatever its machines write, the others go on, and its user hears why it does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from simulation.chances import calm
from simulation.fallible import copied
from simulation.world import World
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Done, HeadKind
from sqlalchemy import text
from support.fuzz import mutated

from spotsurfer.controller import loop
from spotsurfer.controller.apply import Apply
from spotsurfer.model.actions import Ask
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import Job, JobId, JobState, Wish


def running(jobs: int = 2) -> World:
    world = World(1, jobs=jobs, work=100_000, chances=calm())
    world.until_running()
    return world


def job(world: World, number: int) -> Job:
    return next(j for j in world._jobs() if j.id == f"job-{number}")


def worked(world: World, number: int) -> float:
    return sum(m.agent.work for m in world.cloud.machines.values() if m.agent is not None and m.agent.job == f"job-{number}")


def spoken(world: World, seconds: int, change: Callable[[bytes], bytes]) -> None:
    """What the agent of job-0 writes is changed before the controller sees it."""
    key = object_keys.live_key("job-0", world.attempts["job-0"][-1].number)
    put = type(world.store).put

    def changed(store: Any, name: str, data: bytes) -> None:
        put(store, name, change(data) if name == key else data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.store), "put", changed)
        world.run(limit=seconds)


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_reports_fail_no_tick(seed: int) -> None:
    world = running()
    before, rand = worked(world, 1), random.Random(seed)
    spoken(world, 150, lambda data: mutated(data, rand) if rand.random() < 0.7 else data)
    assert worked(world, 1) == before + 150
    assert [a.number for a in world.attempts["job-1"]] == [1]


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 170))
def test_ten_thousand_fuzzed_reports_fail_no_tick(seed: int) -> None:
    test_fuzzed_reports_fail_no_tick(seed)


class Moment:
    """Two jobs that run, as often as one likes from here on; agents stand still."""

    def __init__(self) -> None:
        self.world = world = running()
        self._data, self._machines, self._engine = dict(world.store.data), dict(world.cloud.machines), world.engine

    def again(self) -> World:
        """Nothing has happened since, but that another controller has begun."""
        world = self.world
        world.store.data.clear()
        world.store.data.update(self._data)
        world.cloud.machines.clear()
        world.cloud.machines.update(self._machines)
        for machine in world.cloud.machines.values():
            machine.gone_at, machine.reclaimed = None, False
        if world.engine is not self._engine:
            world.engine.dispose()
        world.engine = copied(self._engine)
        world.begin()
        return world


def fuzz_heads(seed: int, count: int) -> None:
    """The newest entry of the log of job-0 is any nonsense that somebody who may write there could write."""
    moment, rand = Moment(), random.Random(seed)
    log = HeadLog(moment.world.store, "job-0")
    good = log.refresh()
    assert good is not None
    for _ in range(count):
        world = moment.again()
        kind = rand.choice([HeadKind.COMMIT, HeadKind.GRANT, HeadKind.RENEW, HeadKind.DONE])
        done = Done(0, "exited", {"a": 1}, {"out": 1}) if kind is HeadKind.DONE else None
        entry = replace(good, number=good.number + 1, kind=kind, done=done, checkpoint="000001-000001", sequence=1, nonce="n")
        world.store.put(object_keys.head_key("job-0", entry.number), mutated(json_codec.encode(entry), rand))
        for _ in range(6):
            world.clock.advance(1)
            world.loop.tick()
        other = job(world, 1)
        assert other.wish is Wish.RUN
        assert [m.gone_at for m in world.cloud.machines.values() if m.agent is not None and m.agent.job == "job-1"] == [None]


@pytest.mark.parametrize("at", ["2026-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+23:00", "soon", ""])
def test_a_forged_grant_holds_its_job_at_most(at: str) -> None:
    """Its time went into the database as it stood there; from then on each tick failed for all jobs, across restarts."""
    world = running(jobs=3)
    before = worked(world, 1), worked(world, 2)
    log = HeadLog(world.store, "job-0")
    good = log.refresh()
    assert good is not None
    forged = replace(good, number=good.number + 1, kind=HeadKind.GRANT, epoch=77, at=at, nonce="n")
    world.store.put(object_keys.head_key("job-0", forged.number), json_codec.encode(forged))
    world.run(limit=60)
    world.restart()
    world.run(limit=60)
    assert (worked(world, 1), worked(world, 2)) == (before[0] + 120, before[1] + 120)
    world.commands.cancel(world.ids[0])
    world.run(limit=10)
    assert world.attempts["job-0"][-1].planned_at <= world.clock.now()


@pytest.mark.parametrize("seed", range(2))
def test_fuzzed_heads_fail_no_tick(seed: int) -> None:
    fuzz_heads(seed, 20)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(100, 150))
def test_ten_thousand_fuzzed_heads_fail_no_tick(seed: int) -> None:
    fuzz_heads(seed, 200)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"cpu_seconds": ', b'"cpu_seconds": NaN, "was": '), (b'"protocol": 1', b'"protocol": 2')],
    ids=["malformed", "newer"],
)
def test_an_agent_that_can_not_be_understood_keeps_its_machine_until_its_job_is_held(old: bytes, new: bytes) -> None:
    world = running()
    spoken(world, 8, lambda data: data.replace(old, new))
    assert job(world, 0).wish is Wish.RUN
    spoken(world, 40, lambda data: data.replace(old, new))
    held = job(world, 0)
    assert held.wish is Wish.HOLD
    assert "can't be read" in held.reason
    assert job(world, 1).wish is Wish.RUN
    assert [a.drained for a in world.attempts["job-0"]] == [True], "it is saved, not given up"


def test_an_agent_up_to_0_2_that_writes_names_that_are_no_utf_8_runs_on() -> None:
    """From the upgrade of the controller on each such job was held."""
    world = running()
    spoken(world, 60, lambda data: data.replace(b'"protocol": 1', b'"protocol": 1, "protection": "\\udcf6"'))
    assert job(world, 0).wish is Wish.RUN
    assert world.loop.last_error == ""


def test_a_row_that_the_controller_can_not_deal_with_holds_its_job_alone() -> None:
    """As an API of an earlier version let in: each tick failed, for all jobs, across restarts."""
    world = running(jobs=3)
    with world.engine.begin() as c:
        c.execute(text("UPDATE job SET spec = json_set(spec, '$.idle_seconds', 1e300) WHERE id = 'job-1'"))
    before = worked(world, 0), worked(world, 2)
    world.restart()
    world.run(limit=1)
    assert "can't deal with it" in world.loop.note_of(JobId("job-1"))
    world.run(limit=59)
    assert (worked(world, 0), worked(world, 2)) == (before[0] + 60, before[1] + 60)
    held = job(world, 1)
    assert held.wish is Wish.HOLD and "can't deal with it" in held.reason
    with world.engine.begin() as c:
        c.execute(text("UPDATE job SET spec = json_set(spec, '$.idle_seconds', NULL) WHERE id = 'job-1'"))
    world.commands.resume("job-1")
    world.run(limit=60)
    assert job(world, 1).wish is Wish.RUN
    assert world.attempts["job-1"][-1].state is A.RUNNING


SPOILT = {
    "a job's text": "UPDATE job SET spec = '{' WHERE id = 'job-1'",
    "a job's value": "UPDATE job SET wish = 'odd' WHERE id = 'job-1'",
    "a job's time": "UPDATE job SET submitted_at = 'soon' WHERE id = 'job-1'",
    "an attempt's time": "UPDATE attempt SET planned_at = '[' WHERE job = 'job-1'",
    "its machine's text": "UPDATE machine SET pool = '[' WHERE token IN (SELECT token FROM attempt WHERE job = 'job-1')",
    "an attempt's value": "UPDATE attempt SET state = 'odd' WHERE job = 'job-1'",
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_row_that_can_not_be_decoded_sets_its_job_aside_and_no_other(what: str) -> None:
    """Each look failed, for all jobs."""
    world = running(jobs=3)
    before, machines = (worked(world, 0), worked(world, 2)), left(world, 1)
    with world.engine.begin() as c:
        c.execute(text(SPOILT[what]))
    world.restart()
    world.run(limit=60)
    assert (worked(world, 0), worked(world, 2)) == (before[0] + 60, before[1] + 60)
    assert "can't deal with it" in world.loop.note_of(JobId("job-1"))
    assert "job" not in what or left(world, 1) != machines, "its machine was asked to save it, and is given back"
    assert "job" in what or left(world, 1) == machines, "what is not known of its machine might be a second owner's"


def test_what_is_nobodys_fault_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running()
    monkeypatch.setattr("spotsurfer.controller.loop.decide", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.loop.tick()
    assert all(j.wish is Wish.RUN for j in world._jobs())


def test_a_job_that_fails_even_set_aside_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked whether what was put in its place can be dealt with: all jobs stood still."""
    world = running()
    decide = loop.decide

    def fails(snapshot: Any, *given: Any) -> Any:
        if any(seen.job.id == "job-0" for seen in snapshot.jobs):
            raise TypeError("odd")
        return decide(snapshot, *given)

    monkeypatch.setattr(loop, "decide", fails)
    before, machines = worked(world, 1), left(world, 0)
    world.run(limit=60)
    assert worked(world, 1) == before + 60
    assert left(world, 0) == machines, "its machine is none that belongs to nobody"


def broken(world: World, number: int) -> None:
    """A row that each decision fails for, as a new controller finds it."""
    with world.engine.begin() as c:
        c.execute(text(f"UPDATE job SET spec = json_set(spec, '$.idle_seconds', 1e300) WHERE id = 'job-{number}'"))
    world.restart()


def left(world: World, number: int) -> list[str]:
    """Its machines that are there."""
    alive = (m for m in world.cloud.machines.values() if m.gone_at is None)
    return [m.id for m in alive if m.plan.tags["spotsurfer:job"] == f"job-{number}"]


def test_who_is_set_aside_is_held_at_last_and_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its machine nothing is known but its row: it gets some time for the save that was asked for."""
    monkeypatch.setattr("spotsurfer.core.decide.TROUBLE_SECONDS", 100.0)
    world = running()
    (holder,) = [m for m in world.cloud.machines.values() if m.agent is not None and m.agent.job == "job-0"]
    assert holder.agent is not None
    holder.agent.cut = 10_000  # so it does not hear that it should save
    broken(world, 0)
    world.run(limit=60)
    assert [a.state for a in world.attempts["job-0"]] == [A.DRAINING] and left(world, 0)
    before = worked(world, 1)
    world.run(limit=100)
    assert job(world, 0).state is JobState.HELD
    assert [a.state for a in world.attempts["job-0"]] == [A.RELEASED] and not left(world, 0)
    assert worked(world, 1) == before + 100


def test_who_is_set_aside_can_be_cancelled() -> None:
    world = running()
    broken(world, 0)
    world.run(limit=10)
    world.commands.cancel(world.ids[0])
    world.run(limit=30)
    assert job(world, 0).state is JobState.CANCELLED
    assert not left(world, 0) and left(world, 1)


def raised(patch: pytest.MonkeyPatch, error: Exception, once: bool = False) -> None:
    """What is asked of a machine of job-0 fails, always or once."""
    ask, times = Apply._ask, [1 if once else 10_000]

    def fails(self: Apply, action: Ask) -> Any:
        times[0] -= action.job == "job-0"
        if action.job == "job-0" and times[0] >= 0:
            raise error
        return ask(self, action)

    patch.setattr(Apply, "_ask", fails)


def test_an_action_that_raises_sets_its_job_aside_until_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running()
    raised(monkeypatch, ValueError("garbled"), once=True)
    before = worked(world, 1)
    world.commands.checkpoint(world.ids[0])
    world.run(limit=20)
    assert job(world, 0).wish is Wish.HOLD and "ValueError: garbled" in job(world, 0).reason
    assert [a.state for a in world.attempts["job-0"]] == [A.RELEASED], "it was saved, and its machine ended itself"
    assert worked(world, 1) == before + 20
    world.commands.resume(world.ids[0])
    world.run(limit=60)
    assert job(world, 0).wish is Wish.RUN and world.attempts["job-0"][-1].state is A.RUNNING
    assert world.attempts["job-0"][-1].from_checkpoint is not None


def test_a_job_that_no_action_can_be_carried_out_for_is_cancelled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wish was overwritten each time that an action raised: who cancelled it paid on."""
    world = running()
    raised(monkeypatch, ValueError("garbled"))
    monkeypatch.setattr(Apply, "_close", lambda *_: 1 / 0)
    world.commands.cancel(world.ids[0])
    world.run(limit=30)
    assert job(world, 0).state is JobState.CANCELLED
    assert not left(world, 0) and left(world, 1)


def test_a_full_disk_of_this_host_holds_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each action that failed for it held its job: one second of trouble suspended all that were to be told something."""
    world = running()
    raised(monkeypatch, OSError(28, "No space left on device"), once=True)
    world.commands.checkpoint(world.ids[0])
    world.run(limit=1)
    assert "No space left" in world.loop.last_error
    world.run(limit=20)
    assert job(world, 0).wish is Wish.RUN
    assert world.attempts["job-0"][-1].desired_save > 0, "it was asked again"
    assert world.loop.last_error == ""
