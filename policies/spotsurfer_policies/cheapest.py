"""Lowest price that fits; spot before on-demand; back to spot when it can be had again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.parameters import Parameter, parameters
from spotsurfer.ports.policy import PauseSeen

STAY_SECONDS = 60.0
STAY_PAUSES = 20  # of a machine's time at most a twentieth is lost to leaving it
MARGIN = 0.2


class Cheapest:
    """Rank by price. Leave an on-demand machine for a spot one that is cheaper by a margin, not before a minimum stay."""

    def __init__(self, stay_seconds: float, margin: float) -> None:
        self.stay_seconds = stay_seconds
        self.margin = margin

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, then by price; ties by pool so that the answer is always the same."""
        del job, now
        return sorted(offers, key=lambda o: (o.market is not Market.SPOT, o.price_usd_micros_per_hour, o.pool))

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Only from on-demand to spot: between spot machines a move is a fresh risk for little.

        A machine is kept for at least so many times as long as leaving it stops the job: pauses stay a small part of the time.
        """
        del job
        if here.market is not Market.ON_DEMAND or there.market is not Market.SPOT:
            return None
        stay = max(self.stay_seconds, STAY_PAUSES * (pause.expected_seconds or 0.0))
        if (now - here.since).total_seconds() < stay:
            return None
        if there.price_usd_micros_per_hour > here.price_usd_micros_per_hour * (1 - self.margin):
            return None
        return f"spot can be had again on {there.pool.instance_type}"


@parameters(
    Parameter("stay_seconds", STAY_SECONDS, "a machine is kept for at least so long"),
    Parameter("margin", MARGIN, "spot must be cheaper by this share to be moved to"),
)
def make(settings: Mapping[str, object]) -> Cheapest:
    """Lowest price that fits; back to spot when it can be had again."""
    stay = settings.get("stay_seconds", STAY_SECONDS)
    margin = settings.get("margin", MARGIN)
    if not isinstance(stay, int | float) or not isinstance(margin, int | float):
        raise ValueError("policy.cheapest: stay_seconds and margin must be numbers")
    return Cheapest(float(stay), float(margin))
