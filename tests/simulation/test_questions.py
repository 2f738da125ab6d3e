"""A look at the world asks the database so many questions, however many jobs there are."""

from __future__ import annotations

from simulation.chances import Chances
from simulation.world import World
from sqlalchemy import event


def questions(jobs: int) -> list[str]:
    """Of one look, where each job has a deadline and a machine."""
    world = World(1, jobs=jobs, work=4000, chances=Chances(), deadline_seconds=40_000.0, work_seconds=4000.0)
    world._quiet()
    for _ in range(45):
        world._pass()
        world.loop.tick()
    assert world.cloud.launches == jobs
    asked: list[str] = []
    event.listen(world.engine, "before_cursor_execute", lambda *a: asked.append(a[2]))
    world.loop._observer.look(world.clock.now())
    return asked


def test_they_do_not_grow_with_the_jobs() -> None:
    few, many = questions(2), questions(8)
    assert few
    assert len(many) == len(few), many
