"""Engine `criu`: any tree of processes, saved and restored by CRIU, with its files and its output."""

from __future__ import annotations

import dataclasses
import shutil

from spotsurfer_agent import shimwire, trees
from spotsurfer_agent.chunks.fetcher import BadChunk, Fetcher
from spotsurfer_agent.engines import criu_call, needs, preflight
from spotsurfer_agent.engines.hosted import Hosted
from spotsurfer_agent.engines.port import EngineError, SaveRequest, WorkloadState
from spotsurfer_agent.engines.saving import Place, Saving
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.protocol import SaveFacts, Spec
from spotsurfer_agent.store import StoreError


class CriuEngine(Hosted):
    """The job of one base folder on this machine."""

    name = "criu"

    def preflight(self) -> list[str]:
        """Why this machine can't protect a job, one sentence each."""
        return preflight.problems(self._base, self._tools)

    def save(self, request: SaveRequest) -> SaveFacts:
        """Freeze, keep, send, manifest, commit; see `engines.saving`. Raises EngineError("save")."""
        status = self.status()
        if status.state is not WorkloadState.RUNNING or status.held:
            raise EngineError("save", f"there is nothing to save: the job is {'held still' if status.held else status.state}")
        self._clean_images()
        saving = Saving(self._place(), request)
        try:
            facts = saving.run()
        except EngineError:
            if self.status().state is WorkloadState.EXITED:
                raise EngineError("save", "the job ended by itself during the save") from None
            raise
        finally:
            if self._dumping() is None:
                self._clean_images()
        if request.final:
            self._end()
        return facts

    def restore(self, manifest: Manifest, spec: Spec) -> None:  # noqa: ARG002 -- other engines need the command
        """Bring files and processes back exactly. Raises EngineError("refused") or EngineError("restore")."""
        if self.status().state is not WorkloadState.ABSENT:
            raise EngineError("restore", "the job is here already: kill it first")
        here = needs.machine(preflight.criu_version(self._tools), str(self._base), [m.target for m in self._mounts()])
        if manifest.engine != self.name:
            raise EngineError(
                "refused", f"checkpoint {manifest.id} was made by engine {manifest.engine!r}, this one is {self.name!r}"
            )
        if (why := needs.refusal(manifest.facts, here)) is not None:
            raise EngineError("refused", why)
        try:
            self._restore(manifest)
        except (OSError, StoreError, BadChunk, trees.UnsafePath, shimwire.ShimGone, shimwire.ShimRefused) as e:
            why = self._restore_log(str(e)) if isinstance(e, shimwire.ShimRefused) else str(e)
            self.kill()
            raise EngineError("restore", f"checkpoint {manifest.id} can't be restored: {why}") from e
        self._bases.learned(manifest, None)

    def _restore(self, image: Manifest) -> None:
        self._fresh_logs()
        fetch = Fetcher(self._store, self._job, self._keys)
        self._scratch.empty()
        images, work = self._folder / "images" / "restore", self._folder / "images" / "restore.work"
        self._clean_images()
        images.mkdir(parents=True)
        (work / "plugins").mkdir(parents=True)
        trees.build(images, image.image, image.chunks, fetch)
        trees.build(self._scratch.path, image.scratch, image.chunks, fetch)
        plan = self._frame(argv=[], environment={}, folder="/", uid=0, gid=0, groups=[])
        argv = criu_call.restore(self._tools.criu, images, work, self._folder, (self._mounts(), image.init_pipes))
        self._spawn()
        with shimwire.Conversation(self._folder) as talk:
            resources = self._resources()
            talk.ask(
                "restore", None, plan=dataclasses.asdict(plan), log=image.log, argv=argv, pidfile=str(work / "pid"), **resources
            )
        if self.status().state is WorkloadState.LOST:
            raise OSError(0, "its processes were gone at once")
        shutil.rmtree(self._folder / "images" / "restore")

    def _restore_log(self, told: str) -> str:
        log, kept = self._folder / "images" / "restore.work" / "restore.log", self._folder / "failed-restore.log"
        if not log.exists():
            return told
        log.replace(kept)  # for people: what CRIU said about the last failure
        return criu_call.sentence(kept, told)

    def _place(self) -> Place:
        return Place(
            folder=self._folder,
            base=self._base,
            job=self._job,
            engine=self.name,
            tools=self._tools,
            store=self._store,
            scratch=self._scratch,
            mounts=self._mounts(),
            cgroup=self._cgroup(),
            criu_version=preflight.criu_version(self._tools),
            tool_entries=self._tool_group().entries(),
            keys=self._keys,
            bases=self._bases,
            limits=self._limits,
            memory_bytes=self._memory_bytes,
        )
