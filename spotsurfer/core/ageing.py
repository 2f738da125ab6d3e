"""How much a job counts where there is no room for all: its priority, and more the longer it is starved. Pure.

Jobs of one priority come one after the other, in the order in which they were submitted. The first of them that waits is
starved while none of those before it has a machine: for each `ageing_seconds` of that it gains one, so it does not wait for
ever behind jobs of higher priority. Who waits behind its equals gains nothing: a long queue must not outgrow an urgent job.
What was gained counts on until the job has run for `stay_seconds`, or it would lose the machine in the moment in which it gets
it. All is read from the times of attempts, so a controller that starts anew says the same.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from datetime import datetime

from spotsurfer.core.case import owners
from spotsurfer.model.ids import JobId
from spotsurfer.model.job import HOLDS, OVER, Attempt, Job
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import Held, JobSeen, Snapshot


def levels(snapshot: Snapshot, waiting: Container[JobId], now: datetime) -> dict[JobId, int]:
    """Of each job: its priority and what it gained, in whole steps. `waiting`: who could have a machine and does not run."""
    limits = snapshot.limits
    held = [*snapshot.held, *(h for s in snapshot.jobs for h in _held(s, now))]
    first: dict[int, JobSeen] = {}
    for seen in sorted((s for s in snapshot.jobs if s.job.id in waiting), key=lambda s: _age(s.job)):
        first.setdefault(seen.job.spec.priority, seen)
    found = {}
    for seen in snapshot.jobs:
        priority = seen.job.spec.priority
        waits = _waits(seen, held, limits.stay_seconds, now, starved=first.get(priority) is seen)
        found[seen.job.id] = priority + int(max(waits, default=0.0) / limits.ageing_seconds)
    return found


def came_back(attempts: Sequence[Attempt], now: datetime) -> float | None:
    """Seconds that a job runs since it last came back from giving way; None where it never did."""
    owned = owners(attempts)
    gave = [i for i, a in enumerate(owned) if a.gave_way_to and a.state not in HOLDS]
    back = owned[gave[-1] + 1 :] if gave else []
    return (now - _ran_from(back[0], now)).total_seconds() if back else None


def _waits(seen: JobSeen, held: Sequence[Held], stay: float, now: datetime, starved: bool) -> Iterator[float]:
    """Seconds of each wait that counts: the present one, and those before times that did not last yet."""
    free = seen.job.submitted_at
    for a in owners(seen.attempts):
        assert a.granted_at is not None
        if (now - _ran_from(a, now)).total_seconds() < stay:
            yield _starved(seen.job, free, held, a.granted_at)
        free = max(free, _end(a, now))
    if starved:
        yield _starved(seen.job, free, held, now)


def _starved(job: Job, free: datetime, held: Sequence[Held], until: datetime) -> float:
    """Seconds up to `until` in which neither it nor one before it had a machine, and its user wanted it to run."""
    resumed, mine = job.resumed_at, job.spec.priority
    before = (h for h in held if h.priority == mine and (h.submitted_at, h.job) < _age(job))
    begins = [free, *([resumed] if resumed is not None and resumed <= until else [])]
    begins += [min(h.until, until) for h in before if h.since <= until]
    return max((until - max(begins)).total_seconds(), 0.0)


def _age(job: Job) -> tuple[datetime, JobId]:
    return job.submitted_at, job.id


def _held(seen: JobSeen, now: datetime) -> Iterator[Held]:
    job = seen.job
    for a in owners(seen.attempts):
        assert a.granted_at is not None
        yield Held(job.id, job.spec.priority, job.submitted_at, a.granted_at, _end(a, now))


def _ran_from(attempt: Attempt, now: datetime) -> datetime:
    """Since when the job runs there; of an attempt that is over, since it was given the job."""
    if attempt.state is A.RESTORING:
        return now
    return attempt.since if attempt.state is A.RUNNING else attempt.granted_at or now


def _end(a: Attempt, now: datetime) -> datetime:
    if a.state in HOLDS:
        return now
    return a.released_at if a.state in OVER and a.released_at is not None else a.since
