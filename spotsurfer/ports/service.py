"""The interface between the HTTP API and the controller. Commands record a wish and wake the next tick; queries read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from spotsurfer_wire.final_save_forecast import Fit, Prospect
from spotsurfer_wire.home_tree import HomeChanges
from spotsurfer_wire.messages import StepRun, Warm
from spotsurfer_wire.usage import Window

from spotsurfer.model.actions import Preview
from spotsurfer.model.budgets import Budget, BudgetStatus, Per
from spotsurfer.model.charges import ChargeLine
from spotsurfer.model.cost_report import CostReport
from spotsurfer.model.figures import Figures
from spotsurfer.model.job import Attempt, Job, JobId, JobSpec
from spotsurfer.model.licences import LicenceStatus
from spotsurfer.model.market import Market
from spotsurfer.model.snapshot import SpotSeen
from spotsurfer.ports.policies import Forecast


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of a job's timeline. `data` holds numbers for programs (frozen_seconds, checkpoint, usd_micros …)."""

    at: datetime
    job: JobId | None
    attempt: int | None
    kind: str  # a closed list: model/timeline_events.py
    text: str
    data: dict[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageSeen:
    """What a job used within some seconds of an attempt; `at` is when they began."""

    attempt: int
    at: datetime
    window: Window


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a notice of so many seconds would do if it came now; 0 = the machine goes without one."""

    notice_seconds: float
    outcome: Prospect
    lost_seconds: float | None  # of work to be repeated, at most; None = not known
    measured: bool  # False: nothing was saved on this machine yet, so its speed is assumed


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """An attempt with what its agent last said."""

    attempt: Attempt
    agent_state: str | None
    silent_seconds: float | None  # since the agent last said something new
    frozen: bool
    cpu_seconds: float
    memory_bytes: int
    saves: int
    frozen_seconds: float
    save_stage: str
    unsaved_seconds: float | None  # work at risk: since the newest durable checkpoint
    fit: Fit | None  # a final save now, forecast; None = nothing measured on this machine
    fit_text: str  # the same in one sentence
    warm: Warm | None  # what a machine that stands by has fetched
    error: str
    usd_micros: int
    protection: str = ""  # how the job is saved there: criu, app, none; "" = not known
    unprotected: str = ""  # why not better, in one sentence
    processor: str = ""
    stage: str = ""  # what the job itself says that it does
    usage: Window | None = None  # in the last seconds
    foretold: Sequence[Foretold] = ()  # what notices of the usual lengths would do now; empty = the job does not run there


@dataclass(frozen=True, slots=True)
class PortStatus:
    """A port of a job, and the front's address for it; "" = none yet, or not any more."""

    name: str
    port: int
    address: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job with everything `show` prints. `note` says in a sentence what it is doing or waiting for."""

    job: Job
    phase: str  # queued, booting, restoring, running, saving, draining, moving, held, done …: for people
    note: str
    attempts: Sequence[AttemptStatus]
    checkpoint: str | None
    checkpoints: Sequence[str]
    usd_micros: int
    usd_micros_on_demand: int  # the same machine-hours at list price
    moves: int
    steps: Sequence[StepRun] = ()  # those that began, as the newest machine or the head log tells
    forecast: Forecast | None = None  # of an open job with a deadline
    ports: Sequence[PortStatus] = ()
    level: int = 0  # its priority, with what it gained by waiting
    size: str = ""  # what its size policy says, with the numbers; "" = none is asked
    checkpoint_failed: str = ""  # what became of a try to restore `checkpoint`; "" = none failed
    image_digest: str = ""  # what the name of its container image is pinned to; "" = none, or not known (yet)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be submitted, see `Service.submit`. `id`: under which its inputs were uploaded; None = it gets one."""

    spec: JobSpec
    id: JobId | None = None
    modes: Mapping[str, int] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    held: bool = False  # it waits until its user resumes it
    number: int = 0  # of its submission; the service gives it


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that was made, or an array with so many tasks."""

    job: JobId
    number: int
    tasks: int  # 0 = it is no array


@dataclass(frozen=True, slots=True)
class JobBrief:
    """A job in a list of very many: what can be told without reading its specification and its machines' reports."""

    id: JobId
    number: int
    array: str
    task: int | None
    name: str
    owner: str
    project: str
    phase: str
    state: str
    wish: str
    reason: str  # of its wish or its end, or why it waits
    exit_code: int | None
    ended_by: str
    submitted_at: datetime
    started_at: datetime | None  # on its first machine
    ended_at: datetime | None
    cpus: int
    memory_bytes: int
    gpus: int
    time_limit_seconds: float | None
    array_limit: int
    after: Sequence[str]  # what it still waits for: "afterok:12_3", "afterok:12_*", "singleton"
    machine: str  # the instance that it is on, else was on last; "" = none
    home: str
    market: str = ""
    waits_for: str = ""  # the gate that it waits at, see `state.queue`; "never" = it can't pass any more
    priority: int = 0
    level: int = 0  # its priority with what it gained by waiting
    tasks: str = ""  # "3-9,12": these tasks share the row of the first of them; "" = it stands for one job


@dataclass(frozen=True, slots=True)
class Why:
    """The last decisions about a job: what was done, what was rejected and why."""

    at: datetime
    done: Sequence[str]
    rejected: Sequence[tuple[str, str]]
    note: str


@dataclass(frozen=True, slots=True)
class CostLine:
    """What one attempt cost."""

    job: JobId
    attempt: int
    pool: str
    market: Market
    seconds: float
    usd_micros: int  # of machine and transfer
    usd_micros_on_demand: int
    cpu_seconds: float
    frozen_seconds: float
    ended: str
    began_at: datetime | None = None  # launched
    ended_at: datetime | None = None  # given back; None = it still costs money
    name: str = ""  # of the job
    user: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    project: str = ""
    transfer_bytes: int = 0  # between the machine and a store in another region or cloud
    transfer_usd_micros: int = 0  # of `usd_micros`


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as `checkpoints` lists it. Figures are None where its manifest can't be read or nobody kept them."""

    id: str
    at: str
    kind: str  # "live" | "final"
    image_bytes: int | None
    new_bytes: int | None
    base: str | None
    proven: bool
    protected: bool
    counted: bool  # of the line that the job goes on from
    keep: bool
    why: str  # it is kept or will go
    damage: str = ""
    failed: str = ""  # what became of a try to restore it; "" = none failed


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long command is; `result` or an error when it is done."""

    id: str
    what: str
    done: bool
    stage: str
    at: int
    of: int
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place in a job's output: bytes of each stream from its beginning, and of the record of when they were printed."""

    out: int = 0
    err: int = 0
    times: int = 0


@dataclass(frozen=True, slots=True)
class LogAsk:
    """Which output, from `place` on. `streams`: "out" and "err", or one. `until`: where each ends, None = where it does.

    `attempt`: as it was under that attempt. `since`: seconds since 1970, only what was printed from then on. `tail`: of that
    the last lines. `in_order`: of a job that runs, hold back what was printed so lately that its order is not recorded yet.
    `old_seconds`: how old a look into the store may be.
    """

    streams: tuple[str, ...] = ("out", "err")
    place: LogPlace = LogPlace()
    until: LogPlace | None = None
    attempt: int | None = None
    since: float | None = None
    tail: int | None = None
    limit: int = 1 << 20
    in_order: bool = False
    old_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LogPart:
    """Bytes of one stream that were printed with nothing of the other stream in between.

    `seconds` since 1970 when they were read, by the machine's clock, None = not recorded. `recorded`: whether their place among
    those of the other stream is.
    """

    stream: str
    data: bytes
    seconds: float | None
    recorded: bool


@dataclass(frozen=True, slots=True)
class LogFound:
    """Output in the order in which it was printed. `place`: where to go on; `ended`: nothing more will come.

    `earlier`: attempts with output that is not part of this, because the job began anew or went back since then.
    """

    parts: list[LogPart]
    place: LogPlace
    ended: bool = False
    earlier: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A result: published (all of them at once, or none), or what there was of it before the end."""

    path: str
    size: int
    sha256: str = ""  # in hexadecimal digits; "" = it was published before there were digests


@dataclass(frozen=True, slots=True)
class PartialSeen:
    """A request for what a running job has written so far; `done` once the files are there."""

    number: int
    done: bool
    attempt: int
    step: str
    at: str
    outputs: Sequence[OutputFile]
    missing: Sequence[str]  # patterns that matched nothing yet


@dataclass(frozen=True, slots=True)
class Info:
    """The controller itself, for `doctor` and `serve`: who it is, and how much of its operator's limits is in use.

    Machines, GPUs and their price an hour are counted as the limits are, those still being released included. None = no limit.
    """

    version: str
    family: str
    generation: int
    provider: str
    store_url: str
    instances: int
    instances_max: int
    gpus: int
    gpus_max: int | None
    hourly_usd_micros: int
    hourly_max_usd_micros: int | None
    spent_usd_micros: int
    budget_usd_micros: int | None
    price_max_usd_micros: int | None  # of one machine, an hour
    instance_types: Sequence[str]  # wildcards that may be bought; none = all
    ageing_seconds: float  # see model.snapshot.Limits
    stay_seconds: float
    front_address: str  # where ports of jobs are answered
    front_ports: int  # given to ports of jobs
    front_ports_max: int
    last_tick_at: datetime | None
    last_error: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload of the configuration changed, and what changes with the next start; both as "section.key"."""

    changed: Sequence[str]
    restart: Sequence[str]


@dataclass(frozen=True, slots=True)
class Machine:
    """How to log in to the machine of an attempt. `host_key` is its public key as in known_hosts(5), without the name."""

    attempt: int
    instance: str
    address: str
    port: int
    user: str
    host_key: str


class Service(Protocol):
    """Methods raise NotFound, Conflict, StoreUnwritable and the other errors of model.errors; never anything else on purpose.

    They may be called from several threads.
    """

    def info(self) -> Info:
        """The controller itself."""
        ...

    def figures(self) -> Figures:
        """Counts over everything, for metrics."""
        ...

    def new_job_id(self, name: str) -> JobId:
        """An id for a job to come; uploads go under it before `submit` makes the job."""
        ...

    def upload(self, job: JobId, path: str, data: Iterator[bytes], size: int) -> None:
        """Store one input; raises JobFileError for a path that leaves the folder, Conflict once the job exists."""
        ...

    def discard(self, job: JobId) -> None:
        """Remove the uploads of a job that was never submitted."""
        ...

    def submit(
        self,
        job: JobId,
        spec: JobSpec,
        modes: dict[str, int],
        secrets: Mapping[str, bytes] | None = None,
        owner: str = "",
        within: str | None = None,
    ) -> Job:
        """Make the job of `owner`; every input of `modes` (path -> permission bits) must have been uploaded, or InputMissing.

        `secrets` are the values that the submitter read; the controller seals them at once and does not keep them. `within`:
        jobs that must come before it (`JobSpec.after`) are looked for among those of this owner. Of an array: its first task.
        """
        ...

    def submit_many(self, jobs: Sequence[NewJob], owner: str = "", within: str | None = None) -> Sequence[Submitted]:
        """Make them all, or none. What must come before one of them (`JobSpec.after`) may name another one of them.

        JobFileError for an unknown job there, for a cycle, and as `submit`.
        """
        ...

    def preview(self, spec: JobSpec) -> Preview:
        """A dry run of the launch of such a job now; nothing is stored. Conflict before the first look at the cloud."""
        ...

    def resolve(self, job: JobId, owner: str | None = None, whole: bool = True) -> JobId:
        """The id of the job of this id or name; with `owner` among the jobs of theirs. NotFound.

        Not `whole`: an unambiguous beginning of an id is enough.
        """
        ...

    def jobs(self, include_ended: bool = True, owner: str | None = None, tasks: bool = True) -> Sequence[JobStatus]:
        """All jobs, newest first; with `owner` those of theirs; without `tasks` those that are in no array."""
        ...

    def jobs_brief(
        self, include_ended: bool = True, owner: str | None = None, only_tasks: bool = False, folded: bool = False
    ) -> Sequence[JobBrief]:
        """All jobs, or tasks of arrays alone, newest first, in short; with `owner` those of theirs.

        `folded`: tasks without a machine that nothing but their numbers tells apart share a row.
        """
        ...

    def job(self, job: JobId) -> JobStatus:
        """One job; `job` may be a unique name too."""
        ...

    def timeline(
        self,
        job: JobId | None,
        after: int = 0,
        since: datetime | None = None,
        last: int | None = None,
        owner: str | None = None,
    ) -> Sequence[tuple[int, Moment]]:
        """Moments numbered above `after`, of `since` or later, the `last` so many of these; oldest first. None: of all.

        `owner`: of the jobs of theirs alone.
        """
        ...

    def why(self, job: JobId, last: int = 10) -> Sequence[Why]:
        """The last decisions that changed something about it, newest last."""
        ...

    def hold(self, job: JobId) -> Job:
        """`suspend`: drain and keep in storage. Conflict when it has ended."""
        ...

    def resume(self, job: JobId) -> Job:
        """Undo a hold. Conflict when it has ended or is not held."""
        ...

    def cancel(self, job: JobId) -> Job:
        """End it without results."""
        ...

    def move(self, job: JobId, instance_type: str | None, market: Market | None) -> int:
        """Ask for another machine; returns the number of the request, as the timeline shows it.

        Conflict when not running, or if no machine of that kind fits the job; UsageError for a type that is not on offer.
        """
        ...

    def signal(self, job: JobId, name: str) -> int:
        """Send a signal ("USR1"; "B:USR1" to its command alone, "S:USR1" to all others) to the processes of a job that runs.

        The number of the request. UsageError for another name, Conflict when it does not run.
        """
        ...

    def prioritize(self, job: JobId, priority: int) -> Job:
        """Set its priority from now on. UsageError out of range, Conflict when it has ended."""
        ...

    def set_budget(self, job: JobId, usd_micros: int | None) -> Job:
        """Set the limit of its total cost; None = no limit of its own. UsageError, Conflict when it has ended."""
        ...

    def budgets(self, owner: str | None = None) -> Sequence[BudgetStatus]:
        """Budgets of several jobs; with `owner` those that count for jobs of theirs."""
        ...

    def set_scope_budget(
        self, scope: str, usd_micros: int, per: Per = Per.TOTAL, warn_at: Sequence[int] | None = None, who: str = ""
    ) -> Budget:
        """Set what jobs of a scope may cost together, as `who` wants; `warn_at` in percent, None = as before. UsageError."""
        ...

    def remove_scope_budget(self, scope: str, per: Per = Per.TOTAL, who: str = "") -> Budget | None:
        """Remove one that was set; returns the one of the configuration that counts again. NotFound."""
        ...

    def licences(self, owner: str | None = None) -> Sequence[LicenceStatus]:
        """Pools of licences, as of the last look at all jobs; with `owner` only jobs of theirs are named."""
        ...

    def reload(self) -> Reloaded:
        """Read the configuration again. ConfigError with the line if it is wrong; then nothing changes."""
        ...

    def go_back(self, job: JobId, checkpoint: str) -> Job:
        """Go on from that checkpoint: a held, ended or running job. NotFound if it has none, Conflict while cancelled."""
        ...

    def checkpoints(self, job: JobId) -> Sequence[Checkpoint]:
        """The job's checkpoints, oldest first."""
        ...

    def protect(self, job: JobId, checkpoint: str, wanted: bool) -> str:
        """Protect a checkpoint from the retention rules, or stop that; returns the checkpoint's full name. NotFound."""
        ...

    def fork(self, job: JobId, checkpoint: str | None, name: str | None) -> Progress:
        """Begin to copy the job as of a checkpoint (None: the newest), see `progress`."""
        ...

    def rehearse(self, job: JobId) -> Progress:
        """Begin to prove that the newest checkpoint can be restored on another machine, see `progress`."""
        ...

    def store_work(self, what: str, job: JobId | None, read: bool, dry_run: bool) -> Progress:
        """Begin "check", "stats" or "gc" of one job or all, see `progress`."""
        ...

    def progress(self, number: str, wait_seconds: float) -> Progress:
        """How far a long command is; waits at most `wait_seconds` for its end. Raises its error, NotFound after a restart."""
        ...

    def call_off(self, number: str) -> None:
        """Cancel a long command."""
        ...

    def checkpoint(self, job: JobId) -> int:
        """Ask for a live checkpoint; returns the sequence that `JobStatus.checkpoint` will reach. Conflict when not running."""
        ...

    def log(self, job: JobId, stream: str, offset: int, limit: int, attempt: int | None = None) -> bytes:
        """One stream from an absolute offset, across all moves; `attempt`: as it was under it. NotFound if it had none."""
        ...

    def printed(self, job: JobId, ask: LogAsk) -> LogFound:
        """Both streams in order. NotFound for an attempt that never had the job, Conflict for `since` without a record."""
        ...

    def outputs(self, job: JobId) -> Sequence[OutputFile]:
        """Published results; Conflict while the job has not ended."""
        ...

    def output(self, job: JobId, path: str) -> Iterator[bytes]:
        """One published result, in pieces."""
        ...

    def ask_partial(self, job: JobId) -> int:
        """Ask for the files that a running job has written so far; the request's number. Conflict when it is on no machine."""
        ...

    def partial(self, job: JobId, number: int) -> PartialSeen:
        """The state of such a request. NotFound; Conflict if it can't be answered any more."""
        ...

    def partial_output(self, job: JobId, number: int, path: str) -> Iterator[bytes]:
        """One of its files, in pieces."""
        ...

    def shares_home(self, home: str) -> bool:
        """Whether that folder lies on a file system that machines see, too: nothing of it is sent."""
        ...

    def home_lacks(self, home: str, digests: Sequence[str], owner: str = "") -> Sequence[str]:
        """Which of these files, or trees, of the owner's folder `home` are not here yet."""
        ...

    def upload_home(self, home: str, sha256: str, data: Iterator[bytes], size: int, owner: str = "") -> None:
        """Store one of them, a tree after all its files. InputMissing if the bytes are not those of the digest."""
        ...

    def settle_home(self, job: JobId, tree: str) -> Job:
        """A held job that never had a machine begins, with this tree of its folder. Conflict, InputMissing."""
        ...

    def home_changes(self, job: JobId) -> HomeChanges:
        """What an ended job made of its folder. Conflict while it has not ended, or its last machine still sends."""
        ...

    def home_result(self, job: JobId, sha256: str) -> Iterator[bytes]:
        """One of these files, in pieces. NotFound."""
        ...

    def machine(self, job: JobId) -> Machine:
        """Where to log in to the machine that the job is on, or comes to. Conflict if it has none, or SSH is off."""
        ...

    def charges(
        self, job: JobId | None, since: datetime | None = None, until: datetime | None = None, owner: str | None = None
    ) -> Sequence[ChargeLine]:
        """The lines of the bill, oldest first, running machines up to now: of all UTC days from that of `since` on that
        begin before `until`. None: of everything, what is no job's own included; of a job with its rehearsals.

        `owner`: of the jobs of theirs alone.
        """
        ...

    def report(
        self,
        jobs: Sequence[JobId],
        since: datetime | None = None,
        until: datetime | None = None,
        by: str = "",
        owner: str | None = None,
    ) -> CostReport:
        """The cost report of these jobs, or of everything if there are none: UTC days as of `charges`, grouped by `by`.

        `owner`: of the jobs of theirs alone. UsageError for a group that there is not, and for a period that ends before it
        begins.
        """
        ...

    def costs(self, job: JobId | None, since: datetime | None = None, owner: str | None = None) -> Sequence[CostLine]:
        """The costs by attempt; running ones up to now. `since`: only machines launched then or later.

        `owner`: of the jobs of theirs alone.
        """
        ...

    def usage(self, job: JobId, since: datetime | None = None) -> Sequence[UsageSeen]:
        """Its usage over all attempts, oldest first."""
        ...

    def spots(self) -> Mapping[str, Sequence[SpotSeen]]:
        """When spot was available, by pool, oldest first; only changes."""
        ...
