"""Engine `criu`: any tree of processes, saved and restored by CRIU, with its files and its output."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import subprocess
import time
from collections.abc import Iterator

from spotsurfer_wire import manifest as manifests
from spotsurfer_wire import object_keys
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.linux.memory import lacking
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.criu import command
from spotsurfer_agent.engines.base import Hosted, Origin
from spotsurfer_agent.files import tree
from spotsurfer_agent.host import preflight, shim_protocol
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, Status, WorkloadState, blame, plainly
from spotsurfer_agent.restore import compatibility, pager_process
from spotsurfer_agent.restore.pager_process import CantBring
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
        order = self._folder / pager_process.ORDER
        if order.exists():
            with contextlib.suppress(StoreError):  # a hint for the next restore
                self._store.put(object_keys.order_key(self._job), order.read_bytes())
                order.unlink()
        return status

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Bring files and processes back exactly. Raises EngineError("refused"), ("store") or ("restore").

        The steps stand here in the order in which they happen; those of the pager are in `restore.pager`, those of CRIU in
        `shim.criu_runs`.
        """
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

        with self._or_undone(manifest):
            secrets = self.bag(spec).files
            uid, gid = self.owner(spec) if secrets else (0, 0)
            self._fresh_logs()
            self._clean_images()
            images, work = self._folder / "images" / "restore", self._folder / "images" / "restore.work"
            images.mkdir(parents=True)
            (work / "plugins").mkdir(parents=True)
            waits, self._standing = self._standing, None
            with pager_process.PagerProcess(self._folder, self._tools.python, waits) as pager:
                self._keeper.spawn()  # while the pager loads its modules; where the groups are is known only now
                group, origin = self._cgroup(), self._origin_of_chunks()
                (work / "manifest").write_bytes(manifests.encode(manifest, self._keys))
                pager.begin(
                    pager_process.PagerPlan(
                        way=origin.way.carry(),
                        cache=origin.cache,
                        job=self._job,
                        checkpoint=manifest.id,
                        key=origin.key,
                        lineage=self._keys.lineage,
                        encrypts=self._keys.encrypts,
                        manifest=str(work / "manifest"),
                        folder=str(self._folder),
                        images=str(images),
                        work=str(work),
                        lazy=origin.lazy,
                        cgroup=group.folders,
                        enter=self._tool_group().entries(),
                        prints=str(self._bases.path(manifest.id)),
                        workers=origin.workers,
                    )
                )
                self._scratch.empty()
                reader = Reader(self._store, self._job, self._keys, self._limits)
                tree.build(self._scratch.path, manifest.scratch, manifest.chunks, reader)
                self._scratch.brought_back(manifest)
                self._make_secret_places()
                lazy = pager.ready()
                argv = command.restore(
                    self._tools.criu, (images, work, self._folder), (self._mounts(), manifest.init_pipes), lazy=lazy
                )
                # The surroundings of the job's processes; the processes themselves are in the image.
                plan = self._placed(self._frame(argv=[], environment={}, folder="/"))
                plan = dataclasses.replace(plan, uid=uid, gid=gid, secrets=secrets, step=spec.step, ports=spec.ports)
                with shim_protocol.Conversation(self._folder) as talk, pager_process.getting_on(self._folder, work, group):
                    talk.ask(
                        "restore",
                        None,
                        plan=dataclasses.asdict(plan),
                        log=manifest.log,
                        argv=argv,
                        pidfile=str(work / "pid"),
                        whole=not origin.lazy,
                        stays=self._tool_group().entries() if self._stays(manifest) else [],
                        **self._keeper.resources(guarded=self.guarded),
                    )
                if (status := self.status()).state is WorkloadState.LOST:
                    raise CantBring(status.lost_because or "its processes were gone at once")
            self._bring_devices_back(manifest)

    @contextlib.contextmanager
    def _or_undone(self, image: Manifest) -> Iterator[None]:
        """The job is restored in this block, or nothing of it is left. EngineError("refused"), ("store"), ("restore")."""
        short = lacking(image.memory_bytes)
        try:
            yield
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
            raise EngineError(blame(cause), f"checkpoint {image.id} can't be restored: {plainly(cause)}") from e

    def _origin_of_chunks(self) -> Origin:
        if self._origin is None:
            raise CantBring("this engine was not told where the store is")
        return self._origin

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

    def _bring_devices_back(self, image: Manifest) -> None:
        """The last step of a restore: memory of the job that is not the machine's. Raises EngineError, OSError."""

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
