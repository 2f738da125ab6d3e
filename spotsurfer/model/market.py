"""GPUs, pools, markets and offers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spotsurfer.model.lifetimes import UNSEEN, Lives

# GPUs of a machine, of an offer, or of the machine where a checkpoint was made.


@dataclass(frozen=True, slots=True)
class Gpus:
    """What is known of them. Texts that are empty and sizes of 0 are not known; `count` always is."""

    chip: str = ""  # as a catalogue names it ("h100") or the driver ("NVIDIA H100 80GB HBM3")
    count: int = 0
    memory_bytes: int = 0  # of each
    driver: str = ""  # "580.159.04"


NO_GPUS = Gpus()


# Pools, markets, offers.


class Market(StrEnum):
    """How a machine is bought."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """Provider + region + zone + instance type: what has one price and runs out together."""

    provider: str
    region: str
    zone: str
    instance_type: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.zone}/{self.instance_type}"


@dataclass(frozen=True, slots=True)
class Offer:
    """A pool, a market and a price at a time. `list_price_*` is on-demand, for comparison.

    Advice, where the cloud gives any: `interruption_band` 0 (under 5 % of machines were taken in a month) to 4 (over 20 %),
    `placement_score` 1 (an order is unlikely to be met) to 10.
    """

    pool: Pool
    market: Market
    price_usd_micros_per_hour: int
    list_price_usd_micros_per_hour: int
    cpus: int
    memory_bytes: int
    interruption_band: int | None = None
    placement_score: int | None = None
    lives: Lives = UNSEEN  # of our own machines of this pool and market
    gpus: Gpus = NO_GPUS


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A pool and market that refused and is left alone until `until`; `strikes` makes the wait grow."""

    pool: Pool
    market: Market
    until: datetime
    strikes: int
    reason: str
