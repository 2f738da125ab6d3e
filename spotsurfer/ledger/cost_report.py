"""The cost report, from the lines of the bill and what is known of the jobs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil

from spotsurfer.ledger.alternatives import Reckoned, reckon
from spotsurfer.ledger.time_by_use import MACHINE_KINDS, JobFacts, by_use, lost_seconds, stretches
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.cost_report import (
    Alternative,
    Amount,
    CostReport,
    Group,
    JobLabels,
    MachineCost,
    MonthForecast,
    Saved,
    Saving,
    Use,
)
from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import OVER, JobId, rehearses
from spotsurfer.model.market import Offer
from spotsurfer.ports.service import Moment

NOBODY = "-"  # the group of lines without that label
RUNS_ON = frozenset(set(ChargeKind) - {ChargeKind.MINIMUM, ChargeKind.TRANSFER, ChargeKind.REQUESTS})  # paid by the hour
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Period:
    """Whole UTC days from that of `since` on that begin before `until`. None = no limit."""

    since: datetime | None
    until: datetime | None
    now: datetime


def cost_report(
    lines: Sequence[ChargeLine],
    facts: Sequence[JobFacts],
    period: Period,
    *,
    offers: Sequence[Offer] = (),
    by: str = "",
    month: Sequence[ChargeLine] | None = None,
) -> CostReport:
    """The report on these lines, which are those of the period. `facts`: of all their jobs, rehearsals included.

    `month`: all lines of this month, whatever the period is, to foretell it; None = it is not foretold.
    """
    now = period.now
    known = {f.job.id: f for f in facts}
    lives = {(str(f.job.id), n): life for f in facts for n, life in stretches(f, now).items()}
    paying: dict[JobId, list[ChargeLine]] = {}
    for line in lines:
        if (payer := line.payer or line.job) is not None and payer in known:
            paying.setdefault(payer, []).append(line)
    reckoned = {job: reckon(known[job], mine, lives, offers) for job, mine in paying.items()}
    spent = sum(x.usd_micros for x in lines)
    uses = by_use(lines, lives)
    within = {(x.job, x.attempt) for x in lines if x.attempt is not None}
    seen = [(f, a) for f in facts for a in f.attempts if (f.job.id, a.attempt.number) in within]
    lost = sum(s for f in facts for n, s in lost_seconds(f).items() if (f.job.id, n) in within)
    return CostReport(
        since=period.since,
        until=period.until,
        at=now,
        usd_micros=spent,
        usd_micros_on_demand=sum(x.usd_micros_on_demand for x in lines),
        kinds=_sums((x.kind, x.usd_micros) for x in lines),
        uses=uses,
        savings=_savings(reckoned, lines, set(known)),
        alternatives=_alternatives(reckoned, uses, known),
        kept_seconds=sum(r.kept_seconds for r in reckoned.values()),
        repeated_seconds=lost,
        frozen_seconds=sum(a.frozen_seconds for _, a in seen),
        moves=sum(1 for f, a in seen if a.has_held and a.attempt.from_checkpoint is not None and not rehearses(f.job)),
        pause_seconds=sum(a.attempt.pause_seconds or 0.0 for _, a in seen),
        attempts=_machines(lines, known),
        labels=[labels(known[job]) for job in paying],
        groups=grouped(lines, known, by) if by else (),
        forecast=forecast(month, now) if month is not None else None,
    )


def labels(facts: JobFacts) -> JobLabels:
    """By what a job's cost can be added up."""
    spec = facts.job.spec
    return JobLabels(facts.job.id, spec.name, facts.job.owner, spec.user or "", spec.project, spec.tags)


def _sums(pairs: Iterable[tuple[ChargeKind, int]]) -> dict[ChargeKind, int]:
    found: defaultdict[ChargeKind, int] = defaultdict(int)
    for kind, micros in pairs:
        found[kind] += micros
    return dict(found)


def _savings(reckoned: Mapping[JobId, Reckoned], lines: Sequence[ChargeLine], known: set[JobId]) -> list[Saved]:
    """Of all jobs; what is no job's own is a cost beside machines."""
    total = {cause: sum(r.savings[cause] for r in reckoned.values()) for cause in Saving}
    total[Saving.OTHERS] -= sum(x.usd_micros for x in lines if (x.payer or x.job) not in known)
    return [Saved(cause, micros) for cause, micros in total.items()]


def _alternatives(
    reckoned: Mapping[JobId, Reckoned], uses: Sequence[Amount], known: Mapping[JobId, JobFacts]
) -> list[Alternative]:
    work = sum(a.seconds for a in uses if a.use is Use.WORK) / 3600
    idle = sum(known[job].idle_seconds for job in reckoned) / 3600
    hours = f"{work:.2f} h of work, the first boot of each job" + (
        f" and {idle:.2f} h in which jobs were suspended" if idle else ""
    )
    unknown = [str(job) for job, r in reckoned.items() if r.lasting is None and r.on_demand]
    types = sorted({r.lasting_type for r in reckoned.values() if r.lasting_type})
    if unknown:
        lasting = Alternative(
            "lasting type", None, f"not known of {', '.join(sorted(unknown)[:3])}: no use was recorded, or no type fits"
        )
    else:
        total = sum(r.lasting or 0 for r in reckoned.values())
        lasting = Alternative(
            "lasting type",
            total,
            f"the cheapest type on demand that has the highest use seen ({', '.join(types) or 'none'}), for {hours}",
        )
    demand = sum(r.on_demand for r in reckoned.values())
    again = sum(r.without_moves for r in reckoned.values())
    return [
        Alternative("on demand", demand, f"list price of the first machine ordered of each job, for {hours}; machines alone"),
        lasting,
        Alternative(
            "spot without moves", again, "the same machines at the same prices, each job anew after each machine that was taken"
        ),
    ]


# ---- Machines and groups


def _machines(lines: Sequence[ChargeLine], known: Mapping[JobId, JobFacts]) -> list[MachineCost]:
    """A line for each machine, the oldest first."""
    mine: dict[tuple[JobId, int], list[ChargeLine]] = {}
    for x in lines:
        if x.job is not None and x.attempt is not None and x.job in known:
            mine.setdefault((x.job, x.attempt), []).append(x)
    found = []
    for (job, number), some in mine.items():
        facts = known[job]
        a = next((a.attempt for a in facts.attempts if a.attempt.number == number), None)
        if a is None or a.launched_at is None:
            continue
        payer = known.get(some[0].payer or job, facts)
        rehearsal = "a rehearsal: " if rehearses(facts.job) else ""
        told = labels(payer)
        found.append(
            MachineCost(
                *(told.job, number, str(a.pool), a.market, a.instance or ""),
                began_at=a.launched_at,
                ended_at=a.released_at if a.state in OVER else None,
                seconds=sum(x.quantity for x in some if x.kind is ChargeKind.MACHINE),
                usd_micros=sum(x.usd_micros for x in some),
                usd_micros_on_demand=sum(x.usd_micros_on_demand for x in some if x.kind in MACHINE_KINDS),
                ended=rehearsal + (a.reason if a.state in OVER else str(a.state)),
                name=told.name,
                owner=told.owner,
                run_as=told.run_as,
                project=told.project,
                tags=told.tags,
            )
        )
    return sorted(found, key=lambda m: (m.began_at, m.job, m.attempt))


Key = Callable[[ChargeLine, JobLabels | None], str]
BY: dict[str, Key] = {
    "user": lambda _, job: job.owner if job else "",
    "owner": lambda _, job: job.owner if job else "",
    "run-as": lambda _, job: job.run_as if job else "",
    "project": lambda _, job: job.project if job else "",
    "name": lambda _, job: job.name if job else "",
    "job": lambda _, job: job.job if job else "",
    "month": lambda line, _: f"{line.begins.astimezone(UTC):%Y-%m}",
    "day": lambda line, _: f"{line.begins.astimezone(UTC):%Y-%m-%d}",
    "type": lambda line, _: line.instance_type,
    "market": lambda line, _: str(line.market or ""),
    "provider": lambda line, _: line.provider,
    "region": lambda line, _: line.region,
    "kind": lambda line, _: str(line.kind),
}
BY_TEXT = f"{', '.join(BY)} or tag:NAME"


def key_of(by: str) -> Key:
    """How lines are grouped. Raises UsageError with what there is."""
    kind, _, tag = by.partition(":")
    if kind == "tag" and tag:
        return lambda _, job: job.tags.get(tag, "") if job else ""
    if by not in BY:
        raise UsageError(f"--by is {by!r}, expected {BY_TEXT}.")
    return BY[by]


def grouped(lines: Sequence[ChargeLine], known: Mapping[JobId, JobFacts], by: str) -> list[Group]:
    """Lines added up, the most expensive group first. Raises UsageError."""
    key, groups = key_of(by), defaultdict[str, list[ChargeLine]](list)
    told = {job: labels(facts) for job, facts in known.items()}
    for line in lines:
        groups[key(line, told.get(line.payer or line.job or JobId(""))) or NOBODY].append(line)
    found = [
        Group(
            name,
            machines=len({x.resource or (x.job, x.attempt) for x in some if x.kind is ChargeKind.MACHINE}),
            seconds=sum(x.quantity for x in some if x.kind is ChargeKind.MACHINE),
            usd_micros=sum(x.usd_micros for x in some),
            usd_micros_on_demand=sum(x.usd_micros_on_demand for x in some),
        )
        for name, some in groups.items()
    ]
    return sorted(found, key=lambda g: (-g.usd_micros, g.group))


# ---- Forecast and idle time


def forecast(lines: Sequence[ChargeLine], now: datetime) -> MonthForecast:
    """What this month (UTC) will come to: spent so far + rate of what costs money now * hours until the month's end.

    The rate is the sum over lines that are still growing, so end `now`, of their price today divided by their time today. So it
    says what comes if nothing starts and nothing ends; transfer and requests are not in the rate.
    """
    begins = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ends = (begins + timedelta(days=32)).replace(day=1)
    spent = sum(x.usd_micros for x in lines if begins <= x.begins < ends)
    growing = [x for x in lines if x.kind in RUNS_ON and x.begins < x.ends == now]
    rate = ceil(sum(x.usd_micros / ((x.ends - x.begins) / HOUR) for x in growing))
    left = (ends - now) / HOUR
    return MonthForecast(f"{begins:%Y-%m}", spent, rate, left, spent + ceil(rate * left))


def idle_seconds(moments: Sequence[Moment], period: Period) -> float:
    """How long a job was suspended for want of work within the period, from its timeline.

    It begins when the job is held after the controller's wish to hold it because it is idle, and ends when it goes on.
    """
    total, wished, since = timedelta(), False, None
    for m in moments:
        if m.kind == "wish" and m.data.get("wish"):
            wished = m.data.get("held_by") == "idle"
        elif m.kind == "ended" and (state := m.data.get("state")):
            if state == "held" and wished:
                since, wished = m.at, False
            elif state != "held" and since is not None:
                total += within(since, m.at, period)
                since = None
    return (total + (within(since, period.now, period) if since else timedelta())).total_seconds()


def within(begins: datetime, ends: datetime, period: Period) -> timedelta:
    """The part of a time that is in the period."""
    first, last = day_of(period.since) if period.since else begins, ends
    if period.until is not None:
        day = day_of(period.until)
        last = day if day == period.until else day + timedelta(days=1)
    return max(min(ends, last) - max(begins, first), timedelta())


def day_of(at: datetime) -> datetime:
    """The beginning of its day in UTC."""
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
