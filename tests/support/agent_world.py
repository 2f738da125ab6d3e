"""A world for the agent in which time is a number: a store that can fail in every way, and an engine whose job is a counter.

The job prints one line a second of its running time, so its output says whether work was lost or done twice. Its processes live
in a `Shim` that outlives the agent, as the real one does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spotsurfer_agent.control import loop
from spotsurfer_agent.control.loop import Agent
from spotsurfer_agent.control.metadata_service import ServiceNotice
from spotsurfer_agent.control.notices import Watcher
from spotsurfer_agent.control.state_file import StateFile
from spotsurfer_agent.ports.engine import EngineError, Protection, SaveRequest, SharedNews, Status, Still, WorkloadState
from spotsurfer_agent.restore import compatibility
from spotsurfer_agent.store.cache import DiskCache
from spotsurfer_wire import json_codec, log_pieces, manifest, messages, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import AgentConfig, Desired, Done, Head, HeadKind, Report, SaveFacts, Spec, Want
from spotsurfer_wire.store.port import Listed, ObjectStore, StoreError
from support.agent_service import Service
from support.agent_shim import Shim
from support.dict_store import DictStore as DictStore

JOB = "job-1"
KEYS = Keys.derive(b"", JOB)
LINE_BYTES = 9  # "%08d\n"


class AgentKilled(BaseException):
    """kill -9 of the agent at this very point."""


class Overwritten(BaseException):
    """A checkpoint would have taken the place of another: no code may catch this."""


class Circumstances(Protocol):
    """What an engine meets on its machine."""

    job: str
    unfit: list[str]  # what the preflight says
    facts_there: dict[str, str]  # of machines that save the job
    facts_here: dict[str, str]  # of machines that compare
    speaks_against: str  # what facts that are known only once the root is there say

    def trip(self, point: str) -> None:
        """Called at each point of a save or restore; may raise."""
        ...

    def measured(self, request: SaveRequest, seconds: float) -> SaveFacts:
        """What a save that took so long from freeze to commit moved."""
        ...


class FakeEngine:
    """The engine's port over a Shim."""

    name = "fake"
    note = ""

    def __init__(self, shim: Shim, store: ObjectStore, folder: Path, world: Circumstances) -> None:
        self.shim, self._store, self._folder, self._world = shim, store, folder, world
        self._job = world.job
        self._trip, self._last = world.trip, Status(WorkloadState.ABSENT)

    stands_still = False

    def thaw(self, why: str, jump_seconds: float) -> str:
        return ""

    def let_go(self) -> None: ...

    def protection(self) -> Protection:
        return Protection("criu")

    def shared(self) -> SharedNews:
        return SharedNews()

    def look(self) -> None: ...

    def prepare(self, spec: Spec, progress: Callable[[str], None]) -> None:
        self._trip("prepare")

    def unfit(self, manifest: Manifest, *, whole: bool = True) -> str:
        self._trip("compared")
        found = compatibility.refusal(manifest.facts, self._world.facts_here, str if whole else None)
        return found or (self._world.speaks_against if whole else "")

    def expect(self, manifest: Manifest | None) -> None:
        self._trip("expected")

    def await_end(self, seconds: float) -> bool:
        self._trip("end awaited")
        return True

    def expect_start(self) -> None:
        self._trip("start expected")

    def preflight(self) -> list[str]:
        return self._world.unfit

    def start(self, spec: Spec) -> None:
        self._trip("start")
        self.shim.phase, self.shim.since, self.shim.step = WorkloadState.RUNNING, self.shim.now(), spec.step
        self._trip("started")

    def signal(self, name: str) -> None:
        self._trip(f"signal {name}")
        self.shim.signals.append(name)
        if name in ("TERM", "KILL") and not (name == "TERM" and self.shim.stubborn):
            self.shim.advance()
            self.shim.phase, self.shim.exit_code = WorkloadState.EXITED, 143 if name == "TERM" else 137

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        self._trip(f"step {spec.step}")
        shim = self.shim
        assert shim.phase is not WorkloadState.RUNNING, "the step before has ended"
        assert log["out"] == shim.printed, "its output goes on where the step before ended"
        shim.phase, shim.since, shim.step, shim.cpu_from = WorkloadState.ABSENT, shim.now(), spec.step, shim.worked
        self._trip(f"between {spec.step}")
        shim.phase = WorkloadState.RUNNING
        self._trip(f"stepped {spec.step}")

    def go_on(self, spec: Spec) -> None:
        self._trip("go on")
        self.shim.phase, self.shim.since, self.shim.saved_itself = WorkloadState.RUNNING, self.shim.now(), False

    def save(self, request: SaveRequest) -> SaveFacts:
        shim = self.shim
        shim.advance()
        self._trip("freeze")
        worked = shim.worked
        log, began = {"out": shim.printed, "err": 0}, shim.now()
        cpu = request.cpu_seconds_before + shim.worked - shim.cpu_from
        kind, facts = "final" if request.final else "live", dict(self._world.facts_there)
        image = Manifest(
            id=request.checkpoint, job=self._job, epoch=request.epoch, sequence=request.sequence, kind=kind, engine=self.name,
            facts=facts, image=[], scratch=[], log=log, init_pipes={}, cpu_seconds=cpu, frozen_seconds=0.1, image_bytes=10,
            at="", steps=list(request.steps),
        )  # fmt: skip
        if request.final:
            shim.pending, shim.frozen_at = request.checkpoint, shim.now()
        try:
            request.progress("upload")
            self._trip("upload")
            if shim.phase is not WorkloadState.RUNNING:
                raise EngineError("save", "the job ended by itself during the save")
            self._store.create(object_keys.chunk_key(self._job, "aa" + request.checkpoint), str(worked).encode())
            self._trip("manifest")
            sealed = manifest.encode(image, Keys.derive(b"", self._job))
            key = object_keys.manifest_key(self._job, request.checkpoint)
            if not self._store.create(key, sealed) and self._store.get(key) != sealed:
                raise Overwritten(request.checkpoint)
            self._trip("commit")
        except (EngineError, StoreError) as e:
            shim.pending, shim.since = None, shim.now()
            raise e if isinstance(e, EngineError) else EngineError("save", str(e)) from e
        if not request.commit(image):
            shim.pending, shim.since = None, shim.now()
            raise EngineError("save", "not committed")
        self._trip("committed")
        if request.final and not request.keep:
            self._die()
        return self._world.measured(request, shim.now() - began)

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        self._trip("restore")
        worked = self._store.get(object_keys.chunk_key(self._job, "aa" + manifest.id))
        if worked is None:
            raise EngineError("restore", "a chunk is missing")
        shim = self.shim
        shim.worked = shim.cpu_from = float(worked)
        shim.phase, shim.since, shim.step = WorkloadState.RUNNING, shim.now(), spec.step
        self._trip("restored")

    def status(self) -> Status:
        (shim := self.shim).advance()
        if shim.phase is WorkloadState.ABSENT:  # what it used, only who saw it alive still knows
            return Status(WorkloadState.ABSENT, cpu_seconds=self._last.cpu_seconds, log=self._last.log)
        codes = dict(enumerate(shim.codes or [shim.exit_code]))
        code = codes.get(shim.step, 0) if shim.phase is WorkloadState.EXITED else None
        log, cpu = {"out": shim.printed, "err": 0}, shim.worked - shim.cpu_from
        arriving = 1 if shim.phase is WorkloadState.RUNNING and shim.now() < shim.arrives_at else None
        lost, miss = shim.lost_because, shim.near_miss
        still = shim.now() - shim.frozen_at if shim.pending is not None else 0.0
        self._last = Status(
            shim.phase, code, shim.held, cpu, 1, log, shim.pending, arriving, lost, shim.image_is_bad,
            step=shim.step, pending_seconds=still, saved_itself=shim.saved_itself, near_miss=miss,
        )  # fmt: skip
        return self._last

    def hold(self) -> None:
        self.shim.advance()
        self.shim.held = True

    def release(self) -> None:
        self.shim.advance()
        self.shim.held = False

    def unguard(self) -> None:
        self.shim.advance()
        self.shim.near_miss = None

    def kill(self) -> None:
        self._trip("kill")
        self._die()

    def _die(self) -> None:
        self.shim.advance()
        self.shim.phase, self.shim.pending, self.shim.held = WorkloadState.ABSENT, None, False
        self.shim.near_miss = None

    def adopt(self) -> Status:
        return self.status()

    def bring_back(self, image: Manifest) -> None:
        self._trip(f"brought back {image.id}")

    def end(self) -> None:
        """Its files are nowhere anyway."""

    def settle(self, committed: bool) -> None:
        self._trip("settle")
        if committed:
            self._die()
        self.shim.pending, self.shim.since = None, self.shim.now()

    def read_log(self, stream: str, offset: int, limit: int) -> bytes:
        self.shim.advance()
        return self.shim.output(offset)[:limit] if stream == "out" else b""

    @contextlib.contextmanager
    def still(self) -> Iterator[Still]:
        self._trip("still")
        yield Still(self.scratch(), True)

    def scratch(self) -> str:
        return str(self._folder)


@dataclass
class Machine:
    """One machine with its disk, its shim and its agent, which may be replaced."""

    world: World
    attempt: int
    folder: Path
    shim: Shim
    service: Service = field(default_factory=Service)
    agent: Agent | None = None

    def boot(self) -> Agent:
        """Start an agent process, the first one or the next."""
        w = self.world
        (self.folder / "scratch/work").mkdir(parents=True, exist_ok=True)
        given = loop.Surroundings(
            store=w.store,
            make_engine=lambda gate: FakeEngine(self.shim, gate, self.folder / "scratch", w),
            watcher=Watcher(self.service, w.clock),
            state=StateFile(self.folder / "state.json", JOB, self.attempt),
            keys=KEYS,
            cache=DiskCache(self.folder / "cache", 1 << 20),
            now=w.clock,
            wait=w.sleep,
        )
        self.agent = Agent(w.config(self.attempt), given)
        return self.agent

    def round(self, work: bool = True) -> None:
        """Everything that the threads do, once, one after the other."""
        agent = self.agent
        if agent is None or agent.over:
            return
        agent._given.watcher.look()
        agent.mailbox.poll()
        agent.tick()
        agent.look_ahead()
        if work:
            agent.worker.run_one()
            agent.tick()
        agent.partials.look()
        for look in (agent.push_logs, agent.reporter.send):
            try:
                look()
            except StoreError:
                continue
        agent.tick()

    @property
    def state(self) -> messages.AgentState:
        assert self.agent is not None
        return self.agent.state.name


def stitched(store: DictStore, job: str, attempt: int, stream: str) -> tuple[int, bytes]:
    """One attempt's output as its pieces give it: begin and bytes, without gaps; pieces that overlap say the same.

    Whatever the store does to those who ask it.
    """
    prefix = object_keys.attempt_log_prefix(job, attempt)
    listed = [Listed(key, len(data), "") for key, data in store.objects.items() if key.startswith(prefix)]
    pieces = [
        piece
        for found in map(log_pieces.parse_piece, listed)
        if found is not None and found[1] == stream
        for piece in [found[2]]
    ]
    begin, data = min((p.start for p in pieces), default=0), b""
    for s in log_pieces.cover(pieces):
        assert s.start == begin + len(data), f"gap at {begin + len(data)}"
        data += store.objects[s.key][s.skip : s.skip + s.end - s.start]
    for p in pieces:
        assert store.objects[p.key] == data[p.start - begin : p.end - begin], f"{p} says something else"
    return begin, data


class World:
    """Clock, store, controller's pen and machines."""

    def __init__(self, folder: Path, **spec: object) -> None:
        self.now = 10_000.0
        self.store = DictStore()
        self.folder = folder
        self.unfit: list[str] = []
        self.facts_there: dict[str, str] = {}  # of machines that save the job
        self.facts_here: dict[str, str] = {}  # of machines that compare
        self.speaks_against = ""  # what facts that are known only once the root is there say
        self.trips: dict[str, Callable[[], None]] = {}
        self.trail: list[str] = []
        self.job = JOB
        self.spec = Spec(**{"job": JOB, "command": ["count"], **spec})  # type: ignore[arg-type]
        self.store.objects[object_keys.spec_key(JOB)] = json_codec.encode(self.spec)
        self.machines: list[Machine] = []
        self.settings: dict[str, object] = {}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def trip(self, point: str) -> None:
        self.trail.append(point)
        if point in self.trips:
            self.trips[point]()

    def measured(self, request: SaveRequest, seconds: float) -> SaveFacts:
        kind = "final" if request.final else "live"
        return SaveFacts(request.checkpoint, request.sequence, kind, 10, 5, 0.1, 0.0, memory_bytes=10)

    def config(self, attempt: int) -> AgentConfig:
        return AgentConfig(job=JOB, attempt=attempt, store_url="memory:///", **self.settings)  # type: ignore[arg-type]

    def machine(self, attempt: int, **shim: float) -> Machine:
        folder = self.folder / f"machine-{attempt}"
        folder.mkdir(exist_ok=True)
        made = Machine(self, attempt, folder, Shim(self.clock, **shim))  # type: ignore[arg-type]
        self.machines.append(made)
        return made

    def heads(self) -> list[Head]:
        keys = sorted(k for k in self.store.objects if k.startswith(object_keys.head_prefix(JOB)))
        return [json_codec.decode(Head, self.store.objects[k]) for k in keys]

    def head(self, kind: HeadKind, epoch: int, **changes: object) -> Head:
        """The controller writes the next head entry."""
        last = self.heads()[-1] if self.heads() else None
        base = {
            "checkpoint": last.checkpoint if last else None,
            "sequence": last.sequence if last else 0,
            "cpu_seconds": last.cpu_seconds if last else 0.0,
            "final": False,
            "done": None,
        }
        number = last.number + 1 if last else 1
        made = Head(number=number, kind=kind, epoch=epoch, nonce=f"c{number}", at="", **{**base, **changes})  # type: ignore[arg-type]
        assert object_keys.head_key(JOB, number) not in self.store.objects
        self.store.objects[object_keys.head_key(JOB, number)] = json_codec.encode(made)
        return made

    def grant(self, attempt: int) -> Head:
        return self.head(HeadKind.GRANT, attempt)

    def cancel(self) -> Head:
        return self.head(HeadKind.DONE, self.heads()[-1].epoch, done=Done(None, "cancelled"))

    def want(self, attempt: int, want: Want, sequence: int, **more: object) -> None:
        made = Desired(sequence, want, **more)  # type: ignore[arg-type]
        self.store.objects[object_keys.desired_key(JOB, attempt)] = json_codec.encode(made)

    def report(self, attempt: int) -> Report:
        return json_codec.decode(Report, self.store.objects[object_keys.live_key(JOB, attempt)])

    def log(self, attempt: int, stream: str = "out") -> tuple[int, bytes]:
        """The attempt's output as its pieces give it: begin and bytes, without gaps; pieces that overlap say the same."""
        return stitched(self.store, JOB, attempt, stream)

    def turn(self, seconds: float = 1.0) -> None:
        """Time goes on by so much, then every machine does one round."""
        self.now += seconds
        for machine in self.machines:
            machine.round()

    def until(self, condition: Callable[[], bool], turns: int = 300) -> None:
        for _ in range(turns):
            if condition():
                return
            self.turn()
        raise AssertionError(f"not within {turns} turns; agents are {[m.state for m in self.machines if m.agent]}")


ACTION = ServiceNotice("interruption", "2026-01-01T00:02:00Z", 120.0)


def running(world: World, attempt: int = 1, **shim):
    """A machine whose attempt was granted and runs."""
    machine = world.machine(attempt, **shim)
    machine.boot()
    world.until(lambda: machine.state is messages.AgentState.STANDBY)
    world.turn()
    world.grant(attempt)
    world.until(lambda: machine.state is messages.AgentState.RUNNING)
    return machine


def cut(world: World, part: str = ""):
    """The store can't be reached any more for keys that contain `part`."""

    def fail(verb, key):
        if part in key:
            raise StoreError(f"{key}: unreachable")

    world.store.before = fail


def mend(world: World):
    world.store.before = lambda verb, key: None


def commits(world: World):
    return [h for h in world.heads() if h.kind is HeadKind.COMMIT]
