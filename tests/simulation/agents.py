"""Virtual machines and what runs on them: the real agent in virtual time, over an engine whose job is a number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from simulation import strand
from simulation.chances import Chances
from simulation.objects import Objects
from simulation.strand import Strand
from spotsurfer_agent.control import loop
from spotsurfer_agent.control.facts import Outcome, Task
from spotsurfer_agent.control.loop import Worker
from spotsurfer_agent.control.metadata_service import ServiceNotice
from spotsurfer_agent.control.notices import Watcher
from spotsurfer_agent.control.state_file import Memory, StateFile
from spotsurfer_agent.host.usage import Sampler
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, WorkloadState
from spotsurfer_agent.store.cache import DiskCache
from spotsurfer_agent.store.layers import Retry, RetryingStore, WriteFence
from spotsurfer_wire import json_codec, messages
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.messages import AgentConfig, SaveFacts, Spec, Step
from spotsurfer_wire.store.port import StoreUnreachable
from support.agent_shim import Shim
from support.agent_world import FakeEngine

from spotsurfer.model.job import Attempt
from spotsurfer.ports.provider import KEPT_TAG, LaunchPlan

NOTICE_SECONDS = 20
LEASE_SECONDS = 8.0
SAVE_EVERY = 25.0
SETUP_SECONDS = 40.0  # of work in a step that is not protected
IMAGE_BYTES, SENT_PER_SECOND = 1 << 30, 80 << 20
RESTARTS_SECONDS = 3.0  # until there is another agent after one died
TURNS_MAX = 6  # of the loop in one second: what it wakes itself for


def spec_of(job: str) -> Spec:
    """What agents read of a job. Each second job begins with a step that is not saved."""
    setup = [Step("setup", ["setup"], protect=False), Step("main", ["work"])] if job.endswith("1") else []
    return Spec(job, ["work"], checkpoint_interval_seconds=SAVE_EVERY, image="docker://registry/image", steps=setup)


def config_of(attempt: Attempt, **settings: float) -> str:
    """User-data of a machine."""
    lease = attempt.lease_seconds or LEASE_SECONDS
    told: dict[str, float] = {
        "poll_seconds": 1.0,
        "report_seconds": 2.0,
        "hurry_seconds": 1.0,
        "lease_seconds": lease,
        "drain_margin_seconds": 1.0,
        "notice_window_seconds": float(NOTICE_SECONDS),
        **settings,
    }
    config = AgentConfig(attempt.job, attempt.number, "memory:///", **told)  # type: ignore[arg-type]
    return json_codec.encode(config).decode()


@dataclass
class Machine:
    """An instance and the agent on it."""

    id: str
    plan: LaunchPlan
    born: datetime
    boots_after: float
    sure: bool
    visible_after: float
    gone_at: datetime | None = None
    reclaimed: bool = False
    registry_down: bool = False
    agent: Agent | None = field(default=None)  # that came last
    others: list[Agent] = field(default_factory=list)  # that came before and are there still
    slots: int = 0  # that were looked at; the first one is that of user-data

    @property
    def agents(self) -> list[Agent]:
        """All that are there."""
        return [*self.others, *([self.agent] if self.agent is not None else [])]

    @property
    def noticed_at(self) -> float | None:
        """When its notice came."""
        return next((a.noticed_at for a in self.agents if a.noticed_at is not None), None)

    @property
    def kept(self) -> bool:
        """It takes further jobs."""
        return self.plan.tags.get(KEPT_TAG) == "yes"


class Kept(StateFile):
    """The agent's memory, without a disk: it outlives the agent's process."""

    def _write(self, memory: Memory) -> None: ...


class Metadata:
    """The metadata service of one machine, as a dialect."""

    def __init__(self, host: Agent) -> None:
        self._host = host

    def notice(self) -> ServiceNotice | None:
        noticed = self._host.noticed_at
        left = None if noticed is None else self._host.notice_seconds - (self._host.now - noticed)
        return None if left is None else ServiceNotice("interruption", self._host.machine.id, left)

    def instance(self) -> str:
        return self._host.machine.id


class Agent:
    """One machine's agent, which may die and come again, with its job. A second is a `step`.

    It is also what its engine meets (`support.agent_world.Circumstances`): long work takes time, and fails by chance.
    """

    def __init__(
        self,
        machine: Machine,
        store: Objects,
        chances: Chances,
        rand: random.Random,
        work: int,
        folder: Path,
        order: bytes | None = None,
    ) -> None:
        self.machine, self.chances, self.rand = machine, chances, rand
        self.config = json_codec.decode(AgentConfig, machine.plan.user_data.encode() if order is None else order)
        self.job, self.number = self.config.job, self.config.attempt
        self.store = store.seen_by("agent", self._reach)
        self.now = 0.0
        self.cut = 0
        self.noticed_at: float | None = None
        self.notice_seconds = float(NOTICE_SECONDS)
        setup = min(SETUP_SECONDS, work / 2) if self.job.endswith("1") else 0.0
        code = 7 if rand.random() < chances.command_fails else 0
        self.shim = Shim(lambda: self.now, length=work, codes=[0, code] if setup else [], exit_code=code, before=setup)
        self.state = Kept(folder / "never", self.job, self.number)
        self.cache = DiskCache(folder / f"{machine.id}-{self.job}", IMAGE_BYTES)
        self.unfit: list[str] = []
        self.facts_there: dict[str, str] = {}
        self.facts_here: dict[str, str] = {}
        self.speaks_against = ""
        self.root_at = float("inf")  # when what the job brings is here; not before it was asked for
        self.saved_work = 0.0
        self.agent: loop.Agent | None = None
        self._due: dict[str, float] = {}
        self._task: Strand | None = None
        self._looking: Strand | None = None
        self._again_at = 0.0

    # ------------------------------------------------------------ what tests look at

    @property
    def work(self) -> float:
        """Seconds of the job that are done here."""
        return self.shim.worked

    @property
    def executing(self) -> bool:
        """The job's processes make progress here."""
        s = self.shim
        runs = s.phase is WorkloadState.RUNNING and not (s.held or s.near_miss) and s.pending is None
        return runs and self.machine.gone_at is None

    @property
    def unprotected(self) -> bool:
        """What it does now begins again elsewhere."""
        return self.shim.before > 0 and self.shim.step == 0

    # ------------------------------------------------------------ the machine

    def begin(self, now: float) -> None:
        """It has booted."""
        self.now = now
        self._boot()

    def usage(self) -> Sampler | None:
        """What measures the job."""
        return None

    def _boot(self) -> None:
        given = loop.Surroundings(
            store=self.store,
            make_engine=self._engine,
            watcher=Watcher(Metadata(self), lambda: self.now),
            state=self.state,
            keys=Keys.derive(b"", self.job),
            cache=self.cache,
            usage=self.usage(),
            now=lambda: self.now,
            wait=strand.wait,
        )
        agent = self.agent = loop.Agent(self.config, given)
        agent.worker = Worker(self._foreseen(agent.work.do), agent.wake)
        if agent.standby is not None:
            agent.standby.threads = 1  # so that a seed is always the same world
        self._due = dict.fromkeys(agent.tickers, self.now)

    def _engine(self, gate: WriteFence) -> FakeEngine:
        patient = RetryingStore(gate, Retry(now=lambda: self.now, wait=strand.wait))
        return FakeEngine(self.shim, patient, self.cache.folder.parent / "scratch", self)

    def _foreseen(self, do: Callable[[Task], Outcome]) -> Callable[[Task], Outcome]:
        def foreseen(task: Task) -> Outcome:
            try:
                return do(task)
            except Exception as e:  # the agent would go on; here it is a bug
                raise AssertionError(f"{task} of {self.job} failed in a way that nobody foresaw: {e!r}") from e

        return foreseen

    def _reach(self) -> None:
        strand.check()
        if self.cut:
            raise StoreUnreachable("the machine is cut off")

    def die(self) -> None:
        """The agent's process is killed, or its machine is: no task goes on."""
        for task in (self._task, self._looking):
            if task is not None:
                task.drop()
        self.agent = self._task = self._looking = None
        self._again_at = self.now + RESTARTS_SECONDS

    def step(self, now: float) -> bool:
        """A second more; True = the machine powers itself off."""
        self.now = now
        self.shim.advance()
        self._mishaps()
        if self.agent is None and now >= self._again_at:
            self._boot()
        agent = self.agent
        if agent is None:
            return False
        for name, ticker in agent.tickers.items():
            if name not in ("warm", "reporter") and (now >= self._due[name] or ticker.poked):
                self._due[name] = now + ticker.turn()
        agent.wake()
        self._turn(agent)
        self._look_ahead(agent)
        self._turn(agent)
        return agent.over

    def _turn(self, agent: loop.Agent) -> None:
        """What the loop and its worker do until they wait for something."""
        reporter = agent.tickers["reporter"]
        for _ in range(TURNS_MAX):
            if agent.woken:
                agent.turn()
            if agent.worker.busy:
                self._task = self._task or Strand(agent.worker.run_one, lambda: self.now)
                self._task.turn()
                self._task = None if self._task.over else self._task
            if not agent.over and (reporter.poked or self.now >= self._due["reporter"]):
                self._due["reporter"] = self.now + reporter.turn()
            if not agent.woken or agent.over:
                return

    def _look_ahead(self, agent: loop.Agent) -> None:
        """Fetching takes its time: it is a long task, too."""
        ticker = agent.tickers["warm"]
        if self._looking is None and (self.now >= self._due["warm"] or ticker.poked):
            self._looking = Strand(lambda: self._due.update(warm=self.now + ticker.turn()), lambda: self.now)
        if self._looking is not None:
            self._looking.turn()
            self._looking = None if self._looking.over else self._looking

    def _mishaps(self) -> None:
        """By chance."""
        waits = self.agent is not None and self.agent.state.name is messages.AgentState.STANDBY
        # Waiters wait seconds, holders minutes: cut more often, they meet it as often.
        if self.cut == 0 and self.rand.random() < self.chances.cut * (5 if waits else 1) and not self.machine.sure:
            self.cut = self.rand.randint(5, 40)
        self.cut = max(self.cut - 1, 0)
        if self.rand.random() < self.chances.agent_dies:
            self.die()
        arrives = self.shim.phase is WorkloadState.RUNNING and self.now < self.shim.arrives_at
        if arrives and self.rand.random() < self.chances.image_bad:
            self.shim.phase, self.shim.image_is_bad = WorkloadState.LOST, True
            self.shim.lost_because = "a chunk is missing"

    # ------------------------------------------------------------ what the engine meets

    def trip(self, point: str) -> None:
        """Long work takes time, and fails by chance."""
        if point == "prepare":
            self._prepare()
        elif point == "compared":
            self.speaks_against = "another processor" if self.rand.random() < self.chances.unfit else ""
        elif point in ("start", "restore"):
            strand.wait(self.rand.randint(0, 5))
            if self.rand.random() < self.chances.restore_fails:
                raise EngineError(self.rand.choice(["restore", "store", "refused", "refused"]), "the restore failed")
        elif point == "restored":
            self.saved_work = self.shim.worked
            self.shim.arrives_at = self.now + self.rand.randint(0, 6)
        elif point == "upload":
            final = self.shim.pending is not None
            strand.wait(self._new_bytes() / SENT_PER_SECOND + self.rand.randint(0, 3))
            if final and self.noticed_at is None and self.rand.random() < self.chances.save_fails:
                raise EngineError("save", "the final save failed")

    def _prepare(self) -> None:
        if self.rand.random() < self.chances.useless:
            raise EngineError("image", "the image is gone")
        if self.root_at == float("inf"):
            self.root_at = self.now + self.rand.randint(0, 4)
        strand.wait(max(self.root_at - self.now, 0.0))
        if self.machine.registry_down:
            self.root_at = float("inf")
            raise EngineError("store", "the registry can't be reached")
        self.root_at = self.now

    def _new_bytes(self) -> int:
        """The longer since the last save, the more."""
        return int(IMAGE_BYTES * min(0.1 + (self.shim.worked - self.saved_work) / 100, 1.0))

    def measured(self, request: SaveRequest, seconds: float) -> SaveFacts:
        """What a save that took so long from freeze to commit moved."""
        new, kind = self._new_bytes(), "final" if request.final else "live"
        self.saved_work = self.shim.worked
        name, number, took = request.checkpoint, request.sequence, max(seconds, 0.2)
        return SaveFacts(name, number, kind, IMAGE_BYTES, new, 0.1, took, memory_bytes=IMAGE_BYTES)
