"""Which job gives way to which when limits leave no room for all: ageing, the choice, and its inputs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spotsurfer_wire.final_save_forecast import ASSUMED_BYTES_PER_SECOND

from spotsurfer.core.facts.attempt_view import AttemptView, cases, finished, holder_of, owners, wanted
from spotsurfer.core.scheduling.capacity import NOTHING, Use, gpus_of, lacking, of_job, of_offer, strangers, together
from spotsurfer.core.scheduling.deadline import launches
from spotsurfer.core.scheduling.suspension import can_be
from spotsurfer.model.job import HOLDS, OVER, WAITS, Attempt, Job, JobId, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import Held, JobSeen, Limits, Snapshot

# ---- Ageing: a job's level is its priority, plus more the longer it is starved
#
# Jobs of one priority are served in the order of their submission. The first of them that waits is starved while none of those
# before it has a machine: for each `ageing_seconds` of that it gains one, so it does not wait for ever behind jobs of higher
# priority. A job behind waiting equals gains nothing: a long queue must not outgrow an urgent job. The gain stays until the job
# has run for `stay_seconds`, or it would lose the machine as soon as it gets it. All of this comes from the times of attempts,
# so a restarted controller computes the same.


def levels(snapshot: Snapshot, waiting: Container[JobId], now: datetime) -> dict[JobId, int]:
    """The level of each job: its priority and its gain, in whole steps. `waiting`: jobs that want a machine and don't run."""
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
    """Seconds that a job has run since it last came back from giving way; None if it never did."""
    owned = owners(attempts)
    gave = [i for i, a in enumerate(owned) if a.gave_way_to and a.state not in HOLDS]
    back = owned[gave[-1] + 1 :] if gave else []
    return (now - _ran_from(back[0], now)).total_seconds() if back else None


def _waits(seen: JobSeen, held: Sequence[Held], stay: float, now: datetime, starved: bool) -> Iterator[float]:
    """Seconds of each wait that counts: the present one, and those before a run that has not lasted `stay` seconds yet."""
    free = seen.job.submitted_at
    for a in owners(seen.attempts):
        assert a.granted_at is not None
        if (now - _ran_from(a, now)).total_seconds() < stay:
            yield _starved(seen.job, free, held, a.granted_at)
        free = max(free, _end(a, now))
    if starved:
        yield _starved(seen.job, free, held, now)


def _starved(job: Job, free: datetime, held: Sequence[Held], until: datetime) -> float:
    """Seconds up to `until` in which neither the job nor one before it had a machine, and its user wanted it to run."""
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
    """Since when the job runs there; for an attempt that is over, the time of its grant."""
    if attempt.state is A.RESTORING:
        return now
    return attempt.since if attempt.state is A.RUNNING else attempt.granted_at or now


def _end(a: Attempt, now: datetime) -> datetime:
    if a.state in HOLDS:
        return now
    return a.released_at if a.state in OVER and a.released_at is not None else a.since


# ---- The choice: which jobs are suspended if there is no room for all, on plain values
#
# Theory of operation. Claims (jobs that want a machine and have none, or on shared GPUs have one too early) are served in the
# order of their level, the oldest first. A claim that has room, or will have it once leaving machines are gone, only waits. For
# a claim without room, seats (jobs with a machine) of a lower level are suspended, the cheapest to suspend first, and only if
# that makes enough room: no job is suspended in vain. A seat that gives way already comes first, so a decision stands from look
# to look until it is done, but it is called back if the room is no longer needed.
#
# Jobs of the same priority do not suspend each other, however long one waits: they come one after the other.


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that wants a machine. It has none, or one whose GPUs another job still has. `since`: when it was submitted."""

    job: JobId
    priority: int
    level: int
    since: datetime
    use: Use


@dataclass(frozen=True, slots=True)
class Seat:
    """A job with machines that stay. `kept`: why it may not be suspended; "" = it may."""

    job: JobId
    priority: int
    level: int
    use: Use
    cost_seconds: float = 0.0  # the pause for its final save
    young: bool = False  # it began less than a minimum stay ago
    giving: bool = False  # it is being suspended
    kept: str = ""


def in_order(claims: Sequence[Claim]) -> list[Claim]:
    """The claims in the order of service."""
    return sorted(claims, key=lambda c: (-c.level, c.since, c.job))


def giving_way(claims: Sequence[Claim], seats: Sequence[Seat], others: Use, limits: Limits) -> dict[JobId, Claim]:
    """Jobs to be suspended, each with the claim to which it gives way. `others`: machines that can't be freed."""
    left = list(seats)
    used = others + together(s.use for s in seats)
    found: dict[JobId, Claim] = {}
    for claim in in_order(claims):
        chosen = _chosen(claim, left, used, limits)
        if chosen is None:  # later claims may not take the room for which it waits
            used += claim.use
            continue
        found |= {s.job: claim for s in chosen}
        left = [s for s in left if s not in chosen]
        used = _without(used, chosen) + claim.use
    return found


def yields(seat: Seat, claim: Claim) -> bool:
    """Whether this one may be suspended for that one."""
    return not seat.kept and seat.level < claim.level and seat.priority != claim.priority


def _chosen(claim: Claim, seats: Sequence[Seat], used: Use, limits: Limits) -> list[Seat] | None:
    """The seats that make room for it, none if there is room; None if all together are not enough."""
    chosen: list[Seat] = []
    price = lambda s: (not s.giving, s.young, s.cost_seconds, s.level, s.job)  # noqa: E731
    for seat in sorted((s for s in seats if yields(s, claim)), key=price):
        if lacking(_without(used, chosen), claim.use, limits) is None:
            break
        chosen.append(seat)
    if lacking(_without(used, chosen), claim.use, limits) is not None:
        return None
    for seat in reversed(chosen):  # expensive seats may have made cheap ones unnecessary
        fewer = [s for s in chosen if s is not seat]
        if lacking(_without(used, fewer), claim.use, limits) is None:
            chosen = fewer
    return chosen


def _without(used: Use, seats: Sequence[Seat]) -> Use:
    gone = together(s.use for s in seats)
    return Use(used.machines - gone.machines, used.gpus - gone.gpus, used.usd_micros_per_hour - gone.usd_micros_per_hour)


# ---- The inputs: seats and claims from the snapshot

URGENT = 1000  # level of a waiting job with a deadline that leaves no time to wait
HANDED_OVER_SECONDS = 30.0  # a machine that is given up should be gone by then: until then, the controller looks often
COMES_SECONDS = 120.0  # and for so long after it was, while the machine boots that was bought in its place
OfferFor = Callable[[JobSeen], Offer | None]


@dataclass(frozen=True, slots=True)
class Way:
    """The job to which another one gives way, and why, for people."""

    to: JobId
    why: str


@dataclass(frozen=True, slots=True)
class Contest:
    """The levels of jobs, and the jobs that give way."""

    levels: Mapping[JobId, int] = field(default_factory=dict)
    urgent: frozenset[JobId] = frozenset()  # jobs that must have a machine now because of a deadline
    ways: Mapping[JobId, Way] = field(default_factory=dict)
    hurry: bool = False  # a job waits for a machine that is being given up, or for its replacement

    def level(self, seen: JobSeen) -> int:
        """The job's level now."""
        return URGENT if seen.job.id in self.urgent else self.levels.get(seen.job.id, seen.job.spec.priority)


def held(snapshot: Snapshot, offer_for: OfferFor, now: datetime, thirsty: Set[JobId] = frozenset()) -> Contest:
    """The contest for machines. `offer_for`: the offer to buy for a job that has no machine; None = nothing now.

    `thirsty`: jobs that wait for something else than a machine, and are starved all the same.
    """
    stays = {s.job.id: use for s in snapshot.jobs if (use := _stays(s, snapshot.limits)) != NOTHING}
    wants = {s.job.id: of_offer(o) for s in snapshot.jobs if claims(s) and (o := offer_for(s)) is not None}
    hurry = _hurries(snapshot, now)
    overbooked = _overbooked(stays, snapshot.limits)
    if not wants and not overbooked and not thirsty:
        return Contest(hurry=hurry)
    urgent = frozenset(s.job.id for s in snapshot.jobs if s.job.id in wants and _pressing(s, now))
    waiting = {*wants, *thirsty, *(s.job.id for s in snapshot.jobs if _boots(s))}
    known = Contest(levels(snapshot, waiting, now), urgent)
    if overbooked:
        wants |= {job: stays[job] for job in _takers(snapshot, stays, known)}
    ours = [
        Claim(s.job.id, s.job.spec.priority, known.level(s), s.job.submitted_at, wants[s.job.id])
        for s in snapshot.jobs
        if s.job.id in wants
    ]
    seats = [
        _seat(cases(snapshot, s, now), known.level(s), stays[s.job.id])
        for s in snapshot.jobs
        if s.job.id in stays and s.job.id not in wants
    ]
    found = giving_way(ours, seats, strangers(snapshot), snapshot.limits)
    # On a partial view of a cloud, suspensions under way go on there and no new one begins.
    giving, seen_whole = {s.job for s in seats if s.giving}, {s.job.id for s in snapshot.jobs if _in_sight(snapshot, s)}
    found = {job: claim for job, claim in found.items() if job in giving | seen_whole}
    return replace(known, ways={job: _way(claim) for job, claim in found.items()}, hurry=hurry)


def _in_sight(snapshot: Snapshot, seen: JobSeen) -> bool:
    return all(snapshot.listed_at(a.pool.provider) is not None for a in seen.attempts if a.state not in OVER)


# On shared GPUs the next job has its machine before the other one has left, and a drain may be withdrawn or fail after that. So
# jobs with machines may need more GPUs than there are. Then those of the highest level count as claims: the others go on
# giving way, or begin to.


def _overbooked(stays: Mapping[JobId, Use], limits: Limits) -> bool:
    gpus = sum(use.gpus for use in stays.values())
    return bool(limits.gpus_shared) and limits.gpus_max is not None and gpus > limits.gpus_max


def _takers(snapshot: Snapshot, stays: Mapping[JobId, Use], known: Contest) -> Iterator[JobId]:
    """Jobs with machines that keep the shared GPUs; there are not enough for all."""
    left = snapshot.limits.gpus_max or 0
    for seen in sorted(snapshot.jobs, key=lambda s: (-known.level(s), *_age(s.job))):
        need = stays.get(seen.job.id, NOTHING).gpus
        if 0 < need <= left and not any(gives_way(a) for a in seen.attempts):
            left -= need
            yield seen.job.id


def _way(claim: Claim) -> Way:
    more = f", {claim.level} by waiting" if claim.level != claim.priority else ""
    more = ", with a deadline that is near" if claim.level == URGENT else more
    return Way(claim.job, f"its machine goes to {claim.job} of priority {claim.priority}{more}; it comes back by itself")


def claims(seen: JobSeen) -> bool:
    """Whether the job should run and has no machine for that."""
    if not wanted(seen) or seen.job.state not in (JobState.QUEUED, JobState.ACTIVE) or seen.head is None:
        return False
    return not any(a.state in HOLDS or a.state in WAITS for a in seen.attempts)


def suspended_for(attempts: Sequence[Attempt]) -> str:
    """The job for which a job without a machine gave up its last one; "" = it did not."""
    had = owners(attempts)
    return had[-1].gave_way_to if had else ""


def _boots(seen: JobSeen) -> bool:
    """Whether the job waits for a machine that was bought for it: until then it is as starved as before."""
    states = {a.state for a in seen.attempts}
    return wanted(seen) and bool(states & WAITS) and not states & HOLDS


def _stays(seen: JobSeen, limits: Limits) -> Use:
    """The use of its machines, without those that leave anyway."""
    if seen.job.wish is not Wish.RUN or finished(seen):
        return NOTHING
    staying = [a for a in seen.attempts if a.state in HOLDS or a.state in WAITS]
    return replace(of_job(seen.job, staying, limits), gpus=gpus_of(staying, seen.job.spec, limits))


def _seat(own: Sequence[AttemptView], level: int, use: Use) -> Seat:
    seen = own[0].seen
    holder = holder_of(own)
    spec = seen.job.spec
    if holder is None:  # its machine boots: nothing is lost with it
        kept = _pressing(seen, own[0].now, own[0].limits.stay_seconds)
        return Seat(seen.job.id, spec.priority, level, use, kept=kept)
    return Seat(
        seen.job.id,
        spec.priority,
        level,
        use,
        cost_seconds(holder),
        young=holder.age_seconds < holder.limits.stay_seconds,
        giving=gives_way(holder.attempt),
        kept=_kept(holder),
    )


def gives_way(attempt: Attempt) -> bool:
    """Whether it was asked to leave for another job, and has not left yet."""
    return attempt.state is A.DRAINING and bool(attempt.gave_way_to)


def cost_seconds(holder: AttemptView) -> float:
    """How long its final save stops it, transfer included: by its agent's forecast, else by its size."""
    fit = holder.agent.fit if holder.agent is not None else None
    return fit.durable_seconds if fit is not None else holder.seen.job.spec.memory_bytes / ASSUMED_BYTES_PER_SECOND


def _kept(c: AttemptView) -> str:
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
    """Why its deadline forbids a wait (`more` seconds) for another job, or "": two launches that go badly must fit."""
    spec = seen.job.spec
    if spec.deadline_seconds is None or spec.work_seconds is None:
        return ""
    left = (seen.job.submitted_at + timedelta(seconds=spec.deadline_seconds) - now).total_seconds()
    spare = left - (spec.work_seconds - seen.done_seconds)
    return "its deadline leaves no time for it" if left > 0 and spare < 2 * launches(seen.attempts)[1] + more else ""


def _hurries(snapshot: Snapshot, now: datetime) -> bool:
    """Whether a job waits for a machine that another one gives up for it, or for its replacement."""
    given = [(a, (now - a.since).total_seconds()) for s in snapshot.jobs for a in s.attempts if a.gave_way_to]
    if any(a.state not in OVER and age <= HANDED_OVER_SECONDS for a, age in given):
        return True
    coming = {a.gave_way_to for a, age in given if age <= COMES_SECONDS}
    return any(s.job.id in coming and _boots(s) for s in snapshot.jobs)
