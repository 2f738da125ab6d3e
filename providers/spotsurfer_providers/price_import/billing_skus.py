"""What Google's billing catalogue asks for an hour of a core, a GiB of memory, a GPU and a GiB of local SSD. Pure.

A SKU names what it prices in its description alone. The catalogue has many more that look alike (custom machines, sole tenancy,
commitments, reservations): a description counts only if all of it is known. Names and units: "SKUs" of Google's price list, and
`cloudbilling.services.skus.list`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from spotsurfer.model.market import Market


class Kind(StrEnum):
    """What is billed: by the hour, an hour of a GiB, or one GPU's hour."""

    CORE = "core"
    RAM = "memory"
    GPU = "GPU"
    SSD = "local SSD"


@dataclass(frozen=True, slots=True)
class Part:
    """`of`: the family in Google's words, or the accelerator's type; local SSD of no family in particular: empty."""

    kind: Kind
    of: str

    def __str__(self) -> str:
        return f"{self.kind} {self.of}".rstrip()


# Families that are billed by cores and memory: the first word of a type's name, or the first two, and how SKUs call the family.
# The others are billed whole or by SKUs of several families (f1, g1, m1 to m4, x4), by parts of GPUs (g4), with disks of other
# sizes (z3), are Arm's, have TPUs, or are new.
FAMILIES: Mapping[str, str] = {
    "a2": "A2", "a3-highgpu": "A3", "a3-megagpu": "A3Plus", "a3-ultragpu": "A3Ultra", "c2": "Compute optimized",
    "c2d": "C2D AMD", "c3": "C3", "c3d": "C3D", "c4": "C4", "c4d": "C4D", "e2": "E2", "g2": "G2", "n1-highcpu": "N1 Predefined",
    "n1-highmem": "N1 Predefined", "n1-standard": "N1 Predefined", "n2": "N2", "n2d": "N2D AMD", "n4": "N4", "n4d": "N4D",
    "t2d": "T2D AMD",
}  # fmt: skip
OWN_SSD = frozenset(("C4", "C4D"))  # families whose local SSD has a price of its own
GPUS: Mapping[str, str] = {
    "Nvidia L4": "nvidia-l4",
    "Nvidia Tesla A100": "nvidia-tesla-a100",
    "Nvidia Tesla A100 80GB": "nvidia-a100-80gb",
    "Nvidia H100 80GB": "nvidia-h100-80gb",
    "Nvidia H100 80GB Mega": "nvidia-h100-mega-80gb",
    "Nvidia H100 80GB Plus": "nvidia-h100-mega-80gb",
    "H200 141GB": "nvidia-h200-141gb",
}
# What a machine that is ordered today is not billed by.
_OTHER = re.compile(r"\b(Custom|Sole Tenancy|Commitment|Reserved|Reservation|Calendar|DWS|Premium|Licensing)\b")
_SPOT = "Spot Preemptible"
_MACHINE = re.compile(rf"(?:{_SPOT} )?(?P<of>.+?)(?: Instance)? (?P<kind>Core|Ram) running in .+")
_GPU = re.compile(rf"(?P<of>.+?) GPU (?:attached to {_SPOT} VMs )?running in .+")
_FAMILY_SSD = re.compile(rf"(?:{_SPOT} )?(?P<of>\w+) Instance Local SSD running in .+")
_SSD = re.compile(rf"SSD backed Local Storage(?: attached to {_SPOT} VMs)?(?: (?:running )?in .+)?")
_HOURS = 730  # of Google's month
_GIB = Decimal(2**30) / 10**9
_UNITS: Mapping[Kind, Mapping[str, Decimal]] = {
    Kind.CORE: {"h": Decimal(1)},
    Kind.RAM: {"GiBy.h": Decimal(1), "GBy.h": _GIB},
    Kind.GPU: {"h": Decimal(1)},
    Kind.SSD: {"GiBy.h": Decimal(1), "GiBy.mo": Decimal(1) / _HOURS},
}


@dataclass
class Rates:
    """`of`: US dollars an hour, of one core, GiB or GPU. `unknown`: SKUs of machines that nothing here understands, by name."""

    of: dict[tuple[Part, Market, str], Decimal] = field(default_factory=dict[tuple[Part, Market, str], Decimal])
    unknown: Counter[str] = field(default_factory=Counter[str])


def rates_of(skus: Iterable[Mapping[str, Any]]) -> Rates:
    """The rates of all regions.

    If several SKUs price the same thing in one region, the dearest one counts: a price is better too high than too low.
    """
    rates = Rates()
    for sku in skus:
        name, category = str(sku.get("description", "")), sku.get("category", {})
        if category.get("usageType") not in ("OnDemand", "Preemptible") or _OTHER.search(name):
            continue
        part = part_of(name)
        if part is None:
            if category.get("resourceFamily") == "Compute" and category.get("resourceGroup") in ("CPU", "RAM", "GPU"):
                rates.unknown[_without_place(name)] += 1
            continue
        try:
            rate = rate_of(sku, part.kind)
        except (LookupError, ValueError, ArithmeticError, AttributeError, TypeError) as e:
            rates.unknown[f"{_without_place(name)}: {e}"] += 1
            continue
        # Some SKUs of spot machines are filed under "OnDemand".
        market = Market.SPOT if _SPOT in name or category["usageType"] == "Preemptible" else Market.ON_DEMAND
        for region in sku.get("serviceRegions", []):
            key = (part, market, region)
            rates.of[key] = max(rate, rates.of.get(key, rate))
    return rates


def _without_place(description: str) -> str:
    return re.sub(r" (running )?in .*", "", description)


def part_of(description: str) -> Part | None:
    """What a SKU prices; None: nothing of a machine that we know."""
    if (found := _MACHINE.fullmatch(description)) and found["of"] in FAMILIES.values():
        return Part(Kind.CORE if found["kind"] == "Core" else Kind.RAM, found["of"])
    if (found := _GPU.fullmatch(description)) and found["of"] in GPUS:
        return Part(Kind.GPU, GPUS[found["of"]])
    if (found := _FAMILY_SSD.fullmatch(description)) and found["of"] in OWN_SSD:
        return Part(Kind.SSD, found["of"])
    return Part(Kind.SSD, "") if _SSD.fullmatch(description) else None


def rate_of(sku: Mapping[str, Any], kind: Kind) -> Decimal:
    """US dollars an hour, of one core, GiB or GPU, by the newest prices.

    Of tiers the first that is not free counts. Raises ValueError or LookupError: no price, another currency or unit.
    """
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    unit = expression["usageUnit"]
    if unit not in _UNITS[kind]:
        raise ValueError(f"its unit is {unit}")
    for tier in expression["tieredRates"]:
        money = tier["unitPrice"]
        if money["currencyCode"] != "USD":
            raise ValueError(f"its currency is {money['currencyCode']}")
        if price := int(money.get("units") or 0) + Decimal(money.get("nanos") or 0) / 10**9:
            return price * _UNITS[kind][unit]
    raise ValueError("it costs nothing")
