"""The wire between controller and agent: objects in shared storage, one writer each except the head log.

Layout (DESIGN: "the store is the meeting place"); every key is made by a function below, nowhere else:

    spotsurfer.json                              store format and the controller family that owns it; create-only
    controller/<n>.json                          who leads: one entry a controller start; create-only
    jobs/<job>/SPEC.json                         what to run; create-only
    jobs/<job>/in/<path>                         inputs as the user gave them; create-only
    jobs/<job>/head/<n>.json                     the head log: create-only, entry n+1 has exactly one writer
    jobs/<job>/desired/<attempt>.json            controller -> agent
    jobs/<job>/log/<attempt>/<stream>-<offset>   output of the job, absolute byte offset of the first byte
    jobs/<job>/out/<attempt>/<path>              outputs; the DONE entry names the attempt whose outputs count
    jobs/<job>/checkpoints/<id>/MANIFEST         written last: its existence makes the checkpoint
    jobs/<job>/chunks/<ab>/<hash>                content-addressed
    live/<job>.<attempt>                         agent -> controller; one flat folder, one listing shows all changes
    runtime/<sha256>.tar.gz                      the agent and its interpreter

Rules: `protocol` is checked before anything else is read; a higher one is refused; unknown fields are ignored; writers are
strict. Times are UTC strings for people only: machines never compare clocks of two machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from spotsurfer_agent.coding import PROTOCOL as PROTOCOL
from spotsurfer_agent.coding import ProtocolError as ProtocolError
from spotsurfer_agent.coding import decode as decode
from spotsurfer_agent.coding import encode as encode

# ---------------------------------------------------------------- keys


def store_key() -> str:
    """Key of the object that names the store's format and owner."""
    return "spotsurfer.json"


def controller_prefix() -> str:
    """Folder of the controllers' generation entries."""
    return "controller/"


def controller_key(generation: int) -> str:
    """Key of one controller generation."""
    return f"controller/{generation:08d}.json"


def job_prefix(job: str) -> str:
    """Folder that holds everything of a job but its reports."""
    return f"jobs/{job}/"


def spec_key(job: str) -> str:
    """Key of a job's immutable specification."""
    return f"jobs/{job}/SPEC.json"


def input_key(job: str, path: str) -> str:
    """Key of an input; `path` is relative to the job's folder."""
    return f"jobs/{job}/in/{path}"


def head_prefix(job: str) -> str:
    """Folder of a job's head log."""
    return f"jobs/{job}/head/"


def head_key(job: str, number: int) -> str:
    """Key of one head entry; names sort like numbers."""
    return f"jobs/{job}/head/{number:08d}.json"


def desired_key(job: str, attempt: int) -> str:
    """Key of what the controller wants of an attempt."""
    return f"jobs/{job}/desired/{attempt:06d}.json"


def log_prefix(job: str) -> str:
    """Folder of a job's output pieces, all attempts."""
    return f"jobs/{job}/log/"


def log_key(job: str, attempt: int, stream: str, offset: int) -> str:
    """Key of one piece of output; `stream` is "out" or "err", `offset` counts bytes from the job's beginning."""
    return f"jobs/{job}/log/{attempt:06d}/{stream}-{offset:016d}"


def output_prefix(job: str, attempt: int) -> str:
    """Folder of an attempt's outputs."""
    return f"jobs/{job}/out/{attempt:06d}/"


def checkpoint_id(epoch: int, sequence: int) -> str:
    """Name of a checkpoint; later ones sort later."""
    return f"{epoch:06d}-{sequence:06d}"


def manifest_key(job: str, checkpoint: str) -> str:
    """Key of the object whose existence makes the checkpoint."""
    return f"jobs/{job}/checkpoints/{checkpoint}/MANIFEST"


def chunk_key(job: str, digest: str) -> str:
    """Key of a chunk by the hex digest of its plain bytes."""
    return f"jobs/{job}/chunks/{digest[:2]}/{digest}"


def live_prefix() -> str:
    """Folder of all agents' reports."""
    return "live/"


def live_key(job: str, attempt: int) -> str:
    """Key of an agent's report."""
    return f"live/{job}.{attempt:06d}"


def runtime_key(sha256: str) -> str:
    """Key of an agent runtime tarball."""
    return f"runtime/{sha256}.tar.gz"


# ---------------------------------------------------------------- head log


class HeadKind(StrEnum):
    """Why a head entry was written."""

    GRANT = "grant"  # controller: `epoch` owns the job now and starts from `checkpoint`
    COMMIT = "commit"  # agent: `checkpoint` is durable; with `final` nothing of the job runs any more
    RENEW = "renew"  # agent: its lease had lapsed; nothing changes but that older decisions to grant can't land any more
    DONE = "done"  # agent: the command ended; or controller: closed (cancelled)


@dataclass(frozen=True, slots=True)
class Done:
    """How the job ended. `exit_code` is the shell's convention: 128 + signal for a killed command."""

    exit_code: int | None
    reason: str  # "exited" | "cancelled"
    outputs: dict[str, int] = field(default_factory=dict)  # path -> bytes, below output_prefix(job, epoch)
    log: dict[str, int] = field(default_factory=dict)  # stream -> length in bytes


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


# ---------------------------------------------------------------- specification


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
    outputs: list[str] = field(default_factory=list)  # glob patterns
    environment: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    checkpoint_interval_seconds: float | None = None


# ---------------------------------------------------------------- desired and report


class Want(StrEnum):
    """What the controller wants of an attempt."""

    RUN = "run"
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired state, not a command: repeating, losing or reordering a write does no harm."""

    sequence: int
    want: Want
    save_at_least: int = 0  # save live until the committed sequence reaches this
    seconds_left: float | None = None  # a duration from reading, never a time of day
    reason: str = ""


class AgentState(StrEnum):
    """Where the agent stands; the table of moves is in `machine`."""

    BOOT = "boot"
    STANDBY = "standby"
    RESTORING = "restoring"
    RUNNING = "running"
    SAVING = "saving"
    DRAINING = "draining"
    PUBLISHING = "publishing"
    DRAINED = "drained"
    FINISHED = "finished"
    OVERRUN = "overrun"
    FENCED = "fenced"
    BROKEN = "broken"
    HALTED = "halted"


# In these states nothing of the job runs and nothing ever will under this attempt.
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
    notice: Notice | None = None
    last_save: SaveFacts | None = None
    saves: int = 0
    frozen_seconds: float = 0.0  # by checkpoints of this attempt, in all
    restore_seconds: float | None = None
    save_stage: str = ""  # what a running save is doing, for people
    save_age_seconds: float | None = None  # since the newest durable checkpoint's freeze (or the start)
    cpu_seconds: float = 0.0  # of the job under this attempt
    memory_bytes: int = 0
    error: str = ""  # one sentence with the remedy
    error_kind: str = ""  # "restore" | "start" | "save" | "store" | "input" | "output" | "lost"
    at: str = ""


# ---------------------------------------------------------------- store and controllers


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """`spotsurfer.json`: whose store this is."""

    family: str
    format: int = 1


@dataclass(frozen=True, slots=True)
class Controller:
    """`controller/<n>.json`: a controller that led from this entry on, until the next one."""

    generation: int
    nonce: str
    at: str


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What user-data hands to the agent."""

    job: str
    attempt: int
    store_url: str
    store_options: dict[str, str] = field(default_factory=dict)
    metadata_url: str = "http://169.254.169.254"
    metadata_dialect: str = "aws"
    poll_seconds: float = 5.0  # head, desired
    report_seconds: float = 30.0  # unchanged reports; a change is reported at the next poll
    notice_seconds: float = 1.0  # metadata service
    lease_seconds: float = 60.0  # no head read and report written for so long: freeze the job
    limit_seconds: float = 0.0  # power off after so long whatever happens; 0 = never
    drain_margin_seconds: float = 5.0  # of a notice window left unused
