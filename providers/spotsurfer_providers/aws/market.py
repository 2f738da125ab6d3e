"""Instance types, zones and prices of EC2's answers, and the offers that they make. Pure but for the shipped catalogue.

What changes by the minute (spot prices) is asked each time, what changes by the month (types, zones, the price list) once a
day: `shop` keeps it. Calls do not grow with jobs or machines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from spotsurfer.model.gpus import NO_GPUS, Gpus
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.model.money import from_usd
from spotsurfer_providers.catalog import instance_types

_MIB = 1 << 20
PRODUCT = "Linux/UNIX"
# Service Quotas: "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", "Running On-Demand Standard (…) instances".
QUOTAS = {Market.SPOT: "L-34B43A08", Market.ON_DEMAND: "L-1216C47A"}
_STANDARD = re.compile(r"(?:[acdhimrtz]|im|is)\d")


@dataclass(frozen=True, slots=True)
class TypeSeen:
    """An instance type."""

    name: str
    cpus: int
    memory_bytes: int
    gpus: Gpus = NO_GPUS


def types_of(pages: Iterable[Mapping[str, Any]]) -> dict[str, TypeSeen]:
    """Types of DescribeInstanceTypes by name."""
    found = [t for page in pages for t in page["InstanceTypes"]]
    return {
        t["InstanceType"]: TypeSeen(
            t["InstanceType"], t["VCpuInfo"]["DefaultVCpus"], t["MemoryInfo"]["SizeInMiB"] * _MIB, _gpus(t)
        )
        for t in found
    }


def _gpus(kind: Mapping[str, Any]) -> Gpus:
    """NVIDIA's of one sort; a type whose GPUs are of several sorts, or parts of one, has none that can be asked for."""
    found = [g for g in kind.get("GpuInfo", {}).get("Gpus", ()) if g.get("Manufacturer") == "NVIDIA" and g.get("Count", 0) > 0]
    if len(found) != 1:
        return NO_GPUS
    return Gpus(found[0].get("Name", ""), found[0]["Count"], found[0].get("MemoryInfo", {}).get("SizeInMiB", 0) * _MIB)


def spot_prices(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """The newest price of each (zone, type), micro-dollars an hour; an entry that can't be read is as good as none."""
    newest: dict[tuple[str, str], tuple[datetime, int]] = {}
    for entry in entries:
        try:
            key = (entry["AvailabilityZone"], entry["InstanceType"])
            at, price = entry["Timestamp"], from_usd(Decimal(entry["SpotPrice"]))
        except (KeyError, TypeError, InvalidOperation):
            continue
        if price > 0 and (key not in newest or newest[key][0] < at):
            newest[key] = (at, price)
    return {key: price for key, (_, price) in newest.items()}


def joined(names: Iterable[str], most: int) -> list[str]:
    """The names with commas between them, in as many texts as it takes for none to be longer than `most` characters."""
    texts: list[str] = []
    for name in names:
        if texts and len(texts[-1]) + 1 + len(name) <= most:
            texts[-1] += f",{name}"
        else:
            texts.append(name)
    return texts


def list_prices(products: Iterable[str]) -> dict[str, int]:
    """On-demand prices of Linux by type, micro-dollars an hour, from products of the Pricing API (each a JSON text)."""
    found: dict[str, int] = {}
    for text in products:
        try:
            product = json.loads(text)
            name = product["product"]["attributes"]["instanceType"]
            terms = [d for t in product["terms"]["OnDemand"].values() for d in t["priceDimensions"].values()]
            prices = [from_usd(Decimal(d["pricePerUnit"]["USD"])) for d in terms if d.get("unit", "Hrs") == "Hrs"]
        except (ValueError, KeyError, TypeError, AttributeError, InvalidOperation):
            continue
        if max(prices, default=0) > 0:
            found[name] = max(prices)
    return found


def catalogue_prices(names: Iterable[str]) -> dict[str, int]:
    """The same from the shipped catalogue: us-east-1, of its date. Good for comparisons, no bill."""
    known = instance_types()
    return {n: known[n].on_demand_usd_micros_per_hour for n in names if n in known}


def offers_of(
    region: str,
    types: Mapping[str, TypeSeen],
    zones: Iterable[tuple[str, str]],
    prices: tuple[Mapping[tuple[str, str], int], Mapping[str, int]],
    scores: Mapping[str, int],
) -> list[Offer]:
    """An offer for each (zone, type) and market that has a price. `prices`: spot by zone and type, on-demand by type."""
    spot, listed = prices
    offers: list[Offer] = []
    for zone, name in sorted(zones):
        kind, price = types.get(name), listed.get(name)
        if kind is None or price is None:
            continue
        pool, size = Pool("aws", region, zone, name), (kind.cpus, kind.memory_bytes)
        known = instance_types().get(name)
        band = known.interruption_band if known is not None else None
        offers.append(Offer(pool, Market.ON_DEMAND, price, price, *size, gpus=kind.gpus))
        if (zone, name) in spot:
            offers.append(Offer(pool, Market.SPOT, spot[zone, name], price, *size, band, scores.get(zone), gpus=kind.gpus))
    return offers


def scores_of(answer: Sequence[Mapping[str, Any]], zones: Mapping[str, str]) -> dict[str, int]:
    """Spot placement scores (1 to 10) by zone; `zones` leads from zone ids, which AWS answers with, to names."""
    return {zones[s["AvailabilityZoneId"]]: int(s["Score"]) for s in answer if s.get("AvailabilityZoneId") in zones}


def within(offer: Offer, quotas: Mapping[Market, float]) -> bool:
    """Whether the account could have at least one of these: a type that is larger than the whole quota is never met."""
    quota = quotas.get(offer.market)
    return quota is None or not _STANDARD.match(offer.pool.instance_type) or offer.cpus <= quota
