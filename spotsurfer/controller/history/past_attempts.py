"""Attempts that are over: outcomes per machine, past tenancies of jobs, and how long moves paused them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from spotsurfer.core.facts.pool_evidence import fates_of
from spotsurfer.model.job import OVER, Attempt, AttemptNumber, AttemptState, Job, JobId, JobState
from spotsurfer.model.lifetimes import Fates
from spotsurfer.model.market import Market, Pool
from spotsurfer.model.snapshot import Held
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline

# ---- Outcomes of machines that are gone, of all jobs: summed up once, then machine by machine as they end

KEPT = timedelta(days=100)  # older ends say little about a pool's present state


class AttemptOutcomes:
    """One per controller. It reads the database only if a machine ended that it has not counted."""

    def __init__(self) -> None:
        self._past: dict[tuple[Pool, Market], Fates] | None = None
        self._alive: set[tuple[JobId, AttemptNumber]] = set()

    def past(
        self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], now: datetime
    ) -> Mapping[tuple[Pool, Market], Fates]:
        """Outcomes of machines that are gone. `attempts`: all of the open jobs."""
        alive = {(a.job, a.number) for some in attempts.values() for a in some if a.state not in OVER}
        if self._past is None:
            self._past = fates_of(rows.ended_since(connection, now - KEPT), now)
        else:
            gone = self._alive - alive
            closed = sorted({job for job, _ in gone} - set(attempts))  # jobs that closed are fetched in one query
            known = {**attempts, **(rows.attempts(connection, closed) if closed else {})}
            ended = [a for job in {j for j, _ in gone} for a in known[job] if (a.job, a.number) in gone]
            for key, fates in fates_of(ended, now).items():
                self._past[key] = self._past.get(key, Fates()) + fates
        self._alive = alive
        return dict(self._past)


# ---- Past tenancies: when jobs that have ended had machines; until then, jobs behind them were not starved


class PastTenancies:
    """One per controller. It reads the database only if jobs came or ended since the look before."""

    def __init__(self) -> None:
        self._open: set[JobId] = set()
        self._held: tuple[Held, ...] = ()

    def held(self, connection: Connection, jobs: Sequence[Job]) -> Sequence[Held]:
        """Tenancies of other jobs than these, the open ones, since the oldest of these was submitted."""
        now_open = {j.id for j in jobs}
        if now_open != self._open:
            found = rows.held_since(connection, min(j.submitted_at for j in jobs)) if jobs else []
            self._held = tuple(h for h in found if h.job not in now_open)
            self._open = now_open
        return self._held


# ---- Pause: how long a move stopped a job, from the freeze of its final save to its first step on the next machine
#
# The old machine measured the duration of the save. The controller measures most of the rest by its own clock, between two
# events that it saw. Only the old machine's clock, which may be wrong, knows when the save was committed before the controller
# saw that. So this time is limited to what the controller knows: the save began after the last event that it had seen of the
# job, and was committed when it saw the commit. The two are close together unless the controller was away.

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
    Returns None if the job was not handed over by a final save, or was held in between.
    """
    if attempt.from_checkpoint is None or attempt.granted_at is None:
        return None
    drained = timeline.last_entered(connection, attempt.job, str(AttemptState.DRAINED))
    if drained is None or drained.attempt is None:
        return None
    if timeline.stopped_since(connection, attempt.job, str(JobState.HELD), drained.at):
        return None  # it was suspended on request
    report = observations.last_report(connection, attempt.job, drained.attempt)
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
