"""On which machine type a job should run: rules for every size policy, recorded usage, first size, resizing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from spotsurfer.core.facts.attempt_view import owners
from spotsurfer.core.scheduling import placement
from spotsurfer.core.scheduling.deadline import launches
from spotsurfer.core.scheduling.placement import ALLOWED, GIB, barred
from spotsurfer.model.job import WAITS, Attempt, AttemptNumber, Job
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Market, Offer
from spotsurfer.model.snapshot import JobSeen, Limits, SizeSeen
from spotsurfer.ports.policies import (
    USABLE,
    Came,
    Earlier,
    Floats,
    MachineKind,
    Size,
    SizeChoice,
    SizeMoment,
    SizeTerms,
    cheapest_holding,
)

# ---- Rules for every size policy: the guard's rescue, a job's own forecast, and a limit on moves per hour
#
# A reserve keeps the limit: after a policy's wish, two rescues are still allowed. The first goes to a type with room for the
# highest peak so far, so that only a new peak needs the second. The last allowed move goes to the largest type, from which no
# rescue is possible.

HOUR = 3600.0
MOVES_PER_HOUR = 12
RESERVE = 2  # rescues that are still allowed after a wish


@dataclass(frozen=True, slots=True)
class SizeRules:
    """The operator's settings for running jobs. `look_seconds` is a multiple of the length of a usage window."""

    look_seconds: float = 60.0
    moves_per_hour: int = MOVES_PER_HOUR
    cool_down_seconds: float = 0.0
    cpu_factor: float = 4.0  # at most so many times the processors that were asked for
    memory_factor: float = 4.0
    history: bool = True  # earlier runs of the same kind set the first size


@dataclass(frozen=True, slots=True)
class Course:
    """One run so far. `moved`: times of moves in the last hour, in seconds since its start; `alarm`: the policy's error."""

    terms: SizeTerms
    moves_per_hour: int
    here: int
    memory: Any = None
    peak_bytes: float = 0.0
    hinted_bytes: float = 0.0
    cores: float = 0.0  # last seen
    moved: tuple[float, ...] = field(default=())
    alarm: str = ""
    rest_seconds: float = 0.0  # after a move, wishes are ignored for so long

    def moves_in_last_hour(self, now: float) -> int:
        """Moves that count towards the limit at this moment."""
        return sum(now - m < HOUR for m in self.moved)


def begin(policy: Size, terms: SizeTerms, moves_per_hour: int = MOVES_PER_HOUR, rest_seconds: float = 0.0) -> Course:
    """A run at its start. Raises ValueError for a limit that would leave no way up after a move down."""
    if moves_per_hour <= RESERVE:
        raise ValueError(f"moves_per_hour must be at least {RESERVE + 1}: after a move down, {RESERVE} are kept for the way up")
    try:
        memory, start = policy.begin(terms)
        alarm = "" if _known(start, terms) else f"the size policy began on {start!r:.40}, which there is not"
    except Exception as e:  # third-party code: the job stays on the type that was asked for
        memory, start, alarm = None, terms.start, f"the size policy failed to begin: {type(e).__name__}: {e}"
    return Course(terms, moves_per_hour, terms.start if alarm else start, memory, alarm=alarm, rest_seconds=rest_seconds)


def ask_policy(policy: Size, course: Course, moment: SizeMoment, now: float, guarded: bool = True) -> tuple[Course, SizeChoice]:
    """Ask the policy and apply the rules. `now`: seconds since the run began; `guarded`: the guard watches the job."""
    course = replace(
        course,
        peak_bytes=max(course.peak_bytes, moment.memory_max_bytes),
        hinted_bytes=moment.hinted_bytes,
        cores=moment.cores,
    )
    course, choice = _ask(policy, course, moment)
    return course, allowed(course, roomy(course, choice, moment), moment, now, guarded)


def roomy(course: Course, choice: SizeChoice, moment: SizeMoment) -> SizeChoice:
    """The choice, or one with room for the job's own forecast."""
    kinds, need = course.terms.kinds, max(moment.memory_bytes, moment.hinted_bytes)
    target = moment.here if choice.to is None else choice.to
    if kinds[target].usable_bytes < need:
        up = cheapest_holding(kinds, need, max(moment.cores, moment.hinted_cores))
        if up is None or up == moment.here:
            return SizeChoice()
        foretold = moment.hinted_bytes > moment.memory_bytes
        return SizeChoice(up, "the job foretold that it needs more memory" if foretold else "it uses more than that holds")
    return SizeChoice(None, choice.why) if target == moment.here else choice


def allowed(course: Course, choice: SizeChoice, moment: SizeMoment, now: float, guarded: bool) -> SizeChoice:
    """The choice, or to stay if a rule forbids it."""
    kinds = course.terms.kinds
    if choice.to is None:
        return choice
    if not guarded and kinds[choice.to].memory_bytes < kinds[moment.here].memory_bytes:
        return SizeChoice(None, "nobody would hold the job before its memory ends: it gets no less")
    if not spare(course, now):
        return SizeChoice(None, f"not more than {course.moves_per_hour} moves an hour")
    if moment.free:
        return choice
    if course.moved and now - course.moved[-1] < course.rest_seconds:
        return SizeChoice(None, f"it was moved {now - course.moved[-1]:.0f} s ago and rests for {course.rest_seconds:.0f}")
    return choice


def spare(course: Course, now: float) -> bool:
    """Whether one more move leaves room for the rescues that may follow it."""
    return course.moves_in_last_hour(now) + 1 + RESERVE <= course.moves_per_hour


def guard_rescue(course: Course, memory_bytes: float, now: float) -> int | None:
    """The type for a job that uses all the memory it may; None = there is no larger type."""
    kinds = course.terms.kinds
    least = kinds[course.here].usable_bytes * 1.001
    need = max(least, memory_bytes, course.peak_bytes, course.hinted_bytes)
    if course.moves_in_last_hour(now) + 1 >= course.moves_per_hour:
        need = max(need, max(k.usable_bytes for k in kinds))
    if (found := cheapest_holding(kinds, need, course.cores)) is not None:
        return found
    largest = max(range(len(kinds)), key=lambda i: kinds[i].memory_bytes)
    holds = kinds[largest].usable_bytes >= memory_bytes
    return largest if holds and kinds[largest].memory_bytes > kinds[course.here].memory_bytes else None


def moved(course: Course, to: int, now: float) -> Course:
    """The run after a move of any kind that began at `now`."""
    kept = tuple(m for m in course.moved if now - m < HOUR)
    return replace(course, here=to, moved=(*kept, now))


def _ask(policy: Size, course: Course, moment: SizeMoment) -> tuple[Course, SizeChoice]:
    """Its choice; to stay, with an alarm, if it raises or names an unknown type."""
    try:
        answer: tuple[Any, Any] = policy.look(course.memory, moment)
        memory, choice = answer
        wrong = not (isinstance(choice, SizeChoice) and (choice.to is None or _known(choice.to, course.terms)))
    except Exception as e:  # third-party code: no exception of it may move a job
        return replace(course, alarm=f"the size policy failed: {type(e).__name__}: {e}"), SizeChoice()
    if wrong:
        return replace(course, alarm=f"the size policy chose {choice!r:.80}, which there is not"), SizeChoice()
    return replace(course, memory=memory), choice


def _known(index: object, terms: SizeTerms) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(terms.kinds)


# ---- Recorded usage: memory and cores of a run, scaled to the size and length of another

BINS = 600  # pieces kept of an earlier run


@dataclass(frozen=True, slots=True)
class Usage:
    """Consecutive pieces of a run: the seconds of each with all the cores that it wants, and its memory and cores."""

    seconds: Floats
    memory_bytes: Floats
    cores: Floats

    @property
    def total_seconds(self) -> float:
        """The length of the undisturbed run."""
        return float(self.seconds.sum())

    def scaled(self, hours: float | None = None, memory_bytes: float | None = None, cores: float | None = None) -> Usage:
        """The same shape with this length, peak of memory and peak of cores; None = as it is."""
        time = 1.0 if hours is None else hours * 3600 / self.total_seconds
        memory = 1.0 if memory_bytes is None else memory_bytes / float(self.memory_bytes.max())
        most = float(self.cores.max())
        wide = 1.0 if cores is None or most == 0 else cores / most
        return self.times(time, memory, wide)

    def times(self, time: float = 1.0, memory: float = 1.0, cores: float = 1.0) -> Usage:
        """The same usage with each dimension multiplied."""
        return Usage(self.seconds * time, self.memory_bytes * memory, self.cores * cores)

    def kept(self) -> Earlier:
        """The run as a job's history keeps it: at most BINS pieces, with the peak of memory and the mean of cores in each."""
        count = min(BINS, len(self.seconds))
        ends = np.cumsum(self.seconds)
        of = np.minimum((ends - self.seconds / 2) / ends[-1] * count, count - 1).astype(np.int64)
        _, first = np.unique(of, return_index=True)
        seconds = np.add.reduceat(self.seconds, first)
        cores = np.add.reduceat(self.cores * self.seconds, first) / seconds
        peaks = np.maximum.reduceat(self.memory_bytes, first)
        return Earlier(tuple(seconds.tolist()), tuple(peaks.tolist()), tuple(cores.tolist()))


# ---- The first size: the type that the next run of a step begins on; see `next_size` for its memory


def begins_on(policy: Size, terms: SizeTerms, need: float, guarded: bool) -> int:
    """The type for a run that begins. `terms.start`: what was asked for; `need`: bytes that earlier runs tell; `guarded`: it
    moves up before it runs out of memory.

    The policy's choice by `terms.earlier`; if it has none, the cheapest type with as many cores and room for the need.
    """
    asked, kinds = terms.start, terms.kinds
    cores = terms.asked_cores or kinds[asked].cores
    enough = [i for i, k in enumerate(kinds) if k.usable_bytes >= need and k.cores >= cores]
    least = min(enough, key=lambda i: (kinds[i].usd_per_hour, -kinds[i].memory_bytes), default=asked)
    saves = guarded and kinds[least].usd_per_hour < kinds[asked].usd_per_hour
    other = least if saves or kinds[asked].usable_bytes < need else asked
    planned = begin(policy, terms).here if guarded else asked
    return other if planned == asked else planned


# ---- Running jobs: asks the size policy with the job's usage, in the same way as back-tests
#
# The state of a run is a value that each look is folded into, so a restarted controller computes the same state from the
# history. Every change of type counts as a move, whatever its cause. The limit on moves per hour counts orders, so a failed
# order counts, too.

SIZED = "another size is better"  # beginning of the purpose of machines ordered for another size
ORDERED = "a machine was ordered: it is thought about anew after the next look"
PAUSE_SECONDS = 15.0  # pause of a move as long as none was made
LEAST_BYTES = 1 << 30  # of a type, unless the job allows less: with half of it agent and CRIU can't save a machine that is full
SAME_PRICE, SAME_MOVE = 0.1, 0.25  # terms that differ by less are the same
MICROS = 1e6


@dataclass(frozen=True, slots=True)
class Foretold:
    """The job's own forecast of its needs in its present stage; 0 = none."""

    memory_bytes: float = 0.0
    cores: float = 0.0


SILENT = Foretold()


@dataclass(frozen=True, slots=True)
class Look:
    """A job's usage in some seconds that ended at `at`, without time in which its memory was still being brought back."""

    attempt: int
    at: datetime
    seconds: float
    memory_bytes: float  # at the end
    memory_max_bytes: float
    cores: float
    foretold: Foretold = SILENT


@dataclass(frozen=True, slots=True)
class Sizing:
    """A run so far. `choice`: of the last look."""

    course: Course
    began: datetime
    last: Look | None = None
    choice: SizeChoice = field(default_factory=SizeChoice)

    def seconds(self, at: datetime) -> float:
        """Seconds since the run began."""
        return (at - self.began).total_seconds()


def terms_of(
    seen: JobSeen, offers: Sequence[Offer], limits: Limits, rules: SizeRules, usable: Callable[[int], float]
) -> SizeTerms | None:
    """Types that may be chosen, each at its lowest price; None if the job never ran, or its type is not on offer.

    `usable`: bytes of a machine's memory -> bytes at which its guard freezes the job.
    """
    had = owners(seen.attempts)
    best = _best(seen.job, offers, limits, rules, {a.pool.instance_type for a in had})
    if not had or had[0].pool.instance_type not in best or had[-1].pool.instance_type not in best:
        return None
    return _terms(seen, best, had[0].pool.instance_type, usable)


def first_terms(
    seen: JobSeen, offers: Sequence[Offer], limits: Limits, rules: SizeRules, usable: Callable[[int], float]
) -> SizeTerms | None:
    """As `terms_of`, for a job that never ran: it starts on the cheapest type that meets its request. None: there is none."""
    best, spec = _best(seen.job, offers, limits, rules, ()), seen.job.spec
    enough = [o for o in best.values() if o.cpus >= spec.cpus and o.memory_bytes >= spec.memory_bytes]
    if not enough:
        return None
    cheapest = min(enough, key=lambda o: (o.price_usd_micros_per_hour, o.pool.instance_type))
    return _terms(seen, best, cheapest.pool.instance_type, usable)


def _best(job: Job, offers: Sequence[Offer], limits: Limits, rules: SizeRules, ran: Collection[str]) -> dict[str, Offer]:
    """The cheapest offer of each type that may be chosen: one that it ran on, or one of a size that the job allows."""
    spec = job.spec
    cpus = (spec.size_cpus_min or 1, spec.size_cpus_max or rules.cpu_factor * spec.cpus)
    memory = (spec.size_memory_min_bytes or LEAST_BYTES, spec.size_memory_max_bytes or rules.memory_factor * spec.memory_bytes)
    best: dict[str, Offer] = {}
    for offer in offers:
        name, price = offer.pool.instance_type, offer.price_usd_micros_per_hour
        if offer.market not in ALLOWED[spec.market] or placement.lacking(spec, offer.gpus) or barred(job, offer, limits):
            continue
        right = name in ran or (cpus[0] <= offer.cpus <= cpus[1] and memory[0] <= offer.memory_bytes <= memory[1])
        if right and (name not in best or price < best[name].price_usd_micros_per_hour):
            best[name] = offer
    return best


def _terms(seen: JobSeen, best: Mapping[str, Offer], start: str, usable: Callable[[int], float]) -> SizeTerms:
    """Types with the memory that their guard allows: on small machines less than USABLE in `ports.policies`."""
    all_kinds = (
        MachineKind(
            name=name,
            family=name.partition(".")[0],
            cores=offer.cpus,
            memory_bytes=int(usable(offer.memory_bytes) / USABLE),
            usd_per_hour=offer.price_usd_micros_per_hour / MICROS,
        )
        for name, offer in best.items()
    )
    kinds = tuple(sorted(all_kinds, key=lambda k: (k.memory_bytes, k.cores, k.name)))
    spec, at = seen.job.spec, next(i for i, k in enumerate(kinds) if k.name == start)
    threads = float(spec.size_cpus_max or spec.cpus)
    return SizeTerms(kinds, at, move_seconds(seen.attempts), threads, asked_cores=float(spec.cpus))


def move_seconds(attempts: Sequence[Attempt]) -> float:
    """The duration of a move as if both machines were paid for all of it; the old one works while the new one boots."""
    pauses = [a.pause_seconds for a in attempts if a.pause_seconds is not None]
    pause = sum(pauses) / len(pauses) if pauses else PAUSE_SECONDS
    return pause + max(launches(attempts)[0] - pause, 0.0) / 2


def alike(before: SizeTerms, now: SizeTerms) -> bool:
    """Whether they differ so little that the old terms may stay."""
    names = [[k.name for k in t.kinds] for t in (before, now)]
    if names[0] != names[1] or before.start != now.start or before.threads != now.threads:
        return False
    prices = zip(before.kinds, now.kinds, strict=True)
    near = all(abs(b.usd_per_hour - a.usd_per_hour) <= SAME_PRICE * a.usd_per_hour for a, b in prices)
    return near and abs(now.move_seconds - before.move_seconds) <= SAME_MOVE * before.move_seconds


def begun(policy: Size, terms: SizeTerms, rules: SizeRules, began: datetime) -> Sizing:
    """The state before the first look."""
    course = begin(policy, terms, rules.moves_per_hour, rules.cool_down_seconds)
    return Sizing(replace(course, here=terms.start), began)


def looked(policy: Size, sizing: Sizing, look: Look, attempts: Sequence[Attempt], missed: Collection[int]) -> Sizing:
    """The state after one more look. `missed`: attempts that were about to run out of memory.

    A look from a type that may not be chosen is skipped.
    """
    types = {a.number: a.pool.instance_type for a in attempts}
    here = index_of(sizing.course.terms, types.get(AttemptNumber(look.attempt), ""))
    if here is None:
        return sizing
    now, course, before = sizing.seconds(look.at), sizing.course, sizing.last
    came = _came(attempts, missed, before, look)
    if came is Came.FORCED:
        course = replace(course, peak_bytes=max(course.peak_bytes, course.terms.kinds[course.here].usable_bytes))
    course = replace(course, here=here, moved=moved_at(attempts, sizing.began, look.at), alarm="")
    course, choice = ask_policy(policy, course, moment_of(look, here, came), now)
    return replace(sizing, course=course, last=look, choice=choice)


def moment_of(look: Look, here: int, came: Came = Came.STAYED, free: bool = False) -> SizeMoment:
    """A look as policies see it."""
    return SizeMoment(
        here,
        look.seconds,
        look.memory_bytes,
        look.memory_max_bytes,
        look.cores,
        came,
        free,
        look.foretold.memory_bytes,
        look.foretold.cores,
    )


def _came(attempts: Sequence[Attempt], missed: Collection[int], before: Look | None, look: Look) -> Came:
    """How the job came to the machine of this look."""
    if before is None or before.attempt == look.attempt:
        return Came.STAYED
    if before.attempt in missed:
        return Came.FORCED
    purpose = next((a.purpose for a in attempts if a.number == look.attempt), "")
    return Came.PLANNED if purpose.startswith(SIZED) else Came.RECLAIMED


def moved_at(attempts: Sequence[Attempt], began: datetime, now: datetime, waiting: bool = True) -> tuple[float, ...]:
    """The orders of machines of another type within the last hour, in seconds since the run began.

    `waiting`: one that still waits counts, too.
    """
    found: list[float] = []
    here = None
    for a in sorted(attempts, key=lambda a: a.number):
        counts = a.state is not A.REFUSED and a.planned_at <= now and (waiting or a.state not in WAITS)
        if here not in (None, a.pool.instance_type) and counts and (now - a.planned_at).total_seconds() < HOUR:
            found.append((a.planned_at - began).total_seconds())
        here = a.pool.instance_type if a.granted_at is not None else here
    return tuple(found)


def index_of(terms: SizeTerms, name: str) -> int | None:
    """The index of a type; None if it may not be chosen."""
    return next((i for i, k in enumerate(terms.kinds) if k.name == name), None)


def wish(sizing: Sizing, attempts: Sequence[Attempt], now: datetime, guarded: bool, foretold: Foretold = SILENT) -> SizeChoice:
    """The choice of the last look, if it is for the present machine, was not carried out yet, and is still allowed.

    `foretold` counts at once, even before the first look.
    """
    last, newest, here = sizing.last, owners(attempts)[-1], sizing.course.here
    fresh = last is not None and last.attempt == newest.number
    choice = sizing.choice if fresh else SizeChoice(None, "it has just come here")
    if fresh and last is not None and any(a.planned_at >= last.at and a.number > newest.number for a in attempts):
        return SizeChoice(None, choice.why if choice.to is None else ORDERED)
    seen = Look(newest.number, now, 0.0, 0.0, 0.0, 0.0) if last is None else last
    moment = moment_of(replace(seen, seconds=0.0, foretold=foretold), here)
    course = replace(sizing.course, moved=moved_at(attempts, sizing.began, now))
    choice = roomy(course, choice, moment) if fresh or foretold.memory_bytes else choice
    return allowed(course, choice, moment, sizing.seconds(now), guarded)


def chance(policy: Size, sizing: Sizing, need_bytes: float, open_types: Collection[str], now: datetime, guarded: bool) -> int:
    """The type for a job that must change machines anyway; the largest if no type has room. It does not change the run's state.

    `sizing` with the moves up to now; `need_bytes`: the memory that must fit; `open_types`: types that are available now, as
    far as known.
    """
    course, last = sizing.course, sizing.last
    kinds, to = course.terms.kinds, course.here
    least = need_bytes if guarded else max(need_bytes, kinds[to].usable_bytes)  # without a guard, it would be killed there
    if last is not None:
        moment = moment_of(replace(last, seconds=0.0), to, free=True)
        choice = ask_policy(policy, course, moment, sizing.seconds(now), guarded)[1]
        to = to if choice.to is None else choice.to
    ample = [k.name for k in kinds if k.cores >= kinds[to].cores and k.memory_bytes >= kinds[to].memory_bytes]
    if kinds[to].usable_bytes >= least and any(name in open_types for name in ample):
        return to
    held = {i for i, k in enumerate(kinds) if k.usable_bytes >= least}
    there = sorted({i for i in held if kinds[i].name in open_types} or held)
    found = cheapest_holding([kinds[i] for i in there], least, course.cores)
    if found is None or not spare(course, sizing.seconds(now)):  # from the largest type no rescue is possible
        return max(there or range(len(kinds)), key=lambda i: (kinds[i].memory_bytes, -kinds[i].usd_per_hour))
    return there[found]


def rescue(sizing: Sizing, attempts: Sequence[Attempt], used_bytes: float, now: datetime) -> int | None:
    """The type for a job that was frozen before it ran out of memory; None = no type that may be chosen is larger."""
    newest = owners(attempts)[-1]
    here = index_of(sizing.course.terms, newest.pool.instance_type)
    if here is None:
        return None
    moved = moved_at(attempts, sizing.began, now, waiting=False)
    return guard_rescue(replace(sizing.course, here=here, moved=moved), used_bytes, sizing.seconds(now))


def of_size(size: SizeSeen, here: Market, ranked: Sequence[Offer]) -> Offer | None:
    """The best offer of the wanted type, in the job's present market or for no more than the assumed price."""
    most = size.usd_micros_per_hour * (1 + SAME_PRICE)
    right = (o for o in ranked if o.pool.instance_type == size.kind)
    return next((o for o in right if o.market is here or o.price_usd_micros_per_hour <= most), None)


def explained(sizing: Sizing, to: int, why: str) -> str:
    """A choice with its numbers, in one sentence."""
    course, last = sizing.course, sizing.last
    kinds = course.terms.kinds
    here, there = kinds[course.here], kinds[to]
    told = f"on {here.name}" if here is there else f"{there.name} instead of {here.name}"
    if last is not None:
        most, now, room = (b / GIB for b in (last.memory_max_bytes, last.memory_bytes, here.usable_bytes))
        used = f"{most:.2f} GiB at most, {now:.2f} at last, of {room:.2f}"
        told += f": in {last.seconds:.0f} s it used {used} and {last.cores:.2f} of {here.cores:g} processors"
    told += f"; {why}" if why else ""
    told += f"; it foretold {course.hinted_bytes / GIB:.2f} GiB" if course.hinted_bytes else ""
    known = len(course.terms.earlier)
    told += f"; {known} earlier run{'s are' if known > 1 else ' is'} known" if known else ""
    price = f"{there.usd_per_hour:.4f}" + ("" if here is there else f" instead of {here.usd_per_hour:.4f}")
    return f"{told}; {price} USD an hour; {len(course.moved)} of {course.moves_per_hour} moves in the last hour"
