"""What the snapshot says of seats and claims, and who gives way to whom. Pure; the choice itself is in `places`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spotsurfer.core.ageing import came_back, levels
from spotsurfer.core.case import Case, cases, finished, holder_of, owners, wanted
from spotsurfer.core.places import Claim, Seat, giving_way
from spotsurfer.core.purchase import launches
from spotsurfer.core.room import NOTHING, Use, of_attempt, of_offer, strangers, together
from spotsurfer.core.suspension import can_be
from spotsurfer.model.ids import JobId
from spotsurfer.model.job import HOLDS, OVER, WAITS, Attempt, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import JobSeen, Snapshot

SEND_BYTES_PER_SECOND = 100e6  # of a job that was never saved here
URGENT = 1000  # level of a job that waits and whose deadline leaves no more time for that
HANDED_OVER_SECONDS = 30.0  # a machine that is given up should be gone by then: looks follow each other until it is
COMES_SECONDS = 120.0  # and for so long after it was, while the machine boots that was bought in its place
OfferFor = Callable[[JobSeen], Offer | None]


@dataclass(frozen=True, slots=True)
class Way:
    """A job gives way to another: which, and why, for people."""

    to: JobId
    why: str


@dataclass(frozen=True, slots=True)
class Contest:
    """Who counts how much, and who gives way."""

    levels: Mapping[JobId, int] = field(default_factory=dict)
    urgent: frozenset[JobId] = frozenset()  # who must have a machine now for the sake of a deadline
    ways: Mapping[JobId, Way] = field(default_factory=dict)
    hurry: bool = False  # a machine is being given up for somebody who waits, or who waits for the one in its place

    def level(self, seen: JobSeen) -> int:
        """What it counts now."""
        return URGENT if seen.job.id in self.urgent else self.levels.get(seen.job.id, seen.job.spec.priority)


def held(snapshot: Snapshot, offer_for: OfferFor, now: datetime) -> Contest:
    """The contest for machines. `offer_for`: what would be bought for a job that has none; None = nothing now."""
    wants = {s.job.id: of_offer(o) for s in snapshot.jobs if claims(s) and (o := offer_for(s)) is not None}
    hurry = _hurries(snapshot, now)
    if not wants:
        return Contest(hurry=hurry)
    urgent = frozenset(s.job.id for s in snapshot.jobs if s.job.id in wants and _pressing(s, now))
    waiting = {*wants, *(s.job.id for s in snapshot.jobs if _boots(s))}
    known = Contest(levels(snapshot, waiting, now), urgent)
    ours = [
        Claim(s.job.id, s.job.spec.priority, known.level(s), s.job.submitted_at, wants[s.job.id])
        for s in snapshot.jobs
        if s.job.id in wants
    ]
    seats = [_seat(cases(snapshot, s, now), known.level(s)) for s in snapshot.jobs if _stays(s) != NOTHING]
    found = giving_way(ours, seats, strangers(snapshot), snapshot.limits)
    if not snapshot.listing_complete:  # what has begun goes on, nothing new begins on a partial view
        giving = {s.job for s in seats if s.giving}
        found = {job: claim for job, claim in found.items() if job in giving}
    ways = {job: Way(claim.job, _why(claim)) for job, claim in found.items()}
    return replace(known, ways=ways, hurry=hurry)


def claims(seen: JobSeen) -> bool:
    """The job is to run and has no machine that it could run on."""
    if not wanted(seen) or seen.job.state not in (JobState.QUEUED, JobState.ACTIVE) or seen.head is None:
        return False
    return not any(a.state in HOLDS or a.state in WAITS for a in seen.attempts)


def suspended_for(attempts: Sequence[Attempt]) -> str:
    """The job for which a job without a machine gave up the last one; "" = it did not."""
    had = owners(attempts)
    return had[-1].gave_way_to if had else ""


def _boots(seen: JobSeen) -> bool:
    """The job waits for the machine that was bought for it: until it has it, it is as starved as before."""
    states = {a.state for a in seen.attempts}
    return wanted(seen) and bool(states & WAITS) and not states & HOLDS


def _stays(seen: JobSeen) -> Use:
    """What its machines take, but for those that leave by themselves."""
    if seen.job.wish is not Wish.RUN or finished(seen):
        return NOTHING
    staying = [a for a in seen.attempts if a.state in HOLDS or a.state in WAITS]
    return together(of_attempt(a, seen.job.spec) for a in staying)


def _seat(own: Sequence[Case], level: int) -> Seat:
    seen = own[0].seen
    holder = holder_of(own)
    spec = seen.job.spec
    if holder is None:  # its machine boots: nothing is lost with it
        kept = _pressing(seen, own[0].now, own[0].limits.stay_seconds)
        return Seat(seen.job.id, spec.priority, level, _stays(seen), kept=kept)
    return Seat(
        seen.job.id,
        spec.priority,
        level,
        _stays(seen),
        cost_seconds(holder),
        young=holder.age_seconds < holder.limits.stay_seconds,
        giving=gives_way(holder.attempt),
        kept=_kept(holder),
    )


def gives_way(attempt: Attempt) -> bool:
    """It was asked to leave for another job, and has not yet."""
    return attempt.state is A.DRAINING and bool(attempt.gave_way_to)


def cost_seconds(holder: Case) -> float:
    """How long its final save stops it, bytes to send included: as its agent forecasts, else by its size."""
    fit = holder.agent.fit if holder.agent is not None else None
    return fit.durable_seconds if fit is not None else holder.seen.job.spec.memory_bytes / SEND_BYTES_PER_SECOND


def _kept(c: Case) -> str:
    """Why the job may not be suspended for another one, or ""."""
    if c.noticed or c.gone or (c.agent is not None and c.agent.pressed):
        return "it leaves its machine as it is"
    if gives_way(c.attempt):
        return ""
    if not can_be(c):
        return "it can't be saved now"
    if c.failed_lately:
        return c.failed_lately
    back = came_back(c.seen.attempts, c.now)
    if back is not None and back < c.limits.stay_seconds:
        return f"it came back {back:.0f} s ago"
    return _pressing(c.seen, c.now, c.limits.stay_seconds)


def _pressing(seen: JobSeen, now: datetime, more: float = 0.0) -> str:
    """Why its deadline forbids that it waits (`more` seconds) for another job, or "": two launches that go badly must fit."""
    spec = seen.job.spec
    if spec.deadline_seconds is None or spec.work_seconds is None:
        return ""
    left = (seen.job.submitted_at + timedelta(seconds=spec.deadline_seconds) - now).total_seconds()
    _, worst = launches(seen.attempts)
    spare = left - (spec.work_seconds - seen.done_seconds)
    return "its deadline leaves no time for it" if left > 0 and spare < 2 * worst + more else ""


def _why(claim: Claim) -> str:
    more = f", {claim.level} by waiting" if claim.level != claim.priority else ""
    more = ", whose deadline is near" if claim.level == URGENT else more
    return f"its machine goes to {claim.job} of priority {claim.priority}{more}; it comes back by itself"


def _hurries(snapshot: Snapshot, now: datetime) -> bool:
    """Somebody waits for what another job gives up for it, or for the machine that came in its place."""
    given = [(a, (now - a.since).total_seconds()) for s in snapshot.jobs for a in s.attempts if a.gave_way_to]
    if any(a.state not in OVER and age <= HANDED_OVER_SECONDS for a, age in given):
        return True
    coming = {a.gave_way_to for a, age in given if age <= COMES_SECONDS}
    return any(s.job.id in coming and _boots(s) for s in snapshot.jobs)
