"""The snapshot: everything that `decide` may look at. No decision may depend on anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotsurfer.model.budgets import BudgetSeen
from spotsurfer.model.job import MEMORY, Attempt, AttemptNumber, InstanceId, Job, JobId
from spotsurfer.model.licences import LicencePool
from spotsurfer.model.lifetimes import Fates
from spotsurfer.model.machine import Machine
from spotsurfer.model.market import Cooldown, Gpus, Market, Offer, Pool
from spotsurfer.model.prices import FREE, Tariff


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    """An instance as the cloud's last listing shows it."""

    id: InstanceId
    token: str
    gone: bool
    reclaimed: bool
    launched_at: datetime
    ended_at: datetime | None = None
    provider: str = ""
    public_address: bool = False  # it has one


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """A kept machine. `instance`: None = the listing does not show it; `noticed`: the cloud reclaims it."""

    machine: Machine
    instance: InstanceSeen | None
    noticed: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """What some queued jobs of an owner ask for, those that wait for other jobs included."""

    owner: str
    cpus: int
    memory_bytes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class FitSeen:
    """An agent's forecast of a final save, in seconds; `verdict` as in `spotsurfer_wire.final_save_forecast.Fit`."""

    durable_seconds: float
    reserve_seconds: float  # it must begin so long before the end of a notice
    gain_seconds: float  # a live save made just before would shorten it by so much
    verdict: str = ""
    window_seconds: float | None = None  # time that a notice leaves for it; None = the cloud gives no notice
    start_seconds: float = 0.0  # order to freeze
    least_seconds: float = 0.0  # order to committed, at best: with less time left it is not tried


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """An agent's newest report, and when *on our clock* it last reported."""

    state: str  # spotsurfer_wire.messages.AgentState
    sequence: int
    spoke_at: datetime  # our clock, when its newest report was first seen, readable or not
    head: int
    desired: int
    understood_at: datetime | None = None  # the same for its newest readable report; None = `spoke_at`
    drain_failed: int = 0
    frozen: bool = False
    lease_seconds: float = 0.0  # by its report; 0 = not reported
    pressed: bool = False  # the job is frozen because memory was about to run out: it is saved for a larger machine
    workload_dead: bool = False
    notice_id: str | None = None
    notice_deadline_at: datetime | None = None  # our clock
    notice_kind: str = ""
    warm_checkpoint: str | None = None  # held completely by a standby machine
    fit: FitSeen | None = None  # None = not measured yet
    protection: str = ""  # how the job is saved there: "criu" | "criu+cuda" | "app" | "none"; "" = nothing runs yet
    error: str = ""
    error_kind: str = ""
    unfit: str = ""  # standby: why the machine could not go on with the newest checkpoint
    unfit_kind: str = ""  # as error_kind; "" = the machine's facts forbid it
    waits: str = ""  # standby: why the job should not come yet
    arriving: bool = False  # memory of the job is still arriving
    kept: str = ""  # the final checkpoint after which it keeps the job frozen; "" = none
    saves: int = 0  # checkpoints made there
    frozen_seconds: float = 0.0  # total pause of the job for them
    resident_bytes: int = 0  # that the job holds of the machine's memory; 0 = not known

    @property
    def can_take(self) -> bool:
        """Whether it stands by and, as far as known, could take the job."""
        return not (self.waits or self.unfit)


@dataclass(frozen=True, slots=True)
class UnreadSeen:
    """A report that could not be read. `spoke_at`: our clock, when it was first seen."""

    spoke_at: datetime
    why: str
    garbled: bool = False  # it was fetched and is not a valid report; else the store did not return it


@dataclass(frozen=True, slots=True)
class Hearing:
    """Times without evidence of silence: the store did not answer or accept writes, or this process did not run.

    `deaf` are disjoint times on our clock, oldest first. The first one ends when this process first listed all reports.
    """

    deaf: tuple[tuple[datetime, datetime], ...] = ()

    def seconds(self, since: datetime, now: datetime) -> float:
        """The part of the time from `since` to `now` in which a report would have been seen."""
        heard = now - since
        for begin, end in reversed(self.deaf):
            if end <= since:
                break
            heard -= max(min(end, now) - max(begin, since), timedelta(0))
        return max(heard.total_seconds(), 0.0)


ALL_HEARD = Hearing()


@dataclass(frozen=True, slots=True)
class NoticeSeen:
    """A witness's sign about a machine (`ports.provider.Sign`), and when; `deadline_at`: when it goes. All on our clock."""

    sign: str
    at: datetime
    deadline_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SpotSeen:
    """From `at` until the next entry, spot was available in a pool (True), was not (False), or that was unknown (None)."""

    at: datetime
    up: bool | None


@dataclass(frozen=True, slots=True)
class QuietSeen:
    """A job that uses almost nothing, by the reports of its last machine and by the connections to its ports."""

    since: datetime  # from then on its usage windows show no work
    until: datetime  # end of the newest window
    cpu_cores: float = 0.0  # in use since then, mean
    gpus_known: bool = False  # its machine has GPUs, and they did not work either
    connections: int = 0  # open or waiting, on all of its ports
    last_closed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A job had a machine from `since` until `until`."""

    job: JobId
    priority: int
    submitted_at: datetime
    since: datetime
    until: datetime


MEANINGS = {  # of exit codes of jobs
    126: "a program that it calls can't be run there: look at its rights and its kind",
    127: "a program was not found on the machine: name one that the machine's image has, or bring it along",
    128 + 9: "it was killed, as the kernel does where memory ends: ask for more in [resources]",
}


@dataclass(frozen=True, slots=True)
class HeadSeen:
    """The newest entry of a job's head log and the checkpoints it ever committed, oldest first."""

    number: int
    epoch: AttemptNumber
    checkpoint: str | None
    sequence: int
    final: bool
    done: bool
    cancelled: bool = False
    exit_code: int | None = None
    failures: int = 0  # how often the command ended by itself with a non-zero code, or without its outputs
    ended_by: str = ""  # what made the command end, as `Job.ended_by`
    undelivered: str = ""  # outputs that are missing although the command ended with 0
    checkpoints: tuple[str, ...] = ()  # those that led to the newest, oldest first
    grants: tuple[tuple[int, str | None], ...] = ()  # entry number, checkpoint
    worked: frozenset[int] = frozenset()  # attempts that ever committed, or under which the command ended by itself

    @property
    def succeeded(self) -> bool:
        """Whether the command ended by itself with 0 and its outputs are there."""
        return self.exit_code == 0 and not self.undelivered and not self.ended_by

    @property
    def how_it_ended(self) -> str:
        """How the command ended, as a clause: its exit code, and what that means or what is missing, if that is known."""
        if self.ended_by == MEMORY:
            return "the kernel killed it because memory ended, and more memory did not help or can't be had"
        if self.ended_by:
            return f"it was ended by its {self.ended_by}"
        meaning = self.undelivered or MEANINGS.get(self.exit_code or 0)
        return f"the command ended with exit code {self.exit_code}" + (f" ({meaning})" if meaning else "")


@dataclass(frozen=True, slots=True)
class SizeSeen:
    """The size policy's choice; `job` asks for what that type has. Its numbers are in `why`."""

    here: str  # the type that it is on, or was last
    kind: str  # the type that it should be on
    wanted: bool  # it should move there
    holds: frozenset[str]  # types with room for what it uses now
    usd_micros_per_hour: int  # assumed price of `kind`
    why: str
    alarm: str = ""  # the policy's error
    room_bytes: int = 0  # the job has no owner, and its checkpoint needs so much memory; 0 = it has an owner
    awaits_bytes: int = 0  # the next report gives the final save's size: until then less memory gets no grant; 0 = known


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job with all known facts. `head` is None if the store could not be read.

    `trouble`: why the controller can't deal with the job; then the other facts are missing. "" = it can.
    """

    job: Job
    attempts: Sequence[Attempt]
    instances: Mapping[AttemptNumber, InstanceSeen] = field(default_factory=dict)
    agents: Mapping[AttemptNumber, AgentSeen] = field(default_factory=dict)  # by the newest readable report
    silent_from: Mapping[AttemptNumber, datetime] = field(default_factory=dict)  # before that it could not report
    desired_heard: Mapping[AttemptNumber, int] = field(default_factory=dict)  # newest order that each reported as received
    machines_heard: Mapping[AttemptNumber, str] = field(default_factory=dict)  # tokens of machines that each said it shares
    unread: Mapping[AttemptNumber, UnreadSeen] = field(default_factory=dict)  # a newer report that could not be read
    head: HeadSeen | None = None
    spent_usd_micros: int = 0
    signs: Mapping[AttemptNumber, tuple[NoticeSeen, ...]] = field(default_factory=dict)
    memory_floor_bytes: int = 0  # less memory was too little before, so `job` asks for this; 0 = never
    memory_kills: frozenset[AttemptNumber] = frozenset()  # attempts that ended because the kernel killed the job for memory
    done_seconds: float = 0.0  # seconds of work that need not be repeated
    at_risk_seconds: float = 0.0  # of these, to repeat if its machine disappears now without notice
    save_seconds: float | None = None  # pause of a save on the last machine that made one
    quiet: QuietSeen | None = None  # None = no limit on idle time, or no report
    still: QuietSeen | None = None  # since when it makes no progress; None = nobody asks, or no report
    size: SizeSeen | None = None  # None = it stays on the requested size, or no facts yet
    trouble: str = ""
    image_gpus: Gpus | None = None  # of its newest checkpoint; None = none, or unknown
    image_bytes: int = 0  # of its newest checkpoint, before compression; 0 = none, or unknown
    image_processor: str = ""  # of the machine that made that checkpoint, in its agent's words; "" = unknown
    sent_bytes_per_hour: float = 0.0  # to the store, by its last machine
    writes: tuple[str, ...] = ()  # files on shared file systems that it has open for writing, by its last machine


@dataclass(frozen=True, slots=True)
class Limits:
    """The operator's settings that `decide` needs. Durations in seconds, money in micro-dollars."""

    lease_seconds: float = 60.0  # of machines that are ordered from now on: each attempt keeps its own
    lease_margin_seconds: float = 15.0
    boot_limit_seconds: float = 600.0
    listing_lag_seconds: float = 30.0  # a launched instance may be missing from listings for so long
    instances_max: int = 20
    gpus_max: int | None = None
    idle_seconds: float = 60.0  # a machine waits so long for its next job; 0 = it is ended with its first one
    keeps: frozenset[str] = frozenset()  # providers that can keep machines
    gpus_shared: frozenset[str] = frozenset()  # providers whose machines all have the same GPUs
    hourly_max_usd_micros: int | None = None  # of all machines together, at their purchase prices
    ageing_seconds: float = 600.0  # a wait of this length counts as one more of priority
    stay_seconds: float = 120.0  # so long a job that gave way and came back need not give way again
    budget_usd_micros: int | None = None
    price_max_usd_micros: int | None = None  # of a machine per hour; more expensive ones are not bought
    instance_types: tuple[str, ...] = ()  # wildcards: others are not bought; none = all may be
    deadline_reserve_seconds: float = 300.0  # before a deadline, for times when no order is possible
    drain_reserve_seconds: float = 300.0  # duration of save and release, to reserve its cost
    restore_failures_max: int = 1  # of one checkpoint; then the previous one is tried, and after that the job is held
    refusal_seconds: float = 1800.0  # a job avoids a machine type that could not go on with it for so long
    launch_failures_max: int = 20  # consecutive machines that never ran the job, or ended under it, before it is held
    last_report_seconds: float = 10.0  # time for the last report of a machine with nothing left to do
    release_again_seconds: float = 60.0  # interval at which the order to end a machine is repeated
    warm_wait_seconds: float = 300.0  # time for a standby machine to fetch before the old one drains; 0 = none
    keep_seconds: float = (
        300.0  # a drained machine keeps the job frozen for so long, in case it can't go on elsewhere; 0 = none
    )
    precopy_gain_seconds: float = 1.0  # a live save before a move must shorten its pause by so much
    checkpoint_seconds: float | None = None  # between saves of jobs without an own interval; None = the policy decides
    cancel_never_satisfied: bool = False  # jobs that wait for what can't come any more
    time_limit: str = "end"  # what a job's time limit means: "end" of the job, or a "deadline" for it
    kill_wait_seconds: float = 30.0  # from TERM to KILL at a job's time limit
    advice_moves: frozenset[str] = frozenset()  # providers whose advice to leave a machine is followed


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the silence of agents is no evidence, and the next step to find out (see `core.decide`)."""

    why: str
    asks: JobId | None = None  # this job gets one more machine to find out; None = no order now
    gives_up: tuple[JobId, AttemptNumber] | None = None  # the attempt with silence that counts all the same; None = none


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at one moment."""

    jobs: Sequence[JobSeen]
    offers: Sequence[Offer]
    cooldowns: Sequence[Cooldown]
    orphans: Sequence[InstanceSeen]  # of our family, belonging to no attempt of ours
    listings: Mapping[str, datetime | None]  # by provider: when it was last listed as a whole; None = now only in part
    spent_usd_micros: int
    limits: Limits
    spot_seen: Mapping[Pool, Sequence[SpotSeen]] = field(default_factory=dict)  # oldest first
    past: Mapping[tuple[Pool, Market], Fates] = field(default_factory=dict)  # of machines that are gone, of all jobs
    held: Sequence[Held] = ()  # by jobs that have ended, since the oldest open job was submitted
    gpu_drivers: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by provider and region, newest machine
    hearing: Hearing = ALL_HEARD
    tariff: Tariff = FREE
    processors: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by provider and type, newest machine that told
    ahead: str = ""  # facts in the store that the database, from a backup, lacks: then no machine counts as an orphan
    doubt: Doubt | None = None  # None = silence is evidence
    budgets: Sequence[BudgetSeen] = ()  # of several jobs
    licences: Mapping[str, LicencePool] = field(default_factory=dict)  # by kind
    waiting: Sequence[Waiting] = ()  # each kind once; not read if no machine is kept
    machines: Mapping[str, MachineSeen] = field(default_factory=dict)  # that are kept and not gone, by token

    def listed_at(self, provider: str) -> datetime | None:
        """The time of the provider's complete listing; None if absence from it is no evidence.

        A machine of an unknown place ("", see Recall) may be anywhere, and one of a provider that the settings no longer name
        can't be seen.
        """
        if provider:
            return self.listings.get(provider)
        known = [at for at in self.listings.values() if at is not None]
        return min(known) if known and len(known) == len(self.listings) else None
