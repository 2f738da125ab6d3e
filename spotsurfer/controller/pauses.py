"""How long a move stopped a job: from the freeze of its final save to its first step on the next machine.

No clock of one machine is compared with that of another: how long the save took is a duration that the old machine measured,
the rest is between two things that the controller saw, by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from spotsurfer.model.job import Attempt, AttemptState, JobState
from spotsurfer.state import market, timeline


@dataclass(frozen=True, slots=True)
class Pause:
    """The parts of a pause, in seconds."""

    save_seconds: float  # freeze to committed, on the old machine
    handover_seconds: float  # seen as committed, to granted
    restore_seconds: float  # granted to seen as running

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.save_seconds + self.handover_seconds + self.restore_seconds

    def __str__(self) -> str:
        parts = f"saved in {self.save_seconds:.1f} s, handed over in {self.handover_seconds:.1f} s"
        return f"it stood still for {self.seconds:.1f} s: {parts}, restored in {self.restore_seconds:.1f} s"


def measure(connection: Connection, attempt: Attempt, now: datetime) -> Pause | None:
    """The pause that ends now, as `attempt` begins to run.

    None where the job was not handed over by a final save, or was held in between.
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
    handed = (attempt.granted_at - drained.at).total_seconds()
    return Pause(save.durable_seconds, max(handed, 0.0), max((now - attempt.granted_at).total_seconds(), 0.0))
