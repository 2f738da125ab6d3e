"""Save method `criu+cuda`: a job on NVIDIA GPUs. Their memory is moved into its processes, then all goes as with CRIU.

    live:    lock, copy out | freeze, dump, snapshot, thaw | copy back, unlock | send, commit
    final:   lock, copy out | freeze, dump while it is sent, commit, kill
    restore: compare facts | CRIU, with all memory before the first instruction | copy back by the map of GPUs, unlock

The job's other threads run on while its GPU memory is out: pinned memory stays where it is (a thread wrote into it all the time
through three saves on an H200, driver 580.159.04). Threads are held (`suspend_resume.Still`) if `process_discovery.FRAIL` lists
their library as one that needs it; with `holds_threads` those of every job. If anything fails on the way out, the GPU memory
goes back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from spotsurfer_wire import gpu_facts
from spotsurfer_wire.gpu_facts import About
from spotsurfer_wire.linux import procfs
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec

from spotsurfer_agent.criu import interrupted_calls
from spotsurfer_agent.engines.criu import CriuSave
from spotsurfer_agent.engines.job_host import JobHost
from spotsurfer_agent.gpu import process_discovery, suspend_resume
from spotsurfer_agent.gpu.driver_port import DriverUnfit
from spotsurfer_agent.gpu.sidecar import Sidecar, SidecarGone
from spotsurfer_agent.gpu.suspend_resume import MARKER, CantBringBack, CantTakeOut, Mover, Still, wait_for_room
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, WorkloadState
from spotsurfer_agent.restore.pager_process import Loss
from spotsurfer_agent.save.session import Device

ROOM_SECONDS = 90.0  # a job that leaves this GPU is locked (at most 30 s) and copied out first (80 GB: 23 s at 3.5 GB/s)
STAY_SECONDS = 0.1  # between looks whether a held job was let go


class CudaSave(CriuSave):
    """By CRIU, with a driver that moves GPU memory into the processes before."""

    name = "criu+cuda"
    guarded = False  # its driver needs the program to run while GPU memory is brought out
    may_be_lazy = False  # the driver touches all of the GPU memory at once
    holds_threads = False  # of every job, while its GPU memory is out; for measurements

    def __init__(self, host: JobHost) -> None:
        super().__init__(host)
        self._cuda: tuple[Sidecar, Mover] | None = None
        self._making = threading.Lock()

    def driver(self) -> tuple[Sidecar, Mover]:
        """The side-car, made once: looks and saves come from different threads, and a second one would wait for ever."""
        with self._making:
            if self._cuda is None:
                argv = self.host.tools.cuda or (*self.host.tools.python, "-m", "spotsurfer_agent.gpu.nvidia_driver")
                sidecar = Sidecar(argv, self.host.folder)
                self._cuda = sidecar, Mover(sidecar, self.host.folder, still=Still(self._stay))
            return self._cuda

    def _stay(self, on: bool) -> None:
        """Hold the whole job still, or let it go; letting go waits while the job is held for another reason."""
        while self.host.shim.ask("stay", on=on)["held"] and not on:
            time.sleep(STAY_SECONDS)

    # ------------------------------------------------------------ what is there

    def gpu_processes(self, pids: Sequence[int]) -> tuple[list[int], list[str]]:
        """Those that the driver can save, and what stands against it, one sentence each. Both empty: none has a GPU open.

        Children that hold only what they inherited by fork are neither: a save takes it from them.
        """
        # Looking at all descriptors of a job costs time.
        held = process_discovery.holdings(pids) if process_discovery.present() else {}
        if not held:
            return [], []
        sidecar, _ = self.driver()
        try:
            about, known = sidecar.about(), sidecar.states(list(held))
        except (DriverUnfit, SidecarGone) as e:
            return [], [f"the job uses a GPU, and {e}"]
        names = {pid: f"process {procfs.number_inside(pid)}" for pid in held if Path(f"/proc/{pid}").exists()}
        parents = [held[pid] for pid in known]
        strange = {
            names[pid]: x.device for pid, x in held.items() if pid not in known and pid in names and not x.is_inherited(parents)
        }
        libraries = {name: process_discovery.frail_library(pid) for pid, name in names.items()}
        frail = {name: x.name for name, x in libraries.items() if x is not None and not (x.held or self.holds_threads)}
        found = gpu_facts.against(about, strange, frail, shared=process_discovery.shared_by_server())
        return sorted(known), found

    def facts(self, spec: Spec | None = None) -> dict[str, str]:
        """With the GPUs."""
        about = About()
        if process_discovery.present():
            with contextlib.suppress(DriverUnfit, SidecarGone):
                about = self.driver()[0].about()
        return super().facts(spec) | gpu_facts.of(about)

    def expect(self) -> None:
        """With the side-car: it attaches to the driver meanwhile."""
        super().expect()
        self.facts()

    # ------------------------------------------------------------ saving

    def save(self, spec: Spec, request: SaveRequest) -> SaveFacts:  # noqa: ARG002 -- as with CRIU alone
        """As the port says. If GPU memory can't be brought back after a live save, the job is ended: its image is newer."""
        memory = _Memory(self)
        try:
            # Nobody holds GPU memory for a job that may not come.
            facts = self._save(dataclasses.replace(request, keep=False), memory)
        except BaseException:
            status = self.host.status()
            if status.state is WorkloadState.RUNNING and status.pending_final is None:
                memory.back()
                self._end_if_lost(memory.lost)
            raise
        if request.final:
            self.driver()[1].forget()
        self._end_if_lost(memory.lost)
        return facts

    def _end_if_lost(self, why: str) -> None:
        if why:
            Loss(why).write(self.host.folder)
            self.host.shim.cgroup().kill()

    def bring_back(self) -> None:
        """Bring back what a save took out without coming to its end: its agent died, or a final save was void."""
        suspend_resume.put_huge_pages_back(self.host.folder)
        if not (self.host.folder / MARKER).exists():
            return
        status = self.host.status()
        if status.state is not WorkloadState.RUNNING or status.pending_final is not None:
            return
        try:
            self.driver()[1].recover()
        except CantBringBack as e:
            self._end_if_lost(str(e))

    # ------------------------------------------------------------ restoring

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """As every job with processes; its GPU memory comes last."""
        with suspend_resume.huge_pages_everywhere(self.host.folder):
            super().restore(manifest, spec)

    def _bring_devices_back(self, image: Manifest) -> None:
        sidecar, mover = self.driver()
        try:
            wanted = gpu_facts.processes_of(image.facts)
            pids = [pid for pid in self.host.pids() if procfs.number_inside(pid) in wanted]
            if short := wait_for_room(sidecar, gpu_facts.memory_of(image.facts), ROOM_SECONDS):
                raise CantBringBack(short, for_want_of_room=True)
            threads = gpu_facts.threads_of(image.facts)  # held when it was saved, and until its GPU memory is back
            mover.holds = bool(threads)
            if mover.still is not None:
                inside = {procfs.number_inside(pid): pid for pid in pids}
                mover.still.know({inside[p]: t for p, t in threads.items() if p in inside})
            mover.back(pids, gpu_facts.pairs(image.facts, sidecar.about()))
        except (CantBringBack, DriverUnfit, SidecarGone, OSError) as e:
            self.host.kill()
            machine = not isinstance(e, CantBringBack) or e.for_want_of_room
            raise EngineError(
                "refused" if machine else "restore", f"checkpoint {image.id} can't be continued on this machine: {e}"
            ) from e


class _Memory(Device):
    """The GPU memory of one job during one save."""

    there = True

    def __init__(self, method: CudaSave) -> None:
        self._method, self._folder = method, method.host.folder
        self._sidecar, self._mover = method.driver()
        self._moved: list[int] = []
        self._facts: dict[str, str] = {}
        self.lost = ""

    @property
    def stays(self) -> bool:
        """Its group is frozen."""
        return self._mover.holds and bool(self._moved)

    @property
    def bytes(self) -> int:
        """Of the GPUs, in use."""
        if self._moved:
            return 0
        try:
            return sum(card.used_bytes for card in self._sidecar.about().cards)
        except (DriverUnfit, SidecarGone) as e:
            raise EngineError("save", f"the save failed, the job runs on: {e}") from e

    def out(self, progress: Callable[[str], None]) -> None:
        """All of its processes, or none. Raises EngineError("save")."""
        if self._moved:  # a dump is made once more
            return
        progress("gpu")
        pids, against = self._method.gpu_processes(self._method.host.pids())
        if against:
            raise EngineError("save", f"the job can't be saved: {against[0]}")
        try:
            suspend_resume.check_host_room(self.bytes)
            suspend_resume.make_room()
            about = self._sidecar.about()
            self._moved = pids
            # Threads of these libraries would end their processes while the memory is out.
            self._mover.holds = self._method.holds_threads or any(process_discovery.frail_library(pid) for pid in pids)
            with suspend_resume.huge_pages_everywhere(self._folder):
                self._mover.out(pids, self._method.host.pids, interrupted_calls.settle)
        except CantBringBack as e:
            self.lost = str(e)
            raise EngineError("save", f"the save failed and took the job with it: {e}") from e
        except (CantTakeOut, DriverUnfit, SidecarGone) as e:
            raise EngineError("save", f"the job can't be saved now, it runs on: {e}") from e
        self._facts = gpu_facts.of(about) | gpu_facts.of_job(about, [procfs.number_inside(pid) for pid in pids])
        spared = {} if self._mover.still is None else self._mover.still.spared
        self._facts |= gpu_facts.of_threads({procfs.number_inside(p): procfs.number_inside(t) for p, t in spared.items()})

    def back(self) -> None:
        """Bring it back; `lost` reports a failure."""
        if not self._moved or self.lost:
            return
        try:
            with suspend_resume.huge_pages_everywhere(self._folder):
                self._mover.back(self._moved)
            self._moved = []
        except CantBringBack as e:
            self.lost = str(e)

    def facts(self) -> dict[str, str]:
        """Of the GPUs, and what the job used of them."""
        return self._facts

    @property
    def out_seconds(self) -> float:
        """Lock and copy."""
        return self._mover.times.lock + self._mover.times.out

    @property
    def back_seconds(self) -> float:
        """Copy and unlock."""
        return self._mover.times.back
