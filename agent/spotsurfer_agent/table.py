"""THE agent's table: how one attempt lives on its machine.

Theory of operation. The agent waits (BOOT, STANDBY: owns nothing), then holds the job (RESTORING, RUNNING, STEPPING, SAVING,
DRAINING, PUBLISHING), may keep it frozen after its final save (KEEPING: owns nothing; RETURNING: owns it again), then ends
(the terminal states: the workload is killed, the last report is written, the machine powered off). `machine.step` looks at
the facts, takes at most one edge, and says what to do. It is level-triggered: an effect is
wanted again until the facts show that it happened, so a lost one does no harm.

Five rules of this file:
1. A missing key *is* the illegal move; guards are an ordered list for each state, the first that matches wins.
2. The cloud's notice is acted on whatever the controller does or fails to do.
3. A lease that lapsed holds the job still; nothing is saved, started or released before ownership is *proved* anew: by a head
   entry of our own that began after the lapse. Reading alone would not do: a grant may have been decided already and be on its
   way, and only winning the number it wants to write shows that it comes too late.
4. A job that is kept never runs on without a grant that gives it back, and not before an entry of our own has followed that.
5. A state in which the workload is dead is *shown* only after the kill is done: the controller gives the job away on its word.

Not in the table, on purpose: when an event has happened (guards), how a save or restore works (engines), who else owns the
job (mailbox), and the moment of the freeze.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spotsurfer_agent.protocol import AgentState as S


class Event(StrEnum):
    """What can happen to the agent."""

    READY = "ready"
    REFUSED = "refused"
    ADOPTED = "adopted"
    PENDING = "pending"
    GRANTED = "granted"
    STARTED = "started"
    STEP_DUE = "step due"
    STEPPED = "stepped"
    FAILED = "failed"
    SAVE_DUE = "save due"
    SAVED = "saved"
    SAVE_FAILED = "save failed"
    DRAIN = "drain"
    FINAL_SAVED = "final saved"
    KEPT = "kept"
    RETURNED = "returned"
    DRAIN_FAILED = "drain failed"
    WITHDRAWN = "withdrawn"
    EXITED = "exited"
    VANISHED = "vanished"
    PUBLISHED = "published"
    LATE = "late"
    STOPPED = "stopped"
    UNNEEDED = "unneeded"
    LOST_IT = "lost it"


E = Event
TABLE: dict[S, dict[Event, S]] = {
    S.BOOT: {
        E.READY: S.STANDBY,  # preflight fine, head and specification read, nothing runs here
        E.REFUSED: S.BROKEN,  # this machine can't protect a job, or this version can't read the store
        E.ADOPTED: S.RUNNING,  # an earlier agent of this machine had it running
        E.PENDING: S.DRAINING,  # an earlier agent left a final save without its verdict
        E.STEP_DUE: S.STEPPING,  # a step ended while no agent was there, or one died before it had started the next
        E.EXITED: S.PUBLISHING,  # the command ended while no agent was there
        E.VANISHED: S.BROKEN,  # it ran here once and left no exit status
        E.KEPT: S.KEEPING,  # an earlier agent drained, and the job stands frozen still
        E.RETURNED: S.RETURNING,  # the same, and it may go on here
        E.FINAL_SAVED: S.DRAINED,  # an earlier agent drained and could not say so any more
        E.PUBLISHED: S.FINISHED,  # an earlier agent published and could not say so any more
        E.LOST_IT: S.FENCED,  # somebody else owns what still runs here
        E.UNNEEDED: S.HALTED,  # notice, stop or time limit before anything ran
    },
    S.STANDBY: {
        E.GRANTED: S.RESTORING,  # the head names us
        E.REFUSED: S.BROKEN,  # the head speaks a protocol that we don't
        E.UNNEEDED: S.HALTED,  # notice, stop or time limit before anything ran
    },
    S.RESTORING: {
        E.STARTED: S.RUNNING,  # the job goes on here
        E.FAILED: S.BROKEN,  # the report says why; the next attempt may take an older checkpoint
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted
    },
    S.RUNNING: {
        E.SAVE_DUE: S.SAVING,  # the interval is over, or a checkpoint was asked for
        E.DRAIN: S.DRAINING,  # notice, or asked
        E.STEP_DUE: S.STEPPING,  # a step of the job ended, and another one follows
        E.EXITED: S.PUBLISHING,  # the command ended
        E.VANISHED: S.BROKEN,  # processes gone without an exit status
        E.FINAL_SAVED: S.DRAINED,  # a final entry whose save seemed to have failed: it counts
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.STEPPING: {
        E.STEPPED: S.RUNNING,  # the next step runs; a drain that was wanted meanwhile follows
        E.FAILED: S.BROKEN,  # it can't be started here
        E.FINAL_SAVED: S.DRAINED,  # a final entry whose save seemed to have failed: it counts
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.SAVING: {
        E.SAVED: S.RUNNING,  # committed
        E.SAVE_FAILED: S.RUNNING,  # promise: the job is unharmed
        E.DRAIN: S.DRAINING,  # a live save can't be broken off: the final one follows it at once
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.DRAINING: {
        E.KEPT: S.KEEPING,  # the head holds our final entry; should the job not go on elsewhere, it may come back
        E.FINAL_SAVED: S.DRAINED,  # the head holds our final entry, and nothing is kept
        E.DRAIN_FAILED: S.RUNNING,  # promise: asked for and failed, so it runs on; with a notice it is tried again instead
        E.WITHDRAWN: S.RUNNING,  # not wanted any more before it began
        E.STEP_DUE: S.STEPPING,  # a step ended first: only what runs can be saved
        E.EXITED: S.PUBLISHING,  # the command ended first
        E.VANISHED: S.BROKEN,  # processes gone without an exit status; or no memory left, not even to save it
        E.LATE: S.OVERRUN,  # the notice window is over; the newest committed checkpoint stands
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.KEEPING: {
        E.RETURNED: S.RETURNING,  # it could not go on elsewhere: a grant gives it back to us
        E.UNNEEDED: S.DRAINED,  # it goes on elsewhere, or is over; or the machine or our patience is about to end
    },
    S.RETURNING: {
        E.STARTED: S.RUNNING,  # it goes on where it stood
        E.FAILED: S.BROKEN,  # it can't be let go; the next attempt goes on from the checkpoint
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.PUBLISHING: {
        E.PUBLISHED: S.FINISHED,  # the head says done, and it is ours
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.DRAINED: {},
    S.FINISHED: {},
    S.OVERRUN: {},
    S.FENCED: {},
    S.BROKEN: {},
    S.HALTED: {},
}
TERMINAL = frozenset(s for s, edges in TABLE.items() if not edges)


@dataclass(frozen=True, slots=True)
class State:
    """Where the agent stands. All times are monotonic."""

    name: S = S.BOOT
    since: float = 0.0
    shown: S = S.BOOT  # what reports say: a dead workload only once it is dead
    booted: bool = False
    killed: bool = False
    save_tried: int = 0  # number of the last save that an agent before us tried
    freeze_at: float = 0.0  # instant of the newest save, or of the start
    retry_at: float = float("-inf")  # the task of this state is not begun before
    failures: int = 0  # of that task, in a row
    live_at: float = float("-inf")  # no live save is begun before
    live_failures: int = 0  # of live saves, in a row
    held_since: float | None = None  # the lease had lapsed
    drain_sequence: int = 0  # of the desired object that the final save under way was begun for
    drain_failed: int = 0
    error: str = ""
    error_kind: str = ""
    behind: tuple[str, str] = ("", "")  # error and kind that are shown again once what ended by a save runs again
