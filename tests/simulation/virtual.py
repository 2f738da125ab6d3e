"""A virtual cloud: what the real controller meets in the simulation."""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
import weakref
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from simulation.agents import NOTICE_SECONDS, Agent, Machine
from simulation.chances import Chances
from simulation.objects import Objects
from spotsurfer_wire import object_keys

from spotsurfer.model.errors import NoCapacity, ProviderError
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import Capabilities, Credentials, InstanceState, InstanceView, LaunchPlan, Listing, StoreAccess


class Crash(BaseException):
    """The controller dies here; nothing may catch it."""


POOLS = [Pool("virtual", "r", z, t) for z in ("a", "b") for t in ("small", "large")]


class Cloud:
    """Machines that boot, are refused, noticed, killed, cut off and, at times, not ended though told to."""

    name = "virtual"
    witness = None
    boot = None
    capabilities = Capabilities(NOTICE_SECONDS, "aws")

    def __init__(self, clock: ManualClock, store: Objects, chances: Chances, rand: random.Random, work: int) -> None:
        self.clock, self.store, self.chances, self.rand, self.work = clock, store, chances, rand, work
        self.machines: dict[str, Machine] = {}  # by token
        self.outage_until: datetime | None = None
        self.spot_out = False
        self.launches = 0
        self.registry_back: datetime | None = None  # None = it answers
        self.disks = Path(tempfile.mkdtemp(prefix="world-"))
        weakref.finalize(self, shutil.rmtree, self.disks, ignore_errors=True)

    def _check(self) -> None:
        if self.outage_until is not None and self.clock.now() < self.outage_until:
            raise ProviderError("the cloud's API is down")

    def offers(self) -> Sequence[Offer]:
        prices = {"small": 100_000, "large": 200_000}
        return [
            Offer(p, m, prices[p.instance_type] // (3 if m is Market.SPOT else 1), prices[p.instance_type], 4, 8 << 30)
            for p in POOLS
            for m in (Market.SPOT, Market.ON_DEMAND)
        ]

    def launch(self, plan: LaunchPlan) -> InstanceView:
        self._check()
        if plan.token not in self.machines:
            sure = self.chances.on_demand_sure and plan.market is Market.ON_DEMAND
            if self._lacks(plan) or (self.rand.random() < self.chances.refused and not sure):
                raise NoCapacity(f"no capacity in {plan.pool}")
            never = self.rand.random() < self.chances.never_boots
            boots = 1e9 if never and not sure else self.rand.randint(*self.chances.boots_seconds)
            machine = Machine(f"i-{len(self.machines)}", plan, self.clock.now(), boots, sure, self.rand.randint(0, 4))
            self.machines[plan.token] = machine
            self.launches += 1
        return self._view(self.machines[plan.token])

    def _lacks(self, plan: LaunchPlan) -> bool:
        """There is nothing left of it, for a while."""
        return self.spot_out and plan.market is Market.SPOT

    def terminate(self, instance: InstanceId) -> None:
        self._check()
        for m in self.machines.values():
            if m.id == instance and self.rand.random() >= self.chances.zombie:
                self.end(m)

    def end(self, machine: Machine, reclaimed: bool = False) -> None:
        """The machine is gone, and everything on it."""
        if machine.gone_at is None:
            machine.gone_at, machine.reclaimed = self.clock.now(), reclaimed
            for agent in machine.agents:
                agent.die()

    def describe(self) -> Listing:
        self._check()
        now = self.clock.now()
        shown = [m for m in self.machines.values() if (now - m.born).total_seconds() >= m.visible_after]
        return Listing([self._view(m) for m in shown], complete=True)

    def outlet(self, instance: InstanceId) -> socket.socket:
        raise AssertionError("nobody connects to these machines")

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:
        return StoreAccess("memory:///", {})

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        pass

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        raise AssertionError("nothing is renewed here")

    def _view(self, m: Machine) -> InstanceView:
        state = InstanceState.RUNNING if m.gone_at is None else InstanceState.GONE
        p = m.plan
        return InstanceView(InstanceId(m.id), p.token, p.pool, p.market, state, m.born, m.gone_at, m.reclaimed)

    def step(self) -> None:
        """One second passes for every machine."""
        now = self.clock.now()
        if self.rand.random() < self.chances.outage:
            self.outage_until = datetime.fromtimestamp(now.timestamp() + self.rand.randint(20, 90), now.tzinfo)
        if self.registry_back is None and self.rand.random() < self.chances.registry:
            self.registry_back = now + timedelta(seconds=60)
        if self.registry_back is not None and now >= self.registry_back:
            self.registry_back = None
        for m in self.machines.values():
            m.registry_down = self.registry_back is not None
            if m.gone_at is None:
                self._step(m, (now - m.born).total_seconds())

    def agents(self) -> None:
        """All agents look and act once more in this second."""
        for m in self.machines.values():
            if m.gone_at is None:
                self._agents_of(m, (self.clock.now() - m.born).total_seconds())

    def _agents_of(self, m: Machine, age: float) -> None:
        """All agents of a machine look and act; one that is over ends the machine, or leaves it if that is kept."""
        for agent in m.agents:
            if agent.step(age):
                if not m.kept:
                    self.end(m)
                    return
                agent.die()
                m.others = [a for a in m.others if a is not agent]
                m.agent = None if m.agent is agent else m.agent
        while m.kept and (order := self.store.data.get(object_keys.order_slot_key(m.plan.token, m.slots))) is not None:
            m.slots += 1
            if order[0]:
                noticed, m.others = m.noticed_at, m.agents
                m.agent = self._agent(m, order[0])
                m.agent.noticed_at = noticed
                m.agent.begin(age)

    def _step(self, m: Machine, age: float) -> None:
        spot = m.plan.market is Market.SPOT
        if m.slots == 0:
            if age >= m.boots_after:
                m.agent, m.slots = self._agent(m), 1
                m.agent.begin(age)
            elif spot and self.rand.random() < self.chances.killed:
                self.end(m, reclaimed=True)
            return
        if m.agent is None and not m.others:
            self._agents_of(m, age)
            if m.agent is None:
                return  # it waits for its next job
        if spot and m.noticed_at is None and self.rand.random() < self.chances.notice:
            for agent in m.agents:
                agent.noticed_at = age
        over = m.noticed_at is not None and age - m.noticed_at >= m.agents[0].notice_seconds
        if over or (self.rand.random() < self.chances.killed and not m.sure):
            self.end(m, reclaimed=spot)
            return
        self._agents_of(m, age)

    def _agent(self, machine: Machine, order: bytes | None = None) -> Agent:
        return Agent(machine, self.store, self.chances, self.rand, self.work, self.disks, order)
