"""Jobs whose use of memory and processors changes as they work, on machines of several sizes, under the kernel's guard."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from simulation.agents import Agent, Machine
from simulation.chances import Chances
from simulation.objects import Objects
from simulation.virtual import Cloud
from spotsurfer_agent.host.usage import Sample, Sampler, Totals
from spotsurfer_agent.ports.engine import SaveRequest, WorkloadState
from spotsurfer_wire.messages import NearMiss, SaveFacts
from spotsurfer_wire.oom_freeze_levels import TRUE_SHARE, Levels
from support.agent_shim import Shim
from support.loads import Load
from support.rides import GIB, TYPES

from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import LaunchPlan

ARRIVES_SECONDS = 7
FILES = 100 * GIB  # on the disk of each job


@dataclass
class SizedShim(Shim):
    """Of a job whose use changes. The guard freezes one that can be saved; else the kernel kills it."""

    load: Load = field(kw_only=True)
    cores: float = field(kw_only=True)
    levels: Levels = field(kw_only=True)
    memory: float = 0.0
    cpu: float = 0.0
    miss: NearMiss | None = None  # the newest one

    def advance(self) -> None:
        """It works as fast as its machine lets it, and touches memory."""
        seconds, self.since = self.now() - self.since, self.now()
        stands = self.held or self.near_miss or self.pending is not None
        if self.phase is not WorkloadState.RUNNING or stands or seconds <= 0:
            return
        wanted = max(self.load(self.worked)[1], 0.1)
        self.worked = min(self.worked + seconds * min(1.0, self.cores / wanted), self.ends_at)
        self.cpu += seconds * min(self.cores, wanted)
        if self.worked >= self.ends_at:
            self.phase = WorkloadState.EXITED
        else:
            self.touch(self.load(self.worked)[0])

    def touch(self, wanted: float) -> None:
        """So much memory. The guard and the kernel look at it."""
        self.memory = min(wanted, self.levels.press)
        if wanted >= TRUE_SHARE * self.levels.press:
            self._missed(False)
        elif wanted > self.levels.machine:
            self._missed(True)
            self.phase, self.lost_because = WorkloadState.LOST, "the kernel killed it, because memory ended"

    def _missed(self, killed: bool) -> None:
        self.near_miss = self.miss = NearMiss(self.levels.machine, self.levels.press, int(self.memory), 0.01, killed)


class Meter(Sampler):
    """Measures such a job."""

    def __init__(self, shim: SizedShim, now: Callable[[], float]) -> None:
        super().__init__(Path("/nowhere"), now)
        self._shim = shim

    def look(self, arriving_bytes: int | None = None) -> None:
        """One sample."""
        shim, now = self._shim, self._now()
        missing = int(shim.memory * max(shim.arrives_at - now, 0.0) / ARRIVES_SECONDS)
        there = int(shim.memory) - missing
        due = Totals() if self._gathering.due(now) else None
        self._gathering.add(now, Sample(shim.cpu, there, there, there, 0), due, (), missing or None)


class SizedAgent(Agent):
    """Tells what its job uses."""

    def __init__(self, machine: Machine, cloud: SizedCloud, folder: Path) -> None:
        super().__init__(machine, cloud.store, cloud.chances, cloud.rand, cloud.work, folder)
        cores, gib, _ = TYPES[machine.plan.pool.instance_type]
        base = {f.name: getattr(self.shim, f.name) for f in fields(Shim)}
        self.shim = self.sized = SizedShim(**base, load=cloud.load, cores=float(cores), levels=Levels.of(gib * GIB))
        self.images = cloud.images

    @property
    def miss(self) -> NearMiss | None:
        """That its memory ended, or almost."""
        return self.sized.miss

    def usage(self) -> Sampler:
        return Meter(self.sized, lambda: self.now)

    def trip(self, point: str) -> None:
        super().trip(point)
        newest = self.agent.heads.newest if self.agent is not None else None
        if point == "restored" and newest is not None and newest.checkpoint is not None:
            self.sized.touch(self.images.get((self.job, newest.checkpoint), 0))

    def measured(self, request: SaveRequest, seconds: float) -> SaveFacts:
        held = self.images.setdefault((self.job, request.checkpoint), int(self.sized.memory))
        facts = super().measured(request, seconds)
        return replace(facts, image_bytes=held + FILES, memory_bytes=held)


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

    def _agent(self, machine: Machine, order: bytes | None = None) -> Agent:
        return SizedAgent(machine, self, self.disks)
