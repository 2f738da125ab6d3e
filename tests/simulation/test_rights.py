"""Who may act: not a controller that can't ask, and not one that knows less than the store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation.chances import Chances
from simulation.virtual import POOLS, Machine
from simulation.world import LIMITS, World
from sqlalchemy import Engine

from spotsurfer.controller.leadership import Leadership
from spotsurfer.model.errors import Superseded
from spotsurfer.model.ids import InstanceId
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import LaunchPlan
from spotsurfer.state.db import open_database

CALM: dict[str, Any] = {name: 0.0 for name in Chances.__dataclass_fields__ if name not in ("boots_seconds", "on_demand_sure")}


def world_with(jobs: int, **chances: Any) -> World:
    world = World(1, jobs=jobs, work=400, chances=Chances(**{**CALM, **chances}))
    world.users_busy = False
    return world


def until_running(world: World, number: int = 1) -> None:
    for _ in range(200):
        world.run(limit=1)
        if all(some and (some[-1].state, some[-1].number) == (A.RUNNING, number) for some in world.attempts.values()):
            return
    raise AssertionError(f"they do not run: {world.attempts}")


def alive(world: World) -> list[str]:
    return [m.id for m in world.cloud.machines.values() if m.gone_at is None]


def done(world: World) -> float:
    """Seconds of work, of all machines that are there."""
    return sum(m.agent.work for m in world.cloud.machines.values() if m.agent is not None and m.gone_at is None)


def test_a_controller_that_lost_the_store_and_not_the_cloud_ends_nothing_of_its_successor() -> None:
    world = world_with(1)
    until_running(world)
    Leadership(world.store.seen_by("successor"), world.clock).take()
    tags = {"spotsurfer:job": "another", "spotsurfer:attempt": "1"}
    world.cloud.launch(LaunchPlan("of its successor", POOLS[0], Market.SPOT, "", tags))
    world.store.fails = lambda who, verb, key: who == "controller"
    world.run(limit=60)
    assert len(alive(world)) == 2
    world.store.fails = lambda who, verb, key: False
    with pytest.raises(Superseded):
        world.run(limit=1)
    assert len(alive(world)) == 2


def copied(engine: Engine) -> Engine:
    copy = open_database(None)
    from_, to = engine.raw_connection().driver_connection, copy.raw_connection().driver_connection
    from_.backup(to)  # type: ignore[union-attr]
    return copy


def test_a_database_from_a_backup_finds_the_machines_that_came_after_it() -> None:
    """The store knows who owns the job: its machine goes on, and no number is used twice."""
    world = world_with(2)
    until_running(world)
    backup = copied(world.engine)
    for job in world.ids:
        world.commands.move(job, None, None)
    until_running(world, 2)
    world.run(limit=20)
    ours, work = alive(world), done(world)
    world.engine = backup
    world._controller()
    world.run(limit=60)
    assert alive(world) == ours
    assert done(world) == work + 2 * 60
    assert [(a.number, a.state) for a in world.attempts["job-0"]] == [(1, A.RELEASED), (2, A.RUNNING)]
    assert world.run(limit=900) == "ok"
    world.check_end()


def test_a_job_that_the_backup_has_never_heard_of_keeps_its_machine() -> None:
    world = world_with(1)
    until_running(world)
    backup = copied(world.engine)
    world.submit()
    until_running(world)
    ours = alive(world)
    world.engine, world.ids = backup, world.ids[:1]
    world._controller()
    world.run(limit=60)
    assert alive(world) == ours
    assert "attempt 1 of job-1, and this database does not" in world.loop.last_error


def test_a_machine_that_the_backup_does_not_know_keeps_its_lease() -> None:
    """Nobody knew it any more, so today's setting was taken for it: the job ran on two machines."""
    world = world_with(1)
    until_running(world)
    backup = copied(world.engine)
    world.commands.move(world.ids[0], None, None)
    until_running(world, 2)
    ours = alive(world)
    world.engine, world.limits = backup, replace(LIMITS, lease_seconds=1.0, lease_margin_seconds=1.0)
    world._controller()
    world.run(limit=20)
    (holder,) = [m for m in world.cloud.machines.values() if m.gone_at is None]
    assert holder.agent is not None
    holder.agent.cut = 10_000
    world.run(limit=300)
    assert alive(world) == ours
    holder.gone_at = world.clock.now()  # what the cloud says needs no silence
    world.run(limit=60)
    assert [(a.number, a.state) for a in world.attempts["job-0"]][-1] == (3, A.RUNNING)


def test_a_machine_with_copied_tags_is_nobodys_and_hides_none_of_ours() -> None:
    """Who orders "one more like this" copies the token: the copy stood for ours, and its end for the end of ours."""
    world = world_with(1)
    until_running(world)
    (ours,) = world.cloud.machines.values()
    world.cloud.machines["a copy"] = copy = Machine("i-copy", ours.plan, world.clock.now(), 1e9, True, 0)
    world.run(limit=60)
    assert copy.gone_at is not None and ours.gone_at is None
    view = world.loop._observer.instance_of(ours.plan.token, InstanceId("i-copy"))
    assert view is not None and view.id == "i-copy", "a row that knows its machine means that one"
    assert [(a.number, a.state) for a in world.attempts["job-0"]] == [(1, A.RUNNING)]
