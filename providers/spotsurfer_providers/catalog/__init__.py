"""Prices of a past date: EC2's instance types of us-east-1, and transfer. See README.md here."""

from __future__ import annotations

import csv
import functools
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from types import MappingProxyType

from spotsurfer.model.market import NO_GPUS, Gpus
from spotsurfer.model.money import from_usd
from spotsurfer.model.prices import EgressPrices

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One row. Money in micro-dollars per hour; `spot_savings_percent` is None if not known."""

    name: str
    cpus: int
    memory_bytes: int
    architecture: str
    gpus: Gpus
    network_bits_per_second: int | None
    on_demand_usd_micros_per_hour: int
    spot_savings_percent: int | None
    interruption_band: int | None  # 0 = under 5 % a month … 4 = over 20 %

    @property
    def spot_usd_micros_per_hour(self) -> int:
        """The estimate: on-demand less the savings."""
        return self.on_demand_usd_micros_per_hour * (100 - (self.spot_savings_percent or 0)) // 100


@functools.cache
def instance_types() -> MappingProxyType[str, InstanceType]:
    """All types with a price, by name."""
    types = (_type(row) for row in _rows("us_east_1.csv.gz") if row["ondemand_usd_per_hour_us_east_1"])
    return MappingProxyType({t.name: t for t in types})


@functools.cache
def egress_prices(provider: str) -> EgressPrices:
    """What a cloud takes for what leaves a region. Raises KeyError for an unknown one."""
    text = resources.files(__name__).joinpath("transfer_prices.csv").read_text()
    found = {(row["provider"], row["to"]): _usd(row["usd_per_gib"]) for row in csv.DictReader(io.StringIO(text))}
    return EgressPrices(found[provider, "region"], found[provider, "internet"])


def _rows(name: str) -> Iterator[dict[str, str]]:
    packed = resources.files(__name__).joinpath(name).read_bytes()
    return iter(csv.DictReader(io.StringIO(gzip.decompress(packed).decode())))


def _usd(text: str) -> int:
    return from_usd(Decimal(text or 0))


def _type(row: dict[str, str]) -> InstanceType:
    network = _optional(row["network_mbps"])
    return InstanceType(
        name=row["instance_type"],
        cpus=int(row["vcpu"]),
        memory_bytes=int(row["memory_mib"]) * _MIB,
        architecture=row["arch"],
        gpus=_gpus(row),
        network_bits_per_second=None if network is None else network * 1_000_000,
        on_demand_usd_micros_per_hour=_usd(row["ondemand_usd_per_hour_us_east_1"]),
        spot_savings_percent=_optional(row["spot_savings_pct_us_east_1_2025_06"]),
        interruption_band=_optional(row["interruption_band_us_east_1_2025_06"]),
    )


def _gpus(row: dict[str, str]) -> Gpus:
    """Only NVIDIA's: a job can neither ask for others, nor could they be saved. A part of one counts as none."""
    name, count = row["gpu_name"], _optional(row["gpu_count"]) or 0
    if not count or name.startswith("radeon"):
        return NO_GPUS
    return Gpus(name, count, (_optional(row["gpu_memory_mib"]) or 0) * _MIB)


def _optional(text: str) -> int | None:
    return int(text) if text else None
