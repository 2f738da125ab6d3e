"""Everything `decide` may look at. What is not here, no decision may depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotsurfer.model.job import Attempt, AttemptNumber, InstanceId, Job, JobId
from spotsurfer.model.lifetimes import Fates
from spotsurfer.model.market import Cooldown, Gpus, Market, Offer, Pool


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    """What the cloud says of an instance, in the last listing."""

    id: InstanceId
    token: str
    gone: bool
    reclaimed: bool
    launched_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FitSeen:
    """What an agent forecasts of a final save, in seconds; `verdict` as in the agent's `fit`."""

    durable_seconds: float
    reserve_seconds: float  # so long before the end of a notice it must begin
    gain_seconds: float  # a live save made just before would shorten it by so much
    verdict: str = ""
    window_seconds: float | None = None  # what a notice leaves for it; None = the cloud gives none


@dataclass(frozen=True, slots=True)
class AgentSeen:
    """What an agent says, and when *on our clock* it last spoke."""

    state: str  # protocol.AgentState
    sequence: int
    spoke_at: datetime  # our clock, when we first saw its newest report, whether we can read it or not
    head: int
    desired: int
    understood_at: datetime | None = None  # the same of the newest one that we can read; None = `spoke_at`
    drain_failed: int = 0
    frozen: bool = False
    lease_seconds: float = 0.0  # that it goes by; 0 = it does not say
    pressed: bool = False  # it stands still, because its memory was about to end: it is saved for a larger machine
    workload_dead: bool = False
    notice_id: str | None = None
    notice_deadline_at: datetime | None = None  # our clock
    notice_kind: str = ""
    warm_checkpoint: str | None = None  # held whole by a machine that stands by
    fit: FitSeen | None = None  # None = nothing measured yet
    protection: str = ""  # how the job is saved there: "criu" | "criu+cuda" | "app" | "none"; "" = nothing runs yet
    error: str = ""
    error_kind: str = ""
    unfit: str = ""  # standing by: why the machine could not go on with the newest checkpoint
    unfit_kind: str = ""  # as error_kind; "" = its facts speak against it
    waits: str = ""  # standing by: why the job should not come yet
    arriving: bool = False  # memory of the job comes behind it still
    kept: str = ""  # the final checkpoint behind which it keeps the job frozen; "" = none
    saves: int = 0  # checkpoints made there
    frozen_seconds: float = 0.0  # that they stopped the job for, in all

    @property
    def can_take(self) -> bool:
        """It stands by, and the job could come as far as is known."""
        return not (self.waits or self.unfit)


@dataclass(frozen=True, slots=True)
class UnreadSeen:
    """An agent spoke, and what it said could not be read. `spoke_at`: our clock, when we first saw that report."""

    spoke_at: datetime
    why: str
    garbled: bool = False  # it was fetched and is no report that we know; else the store did not give it


@dataclass(frozen=True, slots=True)
class Hearing:
    """When agents could not be heard: the store did not answer us or took nothing from us, or this process did not run.

    `deaf` are times on our clock, oldest first, and none touches another. The first one ends when this process first saw all
    reports listed.
    """

    deaf: tuple[tuple[datetime, datetime], ...] = ()

    def seconds(self, since: datetime, now: datetime) -> float:
        """Of the time from `since` to `now`, that in which whoever spoke would have been heard."""
        heard = now - since
        for begin, end in reversed(self.deaf):
            if end <= since:
                break
            heard -= max(min(end, now) - max(begin, since), timedelta(0))
        return max(heard.total_seconds(), 0.0)


ALL_HEARD = Hearing()


@dataclass(frozen=True, slots=True)
class SignSeen:
    """What a witness said of a machine (ports.witness.Sign), and when; `deadline_at` is when it goes. All on our clock."""

    sign: str
    at: datetime
    deadline_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SpotSeen:
    """From `at` on spot could be had in a pool (True), not (False), or nobody knew (None), until the next entry."""

    at: datetime
    up: bool | None


@dataclass(frozen=True, slots=True)
class QuietSeen:
    """A job that uses next to nothing, as its last machine told and as its front knows."""

    since: datetime  # from then on its windows of usage show no work
    until: datetime  # the newest one ended then
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
    failures: int = 0  # times that the command ended by itself with a non-zero code, or without its outputs
    undelivered: str = ""  # which of its outputs there are not, though the command ended with 0
    checkpoints: tuple[str, ...] = ()  # those that led to the newest, oldest first
    grants: tuple[tuple[int, str | None], ...] = ()  # number of the entry, checkpoint
    worked: frozenset[int] = frozenset()  # attempts that ever committed, or under which the command ended by itself

    @property
    def succeeded(self) -> bool:
        """The command ended well, and its outputs are there."""
        return self.exit_code == 0 and not self.undelivered


@dataclass(frozen=True, slots=True)
class SizeSeen:
    """Where the size policy wants the job: `job` asks for what that type has. The numbers behind it are in `why`."""

    here: str  # the type that it is on, or was last
    kind: str  # the type that it should be on
    wanted: bool  # it is to be moved there
    holds: frozenset[str]  # types with room for what it uses now
    usd_micros_per_hour: int  # of `kind`, as was reckoned
    why: str
    alarm: str = ""  # what the policy did wrong
    room_bytes: int = 0  # nobody has the job, and less memory has no room for what was saved; 0 = somebody has it
    awaits_bytes: int = 0  # how large the final save is will be told at once: until then less memory gets no grant; 0 = it was


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job with all that is known of it. `head` is None where the store could not be read.

    `trouble`: why the controller can't deal with it; then nothing else is known. "" = it can.
    """

    job: Job
    attempts: Sequence[Attempt]
    instances: Mapping[AttemptNumber, InstanceSeen] = field(default_factory=dict)
    agents: Mapping[AttemptNumber, AgentSeen] = field(default_factory=dict)  # by the newest report that could be read
    silent_from: Mapping[AttemptNumber, datetime] = field(default_factory=dict)  # before that it could not have spoken
    desired_heard: Mapping[AttemptNumber, int] = field(default_factory=dict)  # its newest order, of each that has a report
    unread: Mapping[AttemptNumber, UnreadSeen] = field(default_factory=dict)  # there is a newer one, which could not
    head: HeadSeen | None = None
    spent_usd_micros: int = 0
    signs: Mapping[AttemptNumber, tuple[SignSeen, ...]] = field(default_factory=dict)
    memory_floor_bytes: int = 0  # less memory was too little before: `job` asks for as much here; 0 = it never was
    memory_kills: frozenset[AttemptNumber] = frozenset()  # attempts that ended because the kernel killed the job for memory
    done_seconds: float = 0.0  # of its work, those that would not have to be done again
    at_risk_seconds: float = 0.0  # of these: would have to be done again if its machine were gone now without a word
    save_seconds: float | None = None  # that a save stopped it for, on the last machine that made one
    quiet: QuietSeen | None = None  # None = nobody asked, or nothing was told
    size: SizeSeen | None = None  # None = it stays on what was asked for, or nothing is known yet
    trouble: str = ""
    image_gpus: Gpus | None = None  # that its newest checkpoint was made on; None = none, or nobody can say


@dataclass(frozen=True, slots=True)
class Limits:
    """The operator's settings that decide needs. Durations in seconds, money in micro-dollars."""

    lease_seconds: float = 60.0  # of machines that are ordered from now on: each attempt keeps its own
    lease_margin_seconds: float = 15.0
    boot_limit_seconds: float = 600.0
    listing_lag_seconds: float = 30.0  # a launched instance may be missing from listings for so long
    instances_max: int = 20
    gpus_max: int | None = None
    hourly_max_usd_micros: int | None = None  # what all machines together may cost an hour, as they were bought
    ageing_seconds: float = 600.0  # waiting for so long counts as much as one more of priority
    stay_seconds: float = 120.0  # a job that gave way and came back is left alone for so long
    budget_usd_micros: int | None = None
    price_max_usd_micros: int | None = None  # of a machine, an hour; dearer ones are not bought
    instance_types: tuple[str, ...] = ()  # wildcards: others are not bought; none = all may be
    deadline_reserve_seconds: float = 300.0  # before a deadline, for times in which nothing can be ordered (`core.purchase`)
    drain_reserve_seconds: float = 300.0  # what saving and releasing a machine may still cost
    restore_failures_max: int = 1  # of one checkpoint, before the one before it is taken, and after that the job is held
    refusal_seconds: float = 1800.0  # a machine type that could not go on with a job is left alone by it for so long
    launch_failures_max: int = 20  # machines in a row that never got the job to run, or ended under it, before it is held
    last_report_seconds: float = 10.0  # a machine with nothing left to do gets so long for its last report
    release_again_seconds: float = 60.0  # after so long the order to end a machine is repeated
    warm_wait_seconds: float = 300.0  # a machine that stands by gets so long to fetch before the old one drains; 0 = none
    keep_seconds: float = (
        300.0  # a machine that was drained keeps the job frozen for so long, should it not go on elsewhere; 0 = none
    )
    precopy_gain_seconds: float = 1.0  # a live save before a move must shorten its pause by so much
    checkpoint_seconds: float | None = None  # between saves of jobs that name none; None = the interval policy decides
    rebalance: str = "ignore"  # what the cloud's advice to leave a machine leads to: "ignore", "checkpoint", "move"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the silence of agents is no evidence, and what is done next to find out (`core.silence`)."""

    why: str
    asks: JobId | None = None  # this job gets a machine more, which can tell; None = nothing is ordered for it now
    gives_up: tuple[JobId, AttemptNumber] | None = None  # its silence counts all the same; None = nobody's does


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at one moment."""

    jobs: Sequence[JobSeen]
    offers: Sequence[Offer]
    cooldowns: Sequence[Cooldown]
    orphans: Sequence[InstanceSeen]  # of our family, belonging to no attempt of ours
    listing_complete: bool
    listing_at: datetime
    spent_usd_micros: int
    limits: Limits
    spot_seen: Mapping[Pool, Sequence[SpotSeen]] = field(default_factory=dict)  # oldest first
    past: Mapping[tuple[Pool, Market], Fates] = field(default_factory=dict)  # of machines that are gone, of all jobs
    held: Sequence[Held] = ()  # by jobs that have ended, as far as one that waits was there already
    gpu_drivers: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by provider and region, newest machine
    hearing: Hearing = ALL_HEARD
    ahead: str = ""  # what the store knows and the database, from a backup, does not: then it may not say who belongs to nobody
    doubt: Doubt | None = None  # None = silence is evidence
