"""A job that ends its own machines costs a few of them, and is held in the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from simulation.chances import calm
from simulation.world import LIMITS, World

from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import Wish


def ends_its_machines(seconds: int, reclaimed: bool = False) -> World:
    """The machine is gone three seconds after the job has begun there."""
    world = World(1, jobs=1, work=100_000, chances=calm())
    world.users_busy = False
    world.limits = replace(LIMITS, launch_failures_max=6)
    world.restart()
    for _ in range(seconds):
        world.run(limit=1)
        for machine in world.cloud.machines.values():
            if machine.gone_at is None and machine.agent is not None and machine.agent.work >= 3:
                world.cloud.end(machine, reclaimed)
    return world


def test_it_gets_the_next_one_later_each_time_and_is_held() -> None:
    world = ends_its_machines(1800)
    (job,) = world._jobs()
    assert job.wish is Wish.HOLD
    assert "6 machines in a row ended under the job before it was saved" in job.reason
    assert world.cloud.launches == 6
    ordered = [a.planned_at for a in world.attempts["job-0"]]
    gaps = [(b - a).total_seconds() for a, b in pairwise(ordered)]
    assert gaps == sorted(gaps) and gaps[0] < 40 and gaps[-1] > 240


def test_a_new_try_of_its_user_begins_at_once() -> None:
    world = ends_its_machines(1800)
    world.commands.resume("job-0")
    world.run(limit=40)
    assert world.cloud.launches == 7
    assert world.attempts["job-0"][-1].state is A.RUNNING


@pytest.mark.parametrize("reclaimed", [True])
def test_machines_that_the_cloud_takes_say_nothing_about_the_job(reclaimed: bool) -> None:
    world = ends_its_machines(600, reclaimed)
    assert world.cloud.launches > 12
    assert all(j.wish is Wish.RUN for j in world._jobs())
