"""Chooses the engine: `criu` (on GPUs `criu+cuda`), else `app`, else `none`, and says why."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer_agent.engines.app import AppEngine
from spotsurfer_agent.engines.base import Hosted
from spotsurfer_agent.engines.criu import CriuEngine
from spotsurfer_agent.engines.criu_cuda import CudaEngine
from spotsurfer_agent.engines.none import NoneEngine
from spotsurfer_agent.host import hints, hooks, shim_protocol, steps
from spotsurfer_agent.ports.engine import EngineError, Protection, SaveRequest, Status, Still, WorkloadState
from spotsurfer_agent.prepare.inputs import shared_file_systems
from spotsurfer_agent.restore import compatibility
from spotsurfer_agent.save import blockers

LOOK_SECONDS = 30.0  # between looks at what runs
LOOK_SHARE = 0.002  # of a processor that the looks may take
CHOSEN = {
    "criu": "",
    "app": "its user chose that the program saves itself",
    "none": "its user chose to run it without checkpoints",
}


class EngineChoice:
    """All engines of one base folder as one. `make` gives them what they share."""

    def __init__(self, base: Path, job: str, store: ObjectStore, make: Callable[[type[Hosted]], Hosted]) -> None:
        self._base, self._job, self._store = base, job, store
        self._engines: dict[str, Hosted] = {kind.name: make(kind) for kind in (CriuEngine, AppEngine, NoneEngine)}
        cuda = self._engines[CudaEngine.name] = make(CudaEngine)
        assert isinstance(cuda, CudaEngine)
        self._cuda = cuda
        self._chosen = base / "job" / "engine.json"
        told = shim_protocol.read_json(self._chosen) or {}
        self._here: Hosted = self._engines.get(str(told.get("engine")), self._engines["criu"])
        self._step = int(told.get("step", 0))  # of the job: the one that the newest start or restore was of
        self._spec: Spec | None = None
        self._found: list[str] | None = None  # None = not looked at yet
        self._on_gpu = False  # of what was found: processes use a GPU
        self._looked_at, self._next_at = float("-inf"), float("-inf")
        self.note = ""  # something to report about the last task although it worked

    @property
    def name(self) -> str:
        """The rung of the next save."""
        return self.protection().rung or self._here.name

    # ------------------------------------------------------------ the rung

    def protection(self) -> Protection:
        """How the job is saved, as far as is known."""
        if self._spec is None or self._found is None:
            return Protection()
        return choose(self._spec, self._found, on_gpu=self._on_gpu)

    def look(self) -> None:
        """Look at what the job holds, if it runs and that is due; a look costs milliseconds for each hundred processes."""
        if time.monotonic() >= self._next_at and self._specification() is not None:
            self._look()

    def _look(self) -> None:
        began = time.monotonic()
        status = self._here.status()
        if status.state is WorkloadState.RUNNING and not status.held:
            self._found = self._looked()
            cost = time.monotonic() - began
            self._next_at = began + (LOOK_SECONDS if self._looked_at > 0 else 2.0) + cost / LOOK_SHARE
            self._looked_at = began
        elif status.state is not WorkloadState.RUNNING:
            self._found, self._looked_at, self._next_at = None, float("-inf"), began + 1.0

    def _looked(self) -> list[str]:
        spec = self._specification()
        own: tuple[str, ...] = ("/run/",) if spec and spec.image else ()
        own += shared_file_systems.folders(spec, str(self._base)) if spec else ()
        pids = self._here.pids()
        users, against = self._cuda.gpu_processes(pids)
        self._on_gpu = bool(users)
        mounts = tuple(m.target for m in self._here.world.mounts(self.scratch()))
        tcp = spec.tcp if spec else "close"
        job = blockers.Job(pids, str(self._base), tcp, scratch=self.scratch(), mounts=mounts, own=own)
        return [*against, *blockers.findings(job)]

    def _specification(self) -> Spec | None:
        """Immutable, so it is read once. None while the store can't give it."""
        if self._spec is None:
            with contextlib.suppress(StoreError, ProtocolError):
                data = self._store.get(object_keys.spec_key(self._job))
                self._spec = steps.at(json_codec.decode(Spec, data), self._step) if data is not None else None
        return self._spec

    def _take(self, engine: str, spec: Spec) -> Hosted:
        self._spec, self._here, self._found, self.note = spec, self._engines[engine], None, ""
        self._looked_at = self._next_at = float("-inf")
        self._step = spec.step
        shim_protocol.write_durably(self._chosen, {"engine": engine, "step": spec.step})
        return self._here

    # ------------------------------------------------------------ the port

    def preflight(self) -> list[str]:
        """Why this machine is of no use to the job: one that CRIU does not run on may do for another rung."""
        spec = self._specification()
        kind = spec.engine if spec is not None and spec.engine in ("app", "none") else "criu"
        return self._engines[kind].preflight()

    def expect(self, manifest: Manifest) -> None:
        """Prepare what the engine that made the checkpoint can prepare."""
        self._engines.get(manifest.engine, self._here).expect(manifest)

    def prepare(self, spec: Spec, progress: Callable[[str], None]) -> None:
        """Have the job's image on this machine. Raises EngineError, StoreError."""
        self._engines["criu"].world.prepare(spec, progress)

    def start(self, spec: Spec) -> None:
        """Start the command from the beginning. Raises EngineError("start")."""
        self._take(spec.engine if spec.engine in self._engines else "criu", spec).start(spec)

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        """Start the command on what the step before it left. Raises EngineError("start")."""
        self._take(spec.engine if spec.engine in self._engines else "criu", spec).next_step(spec, log)

    def go_on(self, spec: Spec) -> None:
        """Start the program again that ended as it saved itself. Raises EngineError("start"), StoreError."""
        self._found, self._looked_at, self._next_at = None, float("-inf"), float("-inf")
        self._here.go_on(spec)

    def save(self, request: SaveRequest) -> SaveFacts:
        """Save on the best rung that works now. Raises EngineError("save") with what stands against it."""
        spec = self._specification()
        if spec is None:
            raise EngineError("save", "the job's specification can't be read: look at the store")
        self.note, began = "", time.monotonic()
        self._before_freeze(spec, request)
        hooks_seconds = time.monotonic() - began
        saved = self._saved(spec, request)
        return dataclasses.replace(saved, start_seconds=saved.start_seconds + hooks_seconds)

    def _saved(self, spec: Spec, request: SaveRequest) -> SaveFacts:
        self._found = self._looked()
        rung = choose(spec, self._found, on_gpu=self._on_gpu)
        if spec.tcp == "keep" and (open_now := blockers.connections(blockers.Job(self._here.pids(), str(self._base)))):
            raise EngineError("save", f'tcp = "keep" allows no save now: {open_now[0]}; close it first, or say tcp = "close"')
        app = self._engines["app"]
        if rung.rung == "app":
            assert isinstance(app, AppEngine)
            return app.save_of(spec, request)
        if spec.engine == "none":
            return self._engines["none"].save(request)
        if rung.rung == "none":
            raise EngineError("save", rung.reason)
        return self._engines[rung.rung].save(request)

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Bring it back with the engine that made it. Raises EngineError("refused") or EngineError("restore")."""
        engine = manifest.engine if manifest.engine in self._engines else "criu"
        self._take(engine, spec).restore(manifest, spec)
        if spec.after_restore:
            try:
                self._hook(spec.after_restore, spec.hook_seconds)
            except hooks.HookFailed as e:
                self.note = f"after_restore: {e}"

    def _before_freeze(self, spec: Spec, request: SaveRequest) -> None:
        limit = hints.URGENT_SECONDS if request.urgent else min(hints.FREEZE_SECONDS, spec.hook_seconds)
        self.note = hints.Hints(Path(self.scratch())).call_before_freeze(limit)
        if not spec.before_freeze:
            return
        if request.pressed:
            self.note = "before_freeze was not run: the job was frozen before its memory ended"
            return
        request.progress("before_freeze")
        try:
            self._hook(spec.before_freeze, spec.hook_seconds)
        except hooks.HookFailed as e:
            if not request.urgent:
                raise EngineError("save", f"before_freeze: {e}; the job runs on") from e
            self.note = f"before_freeze: {e}; the machine was about to be taken, so it was saved all the same"

    def _hook(self, words: list[str], limit_seconds: float) -> None:
        self._here.run_inside(words, limit_seconds)

    def unfit(self, manifest: Manifest, *, whole: bool = True) -> str:
        """Why this machine could not continue a checkpoint, both values named; empty = it could as far as facts tell."""
        if manifest.engine not in ("criu", CudaEngine.name):
            return compatibility.refusal(manifest.facts, self._engines["app"].plain_facts(self._specification())) or ""
        hosted, spec = self._engines[manifest.engine], self._specification()
        sees = hosted.sees(spec) if whole else None
        return compatibility.refusal(manifest.facts, hosted.machine_facts(spec), sees) or ""

    def status(self) -> Status:
        """The workload now."""
        return self._here.status()

    def hold(self) -> None:
        """Stop all processes of the job where they are."""
        self._here.hold()

    def release(self) -> None:
        """Undo `hold`."""
        self._here.release()

    def unguard(self) -> None:
        """Let a job go on that was frozen for want of memory."""
        self._here.unguard()

    def kill(self) -> None:
        """Kill all processes of the job."""
        self._here.kill()
        self._found = None

    def adopt(self) -> Status:
        """Take over what an earlier agent left running."""
        status = self._here.adopt()
        self._cuda.bring_back()
        app = self._engines["app"]
        assert isinstance(app, AppEngine)
        if app.marks.is_told and status.pending_final is None:
            app.recover()
            return self.status()
        return status

    def settle(self, committed: bool) -> None:
        """Give the verdict for `pending_final`."""
        self._here.settle(committed)
        self._cuda.bring_back()

    def read_log(self, stream: str, offset: int, limit: int) -> bytes:
        """Output of the job from an absolute offset."""
        return self._here.read_log(stream, offset, limit)

    def still(self) -> AbstractContextManager[Still]:
        """The scratch as it is now, for the length of a block."""
        return self._here.still()

    def scratch(self) -> str:
        """Absolute path of the job's scratch."""
        return self._here.scratch()


def choose(spec: Spec, found: list[str], *, on_gpu: bool = False) -> Protection:
    """The rung for a job, given what `found` in its processes stands against CRIU and whether it uses GPUs. Pure."""
    if spec.engine in ("app", "none"):
        return Protection(spec.engine, CHOSEN[spec.engine])
    if not found:
        return Protection(CudaEngine.name if on_gpu else CriuEngine.name)
    why = blockers.sentence(found)
    if spec.engine == "auto" and spec.app is not None:
        return Protection("app", f"{why}; so the program saves itself")
    return Protection("none", why)
