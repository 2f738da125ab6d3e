"""What the driver takes a process's CUDA through, as tables. Pure.

    RUNNING ──lock──▶ LOCKED ──checkpoint──▶ CHECKPOINTED
    RUNNING ◀─unlock─ LOCKED ◀───restore──── CHECKPOINTED

The documented machine of `cuCheckpointProcess…` (CUDA driver API, "CUDA Checkpointing"). What else is relied on was read off
an H200 with driver 580.159.04, and `tests/agent/test_cuda_driver.py` asks each driver for it: a call whose caller is killed
goes on in the process and ends as if nothing had been, and asking for the state waits for that end. So a state that was asked
for is true, and whoever does not know how a call ended asks, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

OK = "SUCCESS"
NOT_READY, NOT_SUPPORTED, ILLEGAL_STATE = "NOT_READY", "NOT_SUPPORTED", "ILLEGAL_STATE"
OUT_OF_MEMORY, INVALID_VALUE = "OUT_OF_MEMORY", "INVALID_VALUE"
NOT_INITIALIZED, OPERATING_SYSTEM = "NOT_INITIALIZED", "OPERATING_SYSTEM"


class State(StrEnum):
    """Of one process."""

    RUNNING = "running"
    LOCKED = "locked"  # its calls of CUDA wait
    CHECKPOINTED = "checkpointed"  # its GPU memory lies in its own memory, the devices are closed
    FAILED = "failed"


class Call(StrEnum):
    """What can be asked for."""

    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    RESTORE = "restore"
    UNLOCK = "unlock"


# Call -> the state that it needs, and the one that it leads to.
CALLS: Mapping[Call, tuple[State, State]] = {
    Call.LOCK: (State.RUNNING, State.LOCKED),
    Call.CHECKPOINT: (State.LOCKED, State.CHECKPOINTED),
    Call.RESTORE: (State.CHECKPOINTED, State.LOCKED),
    Call.UNLOCK: (State.LOCKED, State.RUNNING),
}
# The next call on the way back to RUNNING. None: it is there. A state that is missing leads nowhere.
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
    """What a call that failed means for the user."""
    told = SENTENCES.get((call, error), f"could not be {_PAST[call]} by the driver")
    return f"{process} {told} ({error})"


_PAST = {Call.LOCK: "locked", Call.CHECKPOINT: "saved", Call.RESTORE: "restored", Call.UNLOCK: "unlocked"}
