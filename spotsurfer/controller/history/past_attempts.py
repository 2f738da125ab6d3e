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

# What became of the machines that are gone, of all jobs: added up once, then machine by machine as they end.

KEPT = timedelta(days=100)  # what ended longer ago tells little of how a pool is now


class AttemptOutcomes:
    """One a controller. A look at jobs whose machines all live, or were counted, asks the database nothing."""

    def __init__(self) -> None:
        self._past: dict[tuple[Pool, Market], Fates] | None = None
        self._alive: set[tuple[JobId, AttemptNumber]] = set()

    def past(
        self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], now: datetime
    ) -> Mapping[tuple[Pool, Market], Fates]:
        """Of machines that are gone. `attempts`: all of the open jobs."""
        alive = {(a.job, a.number) for some in attempts.values() for a in some if a.state not in OVER}
        if self._past is None:
            self._past = fates_of(rows.ended_since(connection, now - KEPT), now)
        else:
            self._add(self._ended(connection, attempts, alive), now)
        self._alive = alive
        return dict(self._past)

    def _ended(
        self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], alive: set[tuple[JobId, AttemptNumber]]
    ) -> list[Attempt]:
        """Machines that lived at the last look and do not any more; those of jobs that have closed are asked for at once."""
        gone = self._alive - alive
        closed = sorted({job for job, _ in gone} - set(attempts))
        known = {**attempts, **(rows.attempts(connection, closed) if closed else {})}
        return [a for job in {j for j, _ in gone} for a in known[job] if (a.job, a.number) in gone]

    def _add(self, ended: Sequence[Attempt], now: datetime) -> None:
        assert self._past is not None
        for key, fates in fates_of(ended, now).items():
            self._past[key] = self._past.get(key, Fates()) + fates


# When jobs that have ended had machines: who came after them was not starved until then.


class PastTenancies:
    """One a controller. A look asks the database only where jobs came or ended since the one before."""

    def __init__(self) -> None:
        self._open: set[JobId] = set()
        self._held: tuple[Held, ...] = ()

    def held(self, connection: Connection, jobs: Sequence[Job]) -> Sequence[Held]:
        """By other jobs than these, the open ones, since the oldest of these was submitted."""
        now_open = {j.id for j in jobs}
        if now_open != self._open:
            found = rows.held_since(connection, min(j.submitted_at for j in jobs)) if jobs else []
            self._held = tuple(h for h in found if h.job not in now_open)
            self._open = now_open
        return self._held


# How long a move stopped a job: from the freeze of its final save to its first step on the next machine.
#
# How long the save took is a duration that the old machine measured, and most of the rest is between two things that the
# controller saw, by its own clock. When the save was committed, before the controller saw that, only the old machine's clock
# tells, which may be wrong. So it counts within what the controller knows: the save began after the last thing that it had seen
# of the job before, and was committed when it saw that. The two are close together unless the controller was away.

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
