"""GPU memory of a job out of the devices and back, with its threads held and huge pages used meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.gpu_facts import About
from spotsurfer_wire.linux import procfs
from spotsurfer_wire.linux.memory import free_bytes

from spotsurfer_agent.gpu import driver_port, inherited, process_discovery
from spotsurfer_agent.gpu.driver_port import BACK, OK, Call, DriverUnfit, State
from spotsurfer_agent.gpu.process_discovery import Holding
from spotsurfer_agent.gpu.sidecar import Sidecar, SidecarGone
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.linux.ptrace import CantHold, Holder, thread_of

# ---- Transparent huge pages while tens of gigabytes move between a GPU and a job's memory

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COMPACT = Path("/proc/sys/vm/compact_memory")
ALWAYS = "always"
NOTE = "huge-pages"  # file in the caller's folder: the previous setting
COMPACTS = False  # before GPU memory comes out: no proven benefit yet; `bench.gpu --compact` tries it


@contextlib.contextmanager
def huge_pages_everywhere(folder: Path) -> Iterator[None]:
    """Let the kernel use huge pages without a request by the program, for a block; then the old setting is back.

    `folder` keeps the old setting for a successor, see `put_huge_pages_back`. On an H200 huge pages make the way out of the
    GPU 1.4 times as fast and the way back 1.2 times. If the setting can't be written (in a container), all works, slower.
    """
    if (before := huge_page_setting()) in ("", ALWAYS):
        yield
        return
    with contextlib.suppress(OSError):
        (folder / NOTE).write_text(before)
    _set(ALWAYS)
    try:
        yield
    finally:
        _set(before)
        with contextlib.suppress(OSError):
            (folder / NOTE).unlink()


def put_huge_pages_back(folder: Path) -> None:
    """Restore the setting that a killed agent left changed."""
    with contextlib.suppress(OSError):
        _set((folder / NOTE).read_text())
        (folder / NOTE).unlink()


def make_room() -> None:
    """If COMPACTS is set, let the kernel make room for huge pages. Takes seconds; the job runs meanwhile."""
    if COMPACTS:
        with contextlib.suppress(OSError):
            COMPACT.write_text("1")


def huge_page_setting() -> str:
    """The setting; empty if this kernel has none."""
    with contextlib.suppress(OSError):
        return chosen(SETTING.read_text())
    return ""


def chosen(text: str) -> str:
    """The value in a kernel file: its only one, or the one in brackets."""
    return text.split("[")[-1].split("]")[0].strip()


def _set(value: str) -> None:
    with contextlib.suppress(OSError):
        SETTING.write_text(value)


# ---- A job's threads held while its GPU memory is out: by ptrace around the driver's calls, by its control group around CRIU
#
#     lock │ ptrace ──▶ copy out │ freeze group, let go of ptrace │ CRIU │ ptrace again, thaw │ copy back ──▶ let go │ unlock
#
# A thread that touched GPU memory in between would crash its process (JAX's threads do). The driver needs one thread of each
# process, the restore thread, which is spared. CRIU uses ptrace itself, so both can't hold a thread at once. The frozen group
# bridges the change in both directions, so that no thread runs in between.


class Still:
    """Holds the threads of one job. `stay(True)` freezes its control group and keeps it frozen, `stay(False)` thaws it."""

    def __init__(self, stay: Callable[[bool], object]) -> None:
        self._stay, self._holder = stay, Holder()
        self.spared: dict[int, int] = {}  # process -> its restore thread; numbers here

    def begin(self, threads: Mapping[int, int]) -> None:
        """Hold all threads of these processes but these. Raises CantHold."""
        self.spared = {pid: thread for pid, number in threads.items() if (thread := thread_of(pid, number)) is not None}
        if missing := [pid for pid in threads if pid not in self.spared]:
            self.spared = {}
            raise CantHold(f"the driver names a thread of process {missing[0]} that is not there")
        try:
            self._holder.hold(list(self.spared), list(self.spared.values()))
        except CantHold:
            self.spared = {}
            raise

    def know(self, threads: Mapping[int, int]) -> None:
        """Learn the restore threads of processes that were just restored and stand still."""
        found = {pid: thread_of(pid, number) for pid, number in threads.items()}
        self.spared = {pid: thread for pid, thread in found.items() if thread is not None}

    def hand_over(self) -> None:
        """Freeze the whole job and stop tracing it."""
        self._stay(True)
        self._holder.release()

    def take_back(self, pids: Sequence[int]) -> None:
        """The reverse of `hand_over`, from any state; the spared threads run. Raises CantHold."""
        if not self.spared:  # nothing was held yet, or only by an agent that is gone
            self._stay(False)
            return
        self._holder.hold(pids, list(self.spared.values()), thaw=lambda: self._stay(False))

    def end(self) -> None:
        """Let all threads run."""
        self._holder.release()
        self._stay(False)
        self.spared = {}


# ---- GPU memory of a job out of the devices and back, all of its processes or none
#
# If processes are locked one after the other, or at a bad moment, one may wait in a collective for another that is locked. So
# all are locked at once with a short timeout. If one does not get there, all are let go, and the mover tries again. After a
# side-car's death the result of its call is never guessed: the mover queries the states and goes on from there.

LOCK_MS = 400
LOCK_SECONDS, LOCK_PAUSE_SECONDS = 30.0, 0.1
RELEASED_BYTES_MIN = 64 << 20  # a smaller amount does not show whether all was copied
GROWN_SHARE = 0.5  # the processes must have grown by at least this share of the memory that the devices freed
DEATHS_MAX = 3
HOST_SHARE = 1.1  # of the GPU memory must be free in the machine
MARKER = "gpu-out.json"  # of the job's folder: its GPU memory is, or may be, out of the devices


class CantTakeOut(Exception):
    """The job runs on as it was; one sentence."""


class CantBringBack(Exception):
    """The job's GPU work is lost where it is. `for_want_of_room`: the GPU had too little free memory."""

    def __init__(self, sentence: str, *, for_want_of_room: bool = False) -> None:
        super().__init__(sentence)
        self.for_want_of_room = for_want_of_room


@dataclass(slots=True)
class Times:
    """Durations of a move in seconds, and the bytes moved. `began` is monotonic."""

    began: float = 0.0
    lock: float = 0.0
    out: float = 0.0
    back: float = 0.0
    bytes: int = 0
    tries: int = 0  # of locking


class Mover:
    """The GPU memory of one job."""

    def __init__(
        self, sidecar: Sidecar, folder: Path, now: Callable[[], float] = time.monotonic, still: Still | None = None
    ) -> None:
        """`folder` is the job's. `still` holds its other threads while memory is out, if `holds` says so."""
        self._sidecar, self._marker, self._now, self._still = sidecar, folder / MARKER, now, still
        self.holds = False
        self.times = Times()
        self._unable: dict[int, str] = {}  # process -> the error that tells why the driver does not save it

    @property
    def still(self) -> Still | None:
        """What holds the threads of this move; None = they run on."""
        return self._still if self.holds else None

    # ------------------------------------------------------------ out

    def out(self, pids: Sequence[int], family: Callable[[], Iterable[int]], settle: inherited.Settle) -> None:
        """Lock, copy, compare, take from forked children what they inherited.

        `family`: all processes of the job now. `settle`: of a child, see `ptrace.stopped`. Raises CantTakeOut; CantBringBack
        if the way back failed, too.
        """
        self.times = Times(began=self._now())
        shim_protocol.write_durably(self._marker, {"pids": list(pids)})
        try:
            self._lock(pids)
            if (still := self.still) is not None:
                still.begin(self._sidecar.restore_threads(pids))
                shim_protocol.write_durably(self._marker, {"pids": list(pids), "spared": list(still.spared.items())})
            parents = process_discovery.holdings(pids)
            self._copy(pids)
            self._relieve(parents, family, settle)
            if still is not None:
                still.hand_over()
        except (CantTakeOut, CantHold, SidecarGone, DriverUnfit) as e:
            self.back(pids)
            raise CantTakeOut(str(e)) from e

    def _lock(self, pids: Sequence[int]) -> None:
        """Lock all at once; then, in turns, first those that did not come to rest, and the others as soon as they did.

        A process that waits for a locked process never comes to rest; if it goes first, it does.
        """
        end, first = self._now() + LOCK_SECONDS, list(pids)
        while True:
            self.times.tries += 1
            told = self._locked(first, [pid for pid in pids if pid not in first])
            failed = {pid: result for pid, result in told.items() if result != OK}
            if not failed:
                self.times.lock = self._now() - self.times.began
                return
            pid, result = next(iter(failed.items()))
            if result != driver_port.NOT_READY or self._now() > end:
                raise CantTakeOut(driver_port.sentence(_name(pid), Call.LOCK, result))
            self._sidecar.call(Call.UNLOCK, [pid for pid, result in told.items() if result == OK])
            first = list(failed) if len(first) == len(pids) else list(pids)
            time.sleep(LOCK_PAUSE_SECONDS)

    def _locked(self, first: Sequence[int], then: Sequence[int]) -> dict[int, str]:
        told = self._sidecar.call(Call.LOCK, first, timeout_ms=LOCK_MS)
        if then and all(result == OK for result in told.values()):
            told |= self._sidecar.call(Call.LOCK, then, timeout_ms=LOCK_MS)
        return told

    def _copy(self, pids: Sequence[int]) -> None:
        used, resident, began = _used(self._sidecar.about()), process_discovery.resident_bytes(pids), self._now()
        told = self._sidecar.call(Call.CHECKPOINT, pids)
        self.times.out = self._now() - began
        for pid, result in told.items():
            if result != OK:
                raise CantTakeOut(driver_port.sentence(_name(pid), Call.CHECKPOINT, self._cause(pid, result)))
        self._compare(pids, used, resident)

    def _cause(self, pid: int, error: str) -> str:
        """The cause of a failed lock. A driver (580.159.04) names it only at the first try; later ones end with UNKNOWN."""
        if (Call.CHECKPOINT, error) in driver_port.SENTENCES:
            self._unable[pid] = error
        return self._unable.get(pid, error)

    def _compare(self, pids: Sequence[int], used: int, resident: int) -> None:
        """Do not trust the driver's result alone: check states, devices and memory, too."""
        for pid, state in self._sidecar.states(pids).items():
            if state is not State.CHECKPOINTED:
                raise CantTakeOut(f"{_name(pid)} should be saved by the driver and is {state}")
        for pid, held in process_discovery.holdings(pids).items():
            raise CantTakeOut(f"{_name(pid)} still holds {held.device} after the driver saved it")
        released = used - _used(self._sidecar.about())
        grown = process_discovery.resident_bytes(pids) - resident
        self.times.bytes = max(released, 0)
        if released >= RELEASED_BYTES_MIN and grown < GROWN_SHARE * released:
            raise CantTakeOut(f"the GPU gave {released >> 20} MiB back, but only {grown >> 20} MiB came into the job's memory")

    def _relieve(self, parents: Mapping[int, Holding], family: Callable[[], Iterable[int]], settle: inherited.Settle) -> None:
        """No process of the job holds a device afterwards."""
        held = process_discovery.holdings(family())
        children = {pid: x for pid, x in held.items() if x.is_inherited(parents.values())}
        try:
            inherited.take(children, settle)
        except OSError as e:
            raise CantTakeOut(f"what a forked child inherited of the GPU can't be taken from it: {e.strerror or e}") from e
        for pid, left in process_discovery.holdings(held).items():
            raise CantTakeOut(f"{_name(pid)} holds {left.device} and has no CUDA of its own")

    # ------------------------------------------------------------ back

    def back(self, pids: Sequence[int], pairs: Sequence[tuple[str, str]] = ()) -> None:
        """Let all processes run on, from any state; gone ones are skipped. Raises CantBringBack."""
        if (still := self.still) is None:
            self._back(pids, pairs)
            return
        try:
            still.take_back(pids)
            self._back(pids, pairs)
        except CantHold as e:
            raise CantBringBack(str(e)) from e
        finally:
            still.end()

    def _back(self, pids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> None:
        began, deaths = self._now(), 0
        while True:
            try:
                if self._nearer(pids, pairs):
                    break
            except (SidecarGone, DriverUnfit) as e:
                deaths += 1
                if deaths > DEATHS_MAX:
                    raise CantBringBack(f"the job's GPU memory can't be brought back: {e}") from e
        self.times.back = self._now() - began
        self._marker.unlink(missing_ok=True)

    def _nearer(self, pids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> bool:
        """Take the processes that are farthest out one step back; returns whether all are back."""
        there = self._sidecar.states([p for p in pids if Path(f"/proc/{p}").exists()])
        for pid, state in there.items():
            if state not in BACK:
                raise CantBringBack(f"the driver gave {_name(pid)} up (its state is {state})")
        for call in (Call.RESTORE, Call.UNLOCK):  # all have their memory before one of them runs
            due = [pid for pid, state in there.items() if BACK[state] is call]
            if due:
                self._take(call, due, pairs)
                return False
        return True

    def _take(self, call: Call, pids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> None:
        more = {"pairs": [list(p) for p in pairs]} if call is Call.RESTORE else {}
        for pid, result in self._sidecar.call(call, pids, **more).items():
            if result != OK and Path(f"/proc/{pid}").exists():
                room = call is Call.RESTORE and result == driver_port.OUT_OF_MEMORY
                raise CantBringBack(driver_port.sentence(_name(pid), call, result), for_want_of_room=room)

    # ------------------------------------------------------------ what an earlier agent left

    def recover(self) -> None:
        """Bring back what an earlier agent took out. Raises CantBringBack."""
        left = shim_protocol.read_json(self._marker)
        if left is not None:
            spared = {int(pid): int(thread) for pid, thread in left.get("spared", [])}
            self.holds = bool(spared)
            if self.still is not None:
                self.still.spared = spared
            self.back([int(pid) for pid in left["pids"]])

    def forget(self) -> None:
        """The job is gone, or another one now."""
        self._unable.clear()
        self._marker.unlink(missing_ok=True)


def _used(about: About) -> int:
    return sum(card.used_bytes for card in about.cards)


def _name(pid: int) -> str:
    try:
        return f"process {procfs.number_inside(pid)}"
    except OSError:
        return f"process {pid}"


def check_host_room(gpu_bytes: int) -> None:
    """The machine must have room for the job's GPU memory for a while. Raises CantTakeOut."""
    need, free = int(gpu_bytes * HOST_SHARE), free_bytes()
    if need > free:
        raise CantTakeOut(
            f"its GPU memory has to lie in the machine's memory for a while: {need >> 20} MiB are needed and "
            f"{free >> 20} MiB are free; ask for a machine with more memory"
        )


def wait_for_room(sidecar: Sidecar, needed: Iterable[int], seconds: float, now: Callable[[], float] = time.monotonic) -> str:
    """Wait a while for free memory on the GPUs. Returns a sentence about what is missing; empty = enough."""
    end, wanted = now() + seconds, list(needed)
    while True:
        free = [card.free_bytes for card in sidecar.about().cards]
        short = [(i, need, has) for i, (need, has) in enumerate(zip(wanted, free, strict=False)) if need > has]
        if not short:
            return ""
        if now() > end:
            number, need, has = short[0]
            return f"GPU {number} has {has >> 20} MiB free and {need >> 20} MiB are needed: another program uses it"
        time.sleep(LOCK_PAUSE_SECONDS)
