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

from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import Job, Wish

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
