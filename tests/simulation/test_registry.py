"""A registry that is down, in the virtual world: one machine waits for it, and the job stays where it is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from simulation.chances import Chances
from simulation.world import World

from spotsurfer.model.job import HOLDS, WAITS
from spotsurfer.state import jobs as rows

DOWN_SECONDS = 300  # more than any patience of the controller


def quiet(work: int) -> World:
    """One job, and nothing goes wrong by itself."""
    world = World(1, jobs=1, work=work, chances=Chances())
    world._quiet()
    return world


def seconds(world: World, many: int) -> None:
    for _ in range(many):
        world._pass()
        world.loop.tick()
        world.check()


def states(world: World) -> list[object]:
    with world.engine.connect() as c:
        return [a.state for a in rows.attempts(c, world.ids)[world.ids[0]]]


@pytest.fixture
def world() -> World:
    return quiet(work=4000)


def down(world: World) -> None:
    world.cloud.registry_back = world.clock.now() + timedelta(seconds=DOWN_SECONDS)


def test_a_move_waits_for_it_on_one_machine_and_the_job_runs_on(world: World) -> None:
    seconds(world, 60)
    down(world)
    world.commands.move(world.ids[0], None, None)
    machines = [m for m in world.cloud.machines.values() if m.agent is not None]
    for _ in range(DOWN_SECONDS - 60):
        seconds(world, 1)
        assert machines[0].agent is not None
        assert machines[0].agent.executing, "the job stands still"
    assert world.cloud.launches == 2, "one machine waits"
    assert "the registry can't be reached" in (world.loop.note_of(world.ids[0]) or "")
    seconds(world, 200)
    assert world.cloud.launches == 2
    assert [s in HOLDS for s in states(world)] == [False, True], "the move was made when it answered again"


def test_a_first_start_waits_for_it_on_one_machine(world: World) -> None:
    down(world)
    seconds(world, DOWN_SECONDS - 60)
    assert world.cloud.launches == 1
    assert [s in WAITS for s in states(world)] == [True]
    assert "the registry can't be reached" in (world.loop.note_of(world.ids[0]) or "")
    seconds(world, 200)
    assert world.cloud.launches == 1
    assert [s in HOLDS for s in states(world)] == [True]
