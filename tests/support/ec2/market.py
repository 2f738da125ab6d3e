"""Prices, capacity and quotas of the test EC2: data that tests set, and pure questions about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase

from spotsurfer_providers.catalog import instance_types

SPOT_VCPU_QUOTA = "L-34B43A08"  # "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", in vCPUs
ON_DEMAND_VCPU_QUOTA = "L-1216C47A"  # "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", in vCPUs
QUOTAS = {SPOT_VCPU_QUOTA: 640.0, ON_DEMAND_VCPU_QUOTA: 640.0}
_BEGINNING = timedelta(days=90)  # how far back EC2's price history goes


@dataclass(frozen=True, slots=True)
class Room:
    """At most so many machines at once in all pools ("zone/type", wildcards) of a market; None: of both."""

    pool: str
    market: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` on the pools that match cost `usd` an hour on the spot market."""

    pool: str
    at: datetime
    usd: Decimal


@dataclass
class Market:
    """What a test has set."""

    began: datetime
    rooms: list[Room] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    on_demand: dict[str, Decimal] = field(default_factory=dict)
    quotas: dict[str, float] = field(default_factory=lambda: dict(QUOTAS))

    def on_demand_usd(self, kind: str) -> Decimal | None:
        """USD an hour, or None for a type without a price."""
        if kind in self.on_demand:
            return self.on_demand[kind]
        known = instance_types().get(kind)
        return None if known is None else Decimal(known.on_demand_usd_micros_per_hour) / 1_000_000

    def history(self, zone: str, kind: str, now: datetime) -> list[tuple[datetime, Decimal]]:
        """When the spot price of a pool became what, oldest first; nothing for a type without a price."""
        known = instance_types().get(kind)
        listed = self.on_demand_usd(kind)
        if known is None and listed is None:
            return []
        first = Decimal(known.spot_usd_micros_per_hour) / 1_000_000 if known else (listed or Decimal(0)) / 3
        steps = [(s.at, s.usd) for s in self.steps if s.at <= now and fnmatchcase(f"{zone}/{kind}", s.pool)]
        return [(self.began - _BEGINNING, first), *sorted(steps, key=lambda s: s[0])]

    def full(self, zone: str, kind: str, market: str, live: Iterable[tuple[str, str, str]], count: int = 1) -> bool:
        """Whether `count` more have no room beside the living (zone, type, market)."""
        all_live = list(live)
        for room in self.rooms:
            if room.market not in (None, market) or not fnmatchcase(f"{zone}/{kind}", room.pool):
                continue
            used = sum(1 for z, k, m in all_live if room.market in (None, m) and fnmatchcase(f"{z}/{k}", room.pool))
            if used + count > room.count:
                return True
        return False
