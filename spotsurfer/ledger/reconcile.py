"""Holds the lines of a cloud's bill against those of the ledger, and says of each difference where it comes from. Pure.

Machines, their disks and addresses are compared, by the cloud's name of the machine, else by our tags on the bill. What is not
ours (other resources of the account, other controllers) is left out; so are the store and transfer, which a bill has by bucket
and not by job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fractions import Fraction

from spotsurfer.common.units import duration
from spotsurfer.ledger.bill_files import BillLine, Charged
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.errors import InputMissing
from spotsurfer.model.money import MICROS, usd

HOURS_SHARE, HOURS_SECONDS = 0.01, 60.0  # hours differ if by more than both
PRICE_SHARE, AMOUNT_MICROS = 0.01, 1_000  # prices and amounts differ if by more than both
FAMILY, JOB, ATTEMPT = "spotsurfer_family", "spotsurfer_job", "spotsurfer_attempt"  # our tags, as bills name them
COMPARED = {
    ChargeKind.MACHINE: Charged.MACHINE,
    ChargeKind.MINIMUM: Charged.MACHINE,
    ChargeKind.GPU: Charged.MACHINE,
    ChargeKind.DISK: Charged.DISK,
    ChargeKind.ADDRESS: Charged.ADDRESS,
}
BY_USE = frozenset(COMPARED.values())
BESIDE = frozenset({Charged.TAX, Charged.CREDIT, Charged.FEE})


class Cause(StrEnum):
    """Where a difference comes from."""

    UNKNOWN = "unknown machine"  # on the bill, not in the ledger
    MISSING = "missing machine"  # in the ledger, not on the bill
    HOURS = "other hours"
    PRICE = "other price"
    AMOUNT = "other amount"  # of what has no hours on the bill
    TAX = "tax"
    CREDIT = "credit"
    FEE = "fee"
    NOT_YET = "not billed yet"


EXPECTED = frozenset({Cause.TAX, Cause.CREDIT, Cause.FEE, Cause.NOT_YET})


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `usd_micros`: the bill less the ledger."""

    cause: Cause
    resource: str
    job: str
    attempt: int | None
    usd_micros: int
    text: str
    expected: bool  # nobody has to look: taxes, credits, fees, days that the bill has not yet


@dataclass(frozen=True, slots=True)
class Reconciled:
    """bill - ledger = sum of the differences + rounding, to the micro-dollar."""

    since: datetime
    until: datetime
    billed_until: datetime  # later use is not on the bill yet
    machines: int  # compared
    bill_usd_micros: int
    ledger_usd_micros: int
    differences: Sequence[Difference]
    rounding_usd_micros: int  # of differences too small to be told
    left_out: str


@dataclass(frozen=True, slots=True)
class Sum:
    """What one side says of a machine, its disk or its address. `seconds` None = it does not say."""

    usd: Fraction  # micro-dollars
    seconds: float | None


def months(bill: Sequence[BillLine]) -> tuple[datetime, datetime]:
    """The first and the end of the last day, in UTC, of which the ledger is needed: whole months of the bill.

    Raises InputMissing for a bill without use.
    """
    used = [x for x in bill if x.what not in BESIDE]
    if not used:
        raise InputMissing("The bill has no lines of use: name the file that has them.")
    begins = min([x.begins for x in used] + [x.period[0] for x in used if x.period])
    ends = max([x.ends for x in used] + [x.period[1] for x in used if x.period])
    first = begins.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    last = (ends - timedelta(microseconds=1)).astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return first, (last + timedelta(days=32)).replace(day=1)


Key = tuple[str, Charged]  # the cloud's name of a machine, and what of it


def reconcile(bill: Sequence[BillLine], lines: Sequence[ChargeLine], family: str = "") -> Reconciled:
    """Compare a bill with the ledger's lines of its months. `family`: machines tagged with another one are not ours."""
    since, until = months(bill)
    used = [x for x in bill if x.what not in BESIDE]
    until_billed = until if all(x.final for x in used) else max(x.ends for x in used)
    ours = [x for x in lines if x.kind in COMPARED and x.resource]
    names = {(str(x.job), str(x.attempt)): x.resource for x in ours}
    known = set(names.values())
    billed: defaultdict[Key, list[BillLine]] = defaultdict(list)
    beside: list[BillLine] = []
    others = 0
    for x in bill:
        resource = _machine_of(x, known, names, family)
        if x.what in BESIDE and (resource or not x.resource):
            beside.append(x)
        elif x.what in BY_USE and resource:
            billed[resource, x.what].append(x)
        else:
            others += 1
    ledger, later = _ledger(ours, until_billed)
    found = list(_differences(billed, ledger, {x.resource: x for x in ours}))
    found += _beside(beside)
    if later:
        text = f"Use after {until_billed:%Y-%m-%d %H:%M} UTC is not on the bill yet: {usd(later)} USD in the ledger."
        found.append(Difference(Cause.NOT_YET, "", "", None, -later, text, expected=True))
    total = round(sum(Fraction(x.usd) * MICROS for some in (*billed.values(), beside) for x in some))
    mine = sum(x.usd_micros for x in ours)
    rounding = total - mine - sum(d.usd_micros for d in found)
    compared = {resource for resource, _ in {*billed, *ledger}}
    rest = sum(x.usd_micros for x in lines) - mine
    left_out = f"{others} lines of the bill that are not of our machines, {usd(rest)} USD in the ledger beside them"
    return Reconciled(since, until, until_billed, len(compared), total, mine, found, rounding, left_out)


def _machine_of(x: BillLine, known: set[str], names: Mapping[tuple[str, str], str], family: str) -> str:
    """The machine of ours to which a line belongs; "" = none of ours."""
    if x.resource in known:
        return x.resource
    if JOB not in x.tags or (family and x.tags.get(FAMILY, family) != family):
        return ""
    named = names.get((x.tags[JOB], x.tags.get(ATTEMPT, "")))
    return named if named and x.what is not Charged.MACHINE else x.resource


def _ledger(lines: Sequence[ChargeLine], billed_until: datetime) -> tuple[dict[Key, Sum], int]:
    """Both of the time that is billed, and the micro-dollars after it. A line across its end is divided by time."""
    found: dict[Key, Sum] = {}
    later = 0
    for x in lines:
        share = Fraction(1)
        if x.ends > billed_until:
            whole = max((x.ends - x.begins) // timedelta(microseconds=1), 1)
            share = Fraction(max((billed_until - x.begins) // timedelta(microseconds=1), 0), whole)
        now = round(x.usd_micros * share)
        later += x.usd_micros - now
        if not share:
            continue
        key = x.resource, COMPARED[x.kind]
        before = found.get(key, Sum(Fraction(0), 0.0))
        timed = x.kind in (ChargeKind.MACHINE, ChargeKind.MINIMUM)
        found[key] = Sum(before.usd + now, (before.seconds or 0.0) + (x.quantity * float(share) if timed else 0.0))
    return found, later


def _differences(
    billed: Mapping[Key, Sequence[BillLine]], ledger: Mapping[Key, Sum], lines: Mapping[str, ChargeLine]
) -> Iterator[Difference]:
    for key in sorted({*billed, *ledger}):
        resource, what = key
        some = billed.get(key, ())
        amount = sum((Fraction(x.usd) * MICROS for x in some), Fraction(0))
        theirs = Sum(amount, _seconds(some)) if some else None
        mine, line = ledger.get(key), lines.get(resource)
        job = str(line.job) if line else next((x.tags.get(JOB, "") for x in some), "")
        attempt = line.attempt if line else None
        name = {Charged.MACHINE: resource, Charged.DISK: f"The disk of {resource}"}.get(what, f"The address of {resource}")
        who = f"{name} ({job}, machine {attempt})" if job else name
        for cause, micros, text in _compared(what, name, who, theirs, mine, known=line is not None):
            yield Difference(cause, resource, job, attempt, micros, text, expected=False)


def _seconds(lines: Sequence[BillLine]) -> float | None:
    told = [x.seconds for x in lines if x.seconds is not None]
    return sum(told) if told else None


def _compared(
    what: Charged, name: str, who: str, theirs: Sum | None, mine: Sum | None, *, known: bool
) -> Iterator[tuple[Cause, int, str]]:
    """`known`: the machine is in the ledger, though this of it may not be."""
    on_bill = round(theirs.usd) if theirs else 0
    in_ledger = round(mine.usd) if mine else 0
    if theirs is None:
        if in_ledger > AMOUNT_MICROS or what is Charged.MACHINE:
            why = "and the bill lacks it: is this the bill of its account and region?"
            yield Cause.MISSING, -in_ledger, f"{who} costs {usd(in_ledger)} USD in the ledger, {why}"
    elif mine is None and what is Charged.MACHINE and not known:
        hours = f" for {duration(theirs.seconds)}" if theirs.seconds is not None else ""
        why = "and the ledger knows no such machine: see if it still runs."
        yield Cause.UNKNOWN, on_bill, f"{name} is on the bill with {usd(on_bill)} USD{hours}, {why}"
    elif mine is not None and what is Charged.MACHINE and theirs.seconds and mine.seconds:
        yield from _by_hours(who, theirs.seconds, on_bill, mine.seconds, in_ledger)
    elif abs(on_bill - in_ledger) > max(AMOUNT_MICROS, PRICE_SHARE * in_ledger):
        why = "the bill tells no hours." if mine else "it has no price there."
        text = f"{who} costs {usd(on_bill)} USD on the bill and {usd(in_ledger)} USD in the ledger: {why}"
        yield Cause.AMOUNT, on_bill - in_ledger, text


def _by_hours(who: str, billed: float, on_bill: int, known: float, in_ledger: int) -> Iterator[tuple[Cause, int, str]]:
    """The difference of hours at the ledger's price, and the rest: that of prices at the bill's hours."""
    of_hours = round((billed - known) * in_ledger / known)
    of_price = on_bill - in_ledger - of_hours
    other_hours = abs(billed - known) > max(HOURS_SECONDS, HOURS_SHARE * known)
    other_price = abs(of_price) > max(AMOUNT_MICROS, PRICE_SHARE * in_ledger)
    if other_hours:
        more = f"{usd(of_hours)} USD at the ledger's price"
        text = f"{who} ran {duration(billed)} by the bill and {duration(known)} by the ledger: {more}."
        yield Cause.HOURS, of_hours, text
    if other_price:
        here, there = (usd(round(micros * 3600 / seconds)) for micros, seconds in ((in_ledger, known), (on_bill, billed)))
        yield Cause.PRICE, of_price, f"{who} costs {there} USD an hour on the bill and {here} USD in the ledger."


def _beside(lines: Sequence[BillLine]) -> Iterator[Difference]:
    """Taxes, credits and fees, added up by what they are for; of those of our machines, and those of the whole account."""
    sums: defaultdict[tuple[Charged, bool, str], Fraction] = defaultdict(Fraction)
    for x in lines:
        sums[x.what, bool(x.resource), x.description if x.what is not Charged.TAX else ""] += Fraction(x.usd) * MICROS
    for (what, of_ours, description), amount in sorted(sums.items()):
        micros = round(amount)
        if micros:
            whose = "our machines" if of_ours else "the whole account"
            told = f" ({description})" if description else ""
            text = f"{str(what).capitalize()} of {usd(micros)} USD for {whose}{told}: the ledger has none."
            yield Difference(Cause(str(what)), "", "", None, micros, text, expected=True)
