"""What controller and agent write to each other: specifications, head entries, wishes, reports.

These are objects in shared storage. Each has one writer, except the head log. A reader checks `protocol` first, refuses a
higher version and ignores unknown fields; writers are strict. Times are UTC strings for people only: machines never compare
the clocks of two machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from spotsurfer_wire.final_save_forecast import Fit
from spotsurfer_wire.usage import Usage

# ---- Steps: the commands of a job run one after the other on one scratch

MAIN = "main"  # the one step of a job that names none; the one that [app] speaks of


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a job."""

    name: str
    command: list[str]
    protect: bool = True  # False: it is not saved; a machine that goes takes it along, and it begins again elsewhere
    always: bool = False  # it runs although an earlier one failed


@dataclass(frozen=True, slots=True)
class StepRun:
    """One step as it ran, or runs. Positions count bytes of each stream from the job's beginning; times are for people."""

    name: str
    number: int  # its place in the list of steps, from 0
    log: dict[str, int] = field(default_factory=dict)  # stream -> where its output begins
    began: str = ""
    exit_code: int | None = None  # None = it runs
    log_end: dict[str, int] = field(default_factory=dict)
    ended: str = ""
    cpu_seconds: float = 0.0  # of all attempts, known at its end


# ---- Partial results: files that were uploaded before the job's end


@dataclass(frozen=True, slots=True)
class OutputObject:
    """One uploaded file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Partial:
    """Outputs of a job that ran on, as they were at one time. Written last: its existence says that all of them are there."""

    number: int  # of the request
    attempt: int
    step: str
    at: str  # for people
    files: dict[str, OutputObject] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # patterns that matched nothing yet


# ---- Inputs and shared file systems: what the specification declares, and the inputs as the first start found them


@dataclass(frozen=True, slots=True)
class Fetch:
    """An input that the machine fetches: an object, a file behind a web address, a folder (ends in /) or a wildcard."""

    source: str  # s3://bucket/key, gs://bucket/key, https://host/path
    to: str = ""  # below the job's folder; "" = its last name. For several files the folder that they arrive in
    sha256: str = ""  # of a single file, in hexadecimal digits
    version: str = ""  # of a single object: its ETag, or the id of a version in a bucket that keeps them
    options: dict[str, str] = field(default_factory=dict)  # how it is reached: names of obstore, no secrets


@dataclass(frozen=True, slots=True)
class Share:
    """A shared file system that the job sees. `type` and `options` are those of mount(8)."""

    name: str
    type: str
    source: str
    target: str  # absolute, or below the job's folder
    options: str = ""
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Pinned:
    """One file as it was when the job first started. `version` is the ETag, or what else its server tells versions apart by."""

    path: str  # below the job's folder
    source: str
    size: int
    version: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Pins:
    """All fetched inputs of a job, by the object that is created once and never changed."""

    files: list[Pinned] = field(default_factory=list)
    at: str = ""  # for people


# ---- Head log


class HeadKind(StrEnum):
    """Why a head entry was written."""

    GRANT = "grant"  # controller: `epoch` owns the job now and starts from `checkpoint`; or it has the job back that it kept
    COMMIT = "commit"  # agent: `checkpoint` is durable; with `final` nothing of the job runs any more
    RENEW = "renew"  # agent: its lease had lapsed; nothing changes but that older decisions to grant can't land any more
    DONE = "done"  # agent: the command ended; or controller: closed (cancelled)


@dataclass(frozen=True, slots=True)
class Done:
    """How the job ended. `exit_code` is the shell's convention: 128 + signal for a killed command."""

    exit_code: int | None
    reason: str  # "exited" | "cancelled" | "ended": by the controller, see `ended_by`
    outputs: dict[str, int] = field(default_factory=dict)  # path -> bytes, below output_prefix(job, epoch)
    log: dict[str, int] = field(default_factory=dict)  # stream -> length in bytes
    steps: list[StepRun] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)  # path -> SHA-256 of an output
    ended_by: str = ""  # what made the command end, if that was neither itself nor its user: "time limit", "memory"
    undelivered: str = ""  # which outputs are missing although the command ended with 0: the job failed all the same


@dataclass(frozen=True, slots=True)
class Head:
    """One entry of the head log. The newest one says who owns the job and which checkpoint counts."""

    number: int
    kind: HeadKind
    epoch: int  # number of the owning attempt
    checkpoint: str | None  # the checkpoint that counts; None = from the beginning
    sequence: int  # of the newest checkpoint ever committed, 0 = none
    final: bool  # the owner drained: its workload is dead, the checkpoint is complete
    done: Done | None
    cpu_seconds: float  # CPU time of the job's work contained in `checkpoint`
    nonce: str  # tells a writer its own entry after a lost answer
    at: str  # for people
    ran_seconds: float = 0.0  # for which the job had run when `checkpoint` was made, on all its machines


# ---- Specification


@dataclass(frozen=True, slots=True)
class SelfSave:
    """A program that saves itself: how the agent asks it to (one of the first three), and how the agent knows that it is done.

    Paths are relative to the job's folder. Without any `done_…` the exit code 0 of `command` counts.
    """

    signal: str = ""  # a name without SIG, sent to the whole process group of the job
    command: list[str] = field(default_factory=list)  # run beside the job, as its user
    file: str = ""  # written anew each time; the program looks for it
    deadline_seconds: float = 60.0
    done_file: str = ""  # appears, or changes, and then rests
    done_output: str = ""  # a regular expression that a new line of the job's output matches
    done_exit: int | None = None  # the program ends with this code
    restart_command: list[str] = field(default_factory=list)  # goes on from the saved files; empty = the job's command


UNPRIVILEGED = "unprivileged"  # as `Spec.user`: its image's user unless that is root, else nobody


@dataclass(frozen=True, slots=True)
class Spec:
    """What the agent needs to run the job; written once at submission.

    `folder` is relative to the job's scratch. Paths in `inputs` and `outputs` are relative to `folder`.
    """

    job: str
    command: list[str]
    folder: str = "."
    inputs: dict[str, int] = field(default_factory=dict)  # path -> bytes, below jobs/<job>/in/
    input_modes: dict[str, int] = field(default_factory=dict)  # path -> permission bits
    fetches: list[Fetch] = field(default_factory=list)  # inputs that the machine fetches, see `prepare.inputs.delivery`
    shares: list[Share] = field(default_factory=list)  # see `prepare.inputs.shared_file_systems`
    outputs: list[str] = field(default_factory=list)  # glob patterns
    outputs_optional: bool = False  # a pattern that matches nothing is no failure
    environment: dict[str, str] = field(default_factory=dict)
    user: str | None = None  # None: from before there was UNPRIVILEGED, so its image's user, else root
    checkpoint_interval_seconds: float | None = None
    engine: str = "auto"  # "auto" | "criu" | "app" | "none"
    app: SelfSave | None = None
    tcp: str = "close"  # connections to the outside: "close" | "keep" | "forbid"; see `save.blockers`
    cpu: str = "any"  # or a key of `restore.compatibility.CAPS`: processor features that programs may use
    before_freeze: list[str] = field(default_factory=list)  # run inside the job before each save
    after_restore: list[str] = field(default_factory=list)  # run inside the job after each restore
    before_thaw: list[str] = field(default_factory=list)  # the same before it goes on: it stands still until this succeeds
    hook_seconds: float = 30.0  # limit of each of them
    image: str = ""  # container image that is its root, "docker://…"; "" = the machine's own root
    entry_point: list[str] | None = None  # instead of the image's
    devices: list[str] = field(default_factory=list)  # of the machine, by their CDI names, for a job with an image
    gpus: int = 0  # requested: with two or more NCCL uses sockets, see `prepare.environment.nccl_environment`
    steps: list[Step] = field(default_factory=list)  # what runs one after the other; empty = `command` alone
    ports: list[int] = field(default_factory=list)  # that it listens on for others, see `doors.DOOR`
    step: int = 0  # index of the step that this is about: set by the agent, see `host.steps.at`
    secrets: dict[str, str] = field(default_factory=dict)  # name -> SECRET_VARIABLE or SECRET_FILE; values are sealed
    array: str = ""  # the array that it is a task of: its inputs are below jobs/<array>/in/; "" = none
    task: int | None = None  # None, with `array`: what its tasks are made of, no job
    time_limit_seconds: float | None = None  # of time in which it ran, over all its machines; None = no limit
    kill_wait_seconds: float = 30.0  # from TERM to KILL at its limit
    warn_signal: str = ""  # sent to all its processes before the limit; "" = none
    warn_seconds: float = 60.0  # so long before
    home: str = ""  # absolute path of the folder on the submit host that is the job's working folder; "" = none
    home_scope: str = ""  # see `object_keys.home_scope`
    home_tree: str = ""  # SHA-256 of the tree that it begins with; "" = it begins empty
    home_exclude: list[str] = field(default_factory=list)  # what neither came along nor comes home, see `home_tree.excluded`
    rehearses: str = ""  # the job that this one is a rehearsal of, for a controller that lost its database; "" = it is none


# ---- Desired and report


class Want(StrEnum):
    """What the controller wants of an attempt."""

    RUN = "run"
    DRAIN = "drain"
    STOP = "stop"
    HURRY = "hurry"  # to a standby machine: the job is about to become yours, look often


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired state, not a command: repeating, losing or reordering a write does no harm."""

    sequence: int
    want: Want
    save_at_least: int = 0  # save live until the committed sequence reaches this
    seconds_left: float | None = None  # a duration from reading, never a time of day
    reason: str = ""
    partial: int = 0  # number of the newest request for what the outputs are now
    save_every_seconds: float | None = None  # between live saves; None = as the specification says
    keep: bool = False  # the job goes elsewhere: keep it frozen after the final save, should it come back
    signal_number: int = 0  # of the newest signal that its user asked for
    signal: str = ""  # its name without SIG, for processes that run here; "" = none since this attempt has the job


class AgentState(StrEnum):
    """Where the agent stands; the transition table is in `control.state_machine`."""

    BOOT = "boot"
    STANDBY = "standby"
    RESTORING = "restoring"
    RUNNING = "running"
    STEPPING = "stepping"
    SAVING = "saving"
    DRAINING = "draining"
    PUBLISHING = "publishing"
    KEEPING = "keeping"  # saved for the last time, and frozen still: should it not go on elsewhere, it may come back
    RETURNING = "returning"
    DRAINED = "drained"
    FINISHED = "finished"
    OVERRUN = "overrun"
    FENCED = "fenced"
    BROKEN = "broken"
    HALTED = "halted"


# In these states no process of the job runs, and none will under this attempt.
WORKLOAD_DEAD = frozenset({AgentState.DRAINED, AgentState.FINISHED, AgentState.FENCED, AgentState.BROKEN, AgentState.HALTED})


@dataclass(frozen=True, slots=True)
class Notice:
    """The cloud says it will take the instance. `seconds_left` counts from when the agent wrote the report."""

    kind: str  # "interruption" | "rebalance"
    id: str  # hash of what the metadata service said: one interruption counts once
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class SaveFacts:
    """A checkpoint that was committed, measured."""

    checkpoint: str
    sequence: int
    kind: str  # "live" | "final"
    image_bytes: int
    new_bytes: int  # bytes that had to be sent
    frozen_seconds: float
    durable_seconds: float  # freeze to committed
    waited_seconds: float = 0.0  # of the freeze: waiting for the store because memory was short
    ahead_seconds: float = 0.0  # before the freeze: memory was copied, and maybe sent, while the job ran
    read_seconds: float = 0.0  # of these: for reading alone
    device_out_seconds: float = 0.0  # of the freeze: GPU memory was moved out …
    device_back_seconds: float = 0.0  # … and, in a live save, back
    start_seconds: float = 0.0  # before the freeze, in a final save, too: hooks, and what was not on the disk yet
    sending_seconds: float = 0.0  # of the freeze: what was kept of a program that saved itself, and is dead by then, was sent
    memory_bytes: int | None = None  # of `image_bytes`: memory that a restore needs; None = not reported


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The job was frozen because its memory was about to end; or that came too late, and the kernel killed it. Bytes."""

    machine_bytes: int  # memory of the machine
    limit_bytes: int  # at which jobs are frozen there
    used_bytes: int  # by the job when it was, page cache not counted; of one that was killed the most ever, with it
    stop_seconds: float = 0.0  # from the kernel's word until all of it stood still
    killed: bool = False  # by the kernel: what ran since the newest checkpoint is lost


@dataclass(frozen=True, slots=True)
class Warm:
    """What a machine that stands by has fetched of the job's newest checkpoint. `checkpoint` is the one it holds whole."""

    checkpoint: str | None
    held_bytes: int
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent says of itself. `sequence` grows with each report: silence = it stands still on the reader's clock."""

    job: str
    attempt: int
    instance: str
    agent_version: str
    sequence: int
    state: AgentState
    head: int  # number of the newest head entry read
    desired: int = 0  # sequence of the newest desired object read
    drain_failed: int = 0  # sequence of the desired drain that failed; the job runs on
    frozen: bool = False  # the lease lapsed: the job is held still until the head is read again
    lease_seconds: float = 0.0  # that it goes by; 0 = it does not say
    notice: Notice | None = None
    last_save: SaveFacts | None = None
    saves: int = 0
    frozen_seconds: float = 0.0  # by checkpoints of this attempt, in all
    restore_seconds: float | None = None
    warm: Warm | None = None
    fit: Fit | None = None  # a final save now; None = nothing measured yet
    save_stage: str = ""  # what a running save is doing, for people
    save_age_seconds: float | None = None  # since the newest durable checkpoint's freeze (or the start)
    cpu_seconds: float = 0.0  # of the job under this attempt
    memory_bytes: int = 0
    arriving_bytes: int | None = None  # of a lazy restore's memory, still missing; None = all is there
    error: str = ""  # one sentence with the remedy
    error_kind: str = ""  # of a failure of the agent's, see `engines.port.EngineError`; "input", "output", "hook", "lost", too
    protection: str = ""  # the rung that the job stands on: "criu" | "criu+cuda" | "app" | "none"; "" = nothing runs yet
    unprotected: str = ""  # why it does not stand on a better one, in one sentence
    unfit: str = ""  # standing by: why this machine could not continue the newest checkpoint, both values named
    unfit_kind: str = ""  # of that: "refused" | "image" | "input"; "" = facts speak against it
    waits: str = ""  # standing by: why the job should not come yet; later: why it is here and stands still
    processor: str = ""  # of this machine, with what its facts hash to
    gpu_driver: str = ""  # its version; "" = this machine has none
    steps: list[StepRun] = field(default_factory=list)  # those that began, the newest last
    hint: str = ""  # the stage that the job says it is in, see `host.hints`; the text is the job's own
    hint_memory_bytes: int = 0  # that it says it needs in that stage; 0 = it said nothing
    hint_cores: float = 0.0
    partial: int = 0  # the newest request for outputs that was dealt with
    partial_error: str = ""  # why nothing came of it, in one sentence
    near_miss: NearMiss | None = None  # under this attempt
    pressed: bool = False  # the job stands still because of it
    usage: Usage | None = None  # of the job, in the last minutes; None = it never ran here
    store_read_bytes: int = 0  # by this attempt from the store, so far
    store_sent_bytes: int = 0
    store_gets: int = 0  # requests that read, as far as the agent makes them; older agents don't count them
    store_puts: int = 0  # requests that write or list
    kept: str = ""  # the final checkpoint behind which the job stands frozen, ready to go on here; "" = none
    writes: list[str] = field(default_factory=list)  # files on shared file systems that it has, or had, open for writing there
    brought_back: str = ""  # what its restore did with such files, in one sentence; "" = nothing
    machine: str = ""  # token of the machine, if it takes further jobs
    at: str = ""


# ---- Collection


@dataclass(frozen=True, slots=True)
class Intent:
    """A save under way. It counts until its attempt is fenced or a checkpoint of at least its sequence is committed."""

    checkpoint: str
    base: str | None  # the checkpoint whose chunks it reuses
    at: str  # for people


@dataclass(frozen=True, slots=True)
class Condemned:
    """Names of chunks and packs that no checkpoint needs: they are about to be removed. Empty = nothing is."""

    names: list[str] = field(default_factory=list)
    at: str = ""  # for people


@dataclass(frozen=True, slots=True)
class Proof:
    """A checkpoint was restored and its job went on, with all of its memory."""

    attempt: int  # 0 = a rehearsal
    why: str
    at: str  # for people


# ---- Store and controllers


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """`spotsurfer.json`: whose store this is."""

    family: str
    format: int = 1
    key: str = ""  # fingerprint of the family's master secret


@dataclass(frozen=True, slots=True)
class Controller:
    """`controller/<n>.json`: a controller that led from this entry on, until the next one."""

    generation: int
    nonce: str
    at: str


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent's configuration, from user-data and from what user-data leaves out."""

    job: str
    attempt: int
    store_url: str
    store_options: dict[str, str] = field(default_factory=dict)
    boot_url: str = ""  # where `access/` lies, read with the machine's own rights; "" = in the store
    boot_options: dict[str, str] = field(default_factory=dict)
    metadata_url: str = "http://169.254.169.254"
    metadata_dialect: str = "aws"  # "aws" | "azure" | "gcp"
    poll_seconds: float = 5.0  # head, desired
    report_seconds: float = 30.0  # unchanged reports; a change is reported at the next poll
    notice_seconds: float = 1.0  # metadata service
    lease_seconds: float = 60.0  # no head read and report written for so long: freeze the job
    limit_seconds: float = 0.0  # power off after so long whatever happens; 0 = never
    ready_limit_seconds: float = 3600.0  # standing by, ask for so long for what the job needs and nobody gives
    drain_margin_seconds: float = 5.0  # of a notice window left unused
    walled: bool = False  # the job reaches no network but its own loopback: a rehearsal must not be felt anywhere
    life_seconds: float = 0.0  # the machine ends after so long, whatever it does; 0 = never
    key: str = ""  # secret of the job's lineage, 64 hexadecimal digits; "" = no protection against forgery
    lineage: str = ""  # job whose chunks and keys are used; "" = the job itself, a fork has its origin's
    encrypt: bool = False
    checkpoint_memory_bytes: int = 0  # for data on its way; 0 = half of what is free
    checkpoint_threads: int = 0  # for hashing and compressing; 0 = half of the processors, 2 to 8
    shared_bytes: int = 1 << 30  # of files on shared file systems that are rewritten in place: so much is kept in a checkpoint
    compression: str = "auto"  # "auto" | "none" | "lz4" | "zstd"
    lazy: bool = True  # restore memory behind the running job if that helps
    notice_window_seconds: float = 0.0  # what the cloud promises between notice and reclaim; 0 = no notice
    warm_wait_seconds: float = 0.0  # for the next machine to fetch before this one drains; 0 = nobody waits or fetches ahead
    keep_seconds: float = (
        0.0  # the job stays frozen for so long after its final save, should it come back; 0 = it is ended at once
    )
    hurry_seconds: float = 0.25  # between looks at the head while a move is under way
    cache_bytes: int = 0  # of checkpoints fetched ahead; 0 = half of what is free on the disk
    input_options: dict[str, dict[str, str]] = field(default_factory=dict)  # by the beginning of an address: how it is reached
    input_cache_bytes: int = 0  # of inputs kept on a machine; 0 = as much as its disk has
    input_cache: str = ""  # their folder, for agents that share a machine; "" = in the agent's own
    image_cache_bytes: int = 0  # of unpacked container images; 0 = half of the disk
    insecure_registries: list[str] = field(default_factory=list)  # that may speak without TLS
    access_secret: str = (
        ""  # opens the credentials that are handed out to this attempt; "" = the options above are all there is
    )
    voucher: str = ""  # opens what user-data leaves out of this, see `store.credentials`; "" = nothing is left out (any more)
    registry_authorities: str = ""  # certificates in PEM that registries are trusted by, besides the machine's own
    memory_bytes: int = 0  # that the job asked for; 0 = not told
    machine: str = ""  # token of the machine, if it takes further jobs, by orders in the store; "" = it goes with this one
    machine_secret: str = ""  # opens these orders; 64 hexadecimal digits
    machine_options: dict[str, str] = field(default_factory=dict)  # as `store_options`, with rights to read them
