"""What the same work would have cost otherwise, and why the difference. Pure.

All is reckoned for one job and the lines of its machines within a period: T = paid seconds, U = of these the seconds of work
that was kept, B = seconds in which its first machine booted and waited, I = seconds in which it was suspended because it was
idle, r = list price of the machine that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from spotsurfer.ledger.time_by_use import JobFacts, Stretch, lost_seconds, uses_within
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.cost_report import Saving, Use
from spotsurfer.model.market import Market, Offer
from spotsurfer.model.money import for_seconds

PRICED_BY_HOUR = frozenset({ChargeKind.MACHINE, ChargeKind.MINIMUM})


@dataclass(frozen=True, slots=True)
class Reckoned:
    """One job. `lasting` None: no use was recorded, or no offer would have lasted."""

    on_demand: int
    savings: Mapping[Saving, int]
    lasting: int | None
    lasting_type: str
    without_moves: int
    kept_seconds: float  # work that a restart from zero would have repeated, and we did not


def reckon(
    facts: JobFacts, lines: Sequence[ChargeLine], lives: Mapping[tuple[str, int], Sequence[Stretch]], offers: Sequence[Offer]
) -> Reckoned:
    """A job without its rehearsals, and all its lines, those of its rehearsals included.

    on demand = r * (U + B + I), and GPUs that are billed apart at their list price. Disks, addresses, transfer and the store
    are not in it, though such a machine would have some of these, too: the saving is rather too small.
    r is the list price of the first machine ordered: the best offer that fitted what the job asked for when it was planned.
    """
    timed = [x for x in lines if x.kind in PRICED_BY_HOUR]
    gpus = [x for x in lines if x.kind is ChargeKind.GPU]
    r = facts.attempts[0].attempt.list_price_usd_micros_per_hour if facts.attempts else 0
    paid = sum(x.quantity for x in timed)
    one = _seconds(facts, lines, lives, Use.WORK) + _first_boot(facts, lines, lives)
    idle = facts.idle_seconds
    gpu_list = sum(x.usd_micros_on_demand for x in gpus)
    on_demand = for_seconds(r, one + idle) + gpu_list
    returned = _after_on_demand(facts)
    spot = {True: 0, False: 0}
    for x in (*timed, *gpus):
        spot[x.job == facts.job.id and (x.attempt or 0) in returned] += x.usd_micros_on_demand - x.usd_micros
    savings = {
        Saving.SPOT: spot[False],
        Saving.RETURN_TO_SPOT: spot[True],
        Saving.SIZE: for_seconds(r, paid) - sum(x.usd_micros_on_demand for x in timed),
        Saving.IDLE: for_seconds(r, one + idle) - for_seconds(r, one),
        Saving.OVERHEAD: for_seconds(r, one) - for_seconds(r, paid),
        Saving.OTHERS: -sum(x.usd_micros for x in lines if x.kind not in PRICED_BY_HOUR and x.kind is not ChargeKind.GPU),
    }
    best = lasting_offer(facts, offers)
    lasting = for_seconds(best.price_usd_micros_per_hour, one + idle) if best is not None else None
    without, kept = without_moves(facts, lines, lives)
    return Reckoned(on_demand, savings, lasting, str(best.pool) if best else "", without, kept)


def lasting_offer(facts: JobFacts, offers: Sequence[Offer]) -> Offer | None:
    """The cheapest on-demand offer of today that would have lasted: memory and processors of the highest use seen.

    Of a window of samples its mean use of processors counts, not that of one second.
    """
    if not facts.peak_memory_bytes:
        return None
    spec, cpus = facts.job.spec, max(1, ceil(facts.peak_cpus))
    fit = [
        o
        for o in offers
        if o.market is Market.ON_DEMAND
        and o.memory_bytes >= facts.peak_memory_bytes
        and o.cpus >= cpus
        and o.gpus.count >= spec.gpus
    ]
    return min(fit, key=lambda o: (o.price_usd_micros_per_hour, o.pool), default=None)


def without_moves(
    facts: JobFacts, lines: Sequence[ChargeLine], lives: Mapping[tuple[str, int], Sequence[Stretch]]
) -> tuple[int, float]:
    """Spot without us: the job begins anew whenever a machine was reclaimed or lost. Micro-dollars, and seconds of work kept.

    Its machines live as ours did; those between which it only moved count as one. On each life the job runs as long as ours
    worked there; if that is U or more, it is done there. After the last reclaim it needs all of U, at the mean price of the
    last life. Kept = the work of lives that ended in a reclaim, less what we repeated.
    """
    needed = _seconds(facts, lines, lives, Use.WORK)
    total, wasted, repeated = 0, 0.0, 0.0
    found = list(_tenancies(facts, lines, lives))
    for last, (worked, again, paid, micros, lost) in ((i == len(found) - 1, x) for i, x in enumerate(found)):
        ran = worked + again
        repeated += again
        if not lost or last or ran >= needed:
            rate = micros / paid if paid else 0.0
            total += ceil(rate * (paid - ran + needed)) if paid else 0
            break
        total += micros
        wasted += ran
    return total, max(wasted - repeated, 0.0)


def _tenancies(
    facts: JobFacts, lines: Sequence[ChargeLine], lives: Mapping[tuple[str, int], Sequence[Stretch]]
) -> Iterator[tuple[float, float, float, int, bool]]:
    """Machines up to each loss: seconds of work, of work repeated, paid seconds, price, whether the end was a loss."""
    gone = lost_seconds(facts)
    worked = again = paid = 0.0
    micros, any_of_it = 0, False
    for a in facts.attempts:
        mine = [x for x in lines if x.job == facts.job.id and x.attempt == a.attempt.number and x.kind in PRICED_BY_HOUR]
        if not mine or not a.has_held:
            continue
        worked += _seconds(facts, mine, lives, Use.WORK)
        again += _seconds(facts, mine, lives, Use.REPEATED)
        paid += sum(x.quantity for x in mine)
        micros += sum(x.usd_micros for x in mine)
        any_of_it = True
        if (a.attempt.reclaimed and a.agent_state != "finished") or int(a.attempt.number) in gone:
            yield worked, again, paid, micros, True
            worked = again = paid = 0.0
            micros, any_of_it = 0, False
    if any_of_it:
        yield worked, again, paid, micros, False


def _after_on_demand(facts: JobFacts) -> frozenset[int]:
    """Spot machines that the job had after one on demand."""
    found, was = set(), False
    for a in facts.attempts:
        if was and a.attempt.market is Market.SPOT:
            found.add(int(a.attempt.number))
        was = was or (a.has_held and a.attempt.market is Market.ON_DEMAND)
    return frozenset(found)


def _seconds(
    facts: JobFacts, lines: Sequence[ChargeLine], lives: Mapping[tuple[str, int], Sequence[Stretch]], use: Use
) -> float:
    mine = (x for x in lines if x.kind is ChargeKind.MACHINE and x.job == facts.job.id)
    return float(sum(uses_within(lives.get((str(x.job), x.attempt or 0), ()), x.begins, x.ends).get(use, 0) for x in mine))


def _first_boot(facts: JobFacts, lines: Sequence[ChargeLine], lives: Mapping[tuple[str, int], Sequence[Stretch]]) -> float:
    first = next((a.attempt.number for a in facts.attempts if a.has_held), None)
    return _seconds(facts, [x for x in lines if x.attempt == first], lives, Use.WAITING)
