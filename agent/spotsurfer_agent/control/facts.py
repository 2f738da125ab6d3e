"""What the state machine looks at (facts) and what it can ask for (effects). Values only; nothing here acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from spotsurfer_wire.final_save_forecast import Fit
from spotsurfer_wire.messages import Desired, Head, SaveFacts

from spotsurfer_agent.ports.engine import Status, WorkloadState

INTERRUPTION = "interruption"
REBALANCE = "rebalance"
ABSENT = Status(WorkloadState.ABSENT)


class Task(StrEnum):
    """Long work, one at a time, done beside the loop."""

    BOOT = "boot"  # adopt what runs, preflight, read the specification
    BEGIN = "begin"  # place inputs and start, or restore
    STEP = "step"  # the next of the job's commands, after one has ended
    LIVE = "live"  # save and go on
    FINAL = "final"  # save for the last time
    THAW = "thaw"  # the job that was kept is ours again: let it go on
    SETTLE = "settle"  # a final save outlived the agent that made it: give its verdict
    PUBLISH = "publish"  # outputs, logs and the entry that says done
    KILL = "kill"  # nothing of the job may run any more


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended. An empty `error` means that it worked."""

    task: Task
    at: float  # monotonic
    error: str = ""
    kind: str = ""  # messages.Report.error_kind
    save: SaveFacts | None = None
    note: str = ""  # something to report although it worked


@dataclass(frozen=True, slots=True)
class Notice:
    """The cloud's notice as the watcher keeps it. `deadline_at` is monotonic; None = the cloud gave no time."""

    kind: str  # INTERRUPTION | REBALANCE
    id: str
    deadline_at: float | None


@dataclass(frozen=True, slots=True)
class AgentRules:
    """Rules that were agreed beforehand. Durations in seconds."""

    attempt: int
    interval_seconds: float | None = None  # between live saves; None = only when asked
    lease_seconds: float = 60.0
    limit_seconds: float = 0.0  # owning nothing for so long: power off; 0 = never
    margin_seconds: float = 5.0  # of a notice window left unused
    keep_seconds: float = 0.0  # the job stays frozen for so long after its final save; 0 = it is ended at once
    patient: bool = False  # with a notice the job runs on while there is time: the next machine is fetching meanwhile


@dataclass(frozen=True, slots=True)
class Facts:
    """The world at one moment, as the agent knows it."""

    now: float  # monotonic
    rules: AgentRules
    head: Head | None = None  # newest entry read
    head_read: bool = False  # the log was read at all
    own_final: bool = False  # my final entry is in the log
    own_done: bool = False  # my done entry is in the log
    proved_at: float = float("-inf")  # when I began the newest entry that I won
    desired: Desired | None = None
    notice: Notice | None = None
    status: Status = ABSENT
    began_before: bool = False  # an earlier agent on this machine had the job running
    step_due: bool = False  # a step of the job ended, and another one follows, or the same one again
    pressed: bool = False  # frozen, because its memory was about to end
    unprotected: bool = False  # nothing is saved while the present step runs
    wishes_save: bool = False  # the job itself asked for a checkpoint, and can be saved
    busy: Task | None = None
    outcome: Outcome | None = None  # of the task that ended since the last step; shown once
    lease_age_seconds: float = float("inf")
    fit: Fit | None = None  # a final save now; None = nothing measured yet
    reported: bool = False  # the present state, as shown, is durable in the store
    refusal: str = ""  # an object that this version may not read

    @property
    def mine(self) -> bool:
        """The newest head entry names me as the owner of a job that is not over."""
        return self.head is not None and self.head.epoch == self.rules.attempt and self.head.done is None

    @property
    def kept(self) -> bool:
        """My job stands frozen behind its final save, whose entry is in the log, and nothing newer was saved anywhere."""
        return self._stands and not self.returned and self.rules.keep_seconds > 0

    @property
    def returned(self) -> bool:
        """The same, and the newest head entry gives the job back: a grant of mine from a checkpoint of mine is nothing else."""
        return self._stands and self.mine and self.head is not None and not self.head.final

    @property
    def _stands(self) -> bool:
        h = self.head
        pending = self.status.pending_final
        return pending is not None and h is not None and h.done is None and h.checkpoint == pending

    @property
    def arriving(self) -> bool:
        """Memory still arrives after a lazy restore: nothing can be saved."""
        return self.status.arriving_bytes is not None

    @property
    def lapsed(self) -> bool:
        """Another attempt may be granted soon: nothing of the job may run."""
        return self.lease_age_seconds > self.rules.lease_seconds

    @property
    def interrupted(self) -> bool:
        """The cloud announced that it takes this machine."""
        return self.notice is not None and self.notice.kind == INTERRUPTION

    @property
    def notice_left_seconds(self) -> float | None:
        """Until the cloud takes the machine; None if it gave no time."""
        if self.notice is None or self.notice.deadline_at is None:
            return None
        return self.notice.deadline_at - self.now


@dataclass(frozen=True, slots=True)
class Do:
    """Begin a task; only wanted while none is under way."""

    task: Task


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop the job's processes where they are, at once, whatever task is under way."""


@dataclass(frozen=True, slots=True)
class Release:
    """Let held processes go on."""


@dataclass(frozen=True, slots=True)
class Unguard:
    """Let a job go on that was frozen because its memory was about to end, and can't be saved."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Win a head entry of our own, so that no decision made while we were silent can still take the job."""


@dataclass(frozen=True, slots=True)
class Shut:
    """Upload nothing more under this attempt except reports."""

    reason: str = field(default="")


@dataclass(frozen=True, slots=True)
class PowerOff:
    """Everything is reported: end the machine."""


Effect = Do | Hold | Release | Unguard | Renew | Shut | PowerOff
