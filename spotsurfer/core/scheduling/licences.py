"""Licences: which jobs have theirs, which may take them now, and why others wait. Pure.

Theory of operation. A job needs all of its licences or none, so no two jobs wait for each other. Everything is computed from
rows and heads, so a restarted controller comes to the same:

- they are *out* while a process of the job may run anywhere (the proof that lets another machine own the job ends that);
- a job *keeps* them while it is between two machines, until the last machine that had it is gone;
- they are *booked* from the moment its first machine is planned, so no more machines boot than there will be licences.

A grant looks at what is out and kept. A plan looks at what is booked, too; but licences of jobs that leave count as free, so
that a machine boots meanwhile. Jobs are asked in the order of their level, and what one of them waits for is not given to those
behind it: a large request does not starve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from spotsurfer.core.facts.attempt_view import AttemptView, cases, holder_of, wanted
from spotsurfer.model.job import OVER, WAITS, Attempt, Job, JobId, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.licences import LicencePool
from spotsurfer.model.snapshot import JobSeen, Snapshot

NAMED = 4  # jobs are named in a reason


def may_be_out(seen: JobSeen, own: Sequence[AttemptView]) -> bool:
    """Whether a process of the job may run, on any machine."""
    head = seen.head
    if head is not None and head.epoch and not (head.final or head.done or any(c.owns for c in own)):
        return True  # this database, from a backup, does not know the machine that has it
    return any(_may_run(c) for c in own)


def _may_run(c: AttemptView) -> bool:
    if c.state in OVER:
        return False
    if c.head is None:
        return c.attempt.granted_at is not None or c.state is A.READY  # a grant may have been written and not recorded
    if c.head.cancelled:  # the job was closed by the controller: its machine ends it when it hears of that
        return c.attempt.granted_at is not None and not (c.gone or (c.agent is not None and c.agent.workload_dead))
    return not c.harmless


def keeps(seen: JobSeen) -> bool:
    """Whether the job is to go on elsewhere, and has not given up its licences."""
    had = (a for a in seen.attempts if a.state not in OVER and a.granted_at is not None and not _gave_back(seen.job, a))
    return wanted(seen) and seen.job.state is JobState.ACTIVE and any(had)


def _gave_back(job: Job, a: Attempt) -> bool:
    """Whether it was saved there for another job, or for a suspension that its user has ended since."""
    resumed = job.resumed_at is not None and a.granted_at is not None and a.granted_at < job.resumed_at
    return bool(a.gave_way_to) or (a.drained and resumed)


def booked(seen: JobSeen) -> bool:
    """Whether a machine comes for it."""
    return wanted(seen) and any(a.state in WAITS for a in seen.attempts)


def leaves(own: Sequence[AttemptView]) -> bool:
    """Whether the job is being saved to give its licences back, or ended."""
    holder = holder_of(own)
    if holder is None:
        return bool(own) and own[0].seen.job.wish is not Wish.RUN
    gives = holder.state is A.DRAINING and (bool(holder.attempt.gave_way_to) or holder.seen.job.wish is Wish.HOLD)
    return gives or holder.seen.job.wish is Wish.CANCEL


def _has_begun(seen: JobSeen) -> bool:
    """Whether anything about it needs a look: most jobs have no licences, or no machine yet."""
    return bool(seen.job.spec.licences) and bool(seen.attempts or (seen.head is not None and seen.head.epoch))


def waiting(snapshot: Snapshot) -> list[Job]:
    """Jobs that want to run and ask for licences, the oldest first; those that have theirs are among them."""
    asks = (s for s in snapshot.jobs if s.job.spec.licences and wanted(s) and s.job.state in (JobState.QUEUED, JobState.ACTIVE))
    return sorted((s.job for s in asks), key=lambda job: job.submitted_at)


class Licences:
    """The licences of one decision: what was planned or granted for earlier jobs counts for later ones."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._pools = snapshot.licences
        self._out, self._kept, self._booked = Counter[str](), Counter[str](), Counter[str]()
        self._leaving, self._first = Counter[str](), Counter[str]()
        self._ahead: dict[str, JobId] = {}  # kind -> the first job that waits for it
        self._movers: set[JobId] = set()
        self.holders: dict[JobId, Mapping[str, int]] = {}  # those that have theirs, the oldest first
        fresh = []
        for seen in sorted((s for s in snapshot.jobs if _has_begun(s)), key=lambda s: s.job.submitted_at):
            job, need = seen.job, seen.job.spec.licences
            own = cases(snapshot, seen, now)
            if out := may_be_out(seen, own):
                self._out.update(need)
                self._leaving.update(need if leaves(own) else {})
            elif keeps(seen):
                self._kept.update(need)
                self._movers.add(job.id)
            elif booked(seen):
                self._booked.update(need)
                fresh.append(job)
            if out or job.id in self._movers or booked(seen):
                self.holders[job.id] = need
        self.overbooked = frozenset(self._overbooked(fresh))

    def _overbooked(self, fresh: Iterable[Job]) -> Iterable[JobId]:
        """Jobs with a machine to come and no licence in sight, the last ones first: there were more licences before."""
        for job in sorted(fresh, key=lambda j: (j.spec.priority, -j.submitted_at.timestamp())):
            if any(self._promised(kind) > self._total(kind) for kind in job.spec.licences):
                self._booked.subtract(job.spec.licences)
                yield job.id

    def _total(self, kind: str) -> int:
        pool = self._pools.get(kind)
        return 0 if pool is None else pool.total

    def _promised(self, kind: str) -> int:
        return self._out[kind] - self._leaving[kind] + self._kept[kind] + self._booked[kind]

    def lacks(self, job: Job) -> str | None:
        """Why no machine is to be ordered for it now, or None."""
        if job.id in self.holders:
            return None
        return self._short(job, {kind: self._promised(kind) + self._first[kind] for kind in job.spec.licences})

    def lets_go(self, job: Job) -> str | None:
        """Why it may not begin to run now on a machine that is ready, or None."""
        if job.id in self._movers:
            return self._short(job, self._out)
        return self._short(job, self._out + self._kept)

    def wait(self, job: Job) -> None:
        """It comes before the jobs that ask later, unless it asks for more than there are."""
        if all(n <= self._total(kind) for kind, n in job.spec.licences.items()):
            self._first.update(job.spec.licences)
            for kind in job.spec.licences:
                self._ahead.setdefault(kind, job.id)

    def plan(self, job: Job) -> None:
        """Count a machine that was planned for it."""
        if job.id not in self.holders:
            self._booked.update(job.spec.licences)
            self.holders[job.id] = job.spec.licences

    def grant(self, job: Job) -> None:
        """Count that it runs from now on."""
        (self._kept if job.id in self._movers else self._booked).subtract(job.spec.licences)
        self._movers.discard(job.id)
        self._out.update(job.spec.licences)

    def _short(self, job: Job, taken: Mapping[str, int]) -> str | None:
        for kind, n in sorted(job.spec.licences.items()):
            if taken.get(kind, 0) + n > self._total(kind):
                return self._why(job.id, kind, n, self._pools.get(kind))
        return None

    def _why(self, job: JobId, kind: str, n: int, pool: LicencePool | None) -> str:
        if pool is None:
            return f"it asks for {n} licences {kind}, and there is no such pool: [licences] of the configuration says which are"
        known = f"; {pool.why}" if pool.why else ""
        if n > pool.total:
            return f"it waits for {n} licences {kind}, and there are {pool.total} for jobs{known}"
        have = [other for other, need in self.holders.items() if kind in need and other != job]
        more = f" and {len(have) - NAMED} more" if len(have) > NAMED else ""
        held = f": held by {', '.join(have[:NAMED])}{more}" if have else ""
        ahead = self._ahead.get(kind, job)
        first = f"; {ahead} comes first" if ahead != job else ""
        return f"it waits for {n} of {pool.total} licences {kind}{held}{first}{known}"
