"""From facts and rules to the lines of a bill. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from spotsurfer.ledger import shares
from spotsurfer.ledger.charge import DAY, MICROSECOND, Charge, Part, day_of
from spotsurfer.ledger.facts import Counts, Facts, MachineFacts, Rules, StoredFacts
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.job import OVER
from spotsurfer.model.machine import GONE
from spotsurfer.model.market import Market
from spotsurfer.model.prices import ALWAYS, GIB, HOUR_SECONDS, PRICED_QUANTITY, Place, PriceSpan, Thing, listed, spans

FREE_SECONDS = 3600  # of a machine that its cloud takes back in its first hour, if that is free


def lines(facts: Facts, rules: Rules, now: datetime) -> list[ChargeLine]:
    """The bill up to `now`, by time; facts may come in any order."""
    found = [line for charge in charges(facts, rules, now) for line in charge.lines()]
    return sorted(found, key=lambda x: (x.begins, x.job or "", x.attempt or 0, x.kind, x.detail, x.resource))


def charges(facts: Facts, rules: Rules, now: datetime) -> Iterator[Charge]:
    """What there is to pay, undivided."""
    for machine in facts.machines:
        yield from of_machine(machine, rules, now)
    for stored in facts.stored:
        yield from of_stored(stored, rules, now)
    yield from of_nobody(facts, rules, now)


# ---- What is charged


def of_machine(facts: MachineFacts, rules: Rules, now: datetime) -> Iterator[Charge]:
    """An attempt's machine and all that goes with it, up to its end or `now`; nothing for one that was never launched."""
    a, launched = facts.attempt, facts.attempt.launched_at
    if launched is None:
        return
    end = max(launched, a.released_at if a.state in OVER and a.released_at else now)
    if facts.shared is None:
        yield from _of_life(facts, rules, launched, end)
    else:
        m, born = facts.shared, facts.shared.launched_at or launched
        died = max(born, m.released_at if m.state in GONE and m.released_at else now)
        yield from (shares.share(whole, facts.own, facts.stays) for whole in _of_life(facts, rules, born, died))
    yield from _counted(facts, rules, launched, end)


def _of_life(facts: MachineFacts, rules: Rules, launched: datetime, end: datetime) -> Iterator[Charge]:
    """A whole machine and what it rents, from its launch to its end."""
    a = facts.attempt
    rule = rules.billing(a.pool.provider, launched)
    billed_until = max(end, launched + timedelta(seconds=rule.minimum_seconds))
    early = end - launched < timedelta(seconds=FREE_SECONDS)
    free = facts.shared is None and a.reclaimed and rule.reclaimed_first_hour_free and early and a.market is Market.SPOT
    says = _of_attempt(facts, "free" if free else "")
    use, rest, whole = (launched, end), (end, billed_until), (launched, billed_until)
    kinds = (ChargeKind.MACHINE, use), (ChargeKind.MINIMUM, rest)
    yield Charge(says, [p for kind, time in kinds for p in _used(facts, kind, time, rules, free=free)])
    yield from _lasting(ChargeKind.GPU, says, Fraction(a.gpus), whole, rules, free=free)
    says = _of_attempt(facts)
    yield from _lasting(ChargeKind.DISK, says, Fraction(a.disk_bytes, GIB), use, rules)
    yield from _lasting(ChargeKind.ADDRESS, says, Fraction(a.public_address), use, rules)


def of_stored(facts: StoredFacts, rules: Rules, now: datetime) -> Iterator[Charge]:
    """What a job keeps in the store."""
    store = rules.tariff.store
    says = _says(job=facts.job, payer=facts.payer, provider=store.provider, region=store.region)
    levels = sorted(facts.levels)
    ends = [*(min(at, now) for at, _ in levels[1:]), now]
    parts: list[Part] = []
    for (at, size), until in zip(levels, ends, strict=True):
        for charge in _lasting(ChargeKind.STORED, says, Fraction(size, GIB), (at, until), rules):
            parts += charge.parts
    if parts:
        yield Charge(says, parts)


def of_nobody(facts: Facts, rules: Rules, now: datetime) -> Iterator[Charge]:
    """What is no job's own: images that are kept, and the controller's host."""
    for image in facts.images:
        says = _says(provider=image.provider, region=image.region, resource=image.name)
        time = image.begins, min(image.until or now, now)
        yield from _lasting(ChargeKind.IMAGE, says, Fraction(image.gib), time, rules)
    if facts.controller_since is not None:
        yield from _lasting(ChargeKind.CONTROLLER, _says(), Fraction(1), (facts.controller_since, now), rules)


# ---- Parts


def _used(
    facts: MachineFacts, kind: ChargeKind, time: tuple[datetime, datetime], rules: Rules, *, free: bool
) -> Iterator[Part]:
    """A machine at the price of each second."""
    a = facts.attempt
    launched = facts.shared.launched_at if facts.shared is not None else a.launched_at
    assert launched is not None
    steps = [(launched, a.price_usd_micros_per_hour), *((max(at, launched), p) for at, p in sorted(facts.steps))]
    thing = Thing(ChargeKind.MACHINE, a.pool.provider, a.pool.region, a.pool.instance_type, a.market)
    for span in spans(thing, steps, rules.overrides, *time):
        seconds = Fraction((span.ends - span.begins) // MICROSECOND, 1_000_000)
        price = Fraction(0) if free else span.price
        on_demand = seconds * a.list_price_usd_micros_per_hour / HOUR_SECONDS
        yield Part(kind, span.begins, span.ends, seconds, seconds * price / HOUR_SECONDS, on_demand)


def _lasting(
    kind: ChargeKind, says: ChargeLine, amount: Fraction, time: tuple[datetime, datetime], rules: Rules, *, free: bool = False
) -> Iterator[Charge]:
    """So much of something for a time; nothing is said of what has no price."""
    thing = Thing(kind, says.provider, says.region, says.instance_type, says.market)
    parts = []
    for span, on_demand in _priced(thing, time, rules):
        quantity = amount * ((span.ends - span.begins) // MICROSECOND) / 1_000_000
        if quantity and (span.price or on_demand):
            share = quantity / PRICED_QUANTITY[kind]
            micros = Fraction(0) if free else share * span.price
            parts.append(Part(kind, span.begins, span.ends, quantity, micros, share * on_demand))
    if parts:
        yield Charge(says, parts)


def _priced(thing: Thing, time: tuple[datetime, datetime], rules: Rules) -> Iterator[tuple[PriceSpan, Fraction]]:
    """The prices of a thing, and beside each the one that it has with a machine on demand."""
    steps = listed(rules.prices.get(thing.provider, ()), thing)
    if thing.kind is ChargeKind.CONTROLLER:
        steps = [(ALWAYS, rules.controller_usd_micros_per_hour)]
    bought = replace(thing, market=Market.ON_DEMAND)
    usual = listed(rules.prices.get(thing.provider, ()), bought)
    own = () if thing.kind is ChargeKind.GPU else rules.overrides  # on demand, a machine counts at its list price
    for span in spans(thing, steps, rules.overrides, *time):
        if thing.market is None:
            yield span, span.price
        else:
            yield from ((replace(s, price=span.price), s.price) for s in spans(bought, usual, own, span.begins, span.ends))


def _counted(facts: MachineFacts, rules: Rules, launched: datetime, end: datetime) -> Iterator[Charge]:
    """Bytes and requests, on the days on which an agent counted them; a report that came late belongs to the last day."""
    a, store = facts.attempt, rules.tariff.store
    there = Place(a.pool.provider, a.pool.region)
    last_day = day_of(max(launched, end - MICROSECOND))
    of_day: dict[datetime, Counts] = {}
    for counts in sorted(facts.counts):
        of_day[min(max(day_of(counts.at), day_of(launched)), last_day)] = counts
    read, sent = (rules.tariff.per_gib(there, direction) for direction in ("read", "sent"))
    ways: list[tuple[ChargeKind, str, Place, int | None, Callable[[Counts], int]]] = [
        (ChargeKind.TRANSFER, "read", store, read, lambda c: c.read_bytes),
        (ChargeKind.TRANSFER, "sent", there, sent, lambda c: c.sent_bytes),
        (ChargeKind.REQUESTS, "get", store, None, lambda c: c.gets),
        (ChargeKind.REQUESTS, "put", store, None, lambda c: c.puts),
    ]
    for kind, detail, biller, price, count in ways:
        thing = Thing(kind, biller.provider, biller.region, detail=detail)
        steps = listed(rules.prices.get(biller.provider, ()), thing) if price is None else [(launched, price)]
        parts, before = [], 0
        for day, counts in sorted(of_day.items()):
            begins, ends = max(day, launched), max(min(day + DAY, end), launched)
            in_force = spans(thing, steps, rules.overrides, begins, begins + MICROSECOND)[0].price
            more, before = max(count(counts) - before, 0), max(count(counts), before)
            if more and in_force:
                micros = more * in_force / PRICED_QUANTITY[kind]
                parts.append(Part(kind, begins, ends, Fraction(more), micros, micros))
        if parts:
            says = replace(_of_attempt(facts, detail), provider=biller.provider, region=biller.region)
            if biller is store:  # the machine's zone and type may be another cloud's
                says = replace(says, zone="", instance_type="", market=None)
            yield Charge(says, parts)


# ---- What lines say


def _says(**who: Any) -> ChargeLine:
    return ChargeLine(ChargeKind.MACHINE, ALWAYS, ALWAYS, 0.0, 0, 0, **who)


def _of_attempt(facts: MachineFacts, detail: str = "") -> ChargeLine:
    a = facts.attempt
    return _says(
        job=a.job,
        payer=facts.payer,
        attempt=int(a.number),
        provider=a.pool.provider,
        region=a.pool.region,
        zone=a.pool.zone,
        instance_type=a.pool.instance_type,
        market=a.market,
        resource=a.instance or "",
        detail=detail,
    )
