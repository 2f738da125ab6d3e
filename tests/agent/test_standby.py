"""A machine that waits for its job, in a world without real time: it fetches ahead and looks often when it matters."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_wire.messages import AgentState, Want
from support.agent_world import World, commits, running


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, checkpoint_interval_seconds=10.0)
    made.settings = {"warm_wait_seconds": 60.0}
    return made


def waiter(world: World):
    """A second machine, beside one that runs the job and has saved it."""
    running(world, 1)
    world.until(lambda: len(commits(world)) > 0)
    machine = world.machine(2)
    machine.boot()
    world.until(lambda: machine.state is AgentState.STANDBY)
    return machine


def held(world: World) -> str | None:
    """The checkpoint that the second machine says it holds."""
    warm = world.report(2).warm
    return warm.checkpoint if warm is not None else None


def test_it_says_at_once_which_checkpoint_it_holds(world: World) -> None:
    waiter(world)
    world.until(lambda: held(world) is not None, 5)
    assert held(world) in {h.checkpoint for h in commits(world)}


def test_it_follows_each_new_checkpoint(world: World) -> None:
    waiter(world)
    seen = len(commits(world))
    world.until(lambda: len(commits(world)) >= seen + 2, 60)
    world.until(lambda: held(world) == commits(world)[-1].checkpoint, 5)


def test_it_looks_often_after_something_happened_or_when_told_and_else_seldom(world: World) -> None:
    agent = waiter(world).agent
    assert agent is not None
    world.machines[0].agent = None  # nothing happens any more
    assert agent.hurries
    world.until(lambda: not agent.hurries, 40)
    world.want(2, Want.HURRY, 1)
    world.until(lambda: agent.hurries, 5)


def test_a_new_machine_looks_for_the_job_at_once_not_when_its_first_slow_look_is_over(world: World) -> None:
    agent = waiter(world).agent
    assert agent is not None
    assert agent.tickers["mailbox"].poked


def test_who_runs_the_job_does_not_hurry_and_its_disk_is_free_again(world: World) -> None:
    machine = waiter(world)
    world.until(lambda: held(world) is not None, 5)
    assert (machine.folder / "cache").exists()
    world.machines[0].agent = None
    world.grant(2)
    world.until(lambda: machine.state is AgentState.RUNNING)
    world.turn()
    assert machine.agent is not None
    assert not machine.agent.hurries
    assert not (machine.folder / "cache").exists()
    assert world.report(2).warm is None
