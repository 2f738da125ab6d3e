"""Whether a bill is whole: its lines beside the facts. Quantities are reckoned anew, and not by the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from spotsurfer.ledger.facts import Counts, Facts, MachineFacts, Rules
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.job import OVER
from spotsurfer.model.prices import Thing, spans

K = ChargeKind
DAY = timedelta(days=1)
Key = tuple[str, K, str, str]  # whose, kind, detail, day


def check(lines: Sequence[ChargeLine], facts: Facts, rules: Rules, now: datetime) -> list[str]:
    """One sentence for each line that is missing, is too much, or has a quantity that the facts do not have."""
    wanted: defaultdict[Key, float] = defaultdict(float)
    for key, quantity in _quantities(facts, rules, now):
        wanted[key] += quantity
    found: defaultdict[Key, float] = defaultdict(float)
    for x in lines:
        whose = f"attempt {x.attempt} of {x.job}" if x.attempt else x.job or x.resource or "the controller"
        found[whose, x.kind, x.detail if x.detail != "free" else "", f"{x.begins:%Y-%m-%d}"] += x.quantity
    missing = [f"{_name(key)} is missing" for key in wanted if key not in found and wanted[key]]
    strange = [f"{_name(key)} has no fact" for key in found if not wanted.get(key) and found[key]]
    both = (key for key in wanted if key in found and abs(wanted[key] - found[key]) > 1e-6 * max(1.0, wanted[key]))
    wrong = [f"{_name(key)} has {found[key]:g} instead of {wanted[key]:g}" for key in both]
    return [*missing, *strange, *wrong]


def _name(key: Key) -> str:
    whose, kind, detail, day = key
    return f"{day}: the line {kind}{f' ({detail})' if detail else ''} of {whose}"


def _quantities(facts: Facts, rules: Rules, now: datetime) -> Iterator[tuple[Key, float]]:
    for m in facts.machines:
        yield from _of_machine(m, rules, now)
    store = rules.tariff.store
    for s in facts.stored:
        levels = sorted(s.levels)
        for (at, size), (until, _) in zip(levels, [*levels[1:], (now, 0)], strict=True):
            yield from _by_days(s.job, Thing(K.STORED, store.provider, store.region), at, until, size / (1 << 30), rules)
    for i in facts.images:
        thing = Thing(K.IMAGE, i.provider, i.region)
        yield from _by_days(i.name, thing, i.begins, min(i.until or now, now), i.gib, rules)
    if facts.controller_since is not None:
        yield from _by_days("the controller", Thing(K.CONTROLLER), facts.controller_since, now, 1.0, rules)


def _of_machine(m: MachineFacts, rules: Rules, now: datetime) -> Iterator[tuple[Key, float]]:
    a, whose = m.attempt, f"attempt {m.attempt.number} of {m.attempt.job}"
    begins = a.launched_at
    if begins is None:
        return
    end = a.released_at if a.state in OVER and a.released_at else now
    minimum = begins + timedelta(seconds=rules.billing(a.pool.provider, begins).minimum_seconds)

    def thing(kind: K) -> Thing:
        return Thing(kind, a.pool.provider, a.pool.region, a.pool.instance_type, a.market)

    yield from _by_days(whose, thing(K.MACHINE), begins, end, 1.0, rules)
    yield from _by_days(whose, thing(K.MINIMUM), end, minimum, 1.0, rules)
    yield from _by_days(whose, thing(K.GPU), begins, max(end, minimum), a.gpus, rules)
    yield from _by_days(whose, thing(K.DISK), begins, end, a.disk_bytes / (1 << 30), rules)
    yield from _by_days(whose, thing(K.ADDRESS), begins, end, float(a.public_address), rules)
    last = f"{max(begins, end - timedelta(microseconds=1)):%Y-%m-%d}"
    there, before = (a.pool.provider, a.pool.region), Counts(begins)
    for counts in sorted(m.counts):
        day = min(f"{counts.at:%Y-%m-%d}", last)
        names = ["read", "sent", "get", "put"]
        for name, now_at, then in zip(names, counts[1:], before[1:], strict=True):
            elsewhere = rules.tariff.store.provider and there != (rules.tariff.store.provider, rules.tariff.store.region)
            of_store = Thing(K.REQUESTS, rules.tariff.store.provider, rules.tariff.store.region, detail=name)
            if name in ("read", "sent") and elsewhere:
                yield (whose, K.TRANSFER, name, day), now_at - then
            if name in ("get", "put") and _has_price(of_store, counts.at, rules):
                yield (whose, K.REQUESTS, name, day), now_at - then
        before = counts


def _by_days(
    whose: str, thing: Thing, begins: datetime, ends: datetime, amount: float, rules: Rules
) -> Iterator[tuple[Key, float]]:
    while begins < ends:
        midnight = datetime(begins.year, begins.month, begins.day, tzinfo=UTC) + DAY
        until = min(midnight, ends)
        if _has_price(thing, until - timedelta(microseconds=1), rules):
            yield (whose, thing.kind, "", f"{begins:%Y-%m-%d}"), (until - begins).total_seconds() * amount
        begins = until


def _has_price(thing: Thing, at: datetime, rules: Rules) -> bool:
    if thing.kind in (K.MACHINE, K.MINIMUM, K.CONTROLLER):
        return True
    if thing.kind is K.GPU:  # beside one that costs nothing stands what it costs on demand
        return any(p.of.fits(thing) and p.begins <= at for p in rules.prices.get(thing.provider, ()))
    steps = sorted((p.begins, p.usd_micros) for p in rules.prices.get(thing.provider, ()) if p.of.fits(thing))
    return bool(spans(thing, steps, rules.overrides, at, at + timedelta(microseconds=1))[0].price)
