"""Where a job can be reached now. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spotsurfer.model.ids import InstanceId
from spotsurfer.model.job import ENDED, Attempt, AttemptState, HeldBy, Wish, rehearses
from spotsurfer.model.snapshot import JobSeen


class At(StrEnum):
    """What to do with a connection."""

    RUNS = "runs"  # carry it
    COMES = "comes"  # hold it: the job starts, moves, or waits for a machine
    SLEEPS = "sleeps"  # hold it and wake the job
    AWAY = "away"  # close it: nobody but its user brings the job back


@dataclass(frozen=True, slots=True)
class Place:
    """`attempt`: whose machine the job is on; connections live as long as that. 0 = it is on none."""

    at: At
    attempt: int = 0
    token: str = ""
    since: datetime | None = None  # it runs there
    instance: InstanceId | None = None


def place_of(seen: JobSeen) -> Place:
    """Of one job."""
    job = seen.job
    on = next((a for a in seen.attempts if a.state in (AttemptState.RUNNING, AttemptState.DRAINING)), None)
    if job.state in ENDED or job.wish is Wish.CANCEL or rehearses(job):
        return Place(At.AWAY)
    if job.wish is Wish.HOLD and job.held_by in (HeldBy.USER, HeldBy.IDLE):
        return _on(At.AWAY if job.held_by is HeldBy.USER else At.SLEEPS, on)
    runs = on is not None and on.state is AttemptState.RUNNING and job.wish is Wish.RUN
    return _on(At.RUNS if runs else At.COMES, on)


def _on(at: At, attempt: Attempt | None) -> Place:
    return Place(at) if attempt is None else Place(at, attempt.number, attempt.token, attempt.since, attempt.instance)
