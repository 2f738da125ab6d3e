"""Where a running job should be: its size policy is asked with what the job used, in the way that back-tests ask it. Pure.

What is known of a run is a value that looks are folded into, one after the other; so a controller that starts anew learns the
same from the history. A move is whatever led to another type, whoever wanted it: the limit on moves an hour counts orders, so
that one that came to nothing counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from spotsurfer.core import gpus, size
from spotsurfer.core.case import owners
from spotsurfer.core.placement import ALLOWED, GIB, barred
from spotsurfer.core.purchase import launches
from spotsurfer.core.size import Course, SizeRules
from spotsurfer.model.job import WAITS, Attempt, Job
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Market, Offer
from spotsurfer.model.snapshot import JobSeen, Limits, SizeSeen
from spotsurfer.ports.size import USABLE, Came, Kind, Moment, Size, SizeChoice, SizeTerms, cheapest_holding

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
    if offer.market not in ALLOWED[spec.market] or gpus.lacking(spec, offer.gpus) or barred(job, offer, limits):
        return False
    if offer.pool.instance_type in ran:
        return True
    cpus = (spec.size_cpus_min or 1, spec.size_cpus_max or rules.cpu_factor * spec.cpus)
    memory = (spec.size_memory_min_bytes or LEAST_BYTES, spec.size_memory_max_bytes or rules.memory_factor * spec.memory_bytes)
    return cpus[0] <= offer.cpus <= cpus[1] and memory[0] <= offer.memory_bytes <= memory[1]


def _kind(offer: Offer, usable: Callable[[int], float]) -> Kind:
    """As large as its guard leaves it: on small machines that is less than `ports.size` reckons with."""
    name = offer.pool.instance_type
    memory = int(usable(offer.memory_bytes) / USABLE)
    return Kind(name, name.partition(".")[0], offer.cpus, memory, offer.price_usd_micros_per_hour / MICROS)


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
    course = size.begin(policy, terms, rules.moves_per_hour, rules.cool_down_seconds)
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
    course, choice = size.look(policy, course, moment_of(look, here, came), now)
    return replace(sizing, course=course, last=look, choice=choice)


def moment_of(look: Look, here: int, came: Came = Came.STAYED, free: bool = False) -> Moment:
    """A look as policies are shown it."""
    return Moment(
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
        if here not in (None, a.pool.instance_type) and counts and (now - a.planned_at).total_seconds() < size.HOUR:
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
    choice = size.roomy(course, choice, moment) if fresh or foretold.memory_bytes else choice
    return size.allowed(course, choice, moment, sizing.seconds(now), guarded)


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
        choice = size.look(policy, course, moment, sizing.seconds(now), guarded)[1]
        to = to if choice.to is None else choice.to
    ample = [k.name for k in kinds if k.cores >= kinds[to].cores and k.memory_bytes >= kinds[to].memory_bytes]
    if kinds[to].usable_bytes >= least and any(name in open_types for name in ample):
        return to
    held = {i for i, k in enumerate(kinds) if k.usable_bytes >= least}
    there = sorted({i for i in held if kinds[i].name in open_types} or held)
    found = cheapest_holding([kinds[i] for i in there], least, course.cores)
    if found is None or not size.spare(course, sizing.seconds(now)):  # from the largest no rescue can be needed
        return max(there or range(len(kinds)), key=lambda i: (kinds[i].memory_bytes, -kinds[i].usd_per_hour))
    return there[found]


def rescue(sizing: Sizing, attempts: Sequence[Attempt], used_bytes: float, now: datetime) -> int | None:
    """Where a job goes that was frozen before its memory ended; None = none of the types that may be chosen is larger."""
    newest = owners(attempts)[-1]
    here = index_of(sizing.course.terms, newest.pool.instance_type)
    if here is None:
        return None
    moved = moved_at(attempts, sizing.began, now, waiting=False)
    return size.rescue(replace(sizing.course, here=here, moved=moved), used_bytes, sizing.seconds(now))


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
