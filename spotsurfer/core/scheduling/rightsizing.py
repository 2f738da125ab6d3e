"""On which machine type a job should run: rules for every size policy, usage of earlier runs, first size, resizing. Pure."""

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
from spotsurfer.model.job import WAITS, Attempt, Job
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

# What holds for every size policy: the guard's rescue, what a job foretold, and a limit on moves an hour.
#
# The limit is kept by a reserve: after a wish there is room for two rescues. The first goes where the highest peak so far has
# room, so that the second is needed for a new peak alone; what uses up the last goes to the largest type, from where none can
# be.

HOUR = 3600.0
MOVES_PER_HOUR = 12
RESERVE = 2  # rescues that there is room for after a wish


@dataclass(frozen=True, slots=True)
class SizeRules:
    """The operator's, for jobs that run. `look_seconds` is a multiple of what a window of usage covers."""

    look_seconds: float = 60.0
    moves_per_hour: int = MOVES_PER_HOUR
    cool_down_seconds: float = 0.0
    cpu_factor: float = 4.0  # times the processors that were asked for, at most
    memory_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class Course:
    """One run so far. `moved`: when, in seconds since it began, during the last hour; `alarm`: what the policy did wrong."""

    terms: SizeTerms
    moves_per_hour: int
    here: int
    memory: Any = None
    peak_bytes: float = 0.0
    hinted_bytes: float = 0.0
    cores: float = 0.0  # last seen
    moved: tuple[float, ...] = field(default=())
    alarm: str = ""
    rest_seconds: float = 0.0  # after a move wishes are not heard for so long

    def moves_in_last_hour(self, now: float) -> int:
        """Those that count at this moment."""
        return sum(now - m < HOUR for m in self.moved)


def begin(policy: Size, terms: SizeTerms, moves_per_hour: int = MOVES_PER_HOUR, rest_seconds: float = 0.0) -> Course:
    """Raises ValueError for a limit that would leave no way up after a move down."""
    if moves_per_hour <= RESERVE:
        raise ValueError(f"moves_per_hour must be at least {RESERVE + 1}: after a move down, {RESERVE} are kept for the way up")
    try:
        memory, start = policy.begin(terms)
        alarm = "" if _known(start, terms) else f"the size policy began on {start!r:.40}, which there is not"
    except Exception as e:  # somebody else's code: the job goes on where it was asked to be
        memory, start, alarm = None, terms.start, f"the size policy failed to begin: {type(e).__name__}: {e}"
    return Course(terms, moves_per_hour, terms.start if alarm else start, memory, alarm=alarm, rest_seconds=rest_seconds)


def ask_policy(policy: Size, course: Course, moment: SizeMoment, now: float, guarded: bool = True) -> tuple[Course, SizeChoice]:
    """Ask, and let through what may be. `now`: seconds since the run began; `guarded`: the guard watches the job."""
    course = replace(
        course,
        peak_bytes=max(course.peak_bytes, moment.memory_max_bytes),
        hinted_bytes=moment.hinted_bytes,
        cores=moment.cores,
    )
    course, choice = _ask(policy, course, moment)
    return course, allowed(course, roomy(course, choice, moment), moment, now, guarded)


def roomy(course: Course, choice: SizeChoice, moment: SizeMoment) -> SizeChoice:
    """The choice, or one that has room for what the job foretold."""
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
    """The choice, or to stay where a rule forbids it."""
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
    """One move more leaves room for the rescues that it may lead to."""
    return course.moves_in_last_hour(now) + 1 + RESERVE <= course.moves_per_hour


def guard_rescue(course: Course, memory_bytes: float, now: float) -> int | None:
    """Where a job goes whose memory is at its limit; None = there is nothing larger."""
    kinds = course.terms.kinds
    least = kinds[course.here].usable_bytes * 1.001
    need = max(least, memory_bytes, course.peak_bytes, course.hinted_bytes)
    if course.moves_in_last_hour(now) + 1 >= course.moves_per_hour:
        need = max(need, max(k.usable_bytes for k in kinds))
    found = cheapest_holding(kinds, need, course.cores)
    return found if found is not None else _larger(kinds, memory_bytes, course)


def moved(course: Course, to: int, now: float) -> Course:
    """After a move, of whatever kind, that began at `now`."""
    kept = tuple(m for m in course.moved if now - m < HOUR)
    return replace(course, here=to, moved=(*kept, now))


def _larger(kinds: tuple[MachineKind, ...], memory_bytes: float, course: Course) -> int | None:
    """What was foretold may be more than there is: the largest, if that is larger than here."""
    largest = max(range(len(kinds)), key=lambda i: kinds[i].memory_bytes)
    holds = kinds[largest].usable_bytes >= memory_bytes
    return largest if holds and kinds[largest].memory_bytes > kinds[course.here].memory_bytes else None


def _ask(policy: Size, course: Course, moment: SizeMoment) -> tuple[Course, SizeChoice]:
    """Its choice; nothing, and an alarm, where it raises or names what there is not."""
    try:
        answer: tuple[Any, Any] = policy.look(course.memory, moment)
        memory, choice = answer
        wrong = not (isinstance(choice, SizeChoice) and (choice.to is None or _known(choice.to, course.terms)))
    except Exception as e:  # somebody else's code: whatever it raises must not move a job
        return replace(course, alarm=f"the size policy failed: {type(e).__name__}: {e}"), SizeChoice()
    if wrong:
        return replace(course, alarm=f"the size policy chose {choice!r:.80}, which there is not"), SizeChoice()
    return replace(course, memory=memory), choice


def _known(index: object, terms: SizeTerms) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(terms.kinds)


# Recorded usage: memory and cores of a run, scaled to the size and length of another.

BINS = 600  # of an earlier run that is kept


@dataclass(frozen=True, slots=True)
class Usage:
    """Pieces of a run, one after the other: how long each takes with all the cores that it wants, and what it uses."""

    seconds: Floats
    memory_bytes: Floats
    cores: Floats

    @property
    def total_seconds(self) -> float:
        """The run, undisturbed."""
        return float(self.seconds.sum())

    def scaled(self, hours: float | None = None, memory_bytes: float | None = None, cores: float | None = None) -> Usage:
        """The same shape with this length, peak of memory and peak of cores; None = as it is."""
        time = 1.0 if hours is None else hours * 3600 / self.total_seconds
        memory = 1.0 if memory_bytes is None else memory_bytes / float(self.memory_bytes.max())
        most = float(self.cores.max())
        wide = 1.0 if cores is None or most == 0 else cores / most
        return self.times(time, memory, wide)

    def times(self, time: float = 1.0, memory: float = 1.0, cores: float = 1.0) -> Usage:
        """Each multiplied."""
        return Usage(self.seconds * time, self.memory_bytes * memory, self.cores * cores)

    def kept(self) -> Earlier:
        """As the history of a job keeps it: at most 600 pieces, the peak of memory and the mean of cores in each."""
        count = min(BINS, len(self.seconds))
        ends = np.cumsum(self.seconds)
        of = np.minimum((ends - self.seconds / 2) / ends[-1] * count, count - 1).astype(np.int64)
        _, first = np.unique(of, return_index=True)
        seconds = np.add.reduceat(self.seconds, first)
        cores = np.add.reduceat(self.cores * self.seconds, first) / seconds
        peaks = np.maximum.reduceat(self.memory_bytes, first)
        return Earlier(tuple(seconds.tolist()), tuple(peaks.tolist()), tuple(cores.tolist()))


# What the next run of a step is given, by earlier ones: memory by their peaks, and the type that it begins on.
#
# The guard stands behind it: a run that needs more is frozen and moved up, not killed, so that little room is left and a plain
# rule will do. Where nobody says that it does, a run is given no less than was asked for.

MARGIN = 1.08  # of the highest peak
ROOM_BYTES = 12 << 20  # besides: small runs differ by more than a share
LATEST = 20  # runs that are looked at


def next_bytes(peaks: Sequence[float]) -> float | None:
    """`peaks`: bytes, the latest last. None where there are none: then what the user asked for is all that is known."""
    return None if not peaks else MARGIN * max(peaks[-LATEST:]) + ROOM_BYTES


def begins_on(policy: Size, terms: SizeTerms, peaks: Sequence[float], guarded: bool) -> int:
    """The type for a run that begins. `terms.start`: what was asked for; `guarded`: it will be moved up before its memory ends.

    As the policy plans by `terms.earlier`; where it has no opinion, the cheapest with as many cores and room for the peaks.
    """
    asked, need = terms.start, next_bytes(peaks) or 0.0
    kinds = terms.kinds
    enough = [i for i, k in enumerate(kinds) if k.usable_bytes >= need and k.cores >= kinds[asked].cores]
    least = min(enough, key=lambda i: (kinds[i].usd_per_hour, -kinds[i].memory_bytes), default=asked)
    saves = guarded and kinds[least].usd_per_hour < kinds[asked].usd_per_hour
    other = least if saves or kinds[asked].usable_bytes < need else asked
    planned = begin(policy, terms).here if guarded else asked
    return other if planned == asked else planned


# Where a running job should be: its size policy is asked with what the job used, in the way that back-tests ask it. Pure.
#
# What is known of a run is a value that looks are folded into, one after the other; so a controller that starts anew learns the
# same from the history. A move is whatever led to another type, whoever wanted it: the limit on moves an hour counts orders, so
# that one that came to nothing counts, too.

SIZED = "another size is better"  # how the purpose of a machine begins that is ordered for it
ORDERED = "a machine was ordered: it is thought about anew after the next look"
PAUSE_SECONDS = 15.0  # that a move stops the job for, as long as none was made
LEAST_BYTES = 1 << 30  # of a type, unless the job allows less: with half of it agent and CRIU can't save a machine that is full
SAME_PRICE, SAME_MOVE = 0.1, 0.25  # terms that differ by less are the same
MICROS = 1e6


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a job says that it will need in its present stage; 0 = it says nothing."""

    memory_bytes: float = 0.0
    cores: float = 0.0


SILENT = Foretold()


@dataclass(frozen=True, slots=True)
class Look:
    """What a job used in some seconds that ended at `at`. Time in which its memory was still being brought is left out."""

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
        """Since the run began."""
        return (at - self.began).total_seconds()


def terms_of(
    seen: JobSeen, offers: Sequence[Offer], limits: Limits, rules: SizeRules, usable: Callable[[int], float]
) -> SizeTerms | None:
    """Types that may be chosen, at the least price each; None while the job never ran, or on a type that is not on offer.

    `usable`: bytes of a machine's memory -> at how many its guard freezes the job.
    """
    had = owners(seen.attempts)
    best = _best(seen.job, offers, limits, rules, {a.pool.instance_type for a in had})
    if not had or had[0].pool.instance_type not in best or had[-1].pool.instance_type not in best:
        return None
    return _terms(seen, best, had[0].pool.instance_type, usable)


def first_terms(
    seen: JobSeen, offers: Sequence[Offer], limits: Limits, rules: SizeRules, usable: Callable[[int], float]
) -> SizeTerms | None:
    """As `terms_of`, of a job that never ran: it begins on the cheapest type that has what it asks for. None: there is none."""
    best, spec = _best(seen.job, offers, limits, rules, ()), seen.job.spec
    enough = [o for o in best.values() if o.cpus >= spec.cpus and o.memory_bytes >= spec.memory_bytes]
    if not enough:
        return None
    cheapest = min(enough, key=lambda o: (o.price_usd_micros_per_hour, o.pool.instance_type))
    return _terms(seen, best, cheapest.pool.instance_type, usable)


def _best(job: Job, offers: Sequence[Offer], limits: Limits, rules: SizeRules, ran: Collection[str]) -> dict[str, Offer]:
    """The cheapest offer of each type that may be chosen."""
    best: dict[str, Offer] = {}
    for offer in offers:
        name, price = offer.pool.instance_type, offer.price_usd_micros_per_hour
        if _may(job, offer, limits, rules, ran) and (name not in best or price < best[name].price_usd_micros_per_hour):
            best[name] = offer
    return best


def _terms(seen: JobSeen, best: Mapping[str, Offer], start: str, usable: Callable[[int], float]) -> SizeTerms:
    kinds = tuple(sorted((_kind(o, usable) for o in best.values()), key=lambda k: (k.memory_bytes, k.cores, k.name)))
    spec, at = seen.job.spec, next(i for i, k in enumerate(kinds) if k.name == start)
    return SizeTerms(kinds, at, move_seconds(seen.attempts), float(spec.size_cpus_max or spec.cpus))


def _may(job: Job, offer: Offer, limits: Limits, rules: SizeRules, ran: Collection[str]) -> bool:
    spec = job.spec
    if offer.market not in ALLOWED[spec.market] or placement.lacking(spec, offer.gpus) or barred(job, offer, limits):
        return False
    if offer.pool.instance_type in ran:
        return True
    cpus = (spec.size_cpus_min or 1, spec.size_cpus_max or rules.cpu_factor * spec.cpus)
    memory = (spec.size_memory_min_bytes or LEAST_BYTES, spec.size_memory_max_bytes or rules.memory_factor * spec.memory_bytes)
    return cpus[0] <= offer.cpus <= cpus[1] and memory[0] <= offer.memory_bytes <= memory[1]


def _kind(offer: Offer, usable: Callable[[int], float]) -> MachineKind:
    """As large as its guard leaves it: on small machines that is less than `ports.size` reckons with."""
    name = offer.pool.instance_type
    memory = int(usable(offer.memory_bytes) / USABLE)
    return MachineKind(name, name.partition(".")[0], offer.cpus, memory, offer.price_usd_micros_per_hour / MICROS)


def move_seconds(attempts: Sequence[Attempt]) -> float:
    """What a move takes if both machines were paid for all of it: the old one is of use while the new one boots."""
    pauses = [a.pause_seconds for a in attempts if a.pause_seconds is not None]
    pause = sum(pauses) / len(pauses) if pauses else PAUSE_SECONDS
    return pause + max(launches(attempts)[0] - pause, 0.0) / 2


def alike(before: SizeTerms, now: SizeTerms) -> bool:
    """They differ by so little that nothing has to be thought over."""
    names = [[k.name for k in t.kinds] for t in (before, now)]
    if names[0] != names[1] or before.start != now.start or before.threads != now.threads:
        return False
    prices = zip(before.kinds, now.kinds, strict=True)
    near = all(abs(b.usd_per_hour - a.usd_per_hour) <= SAME_PRICE * a.usd_per_hour for a, b in prices)
    return near and abs(now.move_seconds - before.move_seconds) <= SAME_MOVE * before.move_seconds


def begun(policy: Size, terms: SizeTerms, rules: SizeRules, began: datetime) -> Sizing:
    """Before the first look."""
    course = begin(policy, terms, rules.moves_per_hour, rules.cool_down_seconds)
    return Sizing(replace(course, here=terms.start), began)


def looked(policy: Size, sizing: Sizing, look: Look, attempts: Sequence[Attempt], missed: Collection[int]) -> Sizing:
    """After one more look. `missed`: attempts whose memory was about to end.

    A look from a type that is not among those that may be chosen is passed over.
    """
    here = index_of(sizing.course.terms, _type_of(attempts, look.attempt))
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
    """A look as policies are shown it."""
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


def _type_of(attempts: Sequence[Attempt], number: int) -> str:
    return next((a.pool.instance_type for a in attempts if a.number == number), "")


def _came(attempts: Sequence[Attempt], missed: Collection[int], before: Look | None, look: Look) -> Came:
    """How the job came to the machine of this look."""
    if before is None or before.attempt == look.attempt:
        return Came.STAYED
    if before.attempt in missed:
        return Came.FORCED
    purpose = next((a.purpose for a in attempts if a.number == look.attempt), "")
    return Came.PLANNED if purpose.startswith(SIZED) else Came.RECLAIMED


def moved_at(attempts: Sequence[Attempt], began: datetime, now: datetime, waiting: bool = True) -> tuple[float, ...]:
    """When, in seconds since the run began, machines of another type were ordered within the last hour.

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
    """Of a type; None where it may not be chosen."""
    return next((i for i, k in enumerate(terms.kinds) if k.name == name), None)


def wish(sizing: Sizing, attempts: Sequence[Attempt], now: datetime, guarded: bool, foretold: Foretold = SILENT) -> SizeChoice:
    """What the last look chose, if it stands: it is of the machine that has the job, was not acted on, and still may be.

    `foretold` counts at once, also before the first look.
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
    """Where a job goes on that has to change machines anyhow: the largest where nothing holds it. The run learns nothing of it.

    `sizing` with the moves up to now; `need_bytes`: what must have room there; `open_types`: those that can be had now, as far
    as is known.
    """
    course, last = sizing.course, sizing.last
    kinds, to = course.terms.kinds, course.here
    least = need_bytes if guarded else max(need_bytes, kinds[to].usable_bytes)  # nobody would hold it there
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
    if found is None or not spare(course, sizing.seconds(now)):  # from the largest no rescue can be needed
        return max(there or range(len(kinds)), key=lambda i: (kinds[i].memory_bytes, -kinds[i].usd_per_hour))
    return there[found]


def rescue(sizing: Sizing, attempts: Sequence[Attempt], used_bytes: float, now: datetime) -> int | None:
    """Where a job goes that was frozen before its memory ended; None = none of the types that may be chosen is larger."""
    newest = owners(attempts)[-1]
    here = index_of(sizing.course.terms, newest.pool.instance_type)
    if here is None:
        return None
    moved = moved_at(attempts, sizing.began, now, waiting=False)
    return guard_rescue(replace(sizing.course, here=here, moved=moved), used_bytes, sizing.seconds(now))


def of_size(size: SizeSeen, here: Market, ranked: Sequence[Offer]) -> Offer | None:
    """The best of the type that is wanted, in the market that the job is in or for no more than was reckoned with."""
    most = size.usd_micros_per_hour * (1 + SAME_PRICE)
    right = (o for o in ranked if o.pool.instance_type == size.kind)
    return next((o for o in right if o.market is here or o.price_usd_micros_per_hour <= most), None)


def explained(sizing: Sizing, to: int, why: str, rules: SizeRules, moves: int) -> str:
    """A choice with its numbers, in one sentence. `moves`: within the last hour."""
    kinds, last = sizing.course.terms.kinds, sizing.last
    here, there = kinds[sizing.course.here], kinds[to]
    told = f"on {here.name}" if here is there else f"{there.name} instead of {here.name}"
    if last is not None:
        most, now, room = (b / GIB for b in (last.memory_max_bytes, last.memory_bytes, here.usable_bytes))
        used = f"{most:.2f} GiB at most, {now:.2f} at last, of {room:.2f}"
        told += f": in {last.seconds:.0f} s it used {used} and {last.cores:.2f} of {here.cores:g} processors"
    told += f"; {why}" if why else ""
    hinted = sizing.course.hinted_bytes
    told += f"; it foretold {hinted / GIB:.2f} GiB" if hinted else ""
    known = len(sizing.course.terms.earlier)
    told += f"; {known} earlier run{'s are' if known > 1 else ' is'} known" if known else ""
    price = (
        f"{here.usd_per_hour:.4f} USD an hour"
        if here is there
        else (f"{there.usd_per_hour:.4f} instead of {here.usd_per_hour:.4f} USD an hour")
    )
    return f"{told}; {price}; {moves} of {rules.moves_per_hour} moves in the last hour"
