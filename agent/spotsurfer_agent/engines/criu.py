"""Save method `criu`: any tree of processes, saved and restored by CRIU, with its files and its output."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import subprocess
import time
from collections.abc import Iterator

from spotsurfer_wire import gpu_facts, object_keys
from spotsurfer_wire import manifest as manifests
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.linux.memory import lacking
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.criu import command
from spotsurfer_agent.engines.job_host import SaveMethod
from spotsurfer_agent.files import identity, tree
from spotsurfer_agent.host import preflight, root_fs, shim_protocol
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, Status, WorkloadState, blame, plainly
from spotsurfer_agent.restore import compatibility, pager_process
from spotsurfer_agent.restore.pager_process import CantBring
from spotsurfer_agent.save.session import NO_DEVICE, Device, Incomplete, SavePlace, Saving

log = logging.getLogger(__name__)
ARRIVING_LOOK_SECONDS = 0.1
KILLED = re.compile(r"killed by signal 9|were killed|died: the job was killed")  # CRIU's processes, or the pager's


class CriuSave(SaveMethod):
    """By CRIU."""

    name = "criu"
    guarded = True
    may_be_lazy = True  # memory may come behind the restored job as it runs
    _standing: subprocess.Popen[bytes] | None = None  # a pager that waits for its order

    def preflight(self) -> list[str]:
        """Why this machine can't protect a job, one sentence each."""
        return preflight.problems(self.host.base, self.host.tools)

    def facts(self, spec: Spec | None = None) -> dict[str, str]:
        """The facts that are compared before an image is continued here. Raises StoreError."""
        host, scratch = self.host, self.host.scratch_folder.path
        mounts = root_fs.compared(host.world.mounts(str(scratch), spec))
        version, digest = preflight.criu_version(host.tools), host.world.digest(spec)
        facts = compatibility.machine_facts(version, str(host.base), mounts, digest)
        return {
            **facts,
            compatibility.NUMBERS: identity.inode_fact(scratch),
            compatibility.ORDER: identity.listing_fact(scratch),
        }

    def unfit(self, manifest: Manifest, spec: Spec | None, *, whole: bool) -> str | None:
        """With `whole` the job's files are compared, too, as far as its root is here."""
        world, place = self.host.world, None
        if whole:
            place = world.place(self.host.mounts()) if spec is None else world.to_come(self.host.scratch(), spec)
        return compatibility.refusal(manifest.facts, self.facts(spec), place)

    def expect(self) -> None:
        """Have shim and pager stand by: loading their modules takes a third of a second, and all of a restore waits for it."""
        self.host.shim.stand_by()
        if self._standing is None or self._standing.poll() is not None:
            self._standing = pager_process.standing(self.host.folder, self.host.tools.python)

    def dismiss(self) -> None:
        """Nothing will be restored."""
        waits, self._standing = self._standing, None
        if waits is not None:
            waits.communicate()  # it ends when it sees that no order will come

    # ------------------------------------------------------------ saving

    def save(self, spec: Spec, request: SaveRequest) -> SaveFacts:  # noqa: ARG002 -- the processes are saved, whatever they are
        """Freeze, keep, send, manifest, commit; see `save.session`. Raises EngineError("save")."""
        return self._save(request, NO_DEVICE)

    def _save(self, request: SaveRequest, device: Device) -> SaveFacts:
        """`device`: memory of the job that is not the machine's."""
        host, status = self.host, self._whole(request)
        if status.state is not WorkloadState.RUNNING or status.held:
            raise EngineError("save", f"there is nothing to save: the job is {'held still' if status.held else status.state}")
        host.clean_images()
        try:
            try:
                facts = Saving(self._place(device), request).run()
            except Incomplete as e:  # which has nothing to do with this job
                log.warning("%s; it is dumped once more, see failed-dump.log", e)
                host.clean_images()
                facts = Saving(self._place(device), request).run()
        except EngineError:
            if host.status().state is WorkloadState.EXITED:
                raise EngineError("save", "the job ended by itself during the save") from None
            raise
        finally:
            if host.dumping() is None:
                host.clean_images()
        if request.final and not request.keep:
            host.end()
        return facts

    def _whole(self, request: SaveRequest) -> Status:
        """Wait until all memory is there: what has not come yet can't be saved."""
        host = self.host
        while (status := host.status()).arriving_bytes is not None:
            request.progress("memory")
            time.sleep(ARRIVING_LOOK_SECONDS)
        if request.base is not None:
            pager_process.await_prints(host.folder, host.bases.path(request.base))
        order = host.folder / pager_process.ORDER
        if order.exists():
            with contextlib.suppress(StoreError):  # a hint for the next restore
                host.store.put(object_keys.order_key(host.job), order.read_bytes())
                order.unlink()
        return status

    def _place(self, device: Device) -> SavePlace:
        host = self.host
        return SavePlace(
            folder=host.folder,
            base=host.base,
            job=host.job,
            engine=self.name,
            tools=host.tools,
            store=host.store,
            scratch=host.scratch_folder,
            mounts=host.mounts(),
            root=host.world.digest(),
            place=host.world.place(host.mounts()),
            cgroup=host.shim.cgroup(),
            criu_version=preflight.criu_version(host.tools),
            tool_entries=host.shim.tool_group().entries(),
            keys=host.keys,
            bases=host.bases,
            limits=host.limits,
            memory_bytes=host.memory_bytes,
            shared=host.keeps,
            device=device,
        )

    # ------------------------------------------------------------ restoring

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Bring files and processes back exactly. Raises EngineError("refused"), ("store") or ("restore").

        The steps stand here in the order in which they happen; those of the pager are in `restore.pager`, those of CRIU in
        `shim.criu_runs`.
        """
        host, here = self.host, self.facts(spec)
        if (why := compatibility.refusal(manifest.facts, here, None)) is not None:
            raise EngineError("refused", why)
        host.world.bring(spec, manifest.facts.get(compatibility.HOST, ""))
        if (why := compatibility.refusal(manifest.facts, here, host.world.place(host.mounts()))) is not None:
            raise EngineError("refused", why)
        shared = host.shared_steps(manifest, rehearses=bool(spec.rehearses))

        with self._or_undone(manifest):
            bag = host.bag(spec)
            # The surroundings of the job's processes; the processes themselves are in the image.
            plan = host.world.surroundings(spec, bag, host.scratch())
            if bag.files:
                who = host.world.account(spec)
                plan = dataclasses.replace(plan, uid=who.uid, gid=who.gid)
            host.fresh_logs()
            host.clean_images()
            images, work = host.folder / "images" / "restore", host.folder / "images" / "restore.work"
            images.mkdir(parents=True)
            (work / "plugins").mkdir(parents=True)
            waits, self._standing = self._standing, None
            with pager_process.PagerProcess(host.folder, host.tools.python, waits) as pager:
                host.shim.spawn()  # while the pager loads its modules; where the groups are is known only now
                group, tools, origin = host.shim.cgroup(), host.shim.tool_group(), host.origin
                # Behind a running job memory must not end: it would have left the machine that still has it for nothing.
                may_be_lazy = origin.lazy and self.may_be_lazy and not lacking(manifest.memory_bytes)
                (work / "manifest").write_bytes(manifests.encode(manifest, host.keys))
                pager.begin(
                    pager_process.PagerPlan(
                        way=origin.way.carry(),
                        cache=origin.cache,
                        job=host.job,
                        checkpoint=manifest.id,
                        key=origin.key,
                        lineage=host.keys.lineage,
                        encrypts=host.keys.encrypts,
                        manifest=str(work / "manifest"),
                        folder=str(host.folder),
                        images=str(images),
                        work=str(work),
                        lazy=may_be_lazy,
                        cgroup=group.folders,
                        enter=tools.entries(),
                        prints=str(host.bases.path(manifest.id)),
                        workers=origin.workers,
                    )
                )
                host.scratch_folder.empty()
                chunks = Reader(host.store, host.job, host.keys, host.limits)
                tree.build(host.scratch_folder.path, manifest.scratch, manifest.chunks, chunks)
                host.scratch_folder.brought_back(manifest)
                host.return_shared(manifest, shared, chunks)
                host.make_secret_places()
                places, kept = (images, work, host.folder), (host.mounts(), manifest.init_pipes)
                argv = command.restore(host.tools.criu, places, kept, lazy=pager.ready())
                # If its threads were held when it was saved, they must not run when CRIU is done: GPU memory is still out.
                # Nor if its user wants something done before it goes on.
                stays = tools.entries() if gpu_facts.threads_of(manifest.facts) or spec.before_thaw else []
                with shim_protocol.Conversation(host.folder) as talk, pager_process.getting_on(host.folder, work, group):
                    talk.ask(
                        "restore",
                        None,
                        plan=dataclasses.asdict(dataclasses.replace(plan, cgroups=group.entries())),
                        log=manifest.log,
                        argv=argv,
                        pidfile=str(work / "pid"),
                        whole=not may_be_lazy,
                        stays=stays,
                        **host.shim.resources(guarded=self.guarded),
                    )
                if (status := host.status()).state is WorkloadState.LOST:
                    raise CantBring(status.lost_because or "its processes were gone at once")
            self._bring_devices_back(manifest)

    def _bring_devices_back(self, image: Manifest) -> None:
        """The last step of a restore: memory of the job that is not the machine's. Raises EngineError, OSError."""

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
            if short and isinstance(cause, CantBring | shim_protocol.ShimRefused) and KILLED.search(str(cause)):
                cause = OSError(0, f"{short}: {cause}")  # by the kernel, for who else would
            self.host.kill()
            raise EngineError(blame(cause), f"checkpoint {image.id} can't be restored: {plainly(cause)}") from e

    def _cause(self, e: shim_protocol.ShimRefused, short: str) -> Exception:
        """Why CRIU did not restore. A want of memory is the machine's fault: an OSError."""
        said, kept = self.host.folder / "images" / "restore.work" / "restore.log", self.host.folder / "failed-restore.log"
        told = str(e)
        if said.exists():
            said.replace(kept)  # for people: CRIU's log of the last failure
            told = command.sentence(kept, told, short)
        return OSError(0, told) if short and told.startswith(short) else shim_protocol.ShimRefused(told)
