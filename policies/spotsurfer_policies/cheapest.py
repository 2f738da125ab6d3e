"""Lowest price that fits; spot before on-demand; back to spot when it can be had again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.parameters import Parameter, parameters
from spotsurfer.ports.policy import PauseSeen

STAY_SECONDS = 60.0
PAUSE_SHARE = 0.05
MARGIN = 0.2


class Cheapest:
    """Rank by price. Leave an on-demand machine for a spot one that is cheaper by a margin, not before a minimum stay."""

    def __init__(self, stay_seconds: float, margin: float, pause_share: float = PAUSE_SHARE) -> None:
        self.stay_seconds = stay_seconds
        self.margin = margin
        self.pause_share = pause_share

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, then by price; ties by pool so that the answer is always the same."""
        del job, now
        return sorted(offers, key=lambda o: (o.market is not Market.SPOT, o.price_usd_micros_per_hour, o.pool))

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Only from on-demand to spot: between spot machines a move is a fresh risk for little.

        A machine is kept until leaving it stops the job for a small share of its time only.
        """
        del job
        if here.market is not Market.ON_DEMAND or there.market is not Market.SPOT:
            return None
        if (now - here.since).total_seconds() < self.least_stay(pause.expected_seconds or 0.0):
            return None
        if there.price_usd_micros_per_hour > here.price_usd_micros_per_hour * (1 - self.margin):
            return None
        return f"spot can be had again on {there.pool.instance_type}"

    def least_stay(self, stop_seconds: float) -> float:
        """Seconds that a machine is kept for, where leaving it stops the job for so long."""
        return max(self.stay_seconds, stop_seconds / self.pause_share)


@parameters(
    Parameter("stay_seconds", STAY_SECONDS, "a machine is kept for at least so long"),
    Parameter("margin", MARGIN, "spot must be cheaper by this share to be moved to"),
    Parameter("pause_share", PAUSE_SHARE, "leaving a machine may cost this share of the time on it"),
)
def make(settings: Mapping[str, object]) -> Cheapest:
    """Lowest price that fits; back to spot when it can be had again."""
    stay = settings.get("stay_seconds", STAY_SECONDS)
    margin = settings.get("margin", MARGIN)
    share = settings.get("pause_share", PAUSE_SHARE)
    if not isinstance(stay, int | float) or not isinstance(margin, int | float) or not isinstance(share, int | float):
        raise ValueError("policy.cheapest: stay_seconds, margin and pause_share must be numbers")
    if not 0 < share <= 1:
        raise ValueError("policy.cheapest: pause_share must be above 0 and at most 1")
    return Cheapest(float(stay), float(margin), float(share))
