"""Seeds of the virtual world. Few here; with `-m slow` as many as one likes: `SEEDS=2000 pytest -m slow tests/simulation`."""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import pytest
from simulation.chances import calm
from simulation.moods import Always
from simulation.seeds import seeds
from simulation.test_machines import calm_world
from simulation.world import World

from spotsurfer.core.facts.attempt_view import FAILED_SECONDS
from spotsurfer.model.state_machine import ATTEMPT
from spotsurfer.ports.policies import Buy

SEEDS = 12
MORE = 40
CHOSEN, CHOSEN_ROUGH = (19, 7, 5, 12, 13, 14), (14, 12)  # together they take every edge
QUIET_AFTER = 900  # seconds: users who go back to earlier checkpoints would keep it up for long
PAUSE_SECONDS_MAX = 600.0  # outages, crashes and refused machines included


@functools.cache
def world_of(seed: int) -> World:
    """The world of a seed after its run, which must have ended well and left a sound store."""
    world = World(seed)
    assert world.run(quiet_after=QUIET_AFTER) == "ok"
    world.check_end()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_job_ends_and_every_machine_is_released(seed: int) -> None:
    assert all(1.0 <= pause < PAUSE_SECONDS_MAX for pause in world_of(seed).pauses())


@pytest.mark.parametrize("wish", ["suspended", "waits", "to spot"])
def test_a_final_save_that_fails_stops_the_job_in_vain_once_a_minute_at_most(wish: str) -> None:
    buys = Always(Buy.ON_DEMAND)
    world = World(1, jobs=1, work=100_000, chances=calm(save_fails=1.0), purchase=buys, deadline_seconds=1e7, work_seconds=1e5)
    world.users_busy = False
    assert world.run(limit=60) == "stuck"
    if wish == "suspended":
        world.commands.hold("job-0")
    else:
        buys.buy = Buy.WAIT if wish == "waits" else Buy.SPOT
    assert world.run(limit=240) == "stuck"
    waits = list(world.asked_again())
    assert len(waits) >= 2
    assert all(FAILED_SECONDS <= w < FAILED_SECONDS + 5 for w in waits)


def rough_world_of(seed: int) -> World:
    """One in which memory that comes behind a restored job is often bad, and machines that stand by are often unfit."""
    world = World(seed, chances=calm(image_bad=0.3, notice=0.1, unfit=0.1, cut=0.02, restore_fails=0.1))
    assert world.run(quiet_after=QUIET_AFTER) == "ok"
    world.check_end()
    return world


def ending_world() -> World:
    """One whose command ends by itself just when it is to be drained: that is in few worlds."""
    world = World(1, jobs=1, work=30, chances=calm())
    world.until_running()
    (machine,) = world.cloud.machines.values()
    while machine.agent is None or machine.agent.work < 28:
        assert world.run(limit=1) == "stuck"
    world.commands.hold(world.ids[0])
    assert world.run() == "ok"
    world.check_end()
    assert world.edges["draining -> workload exited"]
    return world


def imageless_world() -> World:
    """One in which the machine that a job is to move to, and no other one either, can fetch what the job needs."""
    world = World(1, jobs=1, work=300, chances=calm())
    world.until_running()
    world.chances.useless = 1.0
    world.commands.move(world.ids[0], None, None)
    assert world.run(limit=120) == "stuck"
    world.chances.useless = 0.0
    assert world.run() == "ok"
    world.check_end()
    assert world.edges["ready -> store failed"]
    return world


@pytest.mark.timeout(900)
def test_pauses_crashes_and_every_edge_of_the_attempt_table_are_met() -> None:
    """Rare edges are in few worlds; more are played until all are met."""
    edges = {f"{state} -> {event}" for state, row in ATTEMPT.items() for event in row}
    taken = Counter[str]()
    crashes, pauses = 0, 0
    more = (play(seed) for seed in range(SEEDS, SEEDS + MORE) for play in (world_of, rough_world_of))
    chosen = itertools.chain(map(world_of, CHOSEN), map(rough_world_of, CHOSEN_ROUGH))
    for world in itertools.chain([ending_world(), imageless_world(), calm_world()], chosen, more):
        taken += world.edges
        crashes += world.crashes
        pauses += len(world.pauses())
        if not edges - set(taken):
            break
    assert edges - set(taken) == set()
    assert crashes > len(CHOSEN)
    assert pauses > 0


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(200))
def test_many_seeds(seed: int) -> None:
    world = World(seed)
    assert world.run() == "ok"
    world.check_end()
