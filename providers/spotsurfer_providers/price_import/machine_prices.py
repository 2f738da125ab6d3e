"""What a machine type costs: the sum of its cores, memory, GPUs and local SSDs at the billing catalogue's rates. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from spotsurfer.model.market import Market
from spotsurfer.model.money import from_usd
from spotsurfer_providers.catalog.google_price_table import Prices
from spotsurfer_providers.gcp.settings import region_of
from spotsurfer_providers.price_import.billing_skus import FAMILIES, OWN_SSD, Kind, Part, Rates

SSD_GIB = 375  # of one local SSD ("About Local SSD disks", Compute Engine's documentation)
_WITH_SSD = re.compile(r"a2-ultragpu-.*|a3-.*(?<!-nolssd)|.*-lssd")  # types that come with local SSDs
_OTHER_SSD = re.compile(r".*-lssd-metal")  # with disks of another size


class Unpriced(Exception):
    """Why a type has no price, in half a sentence."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a machine type has."""

    name: str
    region: str
    cpus: int
    memory_mib: int
    gpus: tuple[tuple[str, int], ...] = ()
    ssds: int = 0
    shares_cpu: bool = False


def shapes_of(found: Iterable[Any]) -> set[Shape]:
    """Machine types of the API, each once for a region: those that the provider could order."""
    return {_shape(t) for t in found if t.architecture in ("", "X86_64") and not t.deprecated.state}


def _shape(found: Any) -> Shape:
    gpus = tuple((a.guest_accelerator_type, a.guest_accelerator_count) for a in found.accelerators)
    region = region_of(found.zone.rpartition("/")[2])
    ssds = found.bundled_local_ssds.partition_count
    return Shape(found.name, region, found.guest_cpus, found.memory_mb, gpus, ssds, found.is_shared_cpu)


def priced(shapes: Iterable[Shape], rates: Rates) -> tuple[Prices, Counter[str]]:
    """The prices, and how many types of regions were left out, by family and reason."""
    prices: dict[tuple[str, str], tuple[int, int | None]] = {}
    left_out: Counter[str] = Counter()
    for shape in shapes:
        try:
            parts = parts_of(shape)
            standard = _sum(parts, rates, Market.ON_DEMAND, shape.region)
        except Unpriced as e:
            left_out[f"{shape.name.partition('-')[0]}: {e}"] += 1
            continue
        try:
            spot = _sum(parts, rates, Market.SPOT, shape.region)
        except Unpriced:  # not sold so
            spot = None
        prices[shape.region, shape.name] = standard, spot
    return prices, left_out


def parts_of(shape: Shape) -> dict[Part, Decimal]:
    """What a machine is billed by, and how many cores, GiB, GPUs of it. Raises Unpriced."""
    words = shape.name.split("-")
    family = FAMILIES.get("-".join(words[:2])) or FAMILIES.get(words[0])
    if family is None:
        raise Unpriced("its SKUs are not known")
    if shape.shares_cpu:
        raise Unpriced("it shares a core")
    parts = {Part(Kind.CORE, family): Decimal(shape.cpus), Part(Kind.RAM, family): Decimal(shape.memory_mib) / 1024}
    parts |= {Part(Kind.GPU, name): Decimal(count) for name, count in shape.gpus}
    if _OTHER_SSD.fullmatch(shape.name):
        raise Unpriced("the size of its local SSDs is not known")
    if not shape.ssds and _WITH_SSD.fullmatch(shape.name):
        raise Unpriced("Google does not tell how many local SSDs it has")
    if shape.ssds:
        parts[Part(Kind.SSD, family if family in OWN_SSD else "")] = Decimal(shape.ssds * SSD_GIB)
    return parts


def _sum(parts: Mapping[Part, Decimal], rates: Rates, market: Market, region: str) -> int:
    lacking = [part for part in parts if (part, market, region) not in rates.of]
    if lacking:
        raise Unpriced(f"no {market} price of {lacking[0]} in its region")
    return from_usd(sum((rates.of[part, market, region] * amount for part, amount in parts.items()), Decimal(0)))


# ---- Two tables


@dataclass(frozen=True, slots=True)
class Change:
    """One price of two tables."""

    machine_type: str
    region: str
    market: Market
    before_usd_micros: int
    after_usd_micros: int

    @property
    def share(self) -> float:
        """How much it rose; negative if it fell."""
        return self.after_usd_micros / self.before_usd_micros - 1


def changes(before: Prices, after: Prices) -> list[Change]:
    """Prices that differ by more than rounding does, the largest change first; what only one table has is left out."""
    found: list[Change] = []
    for (region, kind), new in after.items():
        old = before.get((region, kind), (0, None))
        for market, was, is_now in zip((Market.ON_DEMAND, Market.SPOT), old, new, strict=True):
            if was and is_now and abs(was - is_now) > 1:
                found.append(Change(kind, region, market, was, is_now))
    return sorted(found, key=lambda c: (-abs(c.share), c.machine_type, c.region))
