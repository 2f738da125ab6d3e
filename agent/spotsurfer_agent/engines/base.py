"""What every engine that keeps a job under a shim has in common: start, status, freezing, output, the end.

It holds no state that a restarted agent would miss: the shim knows what runs, the store what is saved.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_wire import sealed_objects
from spotsurfer_wire.chunks.budget import USUAL, Limits
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.port import ObjectStore

from spotsurfer_agent.chunks.fingerprints import Bases
from spotsurfer_agent.files import identity, scratch, tree
from spotsurfer_agent.gpu.suspend_resume import MARKER
from spotsurfer_agent.host import hints, hooks, launch, network, preflight, root_fs, shim_protocol, steps
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, Status, Still, WorkloadState
from spotsurfer_agent.prepare import environment
from spotsurfer_agent.prepare.environment import PATH, UnknownUser, World
from spotsurfer_agent.prepare.images.cache import Images
from spotsurfer_agent.prepare.images.registry import ImageRules
from spotsurfer_agent.restore import compatibility, pager_process
from spotsurfer_agent.shim import output
from spotsurfer_agent.shim.client import ShimClient, killed, near_miss
from spotsurfer_agent.store.credentials import StoreAccess

# ---- Marks on disk of a program that saves itself: the next agent process learns what this one ordered.


class Marks:
    """The marks of one folder's job.

    Told: a save is under way. Final: its final entry may exist, so the job must not run on. Late: a save is over, and the
    program may still end because of it, or has ended: that is no end of the job. While the program is being started again, Late
    also holds what it had used, because its exit status is removed before the new one runs.
    """

    def __init__(self, folder: Path) -> None:
        self._final, self._told, self._late = folder / "app-final", folder / "app-told", folder / "app-late"

    def tell(self, done_exit: int | None) -> None:
        """The program is about to be told to save itself; `done_exit`: how it ends by that, if it does."""
        shim_protocol.write_durably(self._told, {"done_exit": done_exit})

    def final(self) -> None:
        """The final entry of the save under way may exist from now on."""
        self._final.touch()

    @property
    def is_told(self) -> bool:
        """A save is under way, or was when an agent died."""
        return self._told.exists()

    @property
    def is_final(self) -> bool:
        """Nothing of the job may run any more."""
        return self._final.exists()

    def over(self) -> None:
        """The save has ended, well or not, and the job goes on."""
        self._final.unlink(missing_ok=True)
        told = shim_protocol.read_json(self._told) or {}
        if told.get("done_exit") is None:
            self._told.unlink(missing_ok=True)
        else:
            self._told.replace(self._late)

    def again(self, ended: Status) -> None:
        """The program ended like this and is about to be started again."""
        note = {"done_exit": ended.exit_code, "log": ended.log, "cpu_seconds": ended.cpu_seconds}
        shim_protocol.write_durably(self._late, note)

    def runs(self) -> None:
        """An agent takes over a job that runs: the one before may have died when it had just started it again."""
        if "log" in (shim_protocol.read_json(self._late) or {}):
            self._late.unlink(missing_ok=True)

    def ended(self) -> None:
        """No save is under way: nothing of the job runs any more, or the program could not be told."""
        for mark in (self._final, self._told):
            mark.unlink(missing_ok=True)

    def forget(self) -> None:
        """The job has ended, or was started again."""
        self.ended()
        self._late.unlink(missing_ok=True)

    def seen(self, status: Status) -> Status:
        """The status; `saved_itself` if the program ended by saving itself while nobody waited for that."""
        if status.state is WorkloadState.RUNNING or (late := shim_protocol.read_json(self._late)) is None:
            return status
        if status.state is not WorkloadState.EXITED:
            return self._between(status, late)
        return dataclasses.replace(status, saved_itself=status.exit_code == late.get("done_exit") and not self.is_told)

    def _between(self, status: Status, late: dict[str, Any]) -> Status:
        """The shim is gone: only this mark knows how the program ended, if it ended by saving itself."""
        if "log" not in late:
            return status
        used = {"exit_code": late["done_exit"], "log": late["log"], "cpu_seconds": float(late["cpu_seconds"])}
        return dataclasses.replace(status, state=WorkloadState.EXITED, saved_itself=True, **used)


# ---- Hosted engines

PHASES = {
    "idle": WorkloadState.ABSENT,
    "starting": WorkloadState.ABSENT,
    "running": WorkloadState.RUNNING,
    "exited": WorkloadState.EXITED,
    "lost": WorkloadState.LOST,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """How a separate process reaches the store, and how it may restore."""

    way: StoreAccess
    key: str = ""  # the lineage's secret, in hexadecimal digits
    lazy: bool = True
    cache: str = ""  # folder of objects that were fetched ahead; "" = there is none
    workers: int | None = None  # see `PagerPlan`


class Hosted(abc.ABC):
    """The job of one base folder on this machine, under its shim. Engines add how it is saved and restored."""

    name = ""
    guarded = False  # frozen before its memory ends: only of use if a frozen job can be saved

    def __init__(
        self, base: Path, job: str, store: ObjectStore, tools: Tools, keys: Keys | None = None, origin: Origin | None = None
    ) -> None:
        """`origin`: how other processes reach the same store; needed for a restore."""
        self._base, self._job, self._store, self._tools, self._origin = base, job, store, tools, origin
        self._keys = keys or Keys.derive(b"", job)
        self._folder = base / "job"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("root", "log", "images"):
            (self._folder / name).mkdir(exist_ok=True)
        self._scratch = scratch.Scratch(base, tools.btrfs)
        self._scratch.make()
        self.world = World(base, job, Images(base, job, store, tools, self._registry_auth))
        self._keeper = ShimClient(base, tools)
        self.marks = Marks(self._folder)
        self._bases = Bases(self._folder, store, job, self._keys)
        self._limits, self._memory_bytes = USUAL, 0
        self._last = Status(WorkloadState.ABSENT)

    def limit(self, limits: Limits, memory_bytes: int) -> None:
        """Bounds of saves: of the chunk pipeline, and of memory held for an image (0 = half of what is free)."""
        self._limits, self._memory_bytes = limits, memory_bytes

    def _registry_auth(self) -> bytes | None:
        return sealed_objects.fetch_secrets(self._store, self._keys, self._job).get(sealed_objects.REGISTRY_AUTH)

    def keep_images(self, rules: ImageRules) -> None:
        """How container images are fetched and kept."""
        self.world.images.rules = rules

    # ------------------------------------------------------------ the port

    def preflight(self) -> list[str]:
        """Why this machine can't keep a job, one sentence each."""
        return preflight.hosting(self._base, self._tools)

    @abc.abstractmethod
    def save(self, request: SaveRequest) -> SaveFacts:
        """As the port says."""

    @abc.abstractmethod
    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """As the port says."""

    def scratch(self) -> str:
        """Absolute path of the job's scratch as the agent sees it."""
        return str(self._scratch.path)

    @contextlib.contextmanager
    def still(self) -> Iterator[Still]:
        """The scratch as it is now, for the length of a block. Raises OSError."""
        with self._scratch.still() as kept:
            yield Still(str(kept or self._scratch.path), kept is not None)

    def start(self, spec: Spec) -> None:
        """Start the command from the beginning. EngineError "start", "user"; "image", "store", "refused" for its image."""
        self.world.bring(spec)
        with self._or_dead():
            self._launch(spec, {})

    @contextlib.contextmanager
    def _or_dead(self) -> Iterator[None]:
        """The job is started in this block, or nothing of it is left. EngineError "user", "start"."""
        try:
            yield
        except (OSError, shim_protocol.ShimGone, shim_protocol.ShimRefused, tree.UnsafePath) as e:
            self.kill()
            kind = "user" if isinstance(e, UnknownUser) else "start"
            raise EngineError(kind, f"the command could not be started: {getattr(e, 'strerror', None) or e}") from e

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        """Start the command on what the step before it left. Raises EngineError("start")."""
        self._launch_again(spec, dict(log), 0.0)

    def go_on(self, spec: Spec) -> None:
        """As the port says."""
        ended = self.status()
        self.marks.again(ended)  # its exit status goes with its shim, before the new one is there
        self._launch_again(steps.again(spec), dict(ended.log or {}), ended.cpu_seconds)

    def _launch_again(self, spec: Spec, log: dict[str, int], used: float) -> None:
        self.world.bring(spec)
        with self._or_dead():
            self._end()
            self._last = Status(WorkloadState.ABSENT, cpu_seconds=used, log=log)
            self._launch(spec, log, goes_on=True, used=used)
            self.marks.forget()

    def pids(self) -> list[int]:
        """The processes of the job, as numbered here."""
        return self._cgroup().pids()

    def machine_facts(self, spec: Spec | None = None) -> dict[str, str]:
        """The facts that are compared before an image of this engine is continued here. Raises StoreError."""
        mounts = root_fs.compared(self.world.mounts(str(self._scratch.path), spec))
        facts = compatibility.machine_facts(
            preflight.criu_version(self._tools), str(self._base), mounts, self.world.digest(spec)
        )
        path = self._scratch.path
        return {**facts, compatibility.NUMBERS: identity.inode_fact(path), compatibility.ORDER: identity.listing_fact(path)}

    def plain_facts(self, spec: Spec | None = None) -> dict[str, str]:
        """The facts that are compared before the job is started anew from its files here. Raises StoreError."""
        return compatibility.plain(str(self._base), self.world.digest(spec))

    def sees(self, spec: Spec | None) -> Callable[[str], str] | None:
        """Translates a path that the job sees into one of this machine; None while its root is not here."""
        scratch_path = str(self._scratch.path)
        return self.world.place(self._mounts()) if spec is None else self.world.to_come(scratch_path, spec)

    def run_inside(self, words: list[str], limit_seconds: float) -> None:
        """Run a command beside the job, in its namespaces and as its user. Raises HookFailed."""
        try:
            root = int(self._ask("status")["root_pid"])
        except (shim_protocol.ShimGone, shim_protocol.ShimRefused) as e:
            raise hooks.HookFailed(f"`{' '.join(words)}` was not run: {e}") from e
        hooks.run(self._tools, root, self._cgroup(), words, limit_seconds)

    def _launch(self, spec: Spec, log: dict[str, int], *, goes_on: bool = False, used: float = 0.0) -> None:
        """Start the command under a new shim, on the files that are there; `log`: how much output it has already.

        `goes_on`: on this machine, so its output is kept. `used`: seconds of processor that it had here before.
        """
        plan = self._plan(spec, owned=goes_on)
        if not goes_on:
            self._fresh_logs()
        self._spawn()
        plan = self._placed(plan)
        resources = self._keeper.resources(guarded=self.guarded)
        self._ask("start", plan=dataclasses.asdict(plan), log=log, used=used, **resources)

    def status(self) -> Status:
        """The workload now."""
        return self.marks.seen(killed(self._seen(), self._cgroup()))

    def _seen(self) -> Status:
        try:
            told = self._ask("status")
        except (shim_protocol.ShimGone, shim_protocol.ShimRefused):
            return self._status_without_shim()
        group, baseline = self._cgroup(), float(told["cpu_baseline"])
        state = PHASES[str(told["phase"])]
        if state is WorkloadState.ABSENT:
            return self._absent()
        self._last = Status(
            state,
            told["exit_code"],
            bool(told["held"]),
            group.used_since(baseline, self._last.cpu_seconds),  # ending the job removes the group first
            group.memory_bytes(),
            dict(told["log"]),
            told["pending_final"],
            pending_seconds=float(told.get("pending_seconds", 0.0)),
            step=int(told.get("step", 0)),
            near_miss=near_miss(told.get("pressed")),
        )
        return self._arriving(self._last)

    def _arriving(self, status: Status) -> Status:
        """The status with the memory that still comes behind the running job; if that memory can't come, the job is lost."""
        if status.state not in (WorkloadState.RUNNING, WorkloadState.LOST):
            return status
        seen = pager_process.arrival(self._folder, self._cgroup())
        if seen.loss is None:
            return dataclasses.replace(status, arriving_bytes=seen.arriving_bytes)
        bad = seen.loss.blame == pager_process.BLAME_IMAGE
        return dataclasses.replace(status, state=WorkloadState.LOST, lost_because=seen.loss.sentence, image_is_bad=bad)

    def hold(self) -> None:
        """Stop all processes of the job where they are. Idempotent."""
        try:
            self._ask("hold")
        except shim_protocol.ShimRefused as e:  # a process that hangs in the kernel does not stop
            raise EngineError("save", f"the job can't be held: {e}") from e
        except shim_protocol.ShimGone:
            if self._cgroup().exists():
                self._cgroup().freeze()

    def release(self) -> None:
        """Undo `hold`. Idempotent."""
        try:
            self._ask("release")
        except shim_protocol.ShimRefused as e:
            raise EngineError("save", f"the job can't be released: {e}") from e
        except shim_protocol.ShimGone:
            self._cgroup().thaw()

    def unguard(self) -> None:
        """Let a job go on that was frozen because its memory was about to end. Idempotent."""
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            self._ask("unguard")

    def expect(self, manifest: Manifest) -> None:  # noqa: B027 -- most have nothing to start
        """Start what can be started before a restore is ordered."""

    def kill(self) -> None:
        """Kill all processes of the job, drop its scratch and whatever a save left. Idempotent."""
        self._end()
        self._scratch.empty()
        self._scratch.make()
        (self._folder / shim_protocol.EXIT).unlink(missing_ok=True)
        self.marks.forget()
        self._bases.forget()

    def adopt(self) -> Status:
        """Take over what an earlier agent of this machine left running."""
        with contextlib.suppress(shim_protocol.ShimGone):
            told = shim_protocol.ask(self._folder, "hello")
            if told["version"] > shim_protocol.VERSION:
                raise EngineError(
                    "start", f"the job's keeper speaks version {told['version']}, this agent only {shim_protocol.VERSION}"
                )
        if (status := self.status()).state is WorkloadState.RUNNING:
            self.marks.runs()
        if self._dumping() is None:
            self._clean_images()
        return status

    def settle(self, committed: bool) -> None:
        """Give the verdict for `pending_final`."""
        checkpoint = self.status().pending_final
        if checkpoint is None:
            return
        self._ask("verdict", checkpoint=checkpoint, good=committed)
        self._clean_images()
        if committed:
            self._end()

    def read_log(self, stream: str, offset: int, limit: int) -> bytes:
        """Output of the job from an absolute offset."""
        return output.read_segments(self._folder / "log", stream, offset, limit)

    # ------------------------------------------------------------ parts

    def _plan(self, spec: Spec, *, owned: bool) -> launch.LaunchPlan:
        begin = self.world.beginning(spec, self._scratch.path)
        who = begin.account
        bag = self.bag(spec)
        for name in () if owned else ("work", "home", hints.INSIDE):  # an earlier step has given its files to whom it liked
            scratch.own(self._scratch.path / name, who.uid, who.gid)
        variables = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            **begin.environment,
            "HOME": f"{self._base}/home",
            "USER": who.name,
            "SPOTSURFER_JOB": self._job,
            **compatibility.cpu_cap_environment(spec.cpu),
            **environment.nccl_environment(spec.environment, spec.gpus),
            **spec.environment,
            **bag.environment,
        }
        hints.lay(self._scratch.path)
        variables = hints.environment(variables, str(self._base))
        argv = [f"{self._base}/{scratch.lay_init(self._scratch.path, self._tools.tini)}", "-g", "--", *begin.words]
        plan = self._frame(argv=argv, environment=variables, folder=begin.folder)
        plan = dataclasses.replace(plan, uid=who.uid, gid=who.gid, groups=who.groups)
        return dataclasses.replace(plan, secrets=bag.files, hides=bool(spec.secrets), step=spec.step, ports=spec.ports)

    def _frame(self, *, argv: list[str], environment: dict[str, str], folder: str) -> launch.LaunchPlan:
        return launch.LaunchPlan(
            argv=argv,
            environment=environment,
            folder=folder,
            uid=0,
            gid=0,
            groups=[],
            root=str(self._folder / "root"),
            base=str(self._base),
            scratch=str(self._scratch.path),
            host=self.world.host,
            cgroups=[],
            image=self.world.path,
            extra=[dataclasses.asdict(m) for m in self.world.brought()],
        )

    def _placed(self, plan: launch.LaunchPlan) -> launch.LaunchPlan:
        """The plan with the control groups to join: they are below the shim's, which is known once the shim is there."""
        return dataclasses.replace(plan, cgroups=self._cgroup().entries())

    def bag(self, spec: Spec) -> environment.SecretBag:
        """The job's secrets. Raises StoreError, EngineError("secrets") if they do not open."""
        try:
            return environment.fetch_secret_bag(self._store, self._keys, spec)
        except sealed_objects.SecretsLost as e:
            raise EngineError("secrets", str(e)) from e

    def owner(self, spec: Spec) -> tuple[int, int]:
        """User and group that the job begins with. Raises UnknownUser."""
        who = self.world.account(spec)
        return who.uid, who.gid

    def _spawn(self) -> None:
        """A shim for this job; returns when it answers."""
        self._make_secret_places()
        self._keeper.spawn()

    def _make_secret_places(self) -> None:
        """Make the folder for the secrets of a job with a root of its own: it has to exist before the job does."""
        if (run := self._scratch.path / "run").is_dir():
            (run / Path(root_fs.SECRETS.target).name).mkdir(exist_ok=True)

    def _ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        return self._keeper.ask(verb, **arguments)

    def _cgroup(self) -> JobCgroup:
        return self._keeper.cgroup()

    def _tool_group(self) -> JobCgroup:
        return self._keeper.tool_group()

    def _mounts(self) -> list[root_fs.Mount]:
        return self.world.mounts(str(self._scratch.path))

    def _status_without_shim(self) -> Status:
        ended = shim_protocol.read_json(self._folder / shim_protocol.EXIT)
        if ended is not None:
            code, log, step = ended["exit_code"], dict(ended["log"]), int(ended.get("step", 0))
            used = float(ended.get("cpu_seconds", self._last.cpu_seconds))
            return Status(WorkloadState.EXITED, code, False, used, 0, log, step=step)
        if (self._folder / shim_protocol.STARTED).exists():
            return self._arriving(dataclasses.replace(self._absent(), state=WorkloadState.LOST))
        return self._absent()

    def _absent(self) -> Status:
        """Nothing runs; what it used and wrote while it did is still known."""
        return Status(WorkloadState.ABSENT, cpu_seconds=self._last.cpu_seconds, log=self._last.log)

    def _dumping(self) -> object:
        """What CRIU is doing: a checkpoint, or a restore; None = nothing."""
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            told = self._ask("status")
            return told["dumping"] or (told["phase"] if told["phase"] == "starting" else None)
        return None

    def _end(self) -> None:
        """Kill the processes and the shim; files stay."""
        self._keeper.kill()
        network.remove(self._tools)
        self._clean_images()
        (self._folder / shim_protocol.STARTED).unlink(missing_ok=True)
        (self._folder / MARKER).unlink(missing_ok=True)
        self.marks.ended()
        pager_process.forget(self._folder)
        self._keeper.forget()

    def _clean_images(self) -> None:
        shutil.rmtree(self._folder / "images", ignore_errors=True)
        (self._folder / "images").mkdir(exist_ok=True)
        self._scratch.drop_kept()

    def _fresh_logs(self) -> None:
        output.clear_segments(self._folder / "log")
        self._last = Status(WorkloadState.ABSENT)
