"""A job is what a user asked for (with its ids, steps, ports, inputs and mounts); an attempt is one machine's try at it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NewType

from spotsurfer.model.market import Market, Pool

JobId = NewType("JobId", str)
AttemptNumber = NewType("AttemptNumber", int)
InstanceId = NewType("InstanceId", str)

# Safe in an object key, a file name, a cgroup and a host name; the length leaves room for ".<attempt>".
JOB_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,39})")  # of a job, a step, a port, a mount
NAME_LETTERS = "up to 40 letters, digits, '.', '_' or '-'"


def launch_token(family: str, job: JobId, attempt: AttemptNumber) -> str:
    """The cloud's idempotency token of an attempt: the same attempt always asks for the same machine."""
    return hashlib.sha256(f"{family}/{job}/{attempt}".encode()).hexdigest()[:32]


# ---- Inputs from elsewhere and shared file systems, which a job's machines fetch or mount


@dataclass(frozen=True, slots=True)
class InputFetch:
    """An object, a file behind a web address, a folder (ends in /) or a wildcard, which machines fetch by themselves."""

    source: str
    to: str = ""  # below the job's folder; "" = under its last name
    sha256: str = ""
    version: str = ""
    options: dict[str, str] = field(default_factory=dict)  # how it is reached, as obstore names it; no secrets


@dataclass(frozen=True, slots=True)
class SharedMount:
    """A shared file system, as mount(8) takes it."""

    name: str
    type: str
    source: str
    target: str
    options: str = ""
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class JobPort:
    """A TCP port of a job; it is found under its name, whatever machine the job is on."""

    name: str
    port: int


# ---- Steps

MAIN, SETUP = "main", "setup"


@dataclass(frozen=True, slots=True)
class JobStep:
    """One command of a job; all of them run one after the other, on the same files."""

    name: str
    command: tuple[str, ...]
    protect: bool = True  # False: nothing of it is saved, it begins again elsewhere when its machine goes
    always: bool = False  # it runs although an earlier one failed


def main_command(steps: Sequence[JobStep]) -> tuple[str, ...]:
    """What stands for the job where it is named by one command: the step `main`, else the first that is protected."""
    named = [s for s in steps if s.name == MAIN] or [s for s in steps if s.protect] or list(steps)
    return named[0].command if named else ()


# ---- Job and attempt


class MarketChoice(StrEnum):
    """Which markets the user accepts."""

    SPOT_FIRST = "spot-first"  # spot, on-demand when no spot can be had, back to spot when it can
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class JobState(StrEnum):
    """A job's own state; what people see beyond it ("booting", "draining") is derived from its attempts."""

    QUEUED = "queued"
    ACTIVE = "active"
    HELD = "held"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """Where an attempt stands; the table of moves is in `model.state_machine`."""

    PLANNED = "planned"
    REQUESTED = "requested"
    BOOTING = "booting"
    READY = "ready"
    RESTORING = "restoring"
    RUNNING = "running"
    DRAINING = "draining"
    DRAINED = "drained"
    FINISHED = "finished"
    LOST = "lost"
    RELEASING = "releasing"
    RELEASED = "released"
    REFUSED = "refused"


HOLDS = frozenset({AttemptState.RESTORING, AttemptState.RUNNING, AttemptState.DRAINING})
WAITS = frozenset({AttemptState.PLANNED, AttemptState.REQUESTED, AttemptState.BOOTING, AttemptState.READY})
OVER = frozenset({AttemptState.RELEASED, AttemptState.REFUSED})
ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


ENGINES = ("auto", "criu", "app", "none")
TCP_MODES = ("close", "keep", "forbid")
AFTER_KILLS = ("hold", "fail")  # of a job that the kernel killed for memory too often
CPU_CAPS = ("any", "portable", "x86-64-v2", "x86-64-v3")
PRIORITIES = {"low": -10, "normal": 0, "high": 10}  # names of priorities; any whole number to PRIORITY_MAX will do
PRIORITY_MAX = 100
SIGNALS = ("USR1", "USR2", "HUP", "INT", "TERM", "QUIT", "ALRM", "CONT", "WINCH", "URG")
SIZE_OFF = "off"  # instead of a size policy: the job stays on the size that was asked for
SENT_SECRETS = ("file", "env")  # read where the job is submitted; other kinds by a plug-in, with the controller's credentials
SECRET_FORMS = ("environment", "file")


class Wish(StrEnum):
    """What is wanted of a job, by its user or by a limit."""

    RUN = "run"
    HOLD = "hold"
    CANCEL = "cancel"


ASKED = "by its user"  # the reason of a wish that its user made


TIME_LIMIT, MEMORY = "time limit", "memory"  # as `Job.ended_by`


class HeldBy(StrEnum):
    """Who wanted a held job to be held, which says who lets it go on; see `core.scheduling.suspension`."""

    USER = ""  # its user, or a limit of theirs: its user alone
    BUDGET = "budget"  # a budget of several jobs: it goes on when there is money again; or its user suspends it
    IDLE = "idle"  # the controller: a connection to its front, or its user


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What was asked. Sizes in bytes, money in micro-dollars."""

    name: str
    command: tuple[str, ...]
    folder: str = "."  # where the command runs, below the job's scratch
    inputs: tuple[str, ...] = ()  # paths relative to the job file's folder, files or folders
    fetches: tuple[InputFetch, ...] = ()  # inputs that machines fetch by themselves
    mounts: tuple[SharedMount, ...] = ()  # shared file systems
    outputs: tuple[str, ...] = ()  # glob patterns below the folder
    outputs_optional: bool = False  # it is no failure when one of them is not there
    cpus: int = 1
    memory_bytes: int = 1 << 30
    out_of_memory: str = "hold"  # what becomes of it if more memory does not help: AFTER_KILLS
    gpus: int = 0  # that its machine has at least
    gpu: str = ""  # which chip, as "H100"; "" = any
    licences: dict[str, int] = field(default_factory=dict)  # kind -> how many it has out while it runs
    market: MarketChoice = MarketChoice.SPOT_FIRST
    priority: int = 0  # if there is no room for all, the higher one runs; see core/scheduling/preemption.py
    checkpoint_interval_seconds: float | None = None  # None = the operator's, else the interval policy's
    retries: int = 0  # of a command that fails by itself
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    project: str = ""  # for which it is paid; "" = none
    user: str | None = None  # None in a row: from before jobs were unprivileged by default, see spotsurfer_wire.messages.Spec
    budget_usd_micros: int | None = None
    price_max_usd_micros: int | None = None  # of its machine, per hour
    deadline_seconds: float | None = None  # after it was submitted; None = it has time
    work_seconds: float | None = None  # total run time, by its user's estimate; goes with a deadline
    instance_types: tuple[str, ...] = ()  # wildcards that its machine must match; none = any
    on_end: tuple[str, ...] = ()  # command on the controller's host when the job is done, failed or held
    engine: str = "auto"  # how it is saved: ENGINES
    tcp: str = "close"  # how connections to the outside are treated: TCP_MODES
    cpu: str = "any"  # processor features that its programs may use: CPU_CAPS
    before_freeze: tuple[str, ...] = ()  # run inside the job before each save
    after_restore: tuple[str, ...] = ()  # run inside the job after each restore
    before_thaw: tuple[str, ...] = ()  # the same before it goes on: it stands still until this succeeds
    hook_seconds: float = 30.0  # limit of each of them
    app_signal: str = ""  # app_…: the program saves itself; see spotsurfer_wire.messages.SelfSave
    app_command: tuple[str, ...] = ()
    app_file: str = ""
    app_deadline_seconds: float = 60.0
    app_done_file: str = ""
    app_done_output: str = ""
    app_done_exit: int | None = None
    app_restart_command: tuple[str, ...] = ()
    steps: tuple[JobStep, ...] = ()  # what runs one after the other; empty = `command` alone
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)  # name -> {"from": "kind:place", "as": form}; no values
    image: str = ""  # container image that is its root, "docker://…"; "" = the machine's own root
    entry_point: tuple[str, ...] | None = None  # instead of the image's
    devices: tuple[str, ...] = ()  # of the machine, by their CDI names: "nvidia.com/gpu=all"
    registry_auth: str = ""  # where its containers-auth.json was: "file:PATH" or "env:NAME"; no value
    ports: tuple[JobPort, ...] = ()  # on which it listens for others
    idle_seconds: float | None = None  # suspended after so long without work; None = never
    idle_cpu: float = 0.05  # so few processors in use count as idle
    idle_gpu: float = 0.05  # so small a share of time with its GPUs at work counts as idle
    stuck_seconds: float | None = None  # so long without progress counts as stuck; None = nobody asks
    array: str = ""  # which tasks it has, as "1-1000%50"; "" = it is one job. See `model.arrays`
    after: tuple[str, ...] = ()  # what must come before it, as "afterok:JOB"; see `model.dependencies`
    begin: str = ""  # not before: an ISO time with a zone, or a duration after it was submitted
    time_limit_seconds: float | None = None  # so long it may run, on all machines together; None = as long as it wants
    warn_signal: str = ""  # sent to its processes before its time limit ends it; "" = none
    warn_seconds: float = 60.0  # so long before
    size_policy: str = ""  # the policy that chooses its machine type: a name, SIZE_OFF; "" = the operator's
    size_memory_min_bytes: int | None = None  # smallest memory for a size policy; None = any
    size_memory_max_bytes: int | None = None  # largest; None = a multiple of the request
    size_cpus_min: int | None = None
    size_cpus_max: int | None = None
    size_parameters: dict[str, str | int | float | bool] = field(default_factory=dict)  # of its size policy
    home: str = ""  # absolute path of the folder on the submit host that it works in, on each machine; "" = none
    home_files: tuple[str, ...] = ()  # the only names of it that come along; none = all of it
    home_exclude: tuple[str, ...] = ()  # names of it that neither come along nor come home
    home_tree: str = ""  # SHA-256 of the tree that was sent; "" = it begins empty
    stdout: str = ""  # file of the submit host for its output, "{number}" and "{task}" in it are replaced; "" = none
    stderr: str = ""  # for what it writes to stderr; "" = into the same file
    output_append: bool = False  # what these files held before stays
    secrets_in_plain_images: bool = False  # its user accepts that checkpoints with secrets in memory are not encrypted

    @property
    def must_encrypt(self) -> bool:
        """Its checkpoints are encrypted whatever the operator set: an image of its memory holds its secrets."""
        return bool(self.secrets) and not self.secrets_in_plain_images

    @property
    def saves_itself(self) -> bool:
        """The user said how the program is told to save itself."""
        return bool(self.app_signal or self.app_command or self.app_file)


def fetched(spec: JobSpec) -> list[str]:
    """Names of the secrets that the controller is to fetch."""
    return [name for name, s in spec.secrets.items() if s["from"].partition(":")[0] not in SENT_SECRETS]


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A user's order to go elsewhere, on top of what the policy thinks."""

    number: int  # counts a job's move requests
    asked_at: datetime
    instance_type: str | None = None  # None = any other machine
    market: Market | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """A user's order to go on from a certain checkpoint. It is carried out by the first grant from it after entry `after`."""

    checkpoint: str
    after: int


@dataclass(frozen=True, slots=True)
class Parent:
    """Where a job comes from that was copied from another one."""

    job: JobId
    checkpoint: str
    rehearsal: bool = False  # it lives only to show that the checkpoint does; its cost is its parent's


@dataclass(frozen=True, slots=True)
class Job:
    """A row of the job table. `version` guards every write."""

    id: JobId
    spec: JobSpec
    state: JobState
    version: int
    submitted_at: datetime
    wish: Wish = Wish.RUN
    reason: str = ""  # of the wish or of the end, for people
    held_by: HeldBy = HeldBy.USER  # while the wish is HOLD
    move: MoveRequest | None = None
    moves_asked: int = 0
    save_at_least: int = 0  # the user asked for a live checkpoint of at least this sequence
    failures: int = 0  # of the command itself, counted against spec.retries
    exit_code: int | None = None
    ended_at: datetime | None = None
    resumed_at: datetime | None = None  # by its user: earlier failures don't count against a new try
    rewind: Rewind | None = None
    parent: Parent | None = None
    owner: str = ""  # who submitted it: a Unix user, a token's owner, an OIDC subject; "" = from before there were owners
    lineage: str = ""  # the job whose keys name and seal its chunks; "" = itself
    partials_asked: int = 0  # number of requests for partial outputs
    signals_asked: int = 0  # number of signals that its user asked for
    signal: str = ""  # the newest of them
    stuck_since: datetime | None = None  # it runs, and makes no progress since then
    number: int = 0  # of its submission; all tasks of an array share it. 0 = it is given with the row
    array: str = ""  # the array that it is a task of; "" = none
    task: int | None = None  # which task
    begins_at: datetime | None = None  # not before; None = at once
    ended_by: str = ""  # what ended it if neither its command nor its user did: TIME_LIMIT, MEMORY


def rehearses(job: Job) -> bool:
    """Whether the job only shows that its parent's checkpoint lives."""
    return job.parent is not None and job.parent.rehearsal


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of the attempt table. `since` is when the present state was entered.

    What is a fact of its machine is read from that one's row: pool, market, prices, instance, GPUs, disk, address.
    """

    job: JobId
    number: AttemptNumber
    state: AttemptState
    since: datetime
    pool: Pool
    market: Market
    price_usd_micros_per_hour: int
    list_price_usd_micros_per_hour: int
    token: str  # of its machine's launch; attempts that share a machine have the same one
    planned_at: datetime
    version: int = 1
    purpose: str = ""  # why it was planned, for people
    reason: str = ""  # why it ended, for people
    for_move: int = 0  # number of the move request that it serves
    instance: InstanceId | None = None
    granted_at: datetime | None = None
    from_checkpoint: str | None = None
    head_number: int = 0  # of its grant
    desired_sequence: int = 0
    desired_want: str = "run"
    desired_save: int = 0
    desired_partial: int = 0  # the newest request for outputs in its orders
    signals_told: int = 0  # the newest signal that its orders name, or that was asked for before it had the job
    signal: str = ""  # that its orders name; "" = none
    launched_at: datetime | None = None  # its time on the machine began: with the launch, or with its order if that ran already
    released_at: datetime | None = None  # … and ended
    restore_failed: bool = False
    restore_refused: bool = False  # the machine's facts forbade the restore; the checkpoint is not to blame
    store_failed: bool = False  # the restore failed because the store did not answer; the checkpoint is not to blame
    reclaimed: bool = False  # the cloud reclaimed the machine
    pause_seconds: float | None = None  # pause of the job before it went on here; None = it was not handed over
    drained: bool = False  # its final checkpoint was made in time: no work was lost with the machine
    pace_seconds: float | None = None  # between live saves, by the interval policy; None = it was not asked
    pace_saves: int = -1  # number of saves when the policy was asked
    pace_why: str = ""  # its numbers, for people
    gpus: int = 0  # of its machine, by the offer
    disk_bytes: int = 0  # that its machine rents, by the offer
    public_address: bool = False  # its machine rents one
    gave_way_to: str = ""  # the job of higher priority for which it was asked to leave; "" = it was not
    slot: int = 0  # of the machine; 0 = that of its first job
    lease_seconds: float | None = None  # its machine freezes the job if it is cut off for so long; None = as configured
