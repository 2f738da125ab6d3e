"""Chooses how the job is saved: by `criu` (on GPUs `criu+cuda`), else `app`, else `none`, and says why."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer_agent.engines.app import AppSave
from spotsurfer_agent.engines.criu import CriuSave
from spotsurfer_agent.engines.criu_cuda import CudaSave
from spotsurfer_agent.engines.job_host import JobHost, Origin, SaveMethod
from spotsurfer_agent.engines.none import NoSave
from spotsurfer_agent.gpu import process_discovery
from spotsurfer_agent.host import hooks, shim_protocol, steps
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import (
    WRITES_TOLD,
    EngineError,
    Protection,
    SaveRequest,
    SharedNews,
    Status,
    WorkloadState,
)
from spotsurfer_agent.prepare.inputs import shared_file_systems
from spotsurfer_agent.save import blockers, shared_writes

LOOK_SECONDS = 30.0  # between looks at what runs
LOOK_SHARE = 0.002  # of a processor that the looks may take
CHOSEN = {
    "app": "its user chose that the program saves itself",
    "none": "its user chose to run it without checkpoints",
}


class JobEngine(JobHost):
    """The job host with all save methods. Each save takes the best that works then; a restore, the one that made the image."""

    def __init__(
        self, base: Path, job: str, store: ObjectStore, tools: Tools, origin: Origin, keys: Keys | None = None
    ) -> None:
        super().__init__(base, job, store, tools, origin, keys)
        self.cuda, self.app = CudaSave(self), AppSave(self)
        self.methods: dict[str, SaveMethod] = {m.name: m for m in (CriuSave(self), self.cuda, self.app, NoSave(self))}
        self._chosen = self.folder / "engine.json"
        told = shim_protocol.read_json(self._chosen) or {}
        self._begun_as = str(told.get("engine"))  # the method that the newest start or restore named
        self.guarded = self._method(self._begun_as).guarded
        self._step = int(told.get("step", 0))  # of the job: the one that the newest start or restore was of
        self._spec: Spec | None = None
        self._found: list[str] | None = None  # None = not looked at yet
        self._on_gpu = False  # of what was found: processes use a GPU
        self._looked_at, self._next_at = float("-inf"), float("-inf")
        self._writes: tuple[str, ...] = ()  # see `SharedNews`
        self.note = ""  # something to report about the last task although it worked

    def _method(self, name: str) -> SaveMethod:
        return self.methods.get(name, self.methods["criu"])

    @property
    def name(self) -> str:
        """The rung of the next save."""
        return self.protection().rung or self._method(self._begun_as).name

    # ------------------------------------------------------------ the rung

    def protection(self) -> Protection:
        """How the job is saved, as far as is known."""
        if self._spec is None or self._found is None:
            return Protection()
        return choose(self._spec, self._found, on_gpu=self._on_gpu)

    def shared(self) -> SharedNews:
        """What is known of the job's files on shared file systems."""
        return SharedNews(self._writes, self.brought_back)

    def look(self) -> None:
        """Look at what the job holds, if it runs and that is due; a look costs milliseconds for each hundred processes."""
        began = time.monotonic()
        if began < self._next_at or (spec := self._specification()) is None:
            return
        status = self.status()
        if status.state is not WorkloadState.RUNNING:
            self._forget_looks(began + 1.0)
        elif not status.held:
            self._find(spec)
            cost = time.monotonic() - began
            self._next_at = began + (LOOK_SECONDS if self._looked_at > 0 else 2.0) + cost / LOOK_SHARE
            self._looked_at = began

    def _forget_looks(self, next_at: float = float("-inf")) -> None:
        self._found, self._looked_at, self._next_at = None, float("-inf"), next_at

    def _find(self, spec: Spec) -> list[str]:
        """What in the job's processes stands against CRIU.

        A job that runs changes while it is looked at, so only what two looks see stands: this one and the one before, or,
        if it is new, one at once after this one.
        """
        own: tuple[str, ...] = ("/run/",) if spec.image else ()
        own += shared_file_systems.folders(spec, str(self.base))
        mounts = tuple(m.target for m in self.mounts())
        self._writes = self._written(spec)

        def look() -> list[str]:
            pids = self.pids()
            users, against = self.cuda.gpu_processes(pids)
            self._on_gpu = bool(users)
            job = blockers.Job(pids, str(self.base), spec.tcp, scratch=self.scratch(), mounts=mounts, own=own)
            return [*against, *blockers.findings(job)]

        found, known = look(), set(self._found or ())
        if not known.issuperset(found):
            known.update(look())
        self._found = [x for x in found if x in known]
        return self._found

    def _written(self, spec: Spec) -> tuple[str, ...]:
        """Files on shared file systems that it has open for writing, by names that all jobs share. A rehearsal writes none."""
        if spec.rehearses:
            return ()
        sources = {s.name: s.source.rstrip("/") for s in spec.shares}
        found = (w.path.partition("/") for w in shared_writes.open_for_writing(self.pids(), self.mounts()))
        return tuple(sorted(f"{sources.get(name, name)}/{path}" for name, _, path in found)[:WRITES_TOLD])

    def _specification(self) -> Spec | None:
        """Immutable, so it is read once. None while the store can't give it."""
        if self._spec is None:
            with contextlib.suppress(StoreError, ProtocolError):
                data = self.store.get(object_keys.spec_key(self.job))
                self._spec = steps.at(json_codec.decode(Spec, data), self._step) if data is not None else None
        return self._spec

    def _begin(self, engine: str, spec: Spec) -> SaveMethod:
        """What runs from now on is of this specification and was begun for this method."""
        method = self._method(engine)
        self._spec, self._step, self._begun_as, self.guarded, self.note = spec, spec.step, method.name, method.guarded, ""
        self._forget_looks()
        shim_protocol.write_durably(self._chosen, {"engine": method.name, "step": spec.step})
        return method

    # ------------------------------------------------------------ the port, as far as the method matters

    def preflight(self) -> list[str]:
        """Why this machine is of no use to the job: one that CRIU does not run on may do for another rung."""
        spec = self._specification()
        return self._method(spec.engine if spec is not None else "criu").preflight()

    def unfit(self, manifest: Manifest, *, whole: bool = True) -> str:
        """Why this machine could not continue a checkpoint, both values named; empty = it could as far as facts tell."""
        method = self.methods.get(manifest.engine, self.methods["none"])
        return method.unfit(manifest, self._specification(), whole=whole) or ""

    def expect(self, manifest: Manifest | None) -> None:
        """Prepare what the method that made the checkpoint, or that will probably make it, can prepare."""
        if manifest is not None:
            name = manifest.engine
        elif (spec := self._specification()) is not None:
            name = choose(spec, [], on_gpu=process_discovery.present()).rung
        else:
            return
        self._method(name).expect()

    def expect_start(self) -> None:
        """Have the shim stand by, whatever the method: loading its modules takes as long as all the rest of a start."""
        self.shim.stand_by()

    def start(self, spec: Spec) -> None:
        """Start the command from the beginning. Raises EngineError as the host does."""
        self._begin(spec.engine, spec)
        for method in self.methods.values():
            method.dismiss()
        super().start(spec)

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        """Start the command on what the step before it left. Raises EngineError("start")."""
        self._begin(spec.engine, spec)
        super().next_step(spec, log)

    def go_on(self, spec: Spec) -> None:
        """Start the program again that ended as it saved itself. Raises EngineError("start"), StoreError."""
        self._forget_looks()
        super().go_on(spec)

    def save(self, request: SaveRequest) -> SaveFacts:
        """Save on the best rung that works now. Raises EngineError("save") with what stands against it."""
        spec = self._specification()
        if spec is None:
            raise EngineError("save", "the job's specification can't be read: look at the store")
        try:
            return self._save(spec, request)
        except BaseException:
            if request.final and self.status().pending_final is None:
                self.stand_still(spec)  # what it gave back before the freeze, it must have again
            raise

    def _save(self, spec: Spec, request: SaveRequest) -> SaveFacts:
        began = time.monotonic()
        self.note = self.before_freeze(spec, request)
        hooks_seconds = time.monotonic() - began
        rung = choose(spec, self._find(spec), on_gpu=self._on_gpu)
        if spec.tcp == "keep" and (open_now := blockers.connections(blockers.Job(self.pids(), str(self.base)))):
            raise EngineError("save", f'tcp = "keep" allows no save now: {open_now[0]}; close it first, or say tcp = "close"')
        if rung.rung == "none" and spec.engine != "none":
            raise EngineError("save", rung.reason)
        saved = self.methods[rung.rung].save(spec, request)
        self.note = "; ".join(filter(None, (self.note, self.keeps.warning)))
        return dataclasses.replace(saved, start_seconds=saved.start_seconds + hooks_seconds)

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Bring it back with the method that made it. Raises EngineError("refused"), ("store") or ("restore")."""
        method = self._begin(manifest.engine, spec)
        if self.status().state is not WorkloadState.ABSENT:
            raise EngineError("restore", "the job is here already: kill it first")
        if manifest.engine not in self.methods:
            raise EngineError(
                "refused", f"checkpoint {manifest.id} was made by engine {manifest.engine!r}, which this agent does not know"
            )
        self.brought_back = ""
        method.restore(manifest, spec)
        if not self.stands_still:
            self.note = self.after_restore(spec, hooks.jump_since(manifest.at))

    def kill(self) -> None:
        """Kill all processes of the job."""
        super().kill()
        self._found = None

    def adopt(self) -> Status:
        """Take over what an earlier agent left running."""
        status = super().adopt()
        self.cuda.bring_back()
        if self.marks.is_told and status.pending_final is None:
            self.app.recover()
            return self.status()
        return status

    def settle(self, committed: bool) -> None:
        """Give the verdict for `pending_final`."""
        if not committed and (spec := self._specification()) is not None:
            self.stand_still(spec)
        super().settle(committed)
        self.cuda.bring_back()

    def thaw(self, why: str, jump_seconds: float) -> str:
        """Run the user's command, and let the job go on if that went well; see the port."""
        spec = self._specification()
        if spec is None:
            return "the job's specification can't be read: look at the store"
        if refused := self.run_before_thaw(spec, why, jump_seconds):
            return refused
        if why == "restore":
            self.note = self.after_restore(spec, jump_seconds)
        return ""


def choose(spec: Spec, found: list[str], *, on_gpu: bool = False) -> Protection:
    """The rung for a job, given what `found` in its processes stands against CRIU and whether it uses GPUs. Pure."""
    if spec.engine in CHOSEN:
        return Protection(spec.engine, CHOSEN[spec.engine])
    if not found:
        return Protection(CudaSave.name if on_gpu else CriuSave.name)
    why = blockers.sentence(found)
    if spec.engine == "auto" and spec.app is not None:
        return Protection("app", f"{why}; so the program saves itself")
    return Protection("none", why)
