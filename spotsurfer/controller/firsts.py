"""Jobs that never ran, where a size policy has a say: they ask for what earlier runs of the same step teach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotsurfer_agent.memlevels import pressed_at

from spotsurfer.controller.earlier import EarlierRuns, Past
from spotsurfer.core import resize
from spotsurfer.core.nextsize import begins_on
from spotsurfer.core.placement import GIB
from spotsurfer.core.size import SizeRules
from spotsurfer.model.ids import JobId
from spotsurfer.model.job import Job
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import JobSeen, SizeSeen, Snapshot
from spotsurfer.ports.size import Earlier, Size

COURSES = 3  # of earlier runs that a policy is told
GUARDABLE = ("auto", "criu")  # engines under which a job may be frozen before its memory ends
AGAIN = timedelta(minutes=5)  # after which a job that still waits is thought about anew


@dataclass(frozen=True, slots=True)
class First:
    """What a job is to ask for; None = as its user did. `size`: what is said of it."""

    size: SizeSeen | None
    asks: tuple[int, int] | None
    due: datetime

    def applied(self, seen: JobSeen) -> JobSeen | None:
        """The job, asking for that; None where nothing is known."""
        if self.size is None:
            return None
        if self.asks is None:
            return replace(seen, size=self.size)
        cpus, memory = self.asks
        spec = replace(seen.job.spec, cpus=cpus, memory_bytes=memory)
        return replace(seen, job=replace(seen.job, spec=spec), size=self.size)


class Firsts:
    """One a controller. `make`: the size policy of a job; raises ConfigError."""

    def __init__(self, runs: EarlierRuns, rules: SizeRules, make: Callable[[JobSeen], Size]) -> None:
        self._runs, self._rules, self._make = runs, rules, make
        self._known: dict[JobId, First] = {}

    def keep(self, jobs: Sequence[JobSeen]) -> None:
        """Forget all others."""
        self._known = {s.job.id: self._known[s.job.id] for s in jobs if s.job.id in self._known}

    def sized(self, snapshot: Snapshot, seen: JobSeen, now: datetime) -> JobSeen | None:
        """The job with what it should begin on; None where no earlier run is known. What a policy raises goes through."""
        first = self._known.get(seen.job.id)
        if first is None or now >= first.due:
            first = self._known[seen.job.id] = self._thought(snapshot, seen, now)
        return first.applied(seen)

    def _thought(self, snapshot: Snapshot, seen: JobSeen, now: datetime) -> First:
        nothing, past = First(None, None, now + AGAIN), self._runs.of(seen.job, now, now)
        if not past:
            return nothing
        cools = {(c.pool, c.market) for c in snapshot.cooldowns if c.until > now}
        offers = [o for o in snapshot.offers if (o.pool, o.market) not in cools]
        terms = resize.first_terms(seen, offers, snapshot.limits, self._rules, pressed_at)
        if terms is None:
            return nothing
        terms = replace(terms, earlier=courses(past))
        guarded = past[-1].guarded and seen.job.spec.engine in GUARDABLE
        peaks = [p.peak_bytes for p in past]
        to = begins_on(self._make(seen), terms, peaks, guarded)
        asked, kind = terms.kinds[terms.start], terms.kinds[to]
        price = round(kind.usd_per_hour * resize.MICROS)
        size = SizeSeen("", kind.name, False, frozenset(), price, explained(seen.job, past, asked.name, kind.name))
        return First(size, None if kind is asked else _has(offers, kind.name), now + AGAIN)


def courses(past: Sequence[Past]) -> tuple[Earlier, ...]:
    """What a policy is told of them, the latest last."""
    return tuple(p.course for p in past[-COURSES:])


def explained(job: Job, past: Sequence[Past], asked: str, kind: str) -> str:
    """In one sentence, with the numbers."""
    count, most = len(past), max(p.peak_bytes for p in past) / GIB
    runs = f"{count} earlier run{'s' if count > 1 else ''} of {job.spec.name}"
    begins = f"begins on {asked}, as was asked" if kind == asked else f"begins on {kind} instead of {asked}"
    return f"{runs} used {most:.2f} GiB at most: it {begins}"


def _has(offers: Sequence[Offer], kind: str) -> tuple[int, int]:
    offer = next(o for o in offers if o.pool.instance_type == kind)
    return int(offer.cpus), offer.memory_bytes
