"""Who may act: not a controller that can't ask, and not one that knows less than the store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation.chances import calm
from simulation.fallible import copied
from simulation.trouble import Trouble, mend
from simulation.virtual import POOLS, Machine
from simulation.world import LIMITS, World
from spotsurfer_wire import object_keys

from spotsurfer.model.errors import Superseded
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import LaunchPlan
from spotsurfer.store.leadership import Leadership


def world_with(jobs: int, **chances: Any) -> World:
    world = World(1, jobs=jobs, work=400, chances=calm(**chances))
    world.users_busy = False
    return world


def alive(world: World) -> list[str]:
    return [m.id for m in world.cloud.machines.values() if m.gone_at is None]


def done(world: World) -> float:
    """Seconds of work, of all machines that are there."""
    return sum(m.agent.work for m in world.cloud.machines.values() if m.agent is not None and m.gone_at is None)


def test_a_controller_that_lost_the_store_and_not_the_cloud_ends_nothing_of_its_successor() -> None:
    world = world_with(1)
    world.until_running()
    Leadership(world.store.seen_by("successor"), world.clock).take()
    tags = {"spotsurfer:job": "another", "spotsurfer:attempt": "1"}
    world.cloud.launch(LaunchPlan("of its successor", POOLS[0], Market.SPOT, "", tags))
    world.cloud.machines["of its successor"].boots_after = 1e9
    Trouble(lambda who, verb, key: who == "controller").strike(world.store)
    world.run(limit=60)
    assert len(alive(world)) == 2
    mend(world.store)
    with pytest.raises(Superseded):
        world.run(limit=1)
    assert len(alive(world)) == 2


def test_a_controller_that_stood_still_in_a_call_finds_that_it_has_lost_its_right() -> None:
    """Another one on another host took over meanwhile. What it had decided does no harm."""
    world = world_with(1)
    world.until_running()
    world.chances.stands_still = 1.0
    world.commands.move(world.ids[0], None, None)
    while not world.old:
        world.run(limit=1)
    world.chances.stands_still = 0.0
    world.until_running(2)
    world.run(limit=95)  # it stands still for no longer than that
    assert (world.ended, world.old) == (1, [])
    assert [a.state for a in world.attempts["job-0"]] == [A.RELEASED, A.RUNNING]
    assert len(alive(world)) == 1


def test_a_database_from_a_backup_finds_the_machines_that_came_after_it() -> None:
    """The store knows who owns the job: its machine goes on, and no number is used twice."""
    world = world_with(2)
    world.until_running()
    backup = copied(world.engine)
    for job in world.ids:
        world.commands.move(job, None, None)
    world.until_running(2)
    world.run(limit=20)
    ours, work = alive(world), done(world)
    world.engine = backup
    world.restart()
    world.run(limit=60)
    assert alive(world) == ours
    assert done(world) == work + 2 * 60
    assert [(a.number, a.state) for a in world.attempts["job-0"]] == [(1, A.RELEASED), (2, A.RUNNING)]
    assert world.run(limit=900) == "ok"
    world.check_end()


def test_a_job_that_the_backup_has_never_heard_of_keeps_its_machine() -> None:
    world = world_with(1)
    world.until_running()
    backup = copied(world.engine)
    world.submit()
    world.until_running()
    ours = alive(world)
    world.engine, world.ids = backup, world.ids[:1]
    world.restart()
    world.run(limit=60)
    assert alive(world) == ours
    assert "attempt 1 of job-1, and this database does not" in world.loop.last_error


def test_an_old_database_ends_nothing_before_it_has_seen_who_speaks() -> None:
    """The first listing of the reports failed, all else went well: each machine that it did not know was ended at once."""
    world = world_with(1)
    world.until_running()
    backup = copied(world.engine)
    world.submit()
    world.until_running()
    ours = alive(world)
    world.engine, world.ids = backup, world.ids[:1]
    Trouble(lambda who, verb, key: (who, verb, key) == ("controller", "list", object_keys.live_prefix())).strike(world.store)
    world.restart()
    for _ in range(20):
        world.run(limit=1)
        assert alive(world) == ours
    mend(world.store)
    world.run(limit=60)
    assert alive(world) == ours


def test_a_machine_that_the_backup_does_not_know_keeps_its_lease() -> None:
    """Nobody knew it any more, so today's setting was taken for it: the job ran on two machines (`World.check` sees that)."""
    world = world_with(1)
    world.until_running()
    backup = copied(world.engine)
    world.commands.move(world.ids[0], None, None)
    world.until_running(2)
    world.run(limit=15)  # until its source is gone
    ours = alive(world)
    world.engine, world.limits = backup, replace(LIMITS, lease_seconds=1.0, lease_margin_seconds=1.0)
    world.restart()
    world.run(limit=20)
    (holder,) = [m for m in world.cloud.machines.values() if m.gone_at is None]
    assert holder.agent is not None
    holder.agent.cut = 10_000
    world.run(limit=int(LIMITS.lease_seconds))
    assert alive(world) == ours
    world.run(limit=60)
    assert [(a.number, a.state) for a in world.attempts["job-0"]][-1] == (3, A.RUNNING)


def test_a_machine_with_copied_tags_is_nobodys_and_hides_none_of_ours() -> None:
    """Who orders "one more like this" copies the token: the copy stood for ours, and its end for the end of ours."""
    world = world_with(1)
    world.until_running()
    (ours,) = world.cloud.machines.values()
    world.cloud.machines["a copy"] = copy = Machine("i-copy", ours.plan, world.clock.now(), 1e9, True, 0)
    world.run(limit=60)
    assert copy.gone_at is not None and ours.gone_at is None
    view = world.loop._observer.instance_of(ours.plan.token, InstanceId("i-copy"))
    assert view is not None and view.id == "i-copy", "a row that knows its machine means that one"
    assert [(a.number, a.state) for a in world.attempts["job-0"]] == [(1, A.RUNNING)]
