"""How long a move stopped a job: from the freeze of its final save to its first step on the next machine.

How long the save took is a duration that the old machine measured, and most of the rest is between two things that the
controller saw, by its own clock. When the save was committed, before the controller saw that, only the old machine's clock
tells, which may be wrong. So it counts within what the controller knows: the save began after the last thing that it had seen
of the job before, and was committed when it saw that. The two are close together unless the controller was away.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from spotsurfer.model.job import Attempt, AttemptState, JobState
from spotsurfer.state import market, timeline

LATE_SECONDS = 1.0  # less is part of any look


@dataclass(frozen=True, slots=True)
class Pause:
    """The parts of a pause, in seconds."""

    save_seconds: float  # freeze to committed, on the old machine
    handover_seconds: float  # seen as committed, to granted
    restore_seconds: float  # granted to seen as running
    unseen_seconds: float = 0.0  # committed, to seen as committed, by the old machine's clock

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.save_seconds + self.unseen_seconds + self.handover_seconds + self.restore_seconds

    def __str__(self) -> str:
        parts = [f"saved in {self.save_seconds:.1f} s"]
        if self.unseen_seconds >= LATE_SECONDS:
            parts.append(f"seen as saved {self.unseen_seconds:.1f} s later (by its old machine's clock)")
        parts += [f"handed over in {self.handover_seconds:.1f} s", f"restored in {self.restore_seconds:.1f} s"]
        return f"it stood still for {self.seconds:.1f} s: {', '.join(parts)}"


def measure(connection: Connection, attempt: Attempt, committed_at: datetime | None, now: datetime) -> Pause | None:
    """The pause that ends now, as `attempt` begins to run.

    `committed_at`: when the old machine committed its final save, by its own clock; None = not known.
    Returns None where the job was not handed over by a final save, or was held in between.
    """
    if attempt.from_checkpoint is None or attempt.granted_at is None:
        return None
    drained = timeline.last_entered(connection, attempt.job, str(AttemptState.DRAINED))
    if drained is None or drained.attempt is None:
        return None
    if timeline.stopped_since(connection, attempt.job, str(JobState.HELD), drained.at):
        return None  # it stood still because somebody wanted it to
    report = market.last_report(connection, attempt.job, drained.attempt)
    save = report.last_save if report is not None else None
    if save is None or save.kind != "final" or save.checkpoint != attempt.from_checkpoint:
        return None
    told_at = timeline.saved_at(connection, attempt.job, save.checkpoint) or drained.at
    before = timeline.last_before(connection, attempt.job, min(told_at, drained.at))
    earliest = drained.at if before is None else before + timedelta(seconds=save.durable_seconds)
    committed = min(max(committed_at or drained.at, earliest), drained.at)
    handed = (attempt.granted_at - drained.at).total_seconds()
    return Pause(
        save.durable_seconds,
        max(handed, 0.0),
        max((now - attempt.granted_at).total_seconds(), 0.0),
        (drained.at - committed).total_seconds(),
    )
