"""Ten thousand queued tasks cost a tick and a list little more than a hundred."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation.chances import calm
from simulation.world import LIMITS, World

from spotsurfer.cli import array_lines
from spotsurfer.controller.jobs.batches import rows_of
from spotsurfer.controller.jobs.brief import jobs_brief
from spotsurfer.model.job import JobId, JobSpec, JobState
from spotsurfer.state import dependencies, queue
from spotsurfer.state import jobs as rows
from spotsurfer.web.routes import BRIEFS

pytestmark = pytest.mark.alone
FULL = replace(LIMITS, instances_max=2)


def queued(tasks: int, limit: str = "") -> World:
    """A world in which two tasks of so many run, and the others wait."""
    world = World(1, jobs=0, work=100_000, chances=calm(), limits=FULL)
    world.users_busy = False
    spec = JobSpec(name="sweep", command=("work", "{task}"), array=f"1-{tasks}{limit}")
    with world.engine.begin() as c:
        made = rows.add_jobs(c, rows_of(JobId("sweep"), spec, world.clock.now(), "ada"))
        dependencies.add(c, [(job, ()) for job in made])
    for _ in range(3):
        world.loop.tick()
    return world


def seconds(call: Callable[[], object], times: int = 10) -> float:
    """Processor seconds of one call, the best of some."""

    def once() -> float:
        began = time.process_time()
        call()
        return time.process_time() - began

    return min(once() for _ in range(times))


@pytest.mark.parametrize("limit", ["", "%2"])
def test_a_tick_costs_about_the_same(limit: str) -> None:
    few, many = (seconds(queued(n, limit).loop.tick) for n in (100, 10_000))
    assert many < 2 * few, f"{few:.4f} s with 100 tasks, {many:.4f} s with 10,000"


def test_a_list_and_a_cancel_take_less_than_a_second_or_two() -> None:
    world = queued(10_000)
    with world.engine.connect() as c:
        listed = seconds(lambda: BRIEFS.dump_json({"jobs": jobs_brief(c, True, None, False, lambda _: "")}), 3)
        tasks = json.loads(BRIEFS.dump_json({"jobs": jobs_brief(c, True, None, True, lambda _: "")}))["jobs"]
    lines = [array_lines.name(some) for some in array_lines.lines(tasks)]
    assert listed < 1.0
    assert lines[0] == "sweep-[3-10000]"
    assert len(lines) == 3
    assert seconds(lambda: world.commands.cancel("sweep"), 1) < 4.0
    with world.engine.connect() as c:
        left = [x for x in jobs_brief(c, True, None, False, lambda _: "") if x.state != JobState.CANCELLED]
    assert len(left) == 2


def test_what_waits_behind_the_front_is_told_why() -> None:
    from spotsurfer.controller.jobs.brief import why_it_waits

    world = queued(1000)
    with world.engine.connect() as c:
        assert len(queue.to_look_at(c)) == queue.FRONT + 2
        assert why_it_waits(c, rows.load_job(c, JobId("sweep-900"))) == "897 jobs of the same size are before it"
