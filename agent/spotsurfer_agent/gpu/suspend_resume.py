"""GPU memory of a job out of the devices and back, with its threads held and huge pages used meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.gpu_facts import About
from spotsurfer_wire.linux import procfs

from spotsurfer_agent.gpu import driver_port, process_discovery
from spotsurfer_agent.gpu.driver_port import BACK, OK, Call, DriverUnfit, State
from spotsurfer_agent.gpu.sidecar import Sidecar, SidecarGone
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.linux.ptrace import CantHold, Holder, thread_of

# Transparent huge pages while tens of gigabytes move between a GPU and a job's memory.

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COMPACT = Path("/proc/sys/vm/compact_memory")
ALWAYS = "always"
NOTE = "huge-pages"  # in a folder of the caller's: how they were set before
COMPACTS = False  # before GPU memory comes out: not shown to be worth its time yet; `bench.gpu --compact` tries it


@contextlib.contextmanager
def huge_pages_everywhere(folder: Path) -> Iterator[None]:
    """Let the kernel use them without being asked, for a while; then the machine is as it was.

    `folder` is where a successor finds how it was, see `put_back`.
    On an H200 the way out of the GPU is 1.4 times as fast with them and the way back 1.2 times. Where the setting can't be
    written (a container) all works as before, slower.
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
    """What somebody set who was killed before he could set it back."""
    with contextlib.suppress(OSError):
        _set((folder / NOTE).read_text())
        (folder / NOTE).unlink()


def make_room() -> None:
    """Where that is wanted, have the kernel move what is in the way of huge pages. Takes seconds; the job runs meanwhile."""
    if COMPACTS:
        with contextlib.suppress(OSError):
            COMPACT.write_text("1")


def huge_page_setting() -> str:
    """The setting; empty where there is none."""
    with contextlib.suppress(OSError):
        return chosen(SETTING.read_text())
    return ""


def chosen(text: str) -> str:
    """What a file of the kernel says is set: its only value, or the one in brackets among all that there are."""
    return text.split("[")[-1].split("]")[0].strip()


def _set(value: str) -> None:
    with contextlib.suppress(OSError):
        SETTING.write_text(value)


# A job's threads held while its GPU memory is out: by ptrace around the driver's calls, by its control group around CRIU.
#
# lock │ ptrace ──▶ copy out │ freeze group, let go of ptrace │ CRIU │ ptrace again, thaw │ copy back ──▶ let go │ unlock
#
# A thread that touched GPU memory in between would end its process (JAX's do). The driver needs one thread of each process, the
# restore thread, which is spared. CRIU traces by itself, so both can't hold at once; the frozen group bridges that on the way
# out and on the way back, so that no thread makes a step in between.


class Still:
    """Of one job. `stay(True)` has its control group frozen and kept so, `stay(False)` lets it go."""

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
        """The restore threads of processes that were just restored and stand still."""
        found = {pid: thread_of(pid, number) for pid, number in threads.items()}
        self.spared = {pid: thread for pid, thread in found.items() if thread is not None}

    def hand_over(self) -> None:
        """Everything of the job stands still, traced by nobody."""
        self._stay(True)
        self._holder.release()

    def take_back(self, pids: Sequence[int]) -> None:
        """The reverse, from wherever it was; the spared ones run. Raises CantHold."""
        if not self.spared:  # nothing was held yet, or it was by an agent that is gone
            self._stay(False)
            return
        self._holder.hold(pids, list(self.spared.values()), thaw=lambda: self._stay(False))

    def end(self) -> None:
        """All may run."""
        self._holder.release()
        self._stay(False)
        self.spared = {}


# GPU memory of a job out of the devices and back, all of its processes or none.
#
# Locking one process after the other, or at a bad moment, leaves one waiting in a collective for another that is locked: so all
# are locked at once for a short time, and where one does not get there all are let go and it is tried again. What happened to a
# call whose side-car died is never guessed: the states are asked for, and the way back goes on from there.

LOCK_MS = 400
LOCK_SECONDS, LOCK_PAUSE_SECONDS = 30.0, 0.1
RELEASED_BYTES_MIN = 64 << 20  # less says nothing about whether all was copied
GROWN_SHARE = 0.5  # of what the devices gave back, the processes must have got at least
DEATHS_MAX = 3
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
    """What moving took, in seconds, and what was moved. `began` is monotonic."""

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
        """`folder` is the job's. `still` holds its other threads while memory is out, where `holds` says so."""
        self._sidecar, self._marker, self._now, self._still = sidecar, folder / MARKER, now, still
        self.holds = False
        self.times = Times()
        self._unable: dict[int, str] = {}  # by process, the error that says why the driver does not save it

    @property
    def still(self) -> Still | None:
        """What holds the threads of this move; None = they run on."""
        return self._still if self.holds else None

    # ------------------------------------------------------------ out

    def out(self, pids: Sequence[int]) -> None:
        """Lock, copy, compare. Raises CantTakeOut; CantBringBack where the way back failed, too."""
        self.times = Times(began=self._now())
        shim_protocol.write_durably(self._marker, {"pids": list(pids)})
        try:
            self._lock(pids)
            if (still := self.still) is not None:
                still.begin(self._sidecar.restore_threads(pids))
                shim_protocol.write_durably(self._marker, {"pids": list(pids), "spared": list(still.spared.items())})
            self._copy(pids)
            if still is not None:
                still.hand_over()
        except (CantTakeOut, CantHold, SidecarGone, DriverUnfit) as e:
            self.back(pids)
            raise CantTakeOut(str(e)) from e

    def _lock(self, pids: Sequence[int]) -> None:
        """All at once; then, by turns, those first that did not come to rest, and the others the moment that they did.

        A process whose work waits for a process that is locked already never comes to rest; one that goes first does.
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
        """A driver (580.159.04) names a cause at the first try alone; the next ones end with UNKNOWN."""
        if (Call.CHECKPOINT, error) in driver_port.SENTENCES:
            self._unable[pid] = error
        return self._unable.get(pid, error)

    def _compare(self, pids: Sequence[int], used: int, resident: int) -> None:
        """That the driver says so is not enough: states, devices and memory have to say it, too."""
        for pid, state in self._sidecar.states(pids).items():
            if state is not State.CHECKPOINTED:
                raise CantTakeOut(f"{_name(pid)} should be saved by the driver and is {state}")
        for pid, device in process_discovery.holders(pids).items():
            raise CantTakeOut(f"{_name(pid)} still holds {device} after the driver saved it")
        released = used - _used(self._sidecar.about())
        grown = process_discovery.resident_bytes(pids) - resident
        self.times.bytes = max(released, 0)
        if released >= RELEASED_BYTES_MIN and grown < GROWN_SHARE * released:
            raise CantTakeOut(f"the GPU gave {released >> 20} MiB back, but only {grown >> 20} MiB came into the job's memory")

    # ------------------------------------------------------------ back

    def back(self, pids: Sequence[int], pairs: Sequence[tuple[str, str]] = ()) -> None:
        """Let all of them run on, from whatever state they are in; those that are gone are left. Raises CantBringBack."""
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
        """One step of the table for the processes that are farthest out; whether all are back."""
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
        """Bring back what an agent that is gone took out. Raises CantBringBack."""
        left = shim_protocol.read_json(self._marker)
        if left is not None:
            spared = {int(pid): int(thread) for pid, thread in left.get("spared", [])}
            self.holds = bool(spared)
            if self.still is not None:
                self.still.spared = spared
            self.back([int(pid) for pid in left["pids"]])

    def forget(self) -> None:
        """The job is gone, or another one."""
        self._unable.clear()
        self._marker.unlink(missing_ok=True)


def _used(about: About) -> int:
    return sum(card.used_bytes for card in about.cards)


def _name(pid: int) -> str:
    try:
        return f"process {procfs.number_inside(pid)}"
    except OSError:
        return f"process {pid}"


def wait_for_room(sidecar: Sidecar, needed: Iterable[int], seconds: float, now: Callable[[], float] = time.monotonic) -> str:
    """Why the GPUs have too little free memory, by GPU in order; empty = they have enough, maybe after a while."""
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
