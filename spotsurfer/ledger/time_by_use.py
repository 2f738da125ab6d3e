"""The paid time of a job's machines by use: work, or one kind of waste. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise

from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.cost_report import Amount, Use
from spotsurfer.model.job import OVER, Attempt, Job, rehearses

KEPT_ALL = ("keeping", "drained", "finished")  # last report of an agent if nothing is lost with its machine
MACHINE_KINDS = frozenset({ChargeKind.MACHINE, ChargeKind.MINIMUM, ChargeKind.GPU})


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """An attempt with the last words of its agent. Seconds."""

    attempt: Attempt
    agent_state: str = ""
    frozen_seconds: float = 0.0  # by its saves, in all
    restore_seconds: float = 0.0
    unsaved_seconds: float = 0.0  # work since the newest durable checkpoint

    @property
    def has_held(self) -> bool:
        """Whether the job was ever on it."""
        return self.attempt.granted_at is not None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job with its attempts, oldest first. `idle_seconds`: suspended for want of work, in the period."""

    job: Job
    attempts: Sequence[AttemptFacts]
    idle_seconds: float = 0.0
    peak_memory_bytes: int = 0  # that it used ever; 0 = not known
    peak_cpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a machine's life. `frozen`: the share of it in which the job stood still to be saved."""

    use: Use
    begins: datetime
    ends: datetime
    frozen: Fraction = Fraction(0)


def lost_seconds(facts: JobFacts) -> dict[int, float]:
    """Work that was lost with a machine and had to be repeated, by attempt, by the last report of each machine.

    An attempt that ended neither drained nor finished loses its work since its newest durable checkpoint; a later attempt that
    went on repeated that work. So does one that was drained in an unprotected step, before its first checkpoint.
    """
    nothing = facts.job.spec.engine == "none"  # drained without saving
    held = [a for a in facts.attempts if a.has_held]
    lost = {}
    for a, after in pairwise(held):
        again = a.agent_state == "drained" and after.attempt.from_checkpoint is None
        if nothing or a.agent_state not in KEPT_ALL or again:
            lost[int(a.attempt.number)] = a.unsaved_seconds
    return lost


def stretches(facts: JobFacts, now: datetime) -> dict[int, list[Stretch]]:
    """The life of each machine from launch to end, by attempt.

    The newest attempt that was granted the job has it. Before its grant a machine waits, or overlaps with the one that has the
    job; after the next one's grant it overlaps. In between come the restore, work (with its saves, evenly spread), and at the
    end the work that was lost.
    """
    held = sorted((a for a in facts.attempts if a.attempt.granted_at), key=lambda a: (a.attempt.granted_at, a.attempt.number))
    tenures: list[tuple[int, datetime, datetime]] = []
    for i, a in enumerate(held):
        grant = a.attempt.granted_at
        assert grant is not None
        ends = _end(a.attempt, now)
        if i + 1 < len(held):
            later = held[i + 1].attempt.granted_at
            assert later is not None
            ends = min(ends, later)
        tenures.append((int(a.attempt.number), grant, max(ends, grant)))
    lost = lost_seconds(facts)
    return {int(a.attempt.number): list(_life(facts, a, tenures, lost, now)) for a in facts.attempts if a.attempt.launched_at}


def _end(a: Attempt, now: datetime) -> datetime:
    return a.released_at if a.state in OVER and a.released_at else now


def _life(
    job: JobFacts,
    facts: AttemptFacts,
    tenures: Sequence[tuple[int, datetime, datetime]],
    lost: Mapping[int, float],
    now: datetime,
) -> Iterator[Stretch]:
    a = facts.attempt
    assert a.launched_at is not None
    begins, ends, number = a.launched_at, max(_end(a, now), a.launched_at), int(a.number)
    if rehearses(job.job):
        yield Stretch(Use.REHEARSAL, begins, ends)
        return
    mine = next(((max(b, begins), min(e, ends)) for n, b, e in tenures if n == number), (ends, ends))
    others = [(b, e) for n, b, e in tenures if n != number]
    yield from _beside(begins, min(mine[0], ends), others)
    if mine[0] < mine[1]:
        yield from _tenure(facts, mine[0], mine[1], lost.get(number, 0.0))
    yield from _beside(max(mine[1], mine[0]), ends, others)


def _beside(begins: datetime, ends: datetime, others: Sequence[tuple[datetime, datetime]]) -> Iterator[Stretch]:
    """Time in which this machine does not have the job: another one has it, or none."""
    at = begins
    for b, e in sorted(others):
        b, e = max(b, at), min(e, ends)
        if b >= e:
            continue
        if at < b:
            yield Stretch(Use.WAITING, at, b)
        yield Stretch(Use.OVERLAP, b, e)
        at = e
    if at < ends:
        yield Stretch(Use.WAITING, at, ends)


def _tenure(facts: AttemptFacts, begins: datetime, ends: datetime, lost: float) -> Iterator[Stretch]:
    runs = min(begins + timedelta(seconds=facts.restore_seconds), ends)
    if begins < runs:
        yield Stretch(Use.RESTORE, begins, runs)
    safe = max(ends - timedelta(seconds=lost), runs)
    if runs < safe:
        whole = Fraction((safe - runs) / timedelta(seconds=1))
        yield Stretch(Use.WORK, runs, safe, min(Fraction(facts.frozen_seconds) / whole, Fraction(1)))
    if safe < ends:
        yield Stretch(Use.REPEATED, safe, ends)


def by_use(lines: Sequence[ChargeLine], lives: Mapping[tuple[str, int], Sequence[Stretch]]) -> list[Amount]:
    """The lines of machines (MACHINE, MINIMUM, GPU) by use; they add up to the lines' sum exactly.

    A line's amount is split by the seconds of each use within it, the last micro-dollars to the largest remainders. A line of a
    machine of which nothing is known counts as work. `lives`: by job and attempt.
    """
    seconds: defaultdict[Use, float] = defaultdict(float)
    micros: defaultdict[Use, int] = defaultdict(int)
    for line in lines:
        if line.kind is ChargeKind.MINIMUM:
            micros[Use.MINIMUM] += line.usd_micros
            seconds[Use.MINIMUM] += line.quantity
        elif line.kind in (ChargeKind.MACHINE, ChargeKind.GPU):
            shares = uses_within(lives.get((str(line.job), line.attempt or 0), ()), line.begins, line.ends)
            for use, amount in split(line.usd_micros, shares or {Use.WORK: Fraction(1)}).items():
                micros[use] += amount
            if line.kind is ChargeKind.MACHINE:
                whole = sum(shares.values())
                for use, share in shares.items() or {Use.WORK: Fraction(1)}.items():
                    seconds[use] += line.quantity * float(share / whole) if whole else line.quantity
    return [Amount(use, seconds[use], micros[use]) for use in Use if micros[use] or seconds[use]]


def uses_within(life: Sequence[Stretch], begins: datetime, ends: datetime) -> dict[Use, Fraction]:
    """Seconds of each use between two moments."""
    found: defaultdict[Use, Fraction] = defaultdict(Fraction)
    for s in life:
        within = min(s.ends, ends) - max(s.begins, begins)
        if within > timedelta():
            seconds = Fraction(within // timedelta(microseconds=1), 1_000_000)
            found[Use.FREEZE] += seconds * s.frozen
            found[s.use] += seconds * (1 - s.frozen)
    return {use: seconds for use, seconds in found.items() if seconds}


def split(micros: int, shares: Mapping[Use, Fraction]) -> dict[Use, int]:
    """An amount in integer parts by shares, the rest to the largest remainders: the parts add up to it exactly."""
    whole = sum(shares.values())
    exact = {use: micros * share / whole for use, share in shares.items()}
    parts = {use: part.numerator // part.denominator for use, part in exact.items()}
    order = sorted(exact, key=lambda use: (parts[use] - exact[use], list(Use).index(use)))
    for use in order[: micros - sum(parts.values())]:
        parts[use] += 1
    return parts
