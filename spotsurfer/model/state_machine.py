"""The state tables of a job, of an attempt and of a machine.

An attempt is one machine's try at a job. It waits (PLANNED … READY: costs money, owns nothing), then holds (RESTORING, RUNNING,
DRAINING: only it may commit checkpoints and publish results), may keep the job frozen in case the job can't go on elsewhere
(DRAINED: owns nothing, see `core.moves`), and is then released (… RELEASING, RELEASED). A job has at most one holder and at
most one waiter: the next machine is ready before the old one is drained.

Two rules of this file:
1. A missing key *is* the illegal move: `advance` raises, nothing changes.
2. No machine is forgotten on the way. LOST is not over: no news is not death, so a silent machine is released and confirmed
gone. PLANNED is not free: a crash may lie between the cloud's acceptance and our record of it, so it too leaves through
RELEASING. A machine that is kept for the next job may outlive the attempt: then RELEASED means that its slot is empty.

The tables deliberately don't say *why* a move is made (`core.decide`), nor who owns the job (the head log in the store). They
only say what our record may show next.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from spotsurfer.model.errors import IllegalTransition
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobState as J
from spotsurfer.model.machine import MachineState as M


class AttemptEvent(StrEnum):
    """What can happen to an attempt."""

    LAUNCH_ACCEPTED = "launch accepted"
    LAUNCH_REFUSED = "launch refused"
    INSTANCE_SEEN = "instance seen"
    INSTANCE_GONE = "instance gone"
    AGENT_READY = "agent ready"
    EPOCH_GRANTED = "epoch granted"
    WORKLOAD_STARTED = "workload started"
    RESTORE_FAILED = "restore failed"
    STORE_FAILED = "store failed"
    RESTORE_REFUSED = "restore refused"
    DRAIN_ASKED = "drain asked"
    SAVE_FAILED = "save failed"
    DRAIN_WITHDRAWN = "drain withdrawn"
    FINAL_SAVED = "final saved"
    GIVEN_BACK = "given back"
    WORKLOAD_EXITED = "workload exited"
    SILENT = "silent"
    TERMINATE_CALLED = "terminate called"
    SLOT_EMPTY = "slot empty"


class MachineEvent(StrEnum):
    """What can happen to a machine."""

    ACCEPTED = "launch accepted"
    REFUSED = "launch refused"
    SEEN = "instance seen"
    END_ORDERED = "end ordered"
    GONE = "instance gone"


class JobEvent(StrEnum):
    """What can happen to a job."""

    ATTEMPT_PLANNED = "attempt planned"
    HELD = "held"
    RESUMED = "resumed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REOPENED = "reopened"


E = AttemptEvent
ATTEMPT: dict[A, dict[E, A]] = {
    A.PLANNED: {
        E.LAUNCH_ACCEPTED: A.REQUESTED,  # the cloud took the order
        E.LAUNCH_REFUSED: A.REFUSED,  # no capacity, or not allowed: the pool cools down
        E.TERMINATE_CALLED: A.RELEASING,  # withdrawn; a machine may exist all the same
    },
    A.REQUESTED: {
        E.INSTANCE_SEEN: A.BOOTING,  # it is in the cloud's listing
        E.INSTANCE_GONE: A.LOST,  # never appeared, or went again
        E.TERMINATE_CALLED: A.RELEASING,  # withdrawn
    },
    A.BOOTING: {
        E.AGENT_READY: A.READY,  # it reports, and could take the job
        E.INSTANCE_GONE: A.LOST,  # reclaimed while booting
        E.SILENT: A.LOST,  # never reported within the boot limit, or stopped reporting
        E.TERMINATE_CALLED: A.RELEASING,  # withdrawn
    },
    A.READY: {
        E.EPOCH_GRANTED: A.RESTORING,  # the head entry names it: it owns the job
        E.INSTANCE_GONE: A.LOST,  # reclaimed while waiting
        E.SILENT: A.LOST,  # stopped reporting
        E.RESTORE_REFUSED: A.LOST,  # it has compared facts while waiting, and could not go on with the newest checkpoint
        E.STORE_FAILED: A.LOST,  # what the job brings can't be had by any machine: no fault of this one's type
        E.TERMINATE_CALLED: A.RELEASING,  # no longer needed
    },
    A.RESTORING: {
        E.WORKLOAD_STARTED: A.RUNNING,  # the job goes on there
        E.RESTORE_FAILED: A.LOST,  # the agent says why; the next attempt may take an older checkpoint
        E.STORE_FAILED: A.LOST,  # the image could not be fetched: the next attempt takes the same one
        E.RESTORE_REFUSED: A.LOST,  # this machine can't go on with the image, which is not to blame: another type may
        E.DRAIN_ASKED: A.DRAINING,  # noticed or unwanted before it ran
        E.INSTANCE_GONE: A.LOST,  # reclaimed while restoring
        E.SILENT: A.LOST,  # stopped reporting
    },
    A.RUNNING: {
        E.DRAIN_ASKED: A.DRAINING,  # notice, move, suspend or limit
        E.FINAL_SAVED: A.DRAINED,  # the agent drained by itself: it needs nobody to ask it
        E.WORKLOAD_EXITED: A.FINISHED,  # the head says done
        E.RESTORE_FAILED: A.LOST,  # it ran, and the rest of its memory could not be brought
        E.INSTANCE_GONE: A.LOST,  # reclaimed without notice
        E.SILENT: A.LOST,  # no news for longer than its lease
    },
    A.DRAINING: {
        E.FINAL_SAVED: A.DRAINED,  # the head says final
        E.SAVE_FAILED: A.RUNNING,  # promise: a checkpoint that fails leaves the job running
        E.DRAIN_WITHDRAWN: A.RUNNING,  # resumed before it was saved
        E.WORKLOAD_EXITED: A.FINISHED,  # it ended by itself meanwhile
        E.RESTORE_FAILED: A.LOST,  # it waited for its memory, which could not be brought
        E.INSTANCE_GONE: A.LOST,  # the window was too short
        E.SILENT: A.LOST,  # stopped reporting
    },
    A.DRAINED: {
        E.GIVEN_BACK: A.RUNNING,  # it kept the job frozen, which could not go on elsewhere; the head says so
        E.TERMINATE_CALLED: A.RELEASING,  # nothing left to save, nor to keep
    },
    A.FINISHED: {E.TERMINATE_CALLED: A.RELEASING},  # nothing left to do
    A.LOST: {E.TERMINATE_CALLED: A.RELEASING},  # no news is not death
    A.RELEASING: {
        E.INSTANCE_GONE: A.RELEASED,  # gone from a complete listing
        E.SLOT_EMPTY: A.RELEASED,  # its agent says that nothing of it runs; the machine is kept
    },
    A.RELEASED: {},
    A.REFUSED: {},
}

JOB: dict[J, dict[JobEvent, J]] = {
    J.QUEUED: {
        JobEvent.ATTEMPT_PLANNED: J.ACTIVE,  # the first machine is ordered
        JobEvent.HELD: J.HELD,  # by its user or a limit, before it began
        JobEvent.FAILED: J.FAILED,  # it can't be run as asked
        JobEvent.CANCELLED: J.CANCELLED,  # before it began
    },
    J.ACTIVE: {
        JobEvent.HELD: J.HELD,  # drained and waiting in storage
        JobEvent.SUCCEEDED: J.SUCCEEDED,  # exit code 0
        JobEvent.FAILED: J.FAILED,  # the command failed and no retry is left
        JobEvent.CANCELLED: J.CANCELLED,  # by its user
    },
    J.HELD: {
        JobEvent.RESUMED: J.ACTIVE,  # by its user, or the limit was raised
        JobEvent.CANCELLED: J.CANCELLED,  # by its user
    },
    J.SUCCEEDED: {JobEvent.REOPENED: J.ACTIVE},  # its user goes back to a checkpoint
    J.FAILED: {JobEvent.REOPENED: J.ACTIVE},  # the same
    J.CANCELLED: {JobEvent.REOPENED: J.ACTIVE},  # the same
}

MACHINE: dict[M, dict[MachineEvent, M]] = {
    M.PLANNED: {
        MachineEvent.ACCEPTED: M.REQUESTED,  # the cloud took the order
        MachineEvent.REFUSED: M.REFUSED,  # no capacity, or not allowed
        MachineEvent.END_ORDERED: M.RELEASING,  # withdrawn; it may exist all the same
    },
    M.REQUESTED: {
        MachineEvent.SEEN: M.UP,  # it is in the cloud's listing
        MachineEvent.END_ORDERED: M.RELEASING,  # withdrawn, or never appeared
    },
    M.UP: {MachineEvent.END_ORDERED: M.RELEASING},  # nobody needs it any more, or it is gone
    M.RELEASING: {MachineEvent.GONE: M.RELEASED},  # gone from a complete listing
    M.RELEASED: {},
    M.REFUSED: {},
}
# What an event of an attempt means for a machine that it has for itself.
OF_ATTEMPT = {
    E.LAUNCH_ACCEPTED: MachineEvent.ACCEPTED,
    E.LAUNCH_REFUSED: MachineEvent.REFUSED,
    E.INSTANCE_SEEN: MachineEvent.SEEN,
    E.TERMINATE_CALLED: MachineEvent.END_ORDERED,
    E.INSTANCE_GONE: MachineEvent.GONE,
}

S = TypeVar("S", A, J, M)
V = TypeVar("V", AttemptEvent, JobEvent, MachineEvent)


def advance(table: dict[S, dict[V, S]], state: S, event: V) -> S:
    """The state after `event`; raises IllegalTransition if the table has no such edge."""
    try:
        return table[state][event]
    except KeyError:
        raise IllegalTransition(f"{state} has no edge for {event!r}") from None
