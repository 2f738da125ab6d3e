"""The virtual world with one job whose saves take as long as its shape and its link make them; notices of any length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulation import strand
from simulation.agents import Agent, Machine, config_of
from simulation.chances import calm
from simulation.virtual import Cloud
from simulation.world import World
from spotsurfer_agent.host.usage import Sampler
from spotsurfer_agent.ports.engine import SaveRequest
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Head, HeadKind, Report, SaveFacts, Spec
from support.notice_shapes import MB, Shape

from spotsurfer.model.job import Attempt, AttemptState, JobId
from spotsurfer.ports.provider import Capabilities

JOB = JobId("job-0")
INTERPRETER = 4 * MB  # what is in the memory of any such job
PROCESS_SECONDS, CARD_SECONDS = 0.05, 2.0  # of a freeze: for each process; to bring the memory of a GPU out
READ, FAST = 1000.0 * MB, 500.0 * MB  # bytes a second, of memory and of a link without limit
INTERVAL_SECONDS = 600.0


class Resident(Sampler):
    """Tells what the job has in memory."""

    def __init__(self, agent: ShapedAgent) -> None:
        super().__init__(Path("/nowhere"))
        self._agent = agent

    @property
    def resident_bytes(self) -> float:
        return self._agent.memory_bytes


class ShapedAgent(Agent):
    """A machine with such a job."""

    def __init__(self, machine: Machine, cloud: ShapedCloud) -> None:
        super().__init__(machine, cloud.store, cloud.chances, cloud.rand, cloud.work, cloud.disks)
        self.shape, self.notice_seconds = cloud.shape, cloud.notice_seconds
        self.grown = 0.0
        self._base: tuple[float, float] | None = None  # grown bytes and work in the newest checkpoint
        self._new = 0  # bytes of the save under way

    @property
    def memory_bytes(self) -> float:
        return INTERPRETER + self.shape.table * MB + self.grown

    def usage(self) -> Sampler:
        return Resident(self)

    def grow(self) -> None:
        """Now it takes more memory."""
        self.grown = float(self.shape.grows * MB)

    def trip(self, point: str) -> None:
        if point == "upload":
            self._new, now = self._new_bytes(), (self.grown, self.shim.worked)
            link = self.shape.link * MB if self.shape.link and self.number == 1 else FAST
            strand.wait(self._frozen() + self._new / link)
            self._base = now
            return
        super().trip(point)
        if point == "restored":
            self._base = (self.grown, self.shim.worked)

    def _frozen(self) -> float:
        shape = self.shape
        return self.memory_bytes / READ + PROCESS_SECONDS * shape.processes + CARD_SECONDS * shape.gpus

    def _image_bytes(self) -> float:
        return self.memory_bytes + self.shape.writes * MB * self.shim.worked

    def _new_bytes(self) -> int:
        if self._base is None:
            return int(self._image_bytes())
        grown, worked = self._base
        changed = self.shape.table * MB if self.shape.dirty else 0
        return int(changed + self.grown - grown + self.shape.writes * MB * (self.shim.worked - worked))

    def measured(self, request: SaveRequest, seconds: float) -> SaveFacts:
        """By this machine's rates; the job's world has whole seconds."""
        kind, size = "final" if request.final else "live", int(self._image_bytes())
        return SaveFacts(
            request.checkpoint, request.sequence, kind, size, self._new, self._frozen(), max(seconds, self._frozen()),
            memory_bytes=int(self.memory_bytes),
        )  # fmt: skip


class ShapedCloud(Cloud):
    """Nothing goes wrong on it but what the test does."""

    def __init__(self, world: ShapedWorld, work: int) -> None:
        super().__init__(world.clock, world.store, world.chances, world.rand, work)
        self.shape, self.notice_seconds = world.shape, world.notice_seconds
        self.capabilities = Capabilities(world.notice_seconds, "aws")

    def _agent(self, machine: Machine, order: bytes | None = None) -> Agent:
        return ShapedAgent(machine, self)


class ShapedWorld(World):
    """One job, which does not end by itself."""

    def __init__(self, shape: Shape, notice_seconds: float) -> None:
        self.shape, self.notice_seconds = shape, notice_seconds
        super().__init__(1, jobs=1, work=10_000, chances=calm())
        self.until_running()

    def _cloud(self, work: int) -> Cloud:
        return ShapedCloud(self, work)

    def submit(self, priority: int = 0) -> None:
        super().submit(priority)
        key = object_keys.spec_key(JOB)
        spec = replace(json_codec.decode(Spec, self.store.data[key][0]), checkpoint_interval_seconds=INTERVAL_SECONDS)
        self.store.data[key] = (json_codec.encode(spec), 0)

    def _user_data(self, attempt: Attempt) -> str:
        limits = self.limits
        keeps = limits.keep_seconds + limits.lease_seconds
        told = {"warm_wait_seconds": limits.warm_wait_seconds, "keep_seconds": keeps}
        return config_of(attempt, **told, notice_window_seconds=self.notice_seconds)

    @property
    def first(self) -> ShapedAgent:
        """The agent of the first machine."""
        agent = next(iter(self.cloud.machines.values())).agent
        assert isinstance(agent, ShapedAgent)
        return agent

    def report(self) -> Report:
        """Of that agent."""
        return json_codec.decode(Report, self.store.data[object_keys.live_key(JOB, 1)][0])

    def heads(self) -> list[Head]:
        log = HeadLog(self.store, JOB)
        log.refresh()
        return log.entries

    def commits(self) -> int:
        return sum(e.kind is HeadKind.COMMIT for e in self.heads())

    def reclaim(self) -> None:
        """The cloud takes the first machine, with or without a notice."""
        if self.notice_seconds > 0:
            self.first.noticed_at = self.first.now
        else:
            self.cloud.end(next(iter(self.cloud.machines.values())), reclaimed=True)

    def runs_elsewhere(self) -> bool:
        return any(a.number == 2 and a.state is AttemptState.RUNNING for a in self.attempts[JOB])
