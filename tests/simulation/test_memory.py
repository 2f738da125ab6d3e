"""What a controller holds in memory: it grows with what is open, not with how long it ran nor with how many jobs it saw."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

from simulation.chances import calm as no_chances
from simulation.objects import Objects
from simulation.virtual import Cloud
from simulation.world import World
from sqlalchemy import Engine

from spotsurfer.ports.provider import InstanceView
from spotsurfer.store.head_logs import HeadLogs

# What the loop refers to and does not own: the world around it, and code.
ELSEWHERE = (World, Cloud, Objects, InstanceView, Engine, types.ModuleType, type, types.FunctionType, types.CodeType)
BYTES_A_JOB = 1000  # that has ended: its bill, micro-dollars by attempt
BYTES_A_TICK = 10
BYTES_A_SAVE = 3000  # an entry of the head log of a job that runs


def calm(**more: Any) -> World:
    """A world in which nothing goes wrong."""
    world = World(1, chances=no_chances(), **more)
    world.users_busy = False
    return world


def ticks(world: World, count: int) -> None:
    for _ in range(count):
        world._pass()
        world.loop.tick()


def held_bytes(root: object) -> int:
    """Bytes of everything that can be reached from an object, but for what is elsewhere."""
    gc.collect()
    seen, todo, total = {id(root)}, [root], 0
    while todo:
        one = todo.pop()
        total += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, ELSEWHERE):
                seen.add(id(other))
                todo.append(other)
    return total


def test_of_a_job_that_ended_only_its_bill_is_kept() -> None:
    world = calm(jobs=0, work=10)

    def some_jobs(count: int) -> int:
        for _ in range(count):
            world.submit()
            ticks(world, 8)
        ticks(world, 100)
        assert world._jobs(), "there were some"
        assert all(not a.instances for a in world.loop.last_seen.jobs), "and all are over"  # type: ignore[union-attr]
        return held_bytes(world.loop)

    some_jobs(5)  # what is made once
    few = some_jobs(10)
    many = some_jobs(30)
    assert (many - few) / 30 < BYTES_A_JOB, f"{(many - few) / 30:.0f} bytes are kept of a job that ended"


def test_time_alone_fills_no_memory() -> None:
    world = calm(jobs=3, work=10**9)
    heads = world.loop._observer.heads
    assert isinstance(heads, HeadLogs)

    def held() -> tuple[int, int]:
        return held_bytes(world.loop), sum(len(heads.log(job).entries) for job in world.ids)

    ticks(world, 400)
    before, entries = held()
    ticks(world, 400)
    after, entries_after = held()
    allowed = 400 * BYTES_A_TICK + (entries_after - entries) * BYTES_A_SAVE
    assert after - before < allowed, f"{after - before} bytes in 400 ticks with {entries_after - entries} saves"
