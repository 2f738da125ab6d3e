"""The job of one machine under its shim: how it is prepared, started, watched and ended, whichever way it is saved.

It holds no state that a restarted agent would miss: the shim knows what runs, the store what is saved.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from spotsurfer_wire import json_codec, sealed_objects
from spotsurfer_wire.chunks.budget import USUAL, Limits
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux import memory, procfs
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import NearMiss, SaveFacts, Spec
from spotsurfer_wire.store.port import ObjectStore

from spotsurfer_agent.chunks.fingerprints import Bases
from spotsurfer_agent.engines.marks import Marks
from spotsurfer_agent.files import scratch, shared_plan, tree
from spotsurfer_agent.files.shared_plan import Step
from spotsurfer_agent.gpu.suspend_resume import MARKER
from spotsurfer_agent.host import hints, hooks, launch, network, preflight, root_fs, shim_protocol, steps
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, Status, Still, WorkloadState, blame, plainly
from spotsurfer_agent.prepare import environment
from spotsurfer_agent.prepare.environment import PATH, UnknownUser, World
from spotsurfer_agent.prepare.images.cache import Images
from spotsurfer_agent.prepare.inputs import shared_file_systems
from spotsurfer_agent.restore import compatibility, pager_process, shared_return
from spotsurfer_agent.save.shared_writes import SharedWrites
from spotsurfer_agent.shim import output
from spotsurfer_agent.shim.client import ShimClient
from spotsurfer_agent.store.credentials import StoreAccess

PHASES = {
    "idle": WorkloadState.ABSENT,
    "starting": WorkloadState.ABSENT,
    "running": WorkloadState.RUNNING,
    "exited": WorkloadState.EXITED,
    "lost": WorkloadState.LOST,
}
KILLED = "the kernel killed it, because this machine's memory ended"


@dataclass(frozen=True, slots=True)
class Origin:
    """How a separate process reaches the store, and how it may restore."""

    way: StoreAccess
    key: str = ""  # the lineage's secret, in hexadecimal digits
    lazy: bool = True
    cache: str = ""  # folder of objects that were fetched ahead; "" = there is none
    workers: int | None = None  # see `PagerPlan`


class JobHost:
    """The job of one base folder on this machine. Save methods use its parts."""

    guarded = False  # the job is frozen before its memory ends: only of use if a frozen job can be saved

    def __init__(
        self, base: Path, job: str, store: ObjectStore, tools: Tools, origin: Origin, keys: Keys | None = None
    ) -> None:
        """`origin`: how other processes reach the same store."""
        self.base, self.job, self.store, self.tools, self.origin = base, job, store, tools, origin
        self.keys = keys or Keys.derive(b"", job)
        self.limits: Limits = USUAL  # of the chunk pipeline in a save
        self.memory_bytes = 0  # held for an image in a save; 0 = half of what is free
        self.folder = base / "job"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("root", "log", "images"):
            (self.folder / name).mkdir(exist_ok=True)
        self.scratch_folder = scratch.Scratch(base, tools.btrfs)
        self.scratch_folder.make()
        self.world = World(base, job, Images(base, job, store, tools, self._registry_auth))
        self.shim = ShimClient(base, tools)
        self.marks = Marks(self.folder)
        self.bases = Bases(self.folder, store, job, self.keys)
        self.keeps, self.shares = SharedWrites(base, self.keys), base / shared_file_systems.FOLDER
        self.brought_back = ""  # what the newest restore did with files on shared file systems
        self._last = Status(WorkloadState.ABSENT)

    def _registry_auth(self) -> bytes | None:
        return sealed_objects.fetch_secrets(self.store, self.keys, self.job).get(sealed_objects.REGISTRY_AUTH)

    # ------------------------------------------------------------ preparing and starting it

    def prepare(self, spec: Spec, progress: Callable[[str], None]) -> None:
        """Have the job's image on this machine. Raises EngineError, StoreError."""
        self.world.prepare(spec, progress)

    def start(self, spec: Spec) -> None:
        """Start the command from the beginning. EngineError "start", "user"; "image", "store", "refused" for its image."""
        self.world.bring(spec)
        with self._or_dead():
            self.start_command(spec, {})

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        """Start the command on what the step before it left. Raises EngineError("start")."""
        self._launch_again(spec, dict(log), 0.0)

    def go_on(self, spec: Spec) -> None:
        """Start the program again that ended as it saved itself. Raises EngineError("start"), StoreError."""
        ended = self.status()
        self.marks.again(ended)  # its exit status goes with its shim, before the new one is there
        self._launch_again(steps.again(spec), dict(ended.log or {}), ended.cpu_seconds)

    def _launch_again(self, spec: Spec, log: dict[str, int], used: float) -> None:
        self.world.bring(spec)
        with self._or_dead():
            self.end()
            self._last = Status(WorkloadState.ABSENT, cpu_seconds=used, log=log)
            self.start_command(spec, log, goes_on=True, used=used)
            self.marks.forget()

    @contextlib.contextmanager
    def _or_dead(self) -> Iterator[None]:
        """The job is started in this block, or nothing of it is left. EngineError "user", "start"."""
        try:
            yield
        except (OSError, shim_protocol.ShimGone, shim_protocol.ShimRefused, tree.UnsafePath) as e:
            self.kill()
            kind = "user" if isinstance(e, UnknownUser) else "start"
            raise EngineError(kind, f"the command could not be started: {getattr(e, 'strerror', None) or e}") from e

    def start_command(self, spec: Spec, log: dict[str, int], *, goes_on: bool = False, used: float = 0.0) -> None:
        """Start the command under a new shim, on the files that are there; `log`: how much output it has already.

        `goes_on`: on this machine, so its output is kept. `used`: seconds of processor that it had here before.
        """
        plan = self._plan(spec, owned=goes_on)
        if not goes_on:
            self.fresh_logs()
        self.make_secret_places()
        self.shim.spawn()
        # The control groups to join are below the shim's, which is known only now.
        plan = dataclasses.replace(plan, cgroups=self.shim.cgroup().entries())
        resources = self.shim.resources(guarded=self.guarded)
        self.shim.ask("start", plan=dataclasses.asdict(plan), log=log, used=used, **resources)

    def _plan(self, spec: Spec, *, owned: bool) -> launch.LaunchPlan:
        top = self.scratch_folder.path
        begin = self.world.beginning(spec, top)
        who, bag = begin.account, self.bag(spec)
        for name in () if owned else ("work", "home", hints.INSIDE):  # an earlier step has given its files to whom it liked
            scratch.own(top / name, who.uid, who.gid)
        hints.lay(top)
        variables = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            **begin.environment,
            "HOME": f"{self.base}/home",
            "USER": who.name,
            "SPOTSURFER_JOB": self.job,
            **compatibility.cpu_cap_environment(spec.cpu),
            **environment.nccl_environment(spec.environment, spec.gpus),
            **spec.environment,
            **bag.environment,
        }
        return dataclasses.replace(
            self.world.surroundings(spec, bag, self.scratch()),
            argv=[f"{self.base}/{scratch.lay_init(top, self.tools.tini)}", "-g", "--", *begin.words],
            environment=hints.environment(variables, str(self.base)),
            folder=begin.folder,
            uid=who.uid,
            gid=who.gid,
            groups=who.groups,
            hides=bool(spec.secrets),
        )

    def bag(self, spec: Spec) -> environment.SecretBag:
        """The job's secrets. Raises StoreError, EngineError("secrets") if they do not open."""
        try:
            return environment.fetch_secret_bag(self.store, self.keys, spec)
        except sealed_objects.SecretsLost as e:
            raise EngineError("secrets", str(e)) from e

    def make_secret_places(self) -> None:
        """Make the folder for the secrets of a job with a root of its own: it has to exist before the job does."""
        if (run := self.scratch_folder.path / "run").is_dir():
            (run / Path(root_fs.SECRETS.target).name).mkdir(exist_ok=True)

    def fresh_logs(self) -> None:
        """Forget the output of an earlier run."""
        output.clear_segments(self.folder / "log")
        self._last = Status(WorkloadState.ABSENT)

    # ------------------------------------------------------------ watching it

    def scratch(self) -> str:
        """Absolute path of the job's scratch as the agent sees it."""
        return str(self.scratch_folder.path)

    @contextlib.contextmanager
    def still(self) -> Iterator[Still]:
        """The scratch as it is now, for the length of a block. Raises OSError."""
        with self.scratch_folder.still() as kept:
            yield Still(str(kept or self.scratch_folder.path), kept is not None)

    def read_log(self, stream: str, offset: int, limit: int) -> bytes:
        """Output of the job from an absolute offset."""
        return output.read_segments(self.folder / "log", stream, offset, limit)

    def pids(self) -> list[int]:
        """The processes of the job, as numbered here."""
        return self.shim.cgroup().pids()

    def mounts(self) -> list[root_fs.Mount]:
        """What the running job sees of this machine."""
        return self.world.mounts(self.scratch())

    def status(self) -> Status:
        """The workload now."""
        return self.marks.seen(lost_if_killed(self._seen(), self.shim.cgroup(), self.shim.memory_bytes))

    def await_end(self, seconds: float) -> bool:
        """Wait until the command that runs has ended, at most so long. Returns whether it has."""
        try:
            first = os.pidfd_open(int(self.shim.ask("status")["root_pid"]))
        except ProcessLookupError:
            return True
        except (shim_protocol.ShimGone, shim_protocol.ShimRefused, OSError):
            time.sleep(seconds)
            return False
        try:
            return bool(select.select([first], [], [], seconds)[0])
        finally:
            os.close(first)

    def _seen(self) -> Status:
        try:
            told = self.shim.ask("status")
        except (shim_protocol.ShimGone, shim_protocol.ShimRefused):
            return self._status_without_shim()
        group, baseline = self.shim.cgroup(), float(told["cpu_baseline"])
        state = PHASES[str(told["phase"])]
        if state is WorkloadState.ABSENT:
            return self._absent()
        if state is WorkloadState.RUNNING:
            self.shim.keep_to_part(guarded=self.guarded)
        pressed = told.get("pressed")  # a shim without a guard reports nothing
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
            near_miss=json_codec.known(NearMiss, pressed) if isinstance(pressed, dict) else None,
        )
        return self._arriving(self._last)

    def _status_without_shim(self) -> Status:
        ended = shim_protocol.read_json(self.folder / shim_protocol.EXIT)
        if ended is not None:
            code, log, step = ended["exit_code"], dict(ended["log"]), int(ended.get("step", 0))
            used = float(ended.get("cpu_seconds", self._last.cpu_seconds))
            return Status(WorkloadState.EXITED, code, False, used, 0, log, step=step)
        if (self.folder / shim_protocol.STARTED).exists():
            return self._arriving(dataclasses.replace(self._absent(), state=WorkloadState.LOST))
        return self._absent()

    def _absent(self) -> Status:
        """Nothing runs; what it used and wrote while it did is still known."""
        return Status(WorkloadState.ABSENT, cpu_seconds=self._last.cpu_seconds, log=self._last.log)

    def _arriving(self, status: Status) -> Status:
        """The status with the memory that still comes behind the running job; if that memory can't come, the job is lost."""
        if status.state not in (WorkloadState.RUNNING, WorkloadState.LOST):
            return status
        seen = pager_process.arrival(self.folder, self.shim.cgroup())
        if seen.loss is None:
            return dataclasses.replace(status, arriving_bytes=seen.arriving_bytes)
        bad = seen.loss.blame == pager_process.BLAME_IMAGE
        return dataclasses.replace(status, state=WorkloadState.LOST, lost_because=seen.loss.sentence, image_is_bad=bad)

    def adopt(self) -> Status:
        """Take over what an earlier agent of this machine left running."""
        with contextlib.suppress(shim_protocol.ShimGone):
            told = shim_protocol.ask(self.folder, "hello")
            if told["version"] > shim_protocol.VERSION:
                raise EngineError(
                    "start", f"the job's keeper speaks version {told['version']}, this agent only {shim_protocol.VERSION}"
                )
        if (status := self.status()).state is WorkloadState.RUNNING:
            self.marks.runs()
        if self.dumping() is None:
            self.clean_images()
        return status

    def dumping(self) -> object:
        """What CRIU is doing: a checkpoint, or a restore; None = nothing."""
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            told = self.shim.ask("status")
            return told["dumping"] or (told["phase"] if told["phase"] == "starting" else None)
        return None

    # ------------------------------------------------------------ holding it, and letting it go on

    def hold(self) -> None:
        """Stop all processes of the job where they are. Idempotent."""
        try:
            self.shim.ask("hold")
        except shim_protocol.ShimRefused as e:  # a process that hangs in the kernel does not stop
            raise EngineError("save", f"the job can't be held: {e}") from e
        except shim_protocol.ShimGone:
            if self.shim.cgroup().exists():
                self.shim.cgroup().freeze()

    def release(self) -> None:
        """Undo `hold`. Idempotent."""
        try:
            self.shim.ask("release")
        except shim_protocol.ShimRefused as e:
            raise EngineError("save", f"the job can't be released: {e}") from e
        except shim_protocol.ShimGone:
            self.shim.cgroup().thaw()

    def signal(self, name: str) -> None:
        """Send a signal to processes of the job; its init goes by its command."""
        whom, _, name = name.rpartition(":")
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            root = int(self.shim.ask("status")["root_pid"])
            command = procfs.children(root)[:1]
            some = {"B": command, "S": [pid for pid in self.pids() if pid not in command]}.get(whom, self.pids())
            for pid in some:
                with contextlib.suppress(ProcessLookupError):
                    if pid != root:
                        os.kill(pid, signal.Signals[f"SIG{name}"])

    def unguard(self) -> None:
        """Let a job go on that was frozen because its memory was about to end. Idempotent."""
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            self.shim.ask("unguard")

    # ------------------------------------------------------------ what its user asked for around saves

    def before_freeze(self, spec: Spec, request: SaveRequest) -> str:
        """Call the program back and run the user's command, as a save is about to freeze the job.

        Returns a remark; empty = all went well. Raises EngineError("save") if the command failed and the save can wait.
        """
        note = hints.Hints(self.scratch_folder.path).call_before_freeze(spec.hook_seconds, urgent=request.urgent)
        if not spec.before_freeze:
            return note
        if request.pressed:
            return "before_freeze was not run: the job was frozen before its memory ended"
        request.progress("before_freeze")
        try:
            self.run_inside(spec.before_freeze, spec.hook_seconds, {hooks.WHY: request.why})
        except hooks.HookFailed as e:
            if not request.urgent:
                raise EngineError("save", f"before_freeze: {e}; the job runs on") from e
            return f"before_freeze: {e}; the machine was about to be taken, so it was saved all the same"
        return note

    def after_restore(self, spec: Spec, jump_seconds: float) -> str:
        """Run the user's command after a restore. Returns a remark; empty = all went well."""
        try:
            if spec.after_restore:
                self.run_inside(spec.after_restore, spec.hook_seconds, _told("restore", jump_seconds))
        except hooks.HookFailed as e:
            return f"after_restore: {e}"
        return ""

    def stand_still(self, spec: Spec) -> None:
        """If its user has a command for that: from now on it stands still, and whatever saves it leaves it so, until `thaw`."""
        if spec.before_thaw:
            with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
                self.shim.ask("stay", on=True, firm=True)

    @property
    def stands_still(self) -> bool:
        """It goes on only after `thaw`."""
        try:
            return bool(self.shim.ask("status").get("stays"))  # an older shim does not say
        except (shim_protocol.ShimGone, shim_protocol.ShimRefused):
            return False

    def let_go(self) -> None:
        """Let it go on whatever its user's command says. Raises shim_protocol.ShimGone, shim_protocol.ShimRefused."""
        self.shim.ask("stay", on=False)

    def run_before_thaw(self, spec: Spec, why: str, jump_seconds: float) -> str:
        """Run the user's command while the job stands still, and let it go on. Returns why it can't yet; "" = it runs."""
        try:
            if spec.before_thaw:
                self.run_inside(spec.before_thaw, spec.hook_seconds, _told(why, jump_seconds), beside=True)
            self.let_go()
        except (hooks.HookFailed, shim_protocol.ShimGone, shim_protocol.ShimRefused) as e:
            return f"before_thaw: {e}"
        return ""

    def run_inside(
        self, words: list[str], limit_seconds: float, told: Mapping[str, str] | None = None, *, beside: bool = False
    ) -> None:
        """Run a command beside the job, in its namespaces and as its user. Raises HookFailed.

        `told`: more variables. `beside`: not in its control group, because that is frozen.
        """
        try:
            root = int(self.shim.ask("status")["root_pid"])
        except (shim_protocol.ShimGone, shim_protocol.ShimRefused) as e:
            raise hooks.HookFailed(f"`{' '.join(words)}` was not run: {e}") from e
        group = self.shim.tool_group() if beside else self.shim.cgroup()
        hooks.run(self.tools, root, group, words, limit_seconds, told)

    # ------------------------------------------------------------ its files on shared file systems

    def shared_steps(self, image: Manifest, *, rehearses: bool = False) -> list[Step]:
        """How they come back to a checkpoint. EngineError("input"): they can't, on no machine; ("refused"): not on this one."""
        try:
            plan = shared_return.steps(self.shares, image, self.keys)
        except (OSError, tree.UnsafePath) as e:
            raise EngineError("refused", f"the job's files on shared file systems can't be looked at: {plainly(e)}") from e
        if image.epoch == 0 and not rehearses:
            plan = shared_plan.of_copy(plan)
        if why := shared_plan.refusal(plan):
            raise EngineError("input", why)
        self.brought_back = shared_plan.told(plan)
        return plan

    def return_shared(self, image: Manifest, plan: list[Step], chunks: Reader) -> None:
        """As planned, while nothing of the job runs. Raises OSError, UnsafePath, BadChunk, StoreError."""
        shared_return.carry_out(self.shares, image, plan, chunks)
        self.keeps.resume(image.shared)

    def bring_back(self, image: Manifest) -> None:
        """Before the job of `pending_final` goes on here. EngineError("input"), ("refused"), ("restore"), StoreError."""
        plan = self.shared_steps(image)
        try:
            self.return_shared(image, plan, Reader(self.store, self.job, self.keys, self.limits))
        except (OSError, tree.UnsafePath, BadChunk) as e:
            raise EngineError(blame(e), f"the job's files on shared file systems can't be brought back: {plainly(e)}") from e

    # ------------------------------------------------------------ ending it

    def settle(self, committed: bool) -> None:
        """Give the verdict for `pending_final`."""
        checkpoint = self.status().pending_final
        if checkpoint is None:
            return
        self.shim.ask("verdict", checkpoint=checkpoint, good=committed)
        self.clean_images()
        if committed:
            self.end()

    def kill(self) -> None:
        """Kill all processes of the job, drop its scratch and whatever a save left. Idempotent."""
        self.end()
        self.scratch_folder.empty()
        self.scratch_folder.make()
        (self.folder / shim_protocol.EXIT).unlink(missing_ok=True)
        self.marks.forget()
        self.bases.forget()
        self.keeps.forget()

    def end(self) -> None:
        """Kill the processes and the shim; files stay."""
        self.shim.kill()
        network.remove(self.tools)
        self.clean_images()
        (self.folder / shim_protocol.STARTED).unlink(missing_ok=True)
        (self.folder / MARKER).unlink(missing_ok=True)
        self.marks.ended()
        pager_process.forget(self.folder)
        self.shim.forget()

    def clean_images(self) -> None:
        """Drop what a save or a restore left on disk."""
        shutil.rmtree(self.folder / "images", ignore_errors=True)
        (self.folder / "images").mkdir(exist_ok=True)
        self.scratch_folder.drop_kept()


def _told(why: str, jump_seconds: float) -> dict[str, str]:
    return {hooks.WHY: why, hooks.JUMP: f"{jump_seconds:.3f}"}


def lost_if_killed(status: Status, group: JobCgroup, memory_bytes: Callable[[], int] = memory.whole_bytes) -> Status:
    """The status; but a command that failed after the kernel killed processes of it for want of memory counts as lost.

    One that ended well all the same did not need them.
    """
    if status.state is not WorkloadState.EXITED or not status.exit_code or (most := group.memory_ended()) is None:
        return status
    machine = memory_bytes()
    miss = NearMiss(machine, machine, most, killed=True)
    return dataclasses.replace(status, state=WorkloadState.LOST, exit_code=None, lost_because=KILLED, near_miss=miss)


class SaveMethod(abc.ABC):
    """One way to save and restore the job of a host: the steps in which the rungs of the ladder differ."""

    name: ClassVar[str]
    guarded = False  # see `JobHost.guarded`

    def __init__(self, host: JobHost) -> None:
        self.host = host

    def preflight(self) -> list[str]:
        """Why this machine is of no use for it, one sentence each."""
        return preflight.hosting(self.host.base, self.host.tools)

    def unfit(self, manifest: Manifest, spec: Spec | None, *, whole: bool) -> str | None:  # noqa: ARG002 -- for who compares files
        """What forbids to continue a checkpoint here, as `Engine.unfit` says. Raises StoreError."""
        return compatibility.refusal(manifest.facts, self.plain_facts(spec))

    def plain_facts(self, spec: Spec | None = None) -> dict[str, str]:
        """The facts that are compared before the job is started anew from its files here. Raises StoreError."""
        return compatibility.plain(str(self.host.base), self.host.world.digest(spec))

    def expect(self) -> None:  # noqa: B027 -- most have nothing to start
        """Start what can be started before a restore is ordered."""

    def dismiss(self) -> None:  # noqa: B027 -- likewise
        """No restore will come: end what `expect` started."""

    @abc.abstractmethod
    def save(self, spec: Spec, request: SaveRequest) -> SaveFacts:
        """As the port says."""

    @abc.abstractmethod
    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """As the port says; there is no job here, and this method made the checkpoint."""
