"""The protocol of a pager: its plan on standard input, and its state in files of the job's folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from spotsurfer_agent.host import shim_protocol

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
    enter: list[str] = field(default_factory=list)  # files of the control group that the pager belongs to
    prints: str = ""  # file for the fingerprints of the image's pages; "" = not wanted
    cache: str = ""  # folder of objects that were fetched ahead; "" = there is none
    threads: int = 8  # fetches at once
    hands: int | None = None  # further processes that write memory into a stopped job; None = as many as are useful
    memory_bytes: int = 256 << 20

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
    return state is not None and _is_arriving(state) and alive(state.pid)


def incomplete(folder: Path) -> bool:
    """Whether the job will never have all its memory. Then an end of its processes was no exit of its command."""
    if (folder / shim_protocol.LOSS).exists():
        return True
    state = PagerState.read(folder)
    return state is not None and (state.phase is Phase.FAILED or (_is_arriving(state) and not alive(state.pid)))


def _is_arriving(state: PagerState) -> bool:
    return state.lazy and state.phase in (Phase.READY, Phase.ARRIVING)


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


def myself(phase: Phase, **more: Any) -> PagerState:
    """The state of the calling process."""
    return PagerState(os.getpid(), phase, **more)
