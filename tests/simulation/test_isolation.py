"""One job's trouble stays its own: whatever its machines write, the others go on, and its user hears why it does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from simulation.chances import Chances
from simulation.world import World
from spotsurfer_agent import protocol
from sqlalchemy import text
from support.fuzz import mutated

from spotsurfer.controller.apply import Apply
from spotsurfer.model.actions import Ask
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import Job, JobState, Wish

CALM: dict[str, Any] = {name: 0.0 for name in Chances.__dataclass_fields__ if name not in ("boots_seconds", "on_demand_sure")}


def running(jobs: int = 2) -> World:
    world = World(1, jobs=jobs, work=100_000, chances=Chances(**CALM))
    world.users_busy = False
    for _ in range(200):
        world.run(limit=1)
        if all(some and some[-1].state is A.RUNNING for some in world.attempts.values()):
            return world
    raise AssertionError(f"they do not run: {world.attempts}")


def job(world: World, number: int) -> Job:
    return next(j for j in world._jobs() if j.id == f"job-{number}")


def worked(world: World, number: int) -> float:
    return sum(m.agent.work for m in world.cloud.machines.values() if m.agent is not None and m.agent.job == f"job-{number}")


def spoken(world: World, seconds: int, change: Callable[[bytes], bytes]) -> None:
    """What the agent of job-0 writes is changed before the controller sees it."""
    key = protocol.live_key("job-0", world.attempts["job-0"][-1].number)
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


def test_an_agent_that_can_not_be_understood_keeps_its_machine_until_its_job_is_held() -> None:
    world = running()
    spoken(world, 10, lambda data: data.replace(b'"cpu_seconds": ', b'"cpu_seconds": NaN, "was": '))
    assert job(world, 0).wish is Wish.RUN
    spoken(world, 10, lambda data: data.replace(b'"cpu_seconds": ', b'"cpu_seconds": NaN, "was": '))
    held = job(world, 0)
    assert held.wish is Wish.HOLD
    assert "can't be read" in held.reason
    assert job(world, 1).wish is Wish.RUN
    assert [a.state for a in world.attempts["job-0"]] == [A.DRAINING], "it is saved, not given up"


def test_a_row_that_the_controller_can_not_deal_with_holds_its_job_alone() -> None:
    """As an API of an earlier version let in: each tick failed, for all jobs, across restarts."""
    world = running(jobs=3)
    with world.engine.begin() as c:
        c.execute(text("UPDATE job SET spec = json_set(spec, '$.idle_seconds', 1e300) WHERE id = 'job-1'"))
    before = worked(world, 0), worked(world, 2)
    world._controller()
    world.run(limit=60)
    assert (worked(world, 0), worked(world, 2)) == (before[0] + 60, before[1] + 60)
    held = job(world, 1)
    assert held.wish is Wish.HOLD and "can't deal with it" in held.reason
    assert "can't deal with it" in world.loop.note_of("job-1")
    with world.engine.begin() as c:
        c.execute(text("UPDATE job SET spec = json_set(spec, '$.idle_seconds', NULL) WHERE id = 'job-1'"))
    world.commands.resume("job-1")
    world.run(limit=60)
    assert job(world, 1).wish is Wish.RUN
    assert world.attempts["job-1"][-1].state is A.RUNNING


def test_what_is_nobodys_fault_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    world = running()
    monkeypatch.setattr("spotsurfer.controller.loop.decide", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.loop.tick()
    assert all(j.wish is Wish.RUN for j in world._jobs())


def broken(world: World, number: int) -> None:
    """A row that each decision fails for, as a new controller finds it."""
    with world.engine.begin() as c:
        c.execute(text(f"UPDATE job SET spec = json_set(spec, '$.idle_seconds', 1e300) WHERE id = 'job-{number}'"))
    world._controller()


def left(world: World, number: int) -> list[str]:
    """Its machines that are there."""
    alive = (m for m in world.cloud.machines.values() if m.gone_at is None)
    return [m.id for m in alive if m.plan.tags["spotsurfer:job"] == f"job-{number}"]


def test_who_is_set_aside_is_held_at_last_and_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its machine nothing is known but its row: it gets some time for the save that was asked for."""
    monkeypatch.setattr("spotsurfer.core.decide.TROUBLE_SECONDS", 100.0)
    world = running()
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
    assert [a.state for a in world.attempts["job-0"]] == [A.DRAINING], "it is saved"
    assert worked(world, 1) == before + 20
    world.commands.resume(world.ids[0])
    world.run(limit=60)
    assert job(world, 0).wish is Wish.RUN and world.attempts["job-0"][-1].state is A.RUNNING


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
