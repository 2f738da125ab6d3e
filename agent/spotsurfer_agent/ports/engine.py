"""The interface of a checkpoint engine: what the agent's loop asks of it, and what the loop may rely on."""

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

WRITES_TOLD = 100


class EngineError(Exception):
    """One sentence for the user.

    `kind` is "start", "user" (the job's user is unknown there), "save", "restore" (the image is to blame), "store" (no answer
    during a restore), "refused" (facts forbid it, and nothing was touched; or the machine failed at a restore: another one may
    do), "image" (the job's container image can't be used anywhere) or "input" (nor can its files on shared file systems).
    """

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def blame(error: Exception) -> str:
    """The kind of a failed restore: an unreachable store or a machine's fault does not blame the image."""
    if isinstance(error, StoreError):
        return "store"
    return "refused" if isinstance(error, OSError | ShimGone) else "restore"


def plainly(error: Exception) -> str:
    """An error as a sentence for the user; for a full disk with the remedy."""
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
    lost_because: str = ""  # LOST: the known cause, a sentence
    image_is_bad: bool = False  # LOST: every restore from the same checkpoint would end like this
    step: int = 0  # of the job's steps: the one that runs, or ended
    pending_seconds: float = 0.0  # how long `pending_final` has stood still
    saved_itself: bool = False  # EXITED, but only because the agent had it save itself: `go_on` starts it again
    near_miss: NearMiss | None = None  # frozen, because its memory was about to end; or LOST, because it did


@dataclass(frozen=True, slots=True)
class Protection:
    """How the job is saved here: the rung of the ladder, and why not a better one (one sentence; empty = it is the best)."""

    rung: str = ""  # "criu" | "criu+cuda" | "app" | "none"; "" = nothing runs
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SharedNews:
    """What is known of the job's files on shared file systems."""

    writes: tuple[str, ...] = ()  # that it had open for writing at the last look: source and path, `WRITES_TOLD` at most
    brought_back: str = ""  # what its restore did with them, in one sentence; empty = nothing


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """One save. `commit` creates the head entry and returns whether it is ours; it is called when all else is durable.

    When `commit` raises, its entry may or may not exist: a final save then leaves the job frozen, as `pending_final`, for
    `settle`. With `keep` it stays frozen even after a successful commit.
    """

    checkpoint: str
    epoch: int
    sequence: int
    final: bool
    cpu_seconds_before: float  # of the attempts before this one
    base: str | None
    commit: Callable[[Manifest], bool]
    progress: Callable[[str], None]  # a short stage name, whenever it changes
    keep: bool = False  # final save: the job stays frozen after it, as `pending_final`, if the engine supports that
    urgent: bool = False  # the cloud takes the machine: skip everything optional
    pressed: bool = False  # frozen because its memory was about to end: no process of it can run
    condemned: frozenset[str] = frozenset()  # chunks and packs in the store that must not be relied on
    why: str = "save"  # for the user's command, see `host.hooks`
    steps: tuple[StepRun, ...] = ()  # of the job that began, the newest last: they become part of the manifest


@dataclass(frozen=True, slots=True)
class Still:
    """The job's scratch for reading while the job runs on. `is_still`: nothing in it changes meanwhile."""

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
        """A remark about the last successful save or restore; empty = none."""
        ...

    def protection(self) -> Protection:
        """How the job is saved, as far as is known; never waits."""
        ...

    def shared(self) -> SharedNews:
        """What is known of the job's files on shared file systems; never waits."""
        ...

    def look(self) -> None:
        """Inspect the job's processes, if that is due; called now and then from a separate thread."""
        ...

    def unfit(self, manifest: Manifest, *, whole: bool = True) -> str:
        """Why this machine could not continue a checkpoint, with both values; empty = no known obstacle.

        With `whole` all of the job's files are here, so they are checked, too. Raises StoreError.
        """
        ...

    def expect(self, manifest: Manifest | None) -> None:
        """A restore of this or a later checkpoint may come at any moment: start what can start now. Idempotent.

        None: of the first checkpoint, which is yet to be made.
        """
        ...

    def await_end(self, seconds: float) -> bool:
        """Wait until the command that runs has ended, at most so long. Returns whether it has; for a thread of its own."""
        ...

    def expect_start(self) -> None:
        """A start from the beginning may come at any moment: start what can start now. Idempotent."""
        ...

    def preflight(self) -> list[str]:
        """Why this machine can't protect a job, one sentence each; empty = it can."""
        ...

    def prepare(self, spec: Spec, progress: Callable[[str], None]) -> None:
        """Get what the job needs on this machine before it comes, above all its container image; the job is not touched.

        May take minutes, is idempotent, and may be called from a thread of its own. Raises EngineError("image"), ("store") or
        ("refused"), StoreError.
        """
        ...

    def start(self, spec: Spec) -> None:
        """Start the command from the beginning; inputs lie in the scratch already. Raises EngineError("start")."""
        ...

    def next_step(self, spec: Spec, log: Mapping[str, int]) -> None:
        """Start the command on what the step before it left: its files stay, its processes end. Raises EngineError("start").

        `log` says how much output there is already. Works even if the step before left only its files.
        """
        ...

    def go_on(self, spec: Spec) -> None:
        """Start a program again on its files after it saved itself and ended (`Status.saved_itself`).

        Raises EngineError("start"), and StoreError if a retry may help.
        """
        ...

    def save(self, request: SaveRequest) -> SaveFacts:
        """Freeze, snapshot, upload, manifest, commit.

        Live: the job goes on as soon as its bytes are safe locally. Final: it stays frozen until `commit` returns True, and
        is then dead, or kept; False or any failure lets it run on unharmed and raises EngineError("save"), as does a job that
        ends by itself meanwhile. A job that ended because it saved itself is `saved_itself` afterwards, even after a failure.
        """
        ...

    def restore(self, manifest: Manifest, spec: Spec) -> None:
        """Bring files and processes back exactly.

        Raises EngineError("refused") or ("input") before anything is touched, or ("restore"). Then the job runs, or
        it `stands_still`.
        """
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

    def signal(self, name: str) -> None:
        """Send a signal ("TERM") to all processes of the job; "B:TERM" to its command alone, "S:TERM" to all others.

        Raises OSError.
        """
        ...

    def unguard(self) -> None:
        """Let a job go on that was frozen because its memory was about to end, and don't stop it again. Idempotent."""
        ...

    def end(self) -> None:
        """Kill all processes of the job; its files stay. Idempotent."""
        ...

    def kill(self) -> None:
        """Kill all processes of the job and wait until they are gone; no trace of a pending save stays. Idempotent.

        The scratch is empty afterwards and the state ABSENT, also when the command had ended by itself.
        """
        ...

    def adopt(self) -> Status:
        """After a restart of the agent: find the shim of this machine's job, if any, and take over."""
        ...

    def bring_back(self, image: Manifest) -> None:
        """Before the job of `pending_final` goes on here: undo what another machine did to its files on shared file systems.

        Raises EngineError("input") if that can't be done, ("refused"), ("restore"); StoreError if a retry may help.
        """
        ...

    def settle(self, committed: bool) -> None:
        """Decide about `pending_final`: True kills the frozen job, False lets it run on, after `thaw` if it `stands_still`."""
        ...

    @property
    def stands_still(self) -> bool:
        """The job is here and goes on only after `thaw`: its user has a command for that."""
        ...

    def thaw(self, why: str, jump_seconds: float) -> str:
        """Let a job go on that stands still. Returns why its user's command did not allow that; empty = it goes on.

        It is asked once: calling again is the caller's.

        `why`: see `host.hooks`; `jump_seconds`: of the wall clock, since the job's last instant.
        """
        ...

    def let_go(self) -> None:
        """Let a job go on that stands still, without asking. Raises ShimGone."""
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
