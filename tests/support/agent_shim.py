"""A job whose work is a number, as the keeper of it that outlives the agent holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spotsurfer_agent.ports.engine import WorkloadState
from spotsurfer_wire import messages


@dataclass
class Shim:
    """What runs on a machine. `worked` seconds of the job are done; it ends at `length`."""

    now: Callable[[], float]
    length: float = 1e9
    exit_code: int = 0
    phase: WorkloadState = WorkloadState.ABSENT
    worked: float = 0.0
    held: bool = False
    pending: str | None = None
    since: float = 0.0
    frozen_at: float = 0.0  # by the final save that is pending
    output_from: int = 0  # bytes of output that an earlier machine made
    cpu_from: float = 0.0
    codes: list[int] = field(default_factory=list)  # of the job's steps; 0 where there is none
    before: float = 0.0  # seconds of work of the steps before the last one, where they are not as long as `length`, too
    step: int = 0
    near_miss: messages.NearMiss | None = None
    lost_because: str = ""
    image_is_bad: bool = False
    arrives_at: float = float("-inf")  # by then all memory of a lazy restore is there
    saved_itself: bool = False  # it ended as it saved itself
    signals: list[str] = field(default_factory=list)  # that it was sent
    stubborn: bool = False  # it does not end by TERM
    mark: bytes = b"%08d\n"  # a line, by its number; nine bytes

    @property
    def ends_at(self) -> float:
        """When the step that runs will have ended, in seconds of work."""
        return self.length * (self.step + 1) if not self.before else self.before if self.step == 0 else self.length

    def advance(self) -> None:
        """Let the job work up to now, unless it stands still."""
        gone = self.now() - self.since
        self.since = self.now()
        if self.phase is WorkloadState.RUNNING and not (self.held or self.near_miss) and self.pending is None:
            self.worked = min(self.worked + gone, self.ends_at)
            if self.worked >= self.ends_at:
                self.phase = WorkloadState.EXITED

    @property
    def printed(self) -> int:
        """Bytes that the job ever printed."""
        return int(self.worked) * len(self.mark % 0)

    def output(self, offset: int = 0) -> bytes:
        """All that the job ever printed, from an offset."""
        line = len(self.mark % 0)
        first = offset // line
        return b"".join(self.mark % i for i in range(first, int(self.worked)))[offset - first * line :]
