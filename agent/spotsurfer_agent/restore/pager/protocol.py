"""What a pager is told on its standard input, and what it tells in files of the job's folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from spotsurfer_agent.host import shim_protocol

STATE = "pager.json"
ORDER = "order.json"  # what was touched first, for the next restore
_FLAGS, _PF_EXITING = 5, 0x4  # field 9 of proc_pid_stat(5), counted behind the state; include/linux/sched.h

DEAD = "the processes that brought the job's memory were killed: the job was killed before it could see a wrong page"
BLAME_IMAGE, BLAME_STORE, BLAME_MACHINE = "image", "store", "machine"


class Phase(StrEnum):
    """How far a pager is."""

    STARTING = "starting"
    READY = "ready"  # CRIU may connect
    ARRIVING = "arriving"  # the job runs, its memory comes
    DONE = "done"
    FAILED = "failed"  # said before the loss is written down and the job killed


@dataclass(frozen=True, slots=True)
class PagerPlan:
    """One restore. Paths are absolute."""

    way: dict[str, Any]  # to the store, as `access.opening.Way` tells it
    job: str
    checkpoint: str
    key: str
    lineage: str
    encrypts: bool
    manifest: str  # file
    folder: str  # the job's
    images: str  # where CRIU looks for the image server
    work: str  # where CRIU looks for the server of faults
    lazy: bool  # the job may run before all its memory is there, where that helps
    cgroup: dict[str, str]  # the job's
    enter: list[str] = field(default_factory=list)  # files of the control group that the pager belongs to
    prints: str = ""  # file for the fingerprints of the image's pages; "" = nobody wants them
    cache: str = ""  # folder of objects that were fetched ahead; "" = there is none
    threads: int = 8  # fetches at once
    hands: int | None = None  # further processes that write memory into a job that waits; None = as many as are of use
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
    """What a pager says of itself."""

    pid: int
    phase: Phase
    lazy: bool = False
    arriving_bytes: int = 0
    error: str = ""
    faults: int = 0
    blame: str = ""  # FAILED: as a loss has it, which somebody may have noted before

    def write(self, folder: Path) -> None:
        """Replace what was said before. Not durable: after a power cut there is no job."""
        fresh = folder / f"{STATE}.{self.pid}"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(folder / STATE)

    @staticmethod
    def read(folder: Path) -> PagerState | None:
        """What the newest pager said last; None where there is none."""
        raw: dict[str, Any] | None = shim_protocol.read_json(folder / STATE)
        if raw is None:
            return None
        return PagerState(**{**raw, "phase": Phase(raw["phase"])})


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the job was killed: its memory can't be brought. `blame`: with BLAME_IMAGE every other try must fail as well."""

    sentence: str
    blame: str = BLAME_MACHINE

    def write(self, folder: Path) -> None:
        """Write it down durably, unless another one is there."""
        if not (folder / shim_protocol.LOSS).exists():
            mine = folder / f"loss-{os.getpid()}.json"  # several may note it at once
            shim_protocol.write_durably(mine, asdict(self))
            mine.replace(folder / shim_protocol.LOSS)

    @staticmethod
    def read(folder: Path) -> Loss | None:
        """What was lost, or None."""
        raw = shim_protocol.read_json(folder / shim_protocol.LOSS)
        return None if raw is None else Loss(str(raw.get("sentence", "")), str(raw.get("blame", BLAME_MACHINE)))


def arrives(folder: Path) -> bool:
    """Whether memory of the job is on its way."""
    state = PagerState.read(folder)
    return state is not None and _is_arriving(state) and alive(state.pid)


def incomplete(folder: Path) -> bool:
    """Whether the job has not, and never will have, all its memory: whatever ended then was no exit of its command."""
    if (folder / shim_protocol.LOSS).exists():
        return True
    state = PagerState.read(folder)
    return state is not None and (state.phase is Phase.FAILED or (_is_arriving(state) and not alive(state.pid)))


def _is_arriving(state: PagerState) -> bool:
    return state.lazy and state.phase in (Phase.READY, Phase.ARRIVING)


def forget(folder: Path) -> None:
    """Nothing is known of an earlier pager any more."""
    for name in (STATE, shim_protocol.LOSS, ORDER):
        (folder / name).unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process is there, and not on its way out.

    A process that is killed closes its files before it is a zombie. By then the job may have seen zeros, and ended of it.
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
