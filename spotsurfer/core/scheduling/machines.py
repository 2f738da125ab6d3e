"""Machines that are kept: who may take one, and when it is ended. Pure.

A kept machine takes one job after the other, all of its owner. It stays for as long as a job could use it; see
docs/design/machines.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotsurfer_wire.oom_freeze_levels import room_for_all

from spotsurfer.core.facts.attempt_view import AttemptView, wanted
from spotsurfer.core.scheduling.placement import asked, too_little
from spotsurfer.model.actions import Action, EndMachine, Leave, MachineGone, Terminate
from spotsurfer.model.job import HOLDS, OVER, WAITS, Attempt, Job, JobState, rehearses
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.machine import Machine, MachineState
from spotsurfer.model.market import Gpus, Offer
from spotsurfer.model.snapshot import AgentSeen, JobSeen, Limits, MachineSeen, Snapshot

DEARER = 1.25  # so much more than the best offer a machine may cost that is there already: another one has to boot first
SHORT_SECONDS = 30.0  # a job that began a shorter time ago may be one of many short ones
STAYS = frozenset(
    {A.FINISHED, A.DRAINED, A.PLANNED, A.REQUESTED, A.BOOTING, A.READY}
)  # left from these, nothing is wrong with it


def keep_seconds(job: Job, offer: Offer, limits: Limits) -> float:
    """How long a machine that is bought for this job is kept without one; 0 = it goes with the job."""
    return limits.idle_seconds if offer.pool.provider in limits.keeps and may_share(job) else 0.0


def may_share(job: Job) -> bool:
    """Whether a job may be on a kept machine.

    No rehearsal, for which it is walled off, none with ports, which it opens, and none with GPUs: slots were never tried so.
    """
    return not (rehearses(job) or job.spec.ports or asked(job.spec))


def offer_of(m: Machine) -> Offer:
    """The machine as it was bought."""
    prices = (m.price_usd_micros_per_hour, m.list_price_usd_micros_per_hour)
    return Offer(m.pool, m.market, *prices, m.cpus, m.memory_bytes, gpus=Gpus(count=m.gpus), disk_bytes=m.disk_bytes)


def slot_empty(attempt: Attempt, agent: AgentSeen | None) -> bool:
    """Whether nothing of an attempt that left a kept machine runs there, nor will: its agent says so, or got no order."""
    never = bool(attempt.slot) and attempt.launched_at is None
    return attempt.state is A.RELEASING and (never or (agent is not None and agent.workload_dead))


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job on a machine."""

    seen: JobSeen
    attempt: Attempt

    @property
    def agent(self) -> AgentSeen | None:
        """Its agent."""
        return self.seen.agents.get(self.attempt.number)

    @property
    def gone(self) -> bool:
        """Nothing of it runs there any more. Its command has ended, if the agent closed the job; the controller may close one
        whose command does not know yet."""
        if self.attempt.state not in (A.FINISHED, *HOLDS):
            return slot_empty(self.attempt, self.agent)
        head, dead = self.seen.head, self.agent is not None and self.agent.workload_dead
        closed = head is not None and head.done and head.epoch == self.attempt.number and not head.cancelled
        return closed or (dead and self.attempt.state is A.FINISHED)


class Fleet:
    """The kept machines during one decision: what was taken for earlier jobs is not free for later ones."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._snapshot, self._now, self._limits = snapshot, now, snapshot.limits
        self._tenants: defaultdict[str, list[Tenant]] = defaultdict(list)
        self._taken: defaultdict[str, list[JobSeen]] = defaultdict(list)
        self._starving = [s for s in snapshot.jobs if snapshot.machines and _starves(s)]
        for seen in snapshot.jobs if snapshot.machines else ():
            for a in seen.attempts:
                if a.state not in OVER and a.token in snapshot.machines:
                    self._tenants[a.token].append(Tenant(seen, a))

    # ---- who takes one

    def choose(self, seen: JobSeen, ranked: Sequence[Offer]) -> MachineSeen | None:
        """The machine to take instead of buying one of these offers, the best of which comes first; None = buy."""
        if not self._snapshot.machines or not ranked or not may_share(seen.job):
            return None
        kinds = {(o.pool.instance_type, o.market) for o in ranked}
        most = DEARER * ranked[0].price_usd_micros_per_hour
        mine = {a.token for a in seen.attempts if a.state not in OVER}
        fit = [
            m
            for m in self._snapshot.machines.values()
            if (m.machine.pool.instance_type, m.machine.market) in kinds
            and m.machine.price_usd_micros_per_hour <= most
            and m.machine.token not in mine
            and too_little(seen.job, offer_of(m.machine)) is None
            and self._may_use(seen.job, m)
            and self._has_room(m, seen)
        ]
        return min(fit, key=self._preference, default=None)

    def take(self, m: MachineSeen, seen: JobSeen) -> None:
        """This job has its place there."""
        self._taken[m.machine.token].append(seen)

    def _may_use(self, job: Job, m: MachineSeen) -> bool:
        return m.machine.owner == job.owner and self._sound(m)

    def _sound(self, m: MachineSeen) -> bool:
        """Nothing speaks against one more job: it is there, will stay there as far as known, and lost none."""
        if m.machine.state is not MachineState.UP or m.noticed or m.instance is None or m.instance.gone or m.instance.reclaimed:
            return False
        return not any(self._spoils(t) for t in self._tenants[m.machine.token])

    def _spoils(self, t: Tenant) -> bool:
        a, agent = t.attempt, t.agent
        late = self._now - a.since > timedelta(seconds=self._limits.release_again_seconds)
        told = agent is not None and agent.notice_id is not None and agent.notice_kind == "interruption"
        return a.state is A.LOST or told or (a.state is A.RELEASING and not t.gone and late)

    def _preference(self, m: MachineSeen) -> tuple[bool, int, datetime, str]:
        """Those with jobs come first, so that others get empty and can be ended; then the cheapest."""
        return not self._jobs(m), m.machine.price_usd_micros_per_hour, m.machine.since, m.machine.token

    def _jobs(self, m: MachineSeen) -> list[tuple[JobSeen, int]]:
        """The jobs that are there, or will be, with the memory that they hold."""
        tenants = (t for t in self._tenants[m.machine.token] if not t.gone)
        there = [(t.seen, t.agent.resident_bytes if t.agent is not None else 0) for t in tenants]
        return [*there, *((seen, 0) for seen in self._taken[m.machine.token])]

    def _has_room(self, m: MachineSeen, new: JobSeen) -> bool:
        others = self._jobs(m)
        if not others:
            return True
        together = [*others, (new, 0)]
        if not all(_shares(seen) for seen, _ in together):
            return False
        memory = [(seen.job.spec.memory_bytes, used) for seen, used in together]
        return sum(s.job.spec.cpus for s, _ in together) <= m.machine.cpus and room_for_all(m.machine.memory_bytes, memory)

    # ---- who leaves one

    def left(self, c: AttemptView, order: Terminate) -> Action | None:
        """What to do instead of ending the machine with its attempt: the attempt alone leaves a machine that stays."""
        m = self._snapshot.machines.get(c.attempt.token)
        if m is None or m.machine.state is not MachineState.UP or c.gone:
            return order
        others = [t for t in self._tenants[c.attempt.token] if not t.gone and t.attempt.job != c.attempt.job]
        if c.attempt.state is A.RELEASING:  # its slot does not become empty
            return None if any(t.attempt.state is not A.RELEASING for t in others) else order
        sound = c.attempt.state in STAYS and not c.noticed and self._sound(m)
        if others or self._taken[c.attempt.token] or (sound and self._needed(m, c.seen)):
            return Leave(order.job, order.attempt, order.reason, order.gives_way_to)
        return order

    def _needed(self, m: MachineSeen, by: JobSeen | None = None) -> bool:
        """Whether another job could use it."""
        offer = offer_of(m.machine)
        owner, size = m.machine.owner, (offer.cpus, offer.memory_bytes, offer.gpus.count)
        if any(w.owner == owner and _within((w.cpus, w.memory_bytes, w.gpus), size) for w in self._snapshot.waiting):
            return True
        return any(
            s.job.owner == owner and s is not by and may_share(s.job) and too_little(s.job, offer) is None
            for s in self._starving
        )

    # ---- when it is ended

    def actions(self) -> Iterable[Action]:
        """The next step for each machine that nobody uses."""
        for m in self._snapshot.machines.values():
            token, there = m.machine.token, self._tenants[m.machine.token]
            if there or self._taken[token]:
                continue
            if m.machine.state is MachineState.RELEASING:
                yield from self._ending(m)
            elif (why := self._useless(m)) is not None:
                yield EndMachine(token, why)

    def _useless(self, m: MachineSeen) -> str | None:
        if not self._sound(m):
            return "it is gone, or will be soon"
        if not self._needed(m):
            return "no job could use it"
        idle = (self._now - (m.machine.idle_since or m.machine.since)).total_seconds()
        return f"nobody used it for {idle:.0f} s" if idle > m.machine.keep_seconds else None

    def _ending(self, m: MachineSeen) -> Iterable[Action]:
        since = m.machine.since
        listed = self._snapshot.listed_at(m.machine.pool.provider)
        lag = timedelta(seconds=self._limits.listing_lag_seconds)
        if m.instance.gone if m.instance is not None else listed is not None and listed - since >= lag:
            yield MachineGone(m.machine.token, "the machine is gone")
        elif self._now - since > timedelta(seconds=self._limits.release_again_seconds):
            yield EndMachine(m.machine.token, "it is still there")

    @property
    def hurry(self) -> bool:
        """Whether a job waits for nothing but a machine that runs: look again at once."""
        return any(self._taken.values()) or any(self._moves(t) for some in self._tenants.values() for t in some)

    def _moves(self, t: Tenant) -> bool:
        """It is about to start on a machine that runs; or it began a moment ago, may be as short, and others wait."""
        a = t.attempt
        if a.state in HOLDS and a.granted_at is not None and (self._starving or self._snapshot.waiting):
            return self._now - a.granted_at < timedelta(seconds=SHORT_SECONDS)
        return bool(a.slot) and (a.state in WAITS or a.state is A.RESTORING)


def _shares(seen: JobSeen) -> bool:
    """Whether it can run beside others: GPUs are not divided, and its part of the memory goes by what it was submitted with."""
    return not (asked(seen.job.spec) or seen.size is not None or seen.memory_floor_bytes)


def _within(asked_for: Sequence[int], there: Sequence[int]) -> bool:
    return all(a <= b for a, b in zip(asked_for, there, strict=True))


def _starves(seen: JobSeen) -> bool:
    """Whether a job wants to run and has no machine, nor one on order."""
    if not wanted(seen) or seen.job.state not in (JobState.QUEUED, JobState.ACTIVE):
        return False
    return not any(a.state not in OVER and a.state not in (A.RELEASING, A.LOST, A.DRAINED) for a in seen.attempts)


def uncounted(snapshot: Snapshot) -> tuple[int, int]:
    """By how much attempts miscount kept machines: machines, and micro-dollars an hour. One without an attempt counts, too, and
    one with several counts once."""
    there = defaultdict[str, int](int)
    for seen in snapshot.jobs if snapshot.machines else ():
        for a in seen.attempts:
            there[a.token] += a.state not in OVER
    off = [(1 - there[token], m.machine.price_usd_micros_per_hour) for token, m in snapshot.machines.items()]
    return sum(n for n, _ in off), sum(n * price for n, price in off)
