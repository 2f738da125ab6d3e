"""Licences in the virtual world: never more are out than there are, whatever goes wrong, and every job comes to its end.

The controller dies at any call, often. A licence is out where a process of its job makes progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from simulation.chances import Chances, calm
from simulation.seeds import seeds
from simulation.world import LIMITS, World

from spotsurfer.model.job import AttemptState, Job, JobId, JobState
from spotsurfer.model.licences import LicencePool
from spotsurfer.state import jobs as rows

POOLS = {"vcs": 3, "route": 2}
NEEDS: tuple[dict[str, int], ...]
NEEDS = ({"vcs": 1}, {"vcs": 3}, {"route": 1, "vcs": 1}, {"route": 2}, {}, {"vcs": 2, "route": 1})


class Licensed(World):
    """Counts what is out at each second. Two controllers at once are left out: they know nothing of each other's grants."""

    def __init__(self, seed: int, jobs: int, chances: Chances, work: int = 60, pools: Mapping[str, int] = POOLS) -> None:
        self.pools, self.out, self.most = dict(pools), Counter[str](), Counter[str]()
        self.needs: dict[JobId, Mapping[str, int]] = {}
        chances.stands_still = 0.0
        super().__init__(seed, 0, work, chances, limits=LIMITS)
        for _ in range(jobs):
            self.submit()

    def submit(self, priority: int = 0) -> None:
        need = NEEDS[len(self.ids) % len(NEEDS)] if "licences" not in self.spec else self.spec["licences"]
        self.needs[JobId(f"job-{len(self.ids)}")] = need
        before, self.spec = self.spec, {**self.spec, "licences": dict(need)}
        super().submit(priority)
        self.spec = before

    def begin(self) -> None:
        super().begin()
        self.loop._observer.licences = self.seen

    def seen(self, _: datetime) -> dict[str, LicencePool]:
        return {kind: LicencePool(kind, total) for kind, total in self.pools.items()}

    def check(self) -> None:
        super().check()
        self.out.clear()
        for m in self.cloud.machines.values():
            if m.agent is not None and m.agent.executing:
                self.out.update(self.needs[JobId(m.agent.job)])
        assert all(self.out[kind] <= total for kind, total in POOLS.items()), f"too many are out: {self.out}"
        self.most |= self.out

    def running(self) -> list[str]:
        return [job for job, some in self.attempts.items() if some and some[-1].state is AttemptState.RUNNING]

    def job(self, number: int) -> Job:
        with self.engine.connect() as c:
            return rows.load_job(c, self.ids[number])

    def note(self, job: int) -> str:
        return self.loop.note_of(self.ids[job])


def stormy(seed: int) -> None:
    world = Licensed(seed, 6, Chances(crash=0.01, stands_still=0.0))
    assert world.run(limit=12_000, quiet_after=1200) == "ok"
    assert world.most["vcs"] == POOLS["vcs"], "all of them were used at some time"


def test_never_too_many_are_out_and_all_jobs_end() -> None:
    stormy(1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(20))
def test_many_seeds(seed: int) -> None:
    stormy(1000 + seed)


def one_kind(jobs: int, total: int, **more: Any) -> Licensed:
    world = Licensed(1, 0, calm(on_demand_sure=False), pools={"vcs": total}, **more)
    world.users_busy = False
    world.spec = {"licences": {"vcs": 1}}
    for _ in range(jobs):
        world.submit()
    return world


def until(world: Licensed, what: Any, most: int = 600) -> None:
    for _ in range(most):
        if what():
            return
        world.run(limit=1, quiet_after=100_000)
    raise AssertionError(f"not within {most} s: {world.attempts}")


def test_no_machine_is_ordered_without_a_licence_and_the_next_one_goes_at_once() -> None:
    world = one_kind(4, 2)
    until(world, lambda: len(world.running()) == 2)
    assert sum(bool(some) for some in world.attempts.values()) == 2, "no machine waits for a licence"
    assert world.note(2) == "it waits for 1 of 2 licences vcs: held by job-0, job-1"
    assert world.note(3) == "it waits for 1 of 2 licences vcs: held by job-0, job-1; job-2 comes first"
    assert world.run(limit=3000, quiet_after=100_000) == "ok"


def test_a_suspension_gives_them_back_and_a_resumed_job_takes_its_turn() -> None:
    world = one_kind(2, 1, work=100)
    until(world, lambda: world.running() == ["job-0"])
    world.commands.hold("job-0")
    until(world, lambda: world.running() == ["job-1"])
    world.commands.resume("job-0")
    world.run(limit=20, quiet_after=100_000)
    assert world.running() == ["job-1"]
    assert "held by job-1" in world.note(0)
    assert world.run(limit=3000, quiet_after=100_000) == "ok"


def test_a_job_whose_machine_is_taken_keeps_them() -> None:
    world = one_kind(2, 1, work=100)
    until(world, lambda: world.running() == ["job-0"])
    (machine,) = [m for m in world.cloud.machines.values() if m.gone_at is None]
    world.cloud.end(machine, reclaimed=True)
    until(world, lambda: world.running() == ["job-0"] and len(world.attempts[world.ids[0]]) == 2)
    assert not world.attempts[world.ids[1]]


def test_fewer_than_before_and_an_urgent_job() -> None:
    world = one_kind(3, 3, work=100)
    until(world, lambda: all(world.attempts.get(job) for job in world.ids))
    world.pools["vcs"] = 1
    until(world, lambda: len(world.running()) == 1)
    world.run(limit=30, quiet_after=100_000)
    assert len(world.running()) == 1
    alive = [m for m in world.cloud.machines.values() if m.gone_at is None]
    assert len(alive) == 1, "machines without a licence in sight are given back"
    world.submit(priority=5)
    until(world, lambda: "job-3" in world.running())
    with world.engine.connect() as c:
        ended = [j.id for j in rows.all_jobs(c) if j.ended_at is not None]
    assert len(ended) == 1, "it was the next one"
    assert world.run(limit=3000, quiet_after=100_000) == "ok"


def test_a_large_request_does_not_starve() -> None:
    world = one_kind(2, 2, work=40)
    until(world, lambda: len(world.running()) == 2)
    world.spec = {"licences": {"vcs": 2}}
    world.submit()
    world.spec = {"licences": {"vcs": 1}}
    for _ in range(4):
        world.submit()
    until(world, lambda: "job-2" in world.running())
    assert not any(world.attempts[job] for job in world.ids[3:])
    assert world.run(limit=3000, quiet_after=100_000) == "ok"


def test_who_resumes_at_once_waits_behind_the_one_that_was_promised_them() -> None:
    world = one_kind(2, 1, work=100)
    until(world, lambda: world.running() == ["job-0"])
    world.commands.hold("job-0")
    until(world, lambda: bool(world.attempts[world.ids[1]]), 60)
    until(world, lambda: world.job(0).state is JobState.HELD)
    world.commands.resume("job-0")
    until(world, lambda: world.running() == ["job-1"])
    assert len(world.attempts[world.ids[1]]) == 1
    assert world.run(limit=3000, quiet_after=100_000) == "ok"
