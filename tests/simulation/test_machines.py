"""Machines that are kept, in the virtual world: the promises hold as on machines that each job has for itself."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

import pytest
from simulation.chances import Chances, calm
from simulation.seeds import seeds
from simulation.world import LIMITS, World

from spotsurfer.ledger import bill
from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.facts import MachineFacts, Rules
from spotsurfer.model.charges import Stay
from spotsurfer.model.machine import GONE
from spotsurfer.model.machine import MachineState as M
from spotsurfer.state import jobs as rows
from spotsurfer.state import ledger_facts

KEPT = replace(LIMITS, idle_seconds=30.0, keeps=frozenset({"virtual"}), instances_max=3)


def kept_world(seed: int, jobs: int = 6, chances: Chances | None = None, cpus: int = 4, work: int = 40) -> World:
    """Jobs that come one after the other; with one processor each, several share a machine."""
    world = World(seed, jobs=jobs // 2, work=work, chances=chances, limits=KEPT, cpus=cpus)
    world.coming = {40 * (n + 1): 0 for n in range(jobs - jobs // 2)}
    assert world.run(quiet_after=500) == "ok"
    world.check_end()
    return world


@functools.cache
def calm_world() -> World:
    """One in which nothing goes wrong and nobody asks for anything: six jobs on two machines."""
    world = World(0, jobs=6, work=20, chances=calm(refused=0.0), limits=replace(KEPT, instances_max=2), cpus=4)
    world.users_busy = False
    assert world.run(quiet_after=1000) == "ok"
    world.check_end()
    return world


def bill_of(world: World) -> tuple[int, int]:
    """What all jobs pay for machines, and what all machines cost."""
    costs, now = Costs(Rules()), world.clock.now()
    with world.engine.connect() as c:
        attempts = [a for some in rows.attempts(c, world.ids).values() for a in some if a.launched_at is not None]
        costs.refresh(c, {}, now)
        machines = {a.token: rows.load_machine(c, a.token) for a in attempts}
        shared = ledger_facts.shared(c, attempts)
    assert {m.state for m in machines.values()} <= GONE
    due = 0
    for a in (a for a in attempts if a.slot == 0):  # as if it had been there alone, all the time
        if a.token not in shared:
            due += costs.of((a.job, a.number)).usd_micros
            continue
        m, prices, _ = shared[a.token]
        assert m.launched_at is not None
        alone = Stay(m.launched_at, a.job, a.number, m.released_at, 1)
        due += sum(x.usd_micros for x in bill.of_machine(MachineFacts(a, a.job, prices, (), m, [alone]), Rules(), now))
    return sum(costs.of_job(job) for job in world.ids), due


def test_few_machines_serve_many_jobs_and_all_is_paid() -> None:
    world = calm_world()
    with world.engine.connect() as c:
        slots = [a.slot for some in rows.attempts(c, world.ids).values() for a in some]
    assert (world.cloud.launches, len(slots), max(slots)) == (2, 6, 2)
    paid, due = bill_of(world)
    assert paid == due > 0


@pytest.mark.parametrize(("seed", "cpus"), [(1, 4), (2, 1)])
def test_with_notices_crashes_and_outages_every_machine_is_released_and_paid(seed: int, cpus: int) -> None:
    world = kept_world(seed, cpus=cpus)
    paid, due = bill_of(world)
    assert paid == due > 0


def test_several_jobs_share_a_machine_by_processors() -> None:
    world = World(3, jobs=8, work=60, chances=calm(), limits=replace(KEPT, instances_max=2), cpus=1)
    most = Counter[str]()
    world.users_busy = False
    while world.run(limit=1) == "stuck":
        for m in world.cloud.machines.values():
            most[m.id] = max(most[m.id], sum(a.executing for a in m.agents))
    assert 2 <= max(most.values()) <= 4
    assert bill_of(world)[0] == bill_of(world)[1]


def test_a_machine_without_use_is_ended() -> None:
    world = World(5, jobs=1, work=20, chances=calm(), limits=KEPT)
    assert world.run(limit=400) == "ok"
    with world.engine.connect() as c:
        assert rows.living_machines(c) == []
        (a,) = rows.attempts(c, world.ids)[world.ids[0]]
        assert rows.load_machine(c, a.token).state is M.RELEASED


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(100))
def test_many_seeds(seed: int) -> None:
    paid, due = bill_of(kept_world(seed, cpus=1 + 3 * (seed % 2)))
    assert paid == due
