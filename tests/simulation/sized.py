"""Jobs whose use of memory and processors changes as they work, on machines of several sizes, under the kernel's guard."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from simulation.agents import Agent, Machine
from simulation.chances import Chances
from simulation.objects import Objects
from simulation.virtual import Cloud
from spotsurfer_agent.oomguard import TRUE_SHARE, Levels
from spotsurfer_agent.protocol import AgentState, NearMiss, Report, Usage
from spotsurfer_agent.usage.gather import Gathering
from spotsurfer_agent.usage.meters import Sample, Totals
from support.loads import Load
from support.rides import GIB, TYPES

from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import LaunchPlan

TRIES = 5  # to save a job that stands still for want of memory
LAST_WORDS_SECONDS = 3
ARRIVES_LOOKS = 7
FILES = 100 * GIB  # on the disk of each job
RUNS = (AgentState.RUNNING, AgentState.DRAINING)


class SizedAgent(Agent):
    """Tells what its job uses. The guard freezes one that can be saved; else the kernel kills."""

    def __init__(self, machine: Machine, cloud: SizedCloud) -> None:
        super().__init__(machine, cloud.store, cloud.chances, cloud.rand, cloud.work)
        cores, gib, _ = TYPES[machine.plan.pool.instance_type]
        self.cores, self.levels = float(cores), Levels.of(gib * GIB)
        self.load, self.images = cloud.load, cloud.images
        self.memory, self.cpu, self.tries = 0.0, 0.0, 0
        self.miss: NearMiss | None = None
        self.pressed = False
        self.ends_at = float("inf")
        self.said: Report | None = None
        self.committed = False  # a final save, of which no report tells yet
        self.gathering = Gathering()

    @property
    def executing(self) -> bool:
        """Not while it stands still for want of memory."""
        return super().executing and not self.pressed

    def step(self, now: float) -> None:
        """A second more; of a job that is lost the machine ends itself."""
        super().step(now)
        if self.state in RUNS:
            self._sample()
        if now >= self.ends_at:
            self.machine.gone_at = self.machine.born + timedelta(seconds=now)

    def _work_on(self) -> None:
        wanted = max(self.load(self.work)[1], 0.1)
        self.work = min(self.work + min(1.0, self.cores / wanted), self.total)
        self.cpu += min(self.cores, wanted)
        self._hold(self.load(self.work)[0])

    def _hold(self, wanted: float) -> None:
        """It touches memory; the guard and the kernel look at it."""
        self.memory = min(wanted, self.levels.press)
        if not self.unprotected and wanted >= TRUE_SHARE * self.levels.press:
            self.pressed = True
            self._missed(False)
        elif wanted > self.levels.machine:
            self._missed(True)
            self._lost("the kernel killed it, because memory ended")

    def _missed(self, killed: bool) -> None:
        self.miss = NearMiss(self.levels.machine, self.levels.press, int(self.memory), 0.01, killed)

    def _lost(self, why: str) -> None:
        self.state, self.error, self.error_kind, self.pressed = AgentState.BROKEN, why, "lost", False
        self.ends_at = self.now + LAST_WORDS_SECONDS

    def _restoring(self) -> None:
        super()._restoring()
        newest = self.log.newest
        if self.state is AgentState.RUNNING and newest is not None and newest.checkpoint is not None:
            self._hold(self.images[self.job, newest.checkpoint])

    def _running(self) -> None:
        if not self.pressed:
            super()._running()
            return
        self.state, self.busy = AgentState.DRAINING, self.rand.randint(2, 8)

    def _draining(self) -> None:
        if not self.pressed:
            super()._draining()
            return
        self.busy -= 1
        if self.busy > 0:
            return
        if self.rand.random() < self.chances.save_fails:
            self.tries, self.busy, self.error, self.error_kind = self.tries + 1, 2, "the final save failed", "save"
            if self.tries >= TRIES:
                self._lost("its memory was about to end and it could not be saved")
        elif self._commit(final=True):
            self.state = AgentState.DRAINED

    def _commit(self, final: bool) -> bool:
        won = super()._commit(final)
        if won and self.images.setdefault((self.job, self.saved.checkpoint), int(self.memory)):
            held = self.images[self.job, self.saved.checkpoint]
            self.saved = replace(self.saved, image_bytes=held + FILES, memory_bytes=held)
        self.committed = won and final
        return won

    def _sample(self) -> None:
        missing = int(self.memory * self.arriving / ARRIVES_LOOKS)
        there = int(self.memory) - missing
        due = Totals() if self.gathering.due(self.now) else None
        self.gathering.add(self.now, Sample(self.cpu, there, there, there, 0), due, (), missing or None)

    def _words(self) -> Report:
        """The head has a final save first; what it holds is told a second later."""
        if self.committed and self.said is not None:
            self.committed = False
            return self.said
        rows = self.gathering.rows(self.now)
        usage = Usage(self.now, rows) if rows else None
        self.said = replace(super()._words(), near_miss=self.miss, pressed=self.pressed, usage=usage)
        return self.said


class SizedCloud(Cloud):
    """Machines of `TYPES`; now and then there are none of a type."""

    def __init__(
        self, clock: ManualClock, store: Objects, chances: Chances, rand: random.Random, work: int, load: Load
    ) -> None:
        super().__init__(clock, store, chances, rand, work)
        self.load = load
        self.images: dict[tuple[str, str], int] = {}  # bytes that each checkpoint takes where it is restored
        self.out: set[str] = set()

    def offers(self) -> Sequence[Offer]:
        """Spot is three times cheaper."""
        pools = [Pool("virtual", "r", z, t) for z in ("a", "b") for t in TYPES]
        shares = ((Market.SPOT, 3), (Market.ON_DEMAND, 1))
        return [self._offer(pool, market, share) for pool in pools for market, share in shares]

    def _offer(self, pool: Pool, market: Market, share: int) -> Offer:
        cores, gib, price = TYPES[pool.instance_type]
        return Offer(pool, market, price // share, price, cores, gib * GIB)

    def _lacks(self, plan: LaunchPlan) -> bool:
        return plan.pool.instance_type in self.out or super()._lacks(plan)

    def _agent(self, machine: Machine) -> Agent:
        return SizedAgent(machine, self)
