"""Bills made by hand: a TOML file tells a story, what follows from it in money, and the lines that the ledger must write."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

from spotsurfer_providers.catalog import egress_prices
from spotsurfer_providers.catalog.price_tables import billing_rules, list_prices

from spotsurfer.ledger.facts import Counts, Facts, MachineFacts, Rules, StoredFacts
from spotsurfer.model.charges import ChargeKind, ChargeLine, KeptImage
from spotsurfer.model.job import Attempt, AttemptNumber, AttemptState, InstanceId, JobId
from spotsurfer.model.market import Market, Pool
from spotsurfer.model.prices import ALWAYS, GIB, EgressPrices, ListPrice, Match, Override, Place, Tariff
from spotsurfer.ports.provider import BillingRule

FOLDER = Path(__file__).parents[1] / "ledger" / "bills"


@dataclass(frozen=True)
class Bill:
    """A story, read. `lines`: as `text_of` writes them."""

    facts: Facts
    rules: Rules
    now: datetime
    lines: list[str]
    total: int


def names() -> list[str]:
    """All stories, by cloud."""
    return sorted(str(p.relative_to(FOLDER).with_suffix("")) for p in FOLDER.glob("*/*.toml"))


def load(name: str) -> Bill:
    """One story."""
    told = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    machines = [_machine(m) for m in told.get("machine", ())]
    stored = [
        StoredFacts(JobId(s["job"]), JobId(s.get("payer", s["job"])), [(x["at"], round(x["gib"] * GIB)) for x in s["levels"]])
        for s in told.get("stored", ())
    ]
    images = [KeptImage(**{("begins" if k == "from" else k): v for k, v in i.items()}) for i in told.get("image", ())]
    facts = Facts(machines, stored, images, told.get("controller_since"))
    store = Place(**told.get("store", {}))
    rules = Rules(
        {name: rules for name, (rules, _, _) in clouds().items()},
        {name: prices for name, (_, prices, _) in clouds().items()},
        Tariff(store, {name: egress for name, (_, _, egress) in clouds().items()}),
        [_override(o) for o in told.get("override", ())],
        told.get("controller_usd_micros_per_hour", 0),
    )
    wanted = [" ".join(line.split()) for line in told["lines"].strip().splitlines() if line.strip()]
    return Bill(facts, rules, told["now"], wanted, told["total"])


Cloud = tuple[tuple[BillingRule, ...], tuple[ListPrice, ...], EgressPrices]


@functools.cache
def clouds() -> Mapping[str, Cloud]:
    """By provider: the shipped tables, boxes of this host, and a cloud that does not exist, which bills in other ways."""
    real = {name: (billing_rules(name), list_prices(name), egress_prices(name)) for name in ("aws", "gcp")}
    return {**real, "local": ((BillingRule(),), (), EgressPrices()), "sky": _sky()}


def _sky() -> Cloud:
    told = tomllib.loads((FOLDER / "sky.toml").read_text())
    rules = [BillingRule(r["minimum_seconds"], begins=r.get("begins", ALWAYS)) for r in told["rule"]]
    return (
        tuple(rules),
        tuple(ListPrice(_match(p), p["usd_micros"], p.get("begins", ALWAYS)) for p in told["price"]),
        EgressPrices(),
    )


def _match(told: Mapping[str, Any]) -> Match:
    known = {f.name for f in fields(Match)} - {"kind", "market"}
    market = Market(told["market"]) if "market" in told else None
    return Match(ChargeKind(told["kind"]), market=market, **{k: v for k, v in told.items() if k in known})


def _override(told: Mapping[str, Any]) -> Override:
    percent = Fraction(str(told["percent"])) if "percent" in told else None
    return Override(_match(told), told.get("from", ALWAYS), told.get("until"), told.get("usd_micros"), percent)


def _machine(told: Mapping[str, Any]) -> MachineFacts:
    provider, zone, kind = told["pool"].split("/")
    job, number, launched, ended = JobId(told["job"]), told.get("attempt", 1), told.get("launched"), told.get("ended")
    attempt = Attempt(
        job=job,
        number=AttemptNumber(number),
        state=AttemptState(told.get("state", "released" if ended else "running")),
        since=launched or ALWAYS,
        pool=Pool(provider, told.get("region", zone.rstrip("abcdef").rstrip("-")), zone, kind),
        market=Market(told.get("market", "spot")),
        price_usd_micros_per_hour=told.get("price", 0),
        list_price_usd_micros_per_hour=told.get("list_price", told.get("price", 0)),
        token=f"{job}-{number}",
        planned_at=launched or ALWAYS,
        instance=InstanceId(f"i-{number}"),
        launched_at=launched,
        released_at=ended,
        reclaimed=told.get("reclaimed", False),
        gpus=told.get("gpus", 0),
        disk_bytes=told.get("disk_gib", 0) * GIB,
        public_address=told.get("public_address", False),
    )
    steps = [(s["at"], s["price"]) for s in told.get("steps", ())]
    return MachineFacts(attempt, JobId(told.get("payer", job)), steps, [_counts(c) for c in told.get("counts", ())])


def _counts(told: Mapping[str, Any]) -> Counts:
    read, sent = (round(told.get(f"{name}_gib", 0) * GIB) for name in ("read", "sent"))
    return Counts(told["at"], read, sent, told.get("gets", 0), told.get("puts", 0))


def text_of(lines: list[ChargeLine]) -> Iterator[str]:
    """Day, kind, whose and who pays for it, quantity, micro-dollars; at last those on demand, if they are others."""
    for x in lines:
        kind = f"{x.kind}:{x.detail}" if x.detail else str(x.kind)
        whose = f"{x.job}/{x.attempt}" if x.attempt else x.job or x.resource or "-"
        payer = f">{x.payer}" if x.payer != x.job else ""
        other = f" {x.usd_micros_on_demand}" if x.usd_micros_on_demand != x.usd_micros else ""
        yield f"{x.begins:%Y-%m-%d} {kind} {whose}{payer} {x.quantity:.10g} {x.usd_micros}{other}"
