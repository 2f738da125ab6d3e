"""What the agent's loop asks of a checkpoint engine, and what it may rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import NearMiss, SaveFacts, Spec, StepRun
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.files.staging import FULL
from spotsurfer_agent.host.shim_protocol import ShimGone


class EngineError(Exception):
    """One sentence for the user.

    `kind` is "start", "user" (that of the job is unknown there), "save", "restore" (the image is to blame), "store"
    (which did not answer during a restore), "refused" (facts forbid it, and nothing was touched; or the machine failed at a
    restore: another one may do) or "image" (the job's container image can't be used anywhere).
    """

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def blame(error: Exception) -> str:
    """The kind of a restore that failed: neither a store that does not answer nor the machine is a fault of the image."""
    if isinstance(error, StoreError):
        return "store"
    return "refused" if isinstance(error, OSError | ShimGone) else "restore"


def plainly(error: Exception) -> str:
    """What went wrong, for the user: a full disk has a remedy."""
    if isinstance(error, OSError) and error.errno in FULL:
        return "the machine's disk is full: ask for a larger one"
    if isinstance(error, OSError) and error.errno == 0:  # one of ours: a sentence
        return str(error.strerror)
    return str(error) or type(error).__name__


class WorkloadState(StrEnum):
    """What the shim says of the job's processes."""

    ABSENT = "absent"  # never started here
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"  # shim or processes are gone without an exit status


@dataclass(frozen=True, slots=True)
class Status:
    """The workload as the shim sees it now."""

    state: WorkloadState
    exit_code: int | None = None  # 128 + signal for a killed command
    held: bool = False  # frozen by `hold`
    cpu_seconds: float = 0.0  # of the job under this attempt
    memory_bytes: int = 0
    log: dict[str, int] | None = None  # stream -> absolute bytes spooled so far
    pending_final: str | None = None  # a final save waits, frozen, for its verdict: the checkpoint's id
    arriving_bytes: int | None = None  # memory still missing after a lazy restore; None = all is there
    lost_because: str = ""  # LOST: what is known of it, a sentence
    image_is_bad: bool = False  # LOST: every restore from the same checkpoint would end so
    step: int = 0  # of the job's steps: the one that runs, or ended
    pending_seconds: float = 0.0  # for so long `pending_final` has stood still
    saved_itself: bool = False  # EXITED, but only because it had been told to save itself: `go_on` starts it again
    near_miss: NearMiss | None = None  # frozen, because its memory was about to end; or LOST, because it did


@dataclass(frozen=True, slots=True)
class Protection:
    """How the job is saved here: the rung of the ladder, and why not a better one (one sentence; empty = it is the best)."""

    rung: str = ""  # "criu" | "criu+cuda" | "app" | "none"; "" = nothing runs
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """One save. `commit` creates the head entry and says whether it is ours; it is called when all else is durable.

    When `commit` raises, its entry may or may not exist: a final save then leaves the job frozen, as `pending_final`, for
    `settle`. With `keep` it also does so after a yes.
    """

    checkpoint: str
    epoch: int
    sequence: int
    final: bool
    cpu_seconds_before: float  # of the attempts before this one
    base: str | None
    commit: Callable[[Manifest], bool]
    progress: Callable[[str], None]  # a short stage name, whenever it changes
    keep: bool = False  # a final one: the job stays frozen after it, as `pending_final`, where the engine can do that
    urgent: bool = False  # the cloud takes the machine: what is only desirable must not stand in the way
    pressed: bool = False  # it was frozen because its memory was about to end: nothing of it can be run
    condemned: frozenset[str] = frozenset()  # chunks and packs in the store that must not be relied on
    steps: tuple[StepRun, ...] = ()  # of the job that began, the newest last: they become part of the manifest


@dataclass(frozen=True, slots=True)
class Still:
    """The job's scratch to be read while the job runs on. `is_still`: nothing in it changes meanwhile."""

    path: str
    is_still: bool


class Engine(Protocol):
    """Starts, saves and restores one job on this machine.

    Methods are called from one thread, except `status`, `hold`, `release` and `still`.
    """

    @property
    def name(self) -> str:
        """The rung that the next save takes: "criu", "criu+cuda", "app" or "none"."""
        ...

    @property
    def note(self) -> str:
        """Something to tell about the last save or restore although it worked; empty = nothing."""
        ...

    def protection(self) -> Protection:
        """How the job is saved, as far as is known; never waits."""
        ...

    def look(self) -> None:
        """Look, if that is due, at what the job holds; called now and then from a thread of its own."""
        ...

    def unfit(self, manifest: Manifest, *, whole: bool = True) -> str:
        """Why this machine could not continue a checkpoint, both values named; empty = nothing is known against it.

        With `whole` everything that the job brings is here, so its files are looked at too. Raises StoreError.
        """
        ...

    def expect(self, manifest: Manifest) -> None:
        """A restore of this or a later checkpoint may be ordered at any moment: start what can be. Idempotent."""
        ...

    def preflight(self) -> list[str]:
        """Why this machine can't protect a job, one sentence each; empty = it can."""
        ...

    def prepare(self, spec: Spec, progress: Callable[[str], None]) -> None:
        """Have what the job needs of this machine before it comes, its container image above all; nothing of it is touched.

        May take minutes, is idempotent, and may be called from a thread of its own. Raises EngineError("image"), ("store") or
        ("refused"), StoreError.
        """
        ...

    def start(self, spec: Spec) -> None:
        """Start the command from the beginning; inputs lie in the scratch already. Raises EngineError("start")."""
        ...

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        """Start the command on what the step before it left: its files stay, its processes end. Raises EngineError("start").

        `log` says how much output there is already. Also where the step before has left no trace but its files.
        """
        ...

    def go_on(self, spec: Spec) -> None:
        """Start a program again that ended as it saved itself (`Status.saved_itself`), on its files.

        Raises EngineError("start"), and StoreError where that can be tried again.
        """
        ...

    def save(self, request: SaveRequest) -> SaveFacts:
        """Freeze, snapshot, upload, manifest, commit.

        Live: the job goes on as soon as its bytes are safe locally. Final: it stays frozen until `commit` said yes, and is
        then dead, or kept; a no or any failure lets it run on unharmed and raises EngineError("save"). If it ends by itself
        meanwhile: the same. One that ended because it saved itself is `saved_itself` afterwards, whatever became of the save.
        """
        ...

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Bring files and processes back exactly. Raises EngineError("refused") before anything is touched, or ("restore")."""
        ...

    def status(self) -> Status:
        """The workload now; cheap, never blocks on a save."""
        ...

    def hold(self) -> None:
        """Stop all processes of the job where they are (the lease lapsed). Idempotent."""
        ...

    def release(self) -> None:
        """Undo `hold`. Idempotent."""
        ...

    def unguard(self) -> None:
        """A job that was frozen because its memory was about to end goes on, and is not stopped again. Idempotent."""
        ...

    def kill(self) -> None:
        """Kill all processes of the job and wait until they are gone; no trace of a pending save stays. Idempotent.

        The scratch is empty afterwards and the state ABSENT, also when the command had ended by itself.
        """
        ...

    def adopt(self) -> Status:
        """After a restart of the agent: find the shim of this machine's job, if any, and take over."""
        ...

    def settle(self, committed: bool) -> None:
        """Give the verdict for `pending_final`: True kills the frozen job, False lets it run on."""
        ...

    def read_log(self, stream: str, offset: int, limit: int) -> bytes:
        """Output of the job from an absolute offset, at most `limit` bytes; empty when there is nothing new."""
        ...

    def still(self) -> AbstractContextManager[Still]:
        """The scratch as it is now, for the length of a block. Raises OSError."""
        ...

    def scratch(self) -> str:
        """Absolute path of the job's scratch as the agent sees it; exists after construction."""
        ...
