"""Engine `criu`: any tree of processes, saved and restored by CRIU, with its files and its output."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import subprocess
import time
from pathlib import Path

from spotsurfer_wire import object_keys
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.linux.memory import lacking
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.criu import command
from spotsurfer_agent.engines.base import Hosted
from spotsurfer_agent.files import tree
from spotsurfer_agent.host import launch, preflight, shim_protocol
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, Status, WorkloadState, blame, plainly
from spotsurfer_agent.restore import compatibility, pager_process
from spotsurfer_agent.restore.pager import protocol as pager
from spotsurfer_agent.restore.pager_process import Bringing, CantBring
from spotsurfer_agent.save.session import NO_DEVICE, Device, Incomplete, SavePlace, Saving

log = logging.getLogger(__name__)
ARRIVING_LOOK_SECONDS = 0.1


class CriuEngine(Hosted):
    """The job of one base folder on this machine."""

    name = "criu"
    guarded = True
    _standing: subprocess.Popen[bytes] | None = None  # a pager that waits for its order

    def expect(self, manifest: Manifest) -> None:  # noqa: ARG002 -- whatever it is
        """Have shim and pager stand by: loading their modules takes a third of a second, and all of a restore waits for it."""
        self._keeper.stand_by()
        if self._standing is None or self._standing.poll() is not None:
            self._standing = pager_process.standing(self._folder, self._tools.python)

    def start(self, spec: Spec) -> None:
        """As every engine does it; nothing will be restored then."""
        self._dismiss()
        super().start(spec)

    def _dismiss(self) -> None:
        waits, self._standing = self._standing, None
        if waits is not None:
            waits.communicate()  # it ends when it sees that no order will come

    def preflight(self) -> list[str]:
        """Why this machine can't protect a job, one sentence each."""
        return preflight.problems(self._base, self._tools)

    def save(self, request: SaveRequest) -> SaveFacts:
        """Freeze, keep, send, manifest, commit; see `save.session`. Raises EngineError("save")."""
        status = self._whole(request)
        if status.state is not WorkloadState.RUNNING or status.held:
            raise EngineError("save", f"there is nothing to save: the job is {'held still' if status.held else status.state}")
        self._clean_images()
        try:
            facts = self._saved(request)
        except EngineError:
            if self.status().state is WorkloadState.EXITED:
                raise EngineError("save", "the job ended by itself during the save") from None
            raise
        finally:
            if self._dumping() is None:
                self._clean_images()
        if request.final and not request.keep:
            self._end()
        return facts

    def _saved(self, request: SaveRequest) -> SaveFacts:
        """Save; once more if memory was missing in the image, which has nothing to do with this job."""
        try:
            return Saving(self._place(), request).run()
        except Incomplete as e:
            log.warning("%s; it is dumped once more, see failed-dump.log", e)
        self._clean_images()
        return Saving(self._place(), request).run()

    def _whole(self, request: SaveRequest) -> Status:
        """Wait until all memory is there: what has not come yet can't be saved."""
        while (status := self.status()).arriving_bytes is not None:
            request.progress("memory")
            time.sleep(ARRIVING_LOOK_SECONDS)
        if request.base is not None:
            pager_process.await_prints(self._folder, self._bases.path(request.base))
        order = self._folder / pager.ORDER
        if order.exists():
            with contextlib.suppress(StoreError):  # a hint for the next restore
                self._store.put(object_keys.order_key(self._job), order.read_bytes())
                order.unlink()
        return status

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Bring files and processes back exactly. Raises EngineError("refused"), ("store") or ("restore")."""
        if self.status().state is not WorkloadState.ABSENT:
            raise EngineError("restore", "the job is here already: kill it first")
        here = self.machine_facts(spec)
        if manifest.engine != self.name:
            raise EngineError(
                "refused", f"checkpoint {manifest.id} was made by engine {manifest.engine!r}, this one is {self.name!r}"
            )
        if (why := compatibility.refusal(manifest.facts, here, None)) is not None:
            raise EngineError("refused", why)
        self.world.bring(spec, manifest.facts.get(compatibility.HOST, ""))
        if (why := compatibility.refusal(manifest.facts, here, self.world.place(self._mounts()))) is not None:
            raise EngineError("refused", why)
        short = lacking(manifest.memory_bytes)
        try:
            self._restore(manifest, spec)
        except (
            CantBring,
            OSError,
            StoreError,
            BadChunk,
            tree.UnsafePath,
            shim_protocol.ShimGone,
            shim_protocol.ShimRefused,
        ) as e:
            cause = self._cause(e, short) if isinstance(e, shim_protocol.ShimRefused) else e
            self.kill()
            raise EngineError(blame(cause), f"checkpoint {manifest.id} can't be restored: {plainly(cause)}") from e

    def _restore(self, image: Manifest, spec: Spec) -> None:
        plan = self._bare_plan(spec)
        self._fresh_logs()
        self._clean_images()
        images, work = self._folder / "images" / "restore", self._folder / "images" / "restore.work"
        images.mkdir(parents=True)
        (work / "plugins").mkdir(parents=True)
        bringing = self._bringing(image.id, images, work)
        try:
            self._keeper.spawn()  # while the pager loads its modules; where the groups are is known only now
            bringing.begin(image, self._keys, self._origin_of_chunks(), self._cgroup(), self._tool_group())
            self._scratch.empty()
            tree.build(
                self._scratch.path, image.scratch, image.chunks, Reader(self._store, self._job, self._keys, self._limits)
            )
            self._scratch.brought_back(image)
            self._make_secret_places()
            self._run_restore(image, (images, work), self._placed(plan), lazy=bringing.ready())
            if (status := self.status()).state is WorkloadState.LOST:
                raise CantBring(status.lost_because or "its processes were gone at once")
        except BaseException as e:
            trouble = bringing.trouble()
            bringing.stop()  # one that has not joined its group yet outlives `kill`, and would end the next restore
            if trouble is not None and isinstance(e, shim_protocol.ShimRefused | shim_protocol.ShimGone):
                raise trouble from e  # CRIU knows less: it only sees that its image ends
            raise

    def _bringing(self, image: str, images: Path, work: Path) -> Bringing:
        prints = self._bases.path(image)
        waits, self._standing = self._standing, None
        return Bringing(pager_process.RestorePlace(self._folder, images, work, self._job, self._tools.python, prints), waits)

    def _origin_of_chunks(self) -> pager_process.Origin:
        if self._origin is None:
            raise CantBring("this engine was not told where the store is")
        return self._origin

    def _bare_plan(self, spec: Spec) -> launch.LaunchPlan:
        """The surroundings of the job's processes; the processes themselves are in the image."""
        files = self.bag(spec).files
        uid, gid = self.owner(spec) if files else (0, 0)
        plan = self._frame(argv=[], environment={}, folder="/")
        return dataclasses.replace(plan, uid=uid, gid=gid, secrets=files, step=spec.step, ports=spec.ports)

    def _run_restore(self, image: Manifest, where: tuple[Path, Path], plan: launch.LaunchPlan, *, lazy: bool) -> None:
        images, work = where
        inside = self._mounts(), image.init_pipes
        argv = command.restore(self._tools.criu, (images, work, self._folder), inside, lazy=lazy)
        with shim_protocol.Conversation(self._folder) as talk, pager_process.getting_on(self._folder, work, self._cgroup()):
            resources = self._keeper.resources(guarded=self.guarded)
            talk.ask(
                "restore",
                None,
                plan=dataclasses.asdict(plan),
                log=image.log,
                argv=argv,
                pidfile=str(work / "pid"),
                whole=not self._origin_of_chunks().lazy,
                stays=self._tool_group().entries() if self._stays(image) else [],
                **resources,
            )

    def _cause(self, e: shim_protocol.ShimRefused, short: str) -> Exception:
        """Why CRIU did not restore. A want of memory is the machine's fault: an OSError."""
        log, kept = self._folder / "images" / "restore.work" / "restore.log", self._folder / "failed-restore.log"
        told = str(e)
        if log.exists():
            log.replace(kept)  # for people: CRIU's log of the last failure
            told = command.sentence(kept, told, short)
        return OSError(0, told) if short and told.startswith(short) else shim_protocol.ShimRefused(told)

    def _stays(self, image: Manifest) -> bool:  # noqa: ARG002 -- an engine with devices asks the image
        """Whether a job that is restored must not run yet when CRIU is done: memory of its devices is still out."""
        return False

    def _place_device(self) -> Device:
        """Memory of the job that is not the machine's."""
        return NO_DEVICE

    def _place(self) -> SavePlace:
        return SavePlace(
            folder=self._folder,
            base=self._base,
            job=self._job,
            engine=self.name,
            tools=self._tools,
            store=self._store,
            scratch=self._scratch,
            mounts=self._mounts(),
            root=self.world.digest(),
            place=self.world.place(self._mounts()),
            cgroup=self._cgroup(),
            criu_version=preflight.criu_version(self._tools),
            tool_entries=self._tool_group().entries(),
            keys=self._keys,
            bases=self._bases,
            limits=self._limits,
            memory_bytes=self._memory_bytes,
            device=self._place_device(),
        )
