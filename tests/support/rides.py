"""A job of changing size under the controller's eyes: windows in a database, `Courses`, `decide`; machines are only rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire.messages import AgentState, NearMiss, Report
from spotsurfer_wire.oom_freeze_levels import pressed_at
from spotsurfer_wire.usage import Window
from support.builders import JOB, NOW, a_head, a_job, a_snapshot, an_agent, an_attempt, an_instance

from spotsurfer.controller.jobs.rightsizing import Make, Rightsizing, Sizes
from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.rightsizing import SizeRules
from spotsurfer.model.actions import Decision, Plan, Terminate
from spotsurfer.model.job import WAITS, Attempt, AttemptNumber, Job
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Cooldown, Market, Offer, Pool
from spotsurfer.model.snapshot import AgentSeen, HeadSeen, JobSeen
from spotsurfer.state import usage_history
from spotsurfer.state.db import open_database

GIB = 1 << 30
SLICE = 10.0
TYPES = {"a.small": (2, 4, 50_000), "a.medium": (4, 8, 100_000), "a.large": (8, 32, 300_000)}  # cores, GiB, microdollars


def pool(name: str) -> Pool:
    return Pool("virtual", "r", "a", name)


OFFERS = [Offer(pool(name), Market.SPOT, usd, usd, cpus, gib * GIB) for name, (cpus, gib, usd) in TYPES.items()]


def usable(name: str) -> float:
    """Where the guard of a machine of this type freezes the job."""
    return pressed_at(TYPES[name][1] * GIB)


def asks(**spec: object) -> Job:
    return a_job({"cpus": 4, "memory_bytes": 8 * GIB, "size_policy": "any", **spec})


@dataclass
class Ride:
    """One run. `boots`: slices of ten seconds until a machine that was ordered has the job."""

    make: Make
    job: Job = field(default_factory=asks)
    start: str = "a.medium"
    rules: SizeRules = field(default_factory=SizeRules)
    boots: int = 3
    protection: str = "criu"
    offers: list[Offer] = field(default_factory=lambda: list(OFFERS))
    cooldowns: list[Cooldown] = field(default_factory=list)
    now: datetime = NOW
    ordered_at: list[datetime] = field(default_factory=list)
    near_misses: int = 0
    alarms: list[str] = field(default_factory=list)
    words: dict[int, Report] = field(default_factory=dict)
    final: str | None = None  # the last save of the holder, as the head says
    taken: bool = False  # whether the cloud shows that the holder's machine is gone

    def __post_init__(self) -> None:
        self.engine = open_database(None)
        self.attempts = [self._attempt(1, self.start, A.RUNNING)]
        self.courses = self.anew()
        self._number, self._booted = 0, 0
        self._say()

    def anew(self) -> Rightsizing:
        """What a controller that starts knows."""
        self.courses = Rightsizing(self.engine, Sizes(self.make, rules=self.rules))
        return self.courses

    def _attempt(self, number: int, kind: str, state: A, purpose: str = "the job needs a machine") -> Attempt:
        owned = self.now if state is A.RUNNING else None
        made = an_attempt(number, state, pool=pool(kind), purpose=purpose, planned_at=self.now, since=self.now)
        return replace(made, granted_at=owned, launched_at=self.now, job=JOB)

    @property
    def here(self) -> Attempt:
        return max((a for a in self.attempts if a.granted_at is not None), key=lambda a: a.number)

    @property
    def kind(self) -> str:
        return self.here.pool.instance_type

    @property
    def waiter(self) -> Attempt | None:
        return next((a for a in self.attempts if a.state in WAITS), None)

    def use(self, memory_bytes: float, cores: float, arriving: float | None = None) -> None:
        """Ten seconds more. Where the memory has no room the job stands still until it was moved."""
        while memory_bytes > usable(self.kind):
            self._press(memory_bytes)
        self._number, m = self._number + 1, memory_bytes
        row = Window(self._number, SLICE, cores, cores, m, m, m, m, 0.0, 0.0, arriving_bytes=arriving)
        with self.engine.begin() as c:
            usage_history.add(c, JOB, int(self.here.number), [(self.now, row)])
        self.now += timedelta(seconds=SLICE)
        self.tick()
        if self.waiter is not None:
            self._booted += 1
            if self._booted >= self.boots:
                self._arrive()

    def _press(self, used: float) -> None:
        """Frozen: the larger machine is ordered and has the job, or there is none."""
        machine = TYPES[self.kind][1] * GIB
        self.near_misses += 1
        self._say(NearMiss(machine, int(usable(self.kind)), int(min(used, usable(self.kind)))))
        before = self.here.number
        for _ in range(3):  # what is too small is let go first
            self.tick(pressed=True)
            if self.waiter is not None and TYPES[self.waiter.pool.instance_type][1] * GIB > machine:
                self._arrive()
                break
        assert self.here.number != before, "nothing larger was ordered"

    def seen(self, pressed: bool = False) -> JobSeen:
        holder = self.here
        agents: dict[AttemptNumber, AgentSeen] = {}
        agents[holder.number] = an_agent("draining" if pressed else "running", pressed=pressed, protection=self.protection)
        instances = {holder.number: an_instance(int(holder.number), gone=True)} if self.taken else {}
        return JobSeen(self.job, tuple(self.attempts), instances, agents, head=self._head())

    def _head(self) -> HeadSeen:
        return a_head(int(self.here.number), checkpoint=self.final, final=self.final is not None)

    def snapshot(self, pressed: bool = False) -> JobSeen:
        """The job as `decide` sees it."""
        world = a_snapshot(self.seen(pressed), offers=self.offers, cooldowns=self.cooldowns)
        return self.courses.sized(world, lambda _: self._words(), world.jobs, self.now).jobs[0]

    def _words(self) -> dict[AttemptNumber, Report]:
        return {AttemptNumber(n): r for n, r in self.words.items()}

    def tick(self, pressed: bool = False) -> Decision:
        decision = decide(a_snapshot(self.snapshot(pressed), offers=self.offers), Cheapest(60, 0.2), self.now)
        self.alarms += decision.alarms
        for action in decision.actions:
            if isinstance(action, Terminate):
                self._change(action.attempt, state=A.RELEASED)
            if isinstance(action, Plan):
                kind = action.offer.pool.instance_type
                self.attempts.append(self._attempt(int(action.attempt), kind, A.BOOTING, action.reason))
                self._booted = 0
                if kind != self.kind:
                    self.ordered_at.append(self.now)
        return decision

    def _arrive(self) -> None:
        waiter, before = self.waiter, self.here
        assert waiter is not None
        self._change(before.number, state=A.RELEASED)
        self._change(waiter.number, state=A.RUNNING, granted_at=self.now, head_number=int(waiter.number), pause_seconds=2.0)
        self._say()

    def _change(self, number: AttemptNumber, **changes: object) -> None:
        self.attempts = [replace(a, **changes) if a.number == number else a for a in self.attempts]  # type: ignore[arg-type]

    def _say(self, miss: NearMiss | None = None) -> None:
        number = int(self.here.number)
        self.words[number] = Report(
            JOB, number, f"i-{number}", "0", 9, AgentState.RUNNING, 1, near_miss=miss, protection=self.protection
        )

    def foretell(self, memory_bytes: float = 0.0, cores: float = 0.0) -> None:
        """The job begins a stage and says what it needs."""
        number = int(self.here.number)
        said = {"hint": "sort", "hint_memory_bytes": int(memory_bytes), "hint_cores": cores}
        self.words[number] = replace(self.words[number], **said)  # type: ignore[arg-type]

    def most_in_an_hour(self) -> int:
        hour = timedelta(hours=1)
        return max((sum(m <= x < m + hour for x in self.ordered_at) for m in self.ordered_at), default=0)
