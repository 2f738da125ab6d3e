"""The actions that `decide` can return: a closed union. Each has a reason, and an id that is the same when it is repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from spotsurfer.model.budgets import Budget
from spotsurfer.model.job import AttemptNumber, HeldBy, InstanceId, JobId, Wish
from spotsurfer.model.market import Offer
from spotsurfer.model.state_machine import AttemptEvent, JobEvent


@dataclass(frozen=True, slots=True)
class Plan:
    """Write down a new attempt; the cloud is called by the next tick's Launch."""

    job: JobId
    attempt: AttemptNumber
    offer: Offer
    reason: str
    for_move: int = 0
    machine: str = ""  # token of the kept machine that it takes; "" = one is bought
    keep_seconds: float = 0.0  # of the machine that is bought


@dataclass(frozen=True, slots=True)
class Launch:
    """Call the cloud with the attempt's token."""

    job: JobId
    attempt: AttemptNumber
    reason: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Create the next head entry with `epoch = attempt`; fences every older agent."""

    job: JobId
    attempt: AttemptNumber
    after: int  # number of the head entry this decision saw; 0 = none
    checkpoint: str | None
    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Create the next head entry for the attempt that keeps the job frozen since its final save, so that it goes on there."""

    job: JobId
    attempt: AttemptNumber
    after: int  # number of the head entry this decision saw
    checkpoint: str  # that final save: no newer checkpoint exists
    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Write the attempt's desired object. `event` is the edge it takes, if any."""

    job: JobId
    attempt: AttemptNumber
    want: str  # a value of spotsurfer_wire.messages.Want
    save_at_least: int
    seconds_left: float | None
    event: AttemptEvent | None
    reason: str
    partial: int = 0  # number of a request for partial outputs
    gives_way_to: str = ""  # the job of higher priority that gets its machine
    signal_number: int = 0  # of the newest signal that the user asked for
    signal: str = ""  # for the job's processes; "" = none
    keep: bool = False  # after its final save it keeps the job frozen while the job moves (`core.moves`)


@dataclass(frozen=True, slots=True)
class Pace:
    """Tell the attempt to save every `seconds`, unless it knows; `saves`: number of saves when the policy was asked."""

    job: JobId
    attempt: AttemptNumber
    seconds: float
    saves: int
    reason: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Record an observation: one edge of the attempt table."""

    job: JobId
    attempt: AttemptNumber
    event: AttemptEvent
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Order the instance's end and record it."""

    job: JobId
    attempt: AttemptNumber
    reason: str
    gives_way_to: str = ""  # the job of higher priority that gets its place


@dataclass(frozen=True, slots=True)
class Leave:
    """Make the attempt leave its machine, which stays, and record it."""

    job: JobId
    attempt: AttemptNumber
    reason: str
    gives_way_to: str = ""  # as for Terminate


@dataclass(frozen=True, slots=True)
class EndMachine:
    """Order the end of a machine without attempts, and record it."""

    machine: str
    reason: str


@dataclass(frozen=True, slots=True)
class MachineGone:
    """Record that a machine without attempts has ended."""

    machine: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recall:
    """Record again an attempt that owns the job in the store and that the database, an older one, does not know."""

    job: JobId
    attempt: AttemptNumber
    desired_sequence: int  # of its agent's last orders
    reason: str
    machine: str = ""  # token of the kept machine that it says it is on; "" = it has one for itself


@dataclass(frozen=True, slots=True)
class Close:
    """Create the head entry that ends a cancelled job, or one that `ended_by` ended."""

    job: JobId
    after: int
    reason: str
    ended_by: str = ""  # as `Job.ended_by`


@dataclass(frozen=True, slots=True)
class EndJob:
    """One edge of the job table."""

    job: JobId
    event: JobEvent
    reason: str
    exit_code: int | None = None
    ended_by: str = ""  # as `Job.ended_by`


@dataclass(frozen=True, slots=True)
class Retry:
    """Count a failure of the command after which its user allows a retry."""

    job: JobId
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetWish:
    """A limit or the controller holds or resumes the job, or an order of its user (a move, a rewind) is settled."""

    job: JobId
    wish: Wish | None
    reason: str
    clear_move: bool = False
    clear_rewind: bool = False
    held_by: HeldBy = HeldBy.USER  # of the wish HOLD


@dataclass(frozen=True, slots=True)
class SetStuck:
    """The job makes no progress since then, or does again (None)."""

    job: JobId
    attempt: AttemptNumber | None
    since: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class TellBudget:
    """A budget passed these shares of its amount in the time from `begins` on, or is used up. It is told once, in `reason`."""

    budget: Budget
    begins: datetime | None
    shares: tuple[int, ...]  # in percent; USED_UP: it holds its jobs from now on
    share: int  # the highest that was passed
    spent_usd_micros: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """End an instance of our family that belongs to no attempt of ours."""

    instance: InstanceId
    provider: str
    reason: str


Action = (
    Plan
    | Launch
    | Grant
    | GiveBack
    | Ask
    | Pace
    | Mark
    | Terminate
    | Leave
    | EndMachine
    | MachineGone
    | Recall
    | Close
    | EndJob
    | Retry
    | SetWish
    | SetStuck
    | Sweep
    | TellBudget
)


def action_id(action: Action) -> str:
    """The action's id. The same action has the same id, and the journal refuses to begin it twice while it is open."""
    match action:
        case Sweep(instance=i):
            return f"sweep/{i}"
        case EndMachine(machine=m) | MachineGone(machine=m):
            return f"{type(action).__name__.lower()}/{m}"
        case TellBudget(budget=b, shares=s):
            return f"budget/{b.scope}/{b.per}/{','.join(map(str, s))}"
        case (
            Plan(job=j, attempt=a)
            | Launch(job=j, attempt=a)
            | Grant(job=j, attempt=a)
            | GiveBack(job=j, attempt=a)
            | Terminate(job=j, attempt=a)
            | Leave(job=j, attempt=a)
            | Recall(job=j, attempt=a)
        ):
            return f"{type(action).__name__.lower()}/{j}/{a}"
        case Pace(job=j, attempt=a, saves=s):
            return f"pace/{j}/{a}/{s}"
        case Mark(job=j, attempt=a, event=e):
            return f"mark/{j}/{a}/{e.name.lower()}"
        case Ask(job=j, attempt=a, want=w, save_at_least=s, partial=p, signal_number=n):
            return f"ask/{j}/{a}/{w}/{s}/{p}/{n}"
        case Close(job=j) | Retry(job=j) | SetWish(job=j) | SetStuck(job=j):
            return f"{type(action).__name__.lower()}/{j}"
        case EndJob(job=j, event=e):
            return f"endjob/{j}/{e.name.lower()}"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rejected alternative with the reason; shown by `why`."""

    job: JobId
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Preview:
    """A dry run. `choices`, best first: the first would be ordered now. `obstacle`: why no order is possible, or empty."""

    choices: Sequence[Offer]
    rejected: Sequence[tuple[Offer, str]]
    obstacle: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions to take now, and the rejected alternatives with reasons."""

    actions: tuple[Action, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    notes: dict[JobId, str] = field(default_factory=dict)  # why a job waits, one sentence
    hurry: bool = False  # a job stands still until the next step: look again at once
    levels: dict[JobId, int] = field(default_factory=dict)  # priorities of open jobs, plus their gain by waiting
    alarms: tuple[str, ...] = ()  # failures and nonsense answers of policies, which a plain rule replaced
    advanced: bool = False  # set after the actions: a state moved on, and the next step may be due already
