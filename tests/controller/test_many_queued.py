"""Ten thousand queued tasks cost a tick and a list little more than a hundred."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from simulation.chances import calm
from simulation.world import LIMITS, World

from spotsurfer.controller.jobs.batches import rows_of
from spotsurfer.controller.jobs.brief import Told, jobs_brief
from spotsurfer.model.job import JobId, JobSpec, JobState
from spotsurfer.model.queueing.dependencies import After, Dependency
from spotsurfer.ports.service import JobBrief
from spotsurfer.state import dependencies, queue
from spotsurfer.state import jobs as rows
from spotsurfer.state.brief import Which

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
    # SQLite passes over an index of all tasks twice, which takes 0.3 µs a task; a look at each would cost a hundred times that.
    assert many < 3 * few, f"{few:.4f} s with 100 tasks, {many:.4f} s with 10,000"


def listed(world: World, *, folded: bool = False, only_tasks: bool = False) -> list[JobBrief]:
    with world.engine.connect() as c:
        return list(jobs_brief(c, Which(folded=folded, only_tasks=only_tasks), Told()))


def test_a_list_and_a_cancel_take_less_than_a_second_or_two() -> None:
    world = queued(10_000)
    each, few = (seconds(partial(listed, world, folded=folded), 3) for folded in (False, True))
    assert each < 1.0
    assert few < each / 3
    assert [b.tasks or b.task for b in listed(world, folded=True)] == ["3-10000", 2, 1]
    assert seconds(lambda: world.commands.cancel("sweep"), 1) < 4.0
    assert len([x for x in listed(world) if x.state != JobState.CANCELLED]) == 2
    assert [b.tasks or b.task for b in listed(world, folded=True, only_tasks=True)] == ["3-10000", 2, 1]


def test_tasks_that_differ_have_rows_of_their_own() -> None:
    world = queued(9)
    before = {b.id: b for b in listed(world) if b.array}
    world.commands.hold("sweep-[3-5,9]")
    world.commands.prioritize("sweep-7", 5)
    spec = JobSpec(name="next", command=("work",), array="1-3")
    with world.engine.begin() as c:
        made = rows.add_jobs(c, rows_of(JobId("next"), spec, world.clock.now(), "ada"))
        on = [Dependency(After.OK, "sweep-3" if job.task == 2 else "sweep") for job in made]
        dependencies.add(c, [(job, (one,)) for job, one in zip(made, on, strict=True)])
    found = {b.id: (b.tasks, b.phase, list(b.after)) for b in listed(world, folded=True)}
    own = {f"sweep-{n}": ("", before[JobId(f"sweep-{n}")].phase, []) for n in (1, 2)}
    waits = {"next-1": ("1,3", "queued", ["afterok:1_*"]), "next-2": ("", "queued", ["afterok:1_3"])}
    assert found == own | waits | {
        "sweep-3": ("3-5,9", "held", []),
        "sweep-6": ("6,8", "queued", []),
        "sweep-7": ("", "queued", []),
    }


def test_what_waits_behind_the_front_is_told_why() -> None:
    from spotsurfer.controller.jobs.brief import why_it_waits

    world = queued(1000)
    with world.engine.connect() as c:
        assert len(queue.to_look_at(c)) == queue.FRONT + 2
        assert why_it_waits(c, rows.load_job(c, JobId("sweep-900"))) == "897 jobs of the same size are before it"
