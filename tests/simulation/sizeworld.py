"""The virtual world with jobs of changing size, and what must hold of their moves."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any

from simulation.sized import SizedAgent, SizedCloud
from simulation.virtual import Cloud
from simulation.world import LIMITS, START, World
from spotsurfer_wire.oom_freeze_levels import TRUE_SHARE, pressed_at
from support.loads import Load
from support.rides import GIB, TYPES

from spotsurfer.controller.jobs.rightsizing import Make, Sizes
from spotsurfer.core.scheduling.rightsizing import RESERVE, SIZED, SizeRules
from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.facts import Rules
from spotsurfer.model.job import Attempt, Job, JobId
from spotsurfer.model.money import for_seconds
from spotsurfer.model.timeline_events import Kind
from spotsurfer.state import timeline

HOUR = timedelta(hours=1)
OUT, BACK = 0.006, 0.02  # a second: machines of a type run out, and can be had again


class SizedWorld(World):
    """Its jobs ask for the type in the middle."""

    def __init__(self, seed: int, make: Make, load: Load, moves_per_hour: int, *, scarce: bool, **more: Any) -> None:
        """`scarce`: machines are refused, and run out."""
        self.load = load
        self.moves_per_hour = moves_per_hour
        self.known: set[tuple[JobId, int]] = set()
        self.scarce = scarce
        self.went_back_at: dict[JobId, datetime] = {}
        self.wished, self.rescued = defaultdict[JobId, list[datetime]](list), defaultdict[JobId, list[datetime]](list)
        self.counted = Counter[str]()
        rules = SizeRules(10.0, moves_per_hour)
        asks = {"cpus": 2, "memory_bytes": 8 * GIB, "size_policy": "any"}
        super().__init__(seed, sizes=Sizes(make, rules=rules), **{"jobs": 1, "limits": LIMITS, **asks, **more})
        self.chances.refused *= scarce
        self.chances.stands_still = 0.0  # what a controller still orders that has lost its right is in no bill of its successor

    def _cloud(self, work: int) -> Cloud:
        return SizedCloud(self.clock, self.store, self.chances, self.rand, work, self.load)

    def _weather(self) -> None:
        super()._weather()
        assert isinstance(self.cloud, SizedCloud)
        kind = self.rand.choice(list(TYPES))
        if self.scarce and self.rand.random() < (BACK if kind in self.cloud.out else OUT):
            self.cloud.out ^= {kind}

    def _quiet(self) -> None:
        super()._quiet()
        assert isinstance(self.cloud, SizedCloud)
        self.cloud.out.clear()

    def _go_back(self, job: Job) -> None:
        before = len(self.rewinds[job.id])
        super()._go_back(job)
        if len(self.rewinds[job.id]) > before:
            self.went_back_at[job.id] = self.clock.now()

    def check(self) -> None:
        """Each machine that got a job, once."""
        super().check()
        for job in self.ids:
            owners = sorted((a for a in self.attempts[job] if a.granted_at is not None), key=lambda a: a.number)
            for before, now in zip([None, *owners], owners, strict=False):
                if (job, now.number) not in self.known:
                    self.known.add((job, now.number))
                    self._check_grant(before, now)

    def agent_of(self, attempt: Attempt) -> SizedAgent | None:
        """None where it never booted."""
        agent = self.cloud.machines[attempt.token].agent
        assert agent is None or isinstance(agent, SizedAgent)
        return agent

    def _check_grant(self, before: Attempt | None, now: Attempt) -> None:
        assert isinstance(self.cloud, SizedCloud)
        image = self.cloud.images.get((now.job, now.from_checkpoint or ""), 0)
        went_back = now.planned_at <= self.went_back_at.get(now.job, START)
        squeezed = image >= TRUE_SHARE * pressed_at(memory_of(now))
        assert not squeezed or went_back, f"{now.job}: {image / GIB:.2f} GiB do not fit attempt {now.number}, {now.pool}"
        if before is None:
            return
        agent = self.agent_of(before)
        if agent is None:
            return
        if memory_of(now) < memory_of(before):
            self.counted["down"] += 1
            assert not agent.unprotected, f"{now.job}: attempt {now.number} has less memory, and nothing guarded it before"
        if agent.miss is not None and self._told_of_it(before):
            self.counted["killed" if agent.miss.killed else "near miss"] += 1
            assert memory_of(now) > memory_of(before), f"{now.job}: memory ended, and attempt {now.number} has no more"
            self._count(self.rescued, now)
        elif now.purpose.startswith(SIZED):
            self.counted["wish"] += 1
            self._count(self.wished, now)

    def _told_of_it(self, attempt: Attempt) -> bool:
        """An agent whose reports did not come through could tell nobody that memory ended."""
        with self.engine.connect() as c:
            said = (m for _, m in timeline.read(c, attempt.job, 0) if m.attempt == attempt.number)
            return any(m.kind in (Kind.NEAR_MISS, Kind.OUT_OF_MEMORY) for m in said)

    def _count(self, moves: dict[JobId, list[datetime]], now: Attempt) -> None:
        """Where machines of a type run out the cloud decides on sizes, and rescues from there are beyond the limit."""
        moves[now.job].append(now.planned_at)
        within = [sum(now.planned_at - at < HOUR for at in some[now.job]) for some in (self.wished, self.rescued)]
        assert within[0] <= self.moves_per_hour - RESERVE, f"{now.job}: {within} wishes and rescues within an hour"
        assert self.scarce or sum(within) <= self.moves_per_hour, f"{now.job}: {within} wishes and rescues within an hour"

    def check_end(self) -> None:
        """Every cent is in the ledger as well."""
        super().check_end()
        costs = Costs(Rules({self.cloud.name: self.cloud.capabilities.billing}))
        with self.engine.connect() as c:
            costs.refresh(c, self.attempts, self.clock.now())
        bills = {a.token: costs.of((a.job, a.number)).usd_micros for some in self.attempts.values() for a in some}
        for token, machine in self.cloud.machines.items():
            assert machine.gone_at is not None
            seconds = max((machine.gone_at - machine.born).total_seconds(), 60.0)
            offer = next(o for o in self.cloud.offers() if (o.pool, o.market) == (machine.plan.pool, machine.plan.market))
            owed = for_seconds(offer.price_usd_micros_per_hour, seconds)
            assert bills.pop(token) == owed, f"{machine.id} of {token} cost {owed}"
        assert not any(bills.values()), f"bills without machines: {bills}"


def memory_of(attempt: Attempt) -> int:
    """Of its machine, bytes."""
    return TYPES[attempt.pool.instance_type][1] * GIB
