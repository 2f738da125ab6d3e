"""GPUs, pools, markets and offers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spotsurfer.model.lifetimes import UNSEEN, Lives


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of a machine, an offer, or a checkpoint's machine. Empty texts and sizes of 0 are unknown; `count` is known."""

    chip: str = ""  # as a catalogue names it ("h100") or the driver ("NVIDIA H100 80GB HBM3")
    count: int = 0
    memory_bytes: int = 0  # of each
    driver: str = ""  # "580.159.04"


NO_GPUS = Gpus()


# ---- Pools, markets, offers


class Market(StrEnum):
    """How a machine is bought."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """Provider + region + zone + instance type: machines with one price that run out together."""

    provider: str
    region: str
    zone: str
    instance_type: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.zone}/{self.instance_type}"


@dataclass(frozen=True, slots=True)
class Offer:
    """A pool, a market and a price at a time. `list_price_*` is on-demand, for comparison.

    Advice, if the cloud gives any: `interruption_band` 0 (under 5 % of machines were reclaimed in a month) to 4 (over 20 %),
    `placement_score` 1 (an order is unlikely to succeed) to 10.
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
    disk_bytes: int = 0  # that is billed beside the machine; 0 = none, or not known
    relocation_usd_micros_per_hour: int = 0  # what it would cost the job to be placed beside the price, to be there

    @property
    def cost_usd_micros_per_hour(self) -> int:
        """By this offers are compared. Limits on prices are about the price alone."""
        return self.price_usd_micros_per_hour + self.relocation_usd_micros_per_hour


@dataclass(frozen=True, slots=True)
class Cooldown:
    """A pool and market that refused, and gets no orders until `until`; `strikes` makes the wait grow."""

    pool: Pool
    market: Market
    until: datetime
    strikes: int
    reason: str
