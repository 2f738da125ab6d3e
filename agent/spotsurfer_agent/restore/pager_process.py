"""A pager seen from outside: its plan on standard input, its state in files of the job's folder, and how the agent runs one.

The shim of a job reads these files too, so nothing here may need a library.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.host import shim_protocol, tools
from spotsurfer_agent.host.cgroup import JobCgroup

# ---- The protocol: a plan, then states, and a loss if it ends badly

STATE = "pager.json"
ORDER = "order.json"  # which memory was touched first, for the next restore
_FLAGS, _PF_EXITING = 5, 0x4  # field 9 of proc_pid_stat(5), counted behind the state; include/linux/sched.h

DEAD = "the processes that brought the job's memory were killed: the job was killed before it could see a wrong page"
BLAME_IMAGE, BLAME_STORE, BLAME_MACHINE = "image", "store", "machine"


class Phase(StrEnum):
    """How far a pager is."""

    STARTING = "starting"
    READY = "ready"  # CRIU may connect
    ARRIVING = "arriving"  # the job runs, its memory comes
    DONE = "done"
    FAILED = "failed"  # written before the loss is recorded and the job killed


@dataclass(frozen=True, slots=True)
class PagerPlan:
    """One restore. Paths are absolute."""

    way: dict[str, Any]  # to the store, as `StoreAccess.carry` returns it
    cache: str  # folder of objects that were fetched ahead; "" = there is none
    job: str
    checkpoint: str
    key: str
    lineage: str
    encrypts: bool
    manifest: str  # file
    folder: str  # the job's
    images: str  # where CRIU looks for the image server
    work: str  # where CRIU looks for the server of faults
    lazy: bool  # the job may run before all its memory is there, if that helps
    cgroup: dict[str, str]  # the job's
    enter: list[str]  # files of the control group that the pager belongs to
    prints: str  # file for the fingerprints of the image's pages
    workers: int | None = None  # further processes that write memory into a stopped job; None = as many as are useful

    @staticmethod
    def from_json(text: str) -> PagerPlan:
        """The plan from its JSON form; raises TypeError and ValueError."""
        return PagerPlan(**json.loads(text))

    def to_json(self) -> str:
        """The reverse."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class PagerState:
    """A pager's own state."""

    pid: int
    phase: Phase
    lazy: bool = False
    arriving_bytes: int = 0
    error: str = ""
    faults: int = 0
    blame: str = ""  # FAILED: as in `Loss`, which another process may have recorded before

    def write(self, folder: Path) -> None:
        """Replace the earlier state. Not durable: after a power cut there is no job."""
        fresh = folder / f"{STATE}.{self.pid}"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(folder / STATE)

    @staticmethod
    def read(folder: Path) -> PagerState | None:
        """The newest pager's last state; None if there is none."""
        raw: dict[str, Any] | None = shim_protocol.read_json(folder / STATE)
        if raw is None:
            return None
        return PagerState(**{**raw, "phase": Phase(raw["phase"])})

    @property
    def is_arriving(self) -> bool:
        """Memory of the job is on its way, if the pager lives."""
        return self.lazy and self.phase in (Phase.READY, Phase.ARRIVING)


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the job was killed: its memory can't be brought. `blame`: with BLAME_IMAGE every other try fails as well."""

    sentence: str
    blame: str = BLAME_MACHINE

    def write(self, folder: Path) -> None:
        """Record the loss durably, unless one is there already."""
        if not (folder / shim_protocol.LOSS).exists():
            mine = folder / f"loss-{os.getpid()}.json"  # several processes may record it at once
            shim_protocol.write_durably(mine, asdict(self))
            mine.replace(folder / shim_protocol.LOSS)

    @staticmethod
    def read(folder: Path) -> Loss | None:
        """The recorded loss, or None."""
        raw = shim_protocol.read_json(folder / shim_protocol.LOSS)
        return None if raw is None else Loss(str(raw.get("sentence", "")), str(raw.get("blame", BLAME_MACHINE)))


def arrives(folder: Path) -> bool:
    """Whether memory of the job is on its way."""
    state = PagerState.read(folder)
    return state is not None and state.is_arriving and alive(state.pid)


def incomplete(folder: Path) -> bool:
    """Whether the job will never have all its memory. Then an end of its processes was no exit of its command."""
    if (folder / shim_protocol.LOSS).exists():
        return True
    state = PagerState.read(folder)
    return state is not None and (state.phase is Phase.FAILED or (state.is_arriving and not alive(state.pid)))


def forget(folder: Path) -> None:
    """Remove the files of an earlier pager."""
    for name in (STATE, shim_protocol.LOSS, ORDER):
        (folder / name).unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process exists and is not exiting.

    A killed process closes its files before it is a zombie. By then the job may have seen zeros, and ended because of them.
    """
    try:
        with open(f"/proc/{pid}/stat") as f:  # noqa: PTH123 -- read often
            state, *rest = f.read().rpartition(") ")[2].split()
    except (OSError, ValueError):
        return False
    return state not in ("Z", "X") and not int(rest[_FLAGS]) & _PF_EXITING


# ---- The agent's side

READY_SECONDS = 600.0  # a slow store may have to send small files first
PRINTS_SECONDS = 2.0  # with them the next save sends so much less that the wait is worth it
LOOK_SECONDS = 0.005
HANGS = "CRIU waited for something that does not answer and was ended; a network file system in use may be the reason"
# Until the holders exist there must be only one thread: numpy would start some of its own.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class CantBring(Exception):
    """The pager gave up before the job ran; its sentence."""


def standing(folder: Path, python: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A pager that loads its modules and waits for its plan; it ends with the process that started it. Raises OSError."""
    with (folder / "pager.log").open("ab") as log:
        return subprocess.Popen(
            [*python, "-m", "spotsurfer_agent.restore.pager"],
            stdin=subprocess.PIPE, stdout=log, stderr=log, cwd="/", start_new_session=True,
            env={**os.environ, **_ENVIRONMENT},
        )  # fmt: skip


class PagerProcess:
    """The pager of one restore. It outlives the agent while memory arrives. A failure in its block ends it."""

    def __init__(self, folder: Path, python: tuple[str, ...], process: subprocess.Popen[bytes] | None) -> None:
        """`folder`: the job's. `process`: a pager that stands by; without one this starts one. Raises OSError."""
        self._folder = folder
        forget(folder)
        alive = process is not None and process.poll() is None
        self._process = process if process is not None and alive else standing(folder, python)

    def begin(self, plan: PagerPlan) -> None:
        """Send the plan."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(plan.to_json().encode())
            self._process.stdin.close()

    def ready(self) -> bool:
        """Wait until CRIU may connect; True for a lazy restore. Raises CantBring, or StoreError if the store is the cause."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            state = PagerState.read(self._folder)
            if state is not None and state.phase is not Phase.STARTING and state.phase is not Phase.FAILED:
                return state.lazy
            if self._process.poll() is not None:
                break
            time.sleep(LOOK_SECONDS)
        raise self._trouble() or CantBring(f"its memory can't be brought: see {self._folder}/pager.log")

    def _trouble(self) -> CantBring | StoreError | None:
        state, loss = PagerState.read(self._folder), Loss.read(self._folder)
        why, blame = (loss.sentence, loss.blame) if loss is not None else ("", "")
        if state is not None and state.phase is Phase.FAILED and state.error:  # else it is what the pager waits for
            why, blame = state.error, state.blame
        return (StoreError if blame == BLAME_STORE else CantBring)(why) if why else None

    def __enter__(self) -> PagerProcess:
        return self

    def __exit__(self, kind: object, e: BaseException | None, trace: TracebackType | None) -> None:
        """End the pager after a failure: it may not be in the job's group yet, which ends with the job.

        Raises the pager's own error instead of CRIU's, which only sees that its image ends.
        """
        if e is None:
            return
        trouble = self._trouble()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        if trouble is not None and isinstance(e, shim_protocol.ShimRefused | shim_protocol.ShimGone):
            raise trouble from e


@contextlib.contextmanager
def getting_on(folder: Path, work: Path, group: JobCgroup) -> Iterator[None]:
    """Context of a shim's restore: ends CRIU if it makes no progress. Raises ShimRefused."""

    def signs() -> object:
        """Values that change while CRIU works, or waits for arriving memory or for an unreachable store."""
        state, log = PagerState.read(folder), work / "restore.log"
        if state is not None and (state.phase is Phase.ARRIVING or state.error):
            return time.monotonic()
        return log.stat().st_size if log.exists() else 0, group.cpu_seconds(), state

    with tools.watched(signs, tools.ending_criu(folder, "end_restore"), tools.STALL_SECONDS) as hung:
        try:
            yield
        except shim_protocol.ShimRefused as e:
            raise (shim_protocol.ShimRefused(HANGS) if hung() else e) from None


@dataclass(frozen=True, slots=True)
class Arrival:
    """The state of memory on its way."""

    arriving_bytes: int | None = None  # None: all is there
    loss: Loss | None = None


def arrival(folder: Path, group: JobCgroup) -> Arrival:
    """The arrival's state. If no holder is left to kill a job without its memory, this kills it."""
    loss, state = Loss.read(folder), PagerState.read(folder)
    if loss is not None or state is None or not state.is_arriving:
        return Arrival(None, loss)
    if alive(state.pid):
        return Arrival(state.arriving_bytes)
    state = PagerState.read(folder)
    if state is not None and state.phase is Phase.DONE:
        return Arrival()
    loss = Loss.read(folder) or Loss(DEAD)
    with contextlib.suppress(OSError):  # a full disk: a later check still finds it incomplete
        loss.write(folder)
    group.kill()
    return Arrival(None, loss)


def await_prints(folder: Path, prints: Path) -> None:
    """Wait a moment for the pager, which has brought all memory, to write the fingerprints for the next save."""
    end = time.monotonic() + PRINTS_SECONDS
    while not prints.exists() and time.monotonic() < end:
        state = PagerState.read(folder)
        if state is None or not alive(state.pid):
            return
        time.sleep(LOOK_SECONDS)
