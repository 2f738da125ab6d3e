"""Asks size policies on which machine types jobs should run, from their usage and from earlier runs of the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby

import numpy as np
from spotsurfer_wire.messages import Report, SaveFacts
from spotsurfer_wire.oom_freeze_levels import TRUE_SHARE, pressed_at
from spotsurfer_wire.usage import WINDOW_SECONDS, Window, merged
from sqlalchemy import Engine

from spotsurfer.core.facts.attempt_view import AttemptView, cases, owners
from spotsurfer.core.facts.ownership import refusing
from spotsurfer.core.scheduling import rightsizing
from spotsurfer.core.scheduling.next_size import LATEST, RULE, JobKind, Ran, input_bytes_of, kind_of, likely_bytes, next_bytes
from spotsurfer.core.scheduling.placement import GIB
from spotsurfer.core.scheduling.rightsizing import SILENT, Foretold, Look, SizeRules, Sizing, Usage, begins_on
from spotsurfer.model.job import ENDED, HOLDS, SIZE_OFF, AttemptNumber, Job, JobId, JobState, rehearses
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import JobSeen, SizeSeen, Snapshot
from spotsurfer.ports.policies import Earlier, Size, cheapest_holding
from spotsurfer.ports.service import UsageSeen
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, usage_history

# ---- Earlier runs: usage of earlier runs of the same named step, from the history that is kept anyway
#
# A run counts if its job was of the same kind and had the same program, began at its beginning, and succeeded or was killed for
# want of memory. A run that has ended does not change any more, so it is read once.

FRESH = timedelta(seconds=60)  # how long a list of runs stays valid
LISTS_MAX, RUNS_MAX = 200, 1000  # remembered at most
LOOKED_AT = 5 * LATEST  # jobs whose names begin alike may be of other kinds
GUARDED = "criu"  # the engine under which jobs are frozen before they run out of memory


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier run. `guarded`: the memory guard watched it, and would have frozen and moved it before its memory ran out."""

    job: JobId
    ended_at: datetime
    course: Earlier
    run: Ran
    guarded: bool


class EarlierRuns:
    """One per controller."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lists: dict[tuple[JobKind, str], tuple[datetime, list[Job]]] = {}
        self._runs: dict[JobId, Past | None] = {}

    def of(self, job: Job, before: datetime, now: datetime) -> tuple[Past, ...]:
        """Runs that had ended before, the latest last; at most as many as `next_bytes` looks at."""
        ended = (j for j in self._like(job, now) if j.id != job.id and j.ended_at is not None and j.ended_at <= before)
        return tuple(past for j in ended if (past := self._past(j)) is not None)

    def renew(self) -> None:
        """A run has ended: the next query reads the list of runs again."""
        self._lists.clear()

    def _like(self, job: Job, now: datetime) -> list[Job]:
        kind, rule = kind_of(job), job.spec.tags.get(RULE)
        key = (kind, _program(job))
        listed, found = self._lists.get(key, (None, []))
        if listed is None or now - listed >= FRESH:
            with self._engine.connect() as connection:
                alike = rows.ran(connection, kind.owner, (RULE, rule) if rule else None, kind.text, LOOKED_AT)
            same = [j for j in alike if (kind_of(j), _program(j)) == key and j.parent is None]
            found = same[:LATEST][::-1]
            if len(self._lists) >= LISTS_MAX:
                self._lists.clear()
            self._lists[key] = (now, found)
        return found

    def _past(self, job: Job) -> Past | None:
        """The earlier run of a job; None if no usage of it was kept."""
        if job.id not in self._runs:
            if len(self._runs) >= RUNS_MAX:
                self._runs.clear()
            self._runs[job.id] = self._read(job)
        return self._runs[job.id]

    def _read(self, job: Job) -> Past | None:
        with self._engine.connect() as connection:
            windows = [u.window for u in usage_history.read(connection, job.id)]
            said = observations.rungs(connection, job.id)
        whole = [w for w in windows if is_whole(w)]
        if not whole or job.ended_at is None:
            return None
        used = ([w.seconds for w in whole], [w.resident_bytes for w in whole], [w.cpu_cores for w in whole])
        course = Usage(*(np.array(column, dtype=np.float64) for column in used)).kept()
        peak = max(w.resident_bytes for w in windows)  # also while memory came back: it is never too high
        run = Ran(float(peak), input_bytes_of(job), job.state is not JobState.SUCCEEDED)
        return Past(job.id, job.ended_at, course, run, GUARDED in said)


def is_whole(window: Window) -> bool:
    """Whether all of the job's memory was present."""
    return window.arriving_bytes is None and window.seconds > 0


def _program(job: Job) -> str:
    """The program that the job runs, without its arguments."""
    words = job.spec.command or (job.spec.steps[0].command if job.spec.steps else ())
    return f"{job.spec.image} {words[0] if words else ''}"


# ---- First sizes: the request of a job that never ran, from earlier runs of the same step

COURSES = 3  # earlier runs that a policy sees
GUARDABLE = ("auto", "criu")  # engines under which a job may be frozen before it runs out of memory
AGAIN = timedelta(minutes=5)  # a job that still waits then is sized anew


@dataclass(frozen=True, slots=True)
class First:
    """The first size of a job, for users, and the processors and bytes of memory to ask for; None = as its user asked."""

    size: SizeSeen
    asks: tuple[int, int] | None


def first_size(
    snapshot: Snapshot, seen: JobSeen, past: Sequence[Past], policy: Size, rules: SizeRules, now: datetime
) -> First | None:
    """The size on which a job begins, by these earlier runs; None if no type on offer meets its request."""
    offers = _open(snapshot, now)
    terms = rightsizing.first_terms(seen, offers, snapshot.limits, rules, pressed_at)
    if terms is None:
        return None
    terms = replace(terms, earlier=courses(seen.job, past))
    guarded = past[-1].guarded and seen.job.spec.engine in GUARDABLE
    need = next_bytes([p.run for p in past], input_bytes_of(seen.job)) or 0.0
    to = begins_on(policy, terms, need, guarded)
    asked, kind = terms.kinds[terms.start], terms.kinds[to]
    price = round(kind.usd_per_hour * rightsizing.MICROS)
    size = SizeSeen("", kind.name, False, frozenset(), price, explained(seen.job, past, asked.name, kind.name))
    offer = next(o for o in offers if o.pool.instance_type == kind.name)
    return First(size, None if kind is asked else (int(offer.cpus), offer.memory_bytes))


def courses(job: Job, past: Sequence[Past]) -> tuple[Earlier, ...]:
    """The earlier runs as a policy sees them, the latest last, with the memory that the size of this job lets expect."""
    size, whole = input_bytes_of(job), [p for p in past if not p.run.killed]
    known = [p.run for p in past]
    return tuple(
        _grown(p, likely_bytes(known, size) / max(likely_bytes(known, p.run.input_bytes), 1.0)) for p in whole[-COURSES:]
    )


def _grown(past: Past, by: float) -> Earlier:
    return past.course if by == 1 else replace(past.course, memory_bytes=tuple(by * m for m in past.course.memory_bytes))


def explained(job: Job, past: Sequence[Past], asked: str, kind: str) -> str:
    """The explanation of a first size in one sentence, with the numbers."""
    runs, size, most = [p.run for p in past], input_bytes_of(job), max(p.run.peak_bytes for p in past) / GIB
    told = f"{len(past)} earlier run{'s' if len(past) > 1 else ''} of {kind_of(job).text} used {most:.2f} GiB at most"
    need = (next_bytes(runs, size) or 0.0) / GIB
    told += f", with inputs of {size / GIB:.2f} GiB it may need {need:.2f}" if size else ""
    begins = f"begins on {asked}, as was asked" if kind == asked else f"begins on {kind} instead of {asked}"
    return f"{told}: it {begins}"


def _open(snapshot: Snapshot, now: datetime) -> list[Offer]:
    """The offers that are available now, as far as known."""
    cools = {(c.pool, c.market) for c in snapshot.cooldowns if c.until > now}
    return [o for o in snapshot.offers if (o.pool, o.market) not in cools]


# ---- Running jobs: asks size policies with the usage of each job, and remembers each policy's state
#
# This state is not stored: a restarted controller asks again with the same history, and gets the same answer.

LOOK_SECONDS = 10.0  # between two queries for a job's new usage
BEFORE = timedelta(seconds=60)  # windows are placed on our clock by the arrival of their report: not to the second
KEPT = timedelta(hours=24)  # history of a run for a policy that begins anew
Words = Mapping[AttemptNumber, Report]
Make = Callable[[str, Mapping[str, object]], Size]  # raises ConfigError


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size policies. `usual`: for jobs that name no policy; "off" = they stay on the size that they asked for."""

    make: Make
    usual: str = SIZE_OFF
    rules: SizeRules = field(default_factory=SizeRules)


@dataclass(slots=True)
class _Ride:
    """One job's state. `told`: the slices of usage that the policy has seen; `memory`: bytes of each type to choose from."""

    policy: Size
    sizing: Sizing
    memory: Mapping[str, int]
    owners: int  # machines that had the job
    due: datetime
    told: tuple[int, int] = (0, -1)
    foretold: Foretold = SILENT


class Rightsizing:
    """One per controller."""

    def __init__(self, engine: Engine, sizes: Sizes) -> None:
        self._engine, self._sizes = engine, sizes
        self._slices = max(int(sizes.rules.look_seconds // WINDOW_SECONDS), 1)
        self._rides: dict[JobId, _Ride] = {}
        self._earlier = EarlierRuns(engine)
        self._firsts: dict[JobId, tuple[datetime, First | None]] = {}  # until when it stands
        self._said: dict[JobId, str] = {}

    def sized(
        self, snapshot: Snapshot, words: Callable[[JobSeen], Words], floored: Sequence[JobSeen], now: datetime
    ) -> Snapshot:
        """The snapshot with each sized job asking for the size that its policy chose, and with the reason.

        `words`: last reports of a job. `floored`: the same jobs as they are without a size policy.
        """
        going = {s.job.id for s in snapshot.jobs if s.job.state not in ENDED}
        if self._rides.keys() - going:
            self._earlier.renew()
        pairs = zip(snapshot.jobs, floored, strict=True)
        jobs = [_over(f, self._sized(snapshot, s, words, now)) if self._policy_of(s) else f for s, f in pairs]
        self._said = {s.job.id: s.size.why for s in jobs if s.size is not None}
        self._rides = {job: ride for job, ride in self._rides.items() if job in going}
        self._firsts = {s.job.id: self._firsts[s.job.id] for s in snapshot.jobs if s.job.id in self._firsts}
        return replace(snapshot, jobs=jobs)

    def said(self, job: JobId) -> str:
        """The policy's explanation for a job, with its numbers; "" if the job has no size policy."""
        return self._said.get(job, "")

    def _policy_of(self, seen: JobSeen) -> str:
        name = seen.job.spec.size_policy or self._sizes.usual
        return "" if name == SIZE_OFF or rehearses(seen.job) or seen.job.state in ENDED else name

    def _sized(self, snapshot: Snapshot, seen: JobSeen, words: Callable[[JobSeen], Words], now: datetime) -> JobSeen | None:
        had = owners(seen.attempts)
        try:
            if not had:
                return self._first(snapshot, seen, now)
            ride = self._ride(snapshot, seen, now)
        except Exception as e:  # third-party code makes it: no exception of it may stop the fleet
            alarm, here = f"the size policy can't be made: {type(e).__name__}: {e}", had[-1].pool.instance_type if had else ""
            return replace(seen, size=SizeSeen(here, here, False, frozenset(), 0, alarm, alarm))
        if ride is None:
            return None
        said = words(seen)
        newest = said.get(had[-1].number)
        if newest is not None and newest.protection:  # while the job stands still its agent reports no stage
            most = max(k.usable_bytes for k in ride.sizing.course.terms.kinds)
            ride.foretold = Foretold(min(float(newest.hint_memory_bytes), most), newest.hint_cores)
        if now >= ride.due:
            ride.due = now + timedelta(seconds=LOOK_SECONDS if self._slices > 1 else 1)
            self._learn(ride, seen, said)
        owner = next(c for c in cases(snapshot, seen, now) if c.attempt.number == had[-1].number)
        return _Judge(snapshot, owner, said, ride).judged()

    def _first(self, snapshot: Snapshot, seen: JobSeen, now: datetime) -> JobSeen | None:
        """A job that never ran, with its first size; None if no earlier run is known. Exceptions of a policy pass through."""
        due, first = self._firsts.get(seen.job.id, (now, None))
        if now >= due:
            past = self._past(seen.job, now, now)
            first = first_size(snapshot, seen, past, self._made(seen), self._sizes.rules, now) if past else None
            self._firsts[seen.job.id] = (now + AGAIN, first)
        if first is None:
            return None
        cpus, memory = first.asks or (seen.job.spec.cpus, seen.job.spec.memory_bytes)
        spec = replace(seen.job.spec, cpus=cpus, memory_bytes=memory)
        return replace(seen, job=replace(seen.job, spec=spec), size=first.size)

    def _past(self, job: Job, before: datetime, now: datetime) -> tuple[Past, ...]:
        return self._earlier.of(job, before, now) if self._sizes.rules.history else ()

    def _ride(self, snapshot: Snapshot, seen: JobSeen, now: datetime) -> _Ride | None:
        """The state of the job's run; begun anew if types or prices have changed. Raises ConfigError."""
        ride, had = self._rides.get(seen.job.id), owners(seen.attempts)
        if ride is not None and ride.owners == len(had) and now < ride.due:
            return ride
        rules = self._sizes.rules
        terms = rightsizing.terms_of(seen, snapshot.offers, snapshot.limits, rules, pressed_at)
        if terms is None:
            return None
        if ride is None or not rightsizing.alike(ride.sizing.course.terms, terms):
            policy, began = self._made(seen), had[0].granted_at or now
            terms = replace(terms, earlier=courses(seen.job, self._past(seen.job, began, now)))
            memory = {o.pool.instance_type: o.memory_bytes for o in snapshot.offers}
            sizing = rightsizing.begun(policy, terms, rules, began)
            ride = self._rides[seen.job.id] = _Ride(policy, sizing, memory, len(had), now)
        ride.owners = len(had)
        return ride

    def _made(self, seen: JobSeen) -> Size:
        """Its size policy. Raises ConfigError."""
        return self._sizes.make(self._policy_of(seen), seen.job.spec.size_parameters)

    def _learn(self, ride: _Ride, seen: JobSeen, words: Words) -> None:
        """Show the policy the new usage; the newest slices may still grow."""
        last = ride.sizing.last
        since = max(a.since for a in seen.attempts) - KEPT if last is None else last.at - BEFORE
        with self._engine.connect() as connection:
            windows = usage_history.read(connection, seen.job.id, since)
        missed = {number for number, report in words.items() if report.near_miss is not None}
        for key, look in looks(windows, self._slices):
            if key > ride.told:
                ride.told = key
                if look is not None:
                    said = ride.foretold if key[0] == owners(seen.attempts)[-1].number else SILENT
                    look = replace(look, foretold=said)
                    ride.sizing = rightsizing.looked(ride.policy, ride.sizing, look, seen.attempts, missed)


def looks(windows: Sequence[UsageSeen], slices: int) -> Iterator[tuple[tuple[int, int], Look | None]]:
    """Closed groups of windows, each with its key; None for a group in which memory was still being brought back.

    Merged windows, as older ones are, stay in the same groups if `slices` divides the number that was merged.
    """
    groups = [(key, list(some)) for key, some in groupby(windows, key=lambda u: (u.attempt, u.window.number // slices))]
    for key, some in groups[:-1]:
        whole = [u for u in some if is_whole(u.window)]
        if not whole:
            yield key, None
            continue
        one, end = merged([u.window for u in whole]), whole[-1]
        at = end.at + timedelta(seconds=end.window.seconds)
        yield key, Look(key[0], at, one.seconds, one.resident_last_bytes, one.resident_bytes, one.cpu_cores)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges which size a job should have now. `owner`: its newest one."""

    snapshot: Snapshot
    owner: AttemptView
    words: Words
    ride: _Ride

    def judged(self) -> JobSeen | None:
        """The job with the type that it should be on; None: its type, or any larger one, may not be chosen."""
        ride, owner, attempts = self.ride, self.owner, self.owner.seen.attempts
        here = rightsizing.index_of(ride.sizing.course.terms, owner.attempt.pool.instance_type)
        if here is None:
            return None
        moved = rightsizing.moved_at(attempts, ride.sizing.began, owner.now)
        course = replace(ride.sizing.course, here=here, moved=moved, hinted_bytes=ride.foretold.memory_bytes)
        sizing = replace(ride.sizing, course=course)
        said = self.words.get(owner.attempt.number)
        guarded = said is not None and said.protection == GUARDED
        miss = said.near_miss if said is not None else None
        if miss is not None and (owner.state is not A.RUNNING or (owner.agent is not None and owner.agent.pressed)):
            to = rightsizing.rescue(sizing, attempts, miss.used_bytes, owner.now)
            return None if to is None else self._sized(sizing, to, "its memory was about to end there", rescue=True)
        if owner.left or owner.noticed:
            refused = refusing(owner.seen, self.snapshot.limits, owner.now)
            types = {o.pool.instance_type for o in _open(self.snapshot, owner.now)} - refused.keys()
            to = rightsizing.chance(ride.policy, sizing, self._need(sizing), types, owner.now, guarded)
            return self._sized(sizing, to, "it has to change machines")
        choice = rightsizing.wish(sizing, attempts, owner.now, guarded, ride.foretold)
        return self._sized(sizing, here if choice.to is None else choice.to, choice.why, wanted=choice.to is not None)

    def _untold(self) -> bool:
        """Whether the job has no owner and no report gives the size of the newest checkpoint. It fitted the old machine."""
        head, told = self.owner.head, {r.last_save.checkpoint for r in self.words.values() if r.last_save is not None}
        return self.owner.left and head is not None and head.checkpoint is not None and head.checkpoint not in told

    def _need(self, sizing: Sizing) -> float:
        """Bytes that must fit: its usage, its forecast, and the newest checkpoint, which may be older and larger.

        If an older checkpoint may count, the highest peak, because the size of each one is not known.
        """
        course, seen, head = sizing.course, self.owner.seen, self.owner.head
        saves = [r.last_save for _, r in sorted(self.words.items()) if r.last_save is not None]
        used = sizing.last.memory_bytes if sizing.last is not None else 0.0
        back = seen.job.rewind is not None or any(a.restore_failed for a in seen.attempts)
        counts = [memory_of(s) for s in saves if s is saves[-1] or (head is not None and s.checkpoint == head.checkpoint)]
        kept = max(used, *counts, course.peak_bytes if back else 0.0)
        here = course.terms.kinds[course.here].usable_bytes if self._untold() else 0.0
        return max(kept / TRUE_SHARE, course.hinted_bytes, here)

    def _sized(self, sizing: Sizing, to: int, why: str, *, wanted: bool = False, rescue: bool = False) -> JobSeen:
        """The job with a request for what type `to` has."""
        course, owner, seen, bytes_of = sizing.course, self.owner, self.owner.seen, self.ride.memory
        kinds, used = course.terms.kinds, sizing.last.memory_bytes if sizing.last is not None else 0.0
        # The agent's next report gives the size of a final save that the head shows before any report does.
        drained = owner.state is A.DRAINED and owner.age_seconds < self.snapshot.limits.last_report_seconds
        comes = (owner.state in HOLDS and not owner.gone) or drained
        awaited, need = comes and self._untold(), self._need(sizing)
        room = min((bytes_of[k.name] for k in kinds if k.usable_bytes >= need), default=0)
        size = SizeSeen(
            here=kinds[course.here].name,
            kind=kinds[to].name,
            wanted=wanted,
            holds=frozenset(k.name for k in kinds if k.usable_bytes >= max(used, course.hinted_bytes)),
            usd_micros_per_hour=round(kinds[to].usd_per_hour * rightsizing.MICROS),
            why=rightsizing.explained(sizing, to, why),
            alarm=course.alarm,
            room_bytes=room if owner.left and not awaited else 0,
            awaits_bytes=bytes_of[kinds[course.here].name] if awaited else 0,
        )
        asks = kinds[to]
        if seen.job.move is not None and seen.job.move.instance_type is not None and not rescue:  # the user's order wins
            asks = kinds[cheapest_holding(kinds, need, 0.0) or 0]
        memory = bytes_of[asks.name]
        spec = replace(seen.job.spec, cpus=int(asks.cores), memory_bytes=memory)
        return replace(seen, job=replace(seen.job, spec=spec), size=size, memory_floor_bytes=memory if rescue else 0)


def memory_of(save: SaveFacts) -> int:
    """Bytes of memory that a checkpoint takes when restored; an upper bound if the agent does not report it."""
    return save.image_bytes if save.memory_bytes is None else save.memory_bytes


def _over(floored: JobSeen, sized: JobSeen | None) -> JobSeen:
    """The job with the size policy's fields from `sized`, and all other facts from `floored`."""
    if sized is None:
        return floored
    return replace(floored, job=sized.job, size=sized.size, memory_floor_bytes=sized.memory_floor_bytes)
