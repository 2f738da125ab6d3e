"""What a GPU driver must be able to do, and the states that it takes a process's CUDA through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from spotsurfer_wire.gpu_facts import About

# ---- States: what the driver takes a process's CUDA through, as tables. Pure.
#
#     RUNNING ──lock──▶ LOCKED ──checkpoint──▶ CHECKPOINTED
#     RUNNING ◀─unlock─ LOCKED ◀───restore──── CHECKPOINTED
#
# This is the documented state machine of `cuCheckpointProcess…` (CUDA driver API, "CUDA Checkpointing"). Two more properties
# were observed on an H200 with driver 580.159.04, and `tests/agent/test_cuda_driver.py` checks them on each driver: if a
# caller is killed, its call goes on in the process and ends normally, and a query of the state waits for that end. So a queried
# state is true: if a call's result is unknown, the caller queries the state and goes on from there.

OK = "SUCCESS"
NOT_READY, NOT_SUPPORTED, ILLEGAL_STATE = "NOT_READY", "NOT_SUPPORTED", "ILLEGAL_STATE"
OUT_OF_MEMORY, INVALID_VALUE = "OUT_OF_MEMORY", "INVALID_VALUE"
NOT_INITIALIZED, OPERATING_SYSTEM = "NOT_INITIALIZED", "OPERATING_SYSTEM"


class State(StrEnum):
    """State of one process."""

    RUNNING = "running"
    LOCKED = "locked"  # its calls of CUDA wait
    CHECKPOINTED = "checkpointed"  # its GPU memory lies in its own memory, the devices are closed
    FAILED = "failed"


class Call(StrEnum):
    """A call to the driver."""

    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


# Call -> the state that it needs, and the state after it.
CALLS: Mapping[Call, tuple[State, State]] = {
    Call.LOCK: (State.RUNNING, State.LOCKED),
    Call.CHECKPOINT: (State.LOCKED, State.CHECKPOINTED),
    Call.RESTORE: (State.CHECKPOINTED, State.LOCKED),
    Call.UNLOCK: (State.LOCKED, State.RUNNING),
}
# The next call on the way back to RUNNING. None: it is there. From a missing state no way leads back.
BACK: Mapping[State, Call | None] = {
    State.CHECKPOINTED: Call.RESTORE,
    State.LOCKED: Call.UNLOCK,
    State.RUNNING: None,
}

# (call, error) -> the second half of a sentence that begins with the process.
SENTENCES: Mapping[tuple[Call, str], str] = {
    (Call.LOCK, NOT_READY): "did not come to rest on its GPU in time: it waits for another process, or runs one long kernel",
    (Call.CHECKPOINT, NOT_SUPPORTED): (
        "uses GPU memory that the driver can't save: managed (unified) memory, or memory shared between processes; "
        "use plain allocations"
    ),
    (Call.CHECKPOINT, OUT_OF_MEMORY): "got too little memory of the machine for its GPU memory: ask for a machine with more",
    (Call.RESTORE, OUT_OF_MEMORY): "found too little free memory on the GPU: another program uses it",
    (Call.RESTORE, INVALID_VALUE): "can't be given these GPUs: all that it saw when it was saved must be there",
}


def sentence(process: str, call: Call, error: str) -> str:
    """A failed call, as a sentence for the user."""
    told = SENTENCES.get((call, error), f"could not be {_PAST[call]} by the driver")
    return f"{process} {told} ({error})"


_PAST = {Call.LOCK: "locked", Call.CHECKPOINT: "saved", Call.RESTORE: "restored", Call.UNLOCK: "unlocked"}


# ---- The interface: NVIDIA's driver and the tests' stand-in implement it, and one test file checks both


class DriverUnfit(Exception):
    """This machine's driver, or its Python binding, can't save GPU memory; one sentence with the remedy."""


class Driver(Protocol):
    """Each call returns the name of its result, `OK` or an error; it blocks until the driver is done.

    Calls for different processes may be made at once, from different threads.
    """

    def about(self) -> About:
        """The driver and its GPUs now."""
        ...

    def state(self, pid: int) -> tuple[str, State | None]:
        """State of a process; an error if it has no CUDA or is gone. Waits while a call for this process is under way."""
        ...

    def restore_thread(self, pid: int) -> tuple[str, str]:
        """Number of the thread of a process that executes the next calls; the other threads need not run."""
        ...

    def lock(self, pid: int, timeout_ms: int) -> str:
        """Let submitted work end and stop all further calls; after the timeout the process is RUNNING again (NOT_READY)."""
        ...

    def checkpoint(self, pid: int) -> str:
        """Move the GPU memory into the process's own memory and close the devices."""
        ...

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> str:
        """The reverse of `checkpoint`. `pairs`: UUIDs then and now of all GPUs that it could see; none = the same as then."""
        ...

    def unlock(self, pid: int) -> str:
        """Let the process's calls go on."""
        ...
