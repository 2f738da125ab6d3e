"""The choice of the offer to launch: `cheapest`, and `price-capacity`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from spotsurfer.core.checkpoints.hazard import BAND_SHARE, UNKNOWN_BAND
from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.policies import Parameter, PauseSeen, parameters, parameters_of
from spotsurfer_policies.parameter_values import values

# ---- `cheapest`: the lowest price that fits; spot before on-demand; back to spot once it is available again.

STAY_SECONDS = 60.0
PAUSE_SHARE = 0.05
MARGIN = 0.2


class Cheapest:
    """Ranks by price. Leaves an on-demand machine for spot that is cheaper by a margin, but not before a minimum stay."""

    def __init__(self, stay_seconds: float, margin: float, pause_share: float = PAUSE_SHARE) -> None:
        self.stay_seconds = stay_seconds
        self.margin = margin
        self.pause_share = pause_share

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, then by price and transfer; ties by pool so that the answer is always the same."""
        del job, now
        return sorted(offers, key=lambda o: (o.market is not Market.SPOT, o.cost_usd_micros_per_hour, o.pool))

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Only from on-demand to spot: a move between spot machines is a new risk for little gain.

        Keeps a machine until the pause of leaving it is a small share of its time.
        """
        del job
        if here.market is not Market.ON_DEMAND or there.market is not Market.SPOT:
            return None
        if (now - here.since).total_seconds() < self.least_stay(pause.expected_seconds or 0.0):
            return None
        if there.cost_usd_micros_per_hour > here.price_usd_micros_per_hour * (1 - self.margin):
            return None
        return f"spot can be had again on {there.pool.instance_type}"

    def least_stay(self, stop_seconds: float) -> float:
        """Minimum seconds on a machine if leaving it pauses the job for so long."""
        return max(self.stay_seconds, stop_seconds / self.pause_share)


@parameters(
    Parameter("stay_seconds", STAY_SECONDS, "a machine is kept for at least so long"),
    Parameter("margin", MARGIN, "spot must be cheaper by this share to be moved to"),
    Parameter("pause_share", PAUSE_SHARE, "leaving a machine may cost this share of the time on it"),
)
def make_cheapest(settings: Mapping[str, object]) -> Cheapest:
    """Lowest price that fits; back to spot when it can be had again."""
    found = _own("cheapest", settings, parameters_of(make_cheapest))
    if not 0 < found["pause_share"] <= 1:
        raise ValueError("policy.cheapest: pause_share must be above 0 and at most 1")
    return Cheapest(**found)


def _own(name: str, settings: Mapping[str, object], known: Sequence[Parameter]) -> dict[str, float]:
    """The values; without others of the same table, which are for a policy of another kind."""
    return values(f"policy.{name}", {p.name: settings[p.name] for p in known if p.name in settings}, known)


# ---- `price-capacity`: spot that is cheap *and* likely to stay, by price, interruptions, and capacity.
#
# The price of an hour is raised by the cost of interruptions. The interruption band is the share of machines that were taken in
# the past month, whatever their age. If a machine runs for a day (`machine_hours`), a share `b` is a rate of
# -ln(1 - b) / machine_hours, and each interruption loses an hour (`interruption_hours`) of the machine to saving, starting and
# repeated work. A zone with placement score 10 counts once, one with score 1 twice (`score_weight`): the score is the
# likelihood that an order is met, and a failed order costs time, too.
#
# Unknown values count as bad as the common ones (band 3, score 5), so that available advice pays.

MACHINE_HOURS = 24.0
UNKNOWN_SCORE, BEST_SCORE = 5, 10
INTERRUPTION_HOURS = 1.0
SCORE_WEIGHT = 1.0


class PriceCapacity(Cheapest):
    """Ranks by expected cost; moves as `cheapest` does: from on-demand back to spot."""

    def __init__(
        self, stay_seconds: float, margin: float, machine_hours: float, interruption_hours: float, score_weight: float
    ) -> None:
        super().__init__(stay_seconds, margin)
        self._machine_hours, self._interruption_hours = machine_hours, interruption_hours
        self._score_weight = score_weight

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, then by expected cost; ties by pool so that the answer is always the same."""
        del job, now
        return sorted(offers, key=lambda o: (o.market is not Market.SPOT, self.expected_cost(o), o.pool))

    def expected_cost(self, offer: Offer) -> float:
        """Micro-dollars an hour, with the cost of interruptions and failed orders."""
        if offer.market is not Market.SPOT:
            return float(offer.cost_usd_micros_per_hour)
        band = UNKNOWN_BAND if offer.interruption_band is None else offer.interruption_band
        score = UNKNOWN_SCORE if offer.placement_score is None else offer.placement_score
        taken_an_hour = -math.log1p(-BAND_SHARE[min(max(band, 0), 4)]) / self._machine_hours
        lost = 1 + taken_an_hour * self._interruption_hours
        scarce = 1 + self._score_weight * (BEST_SCORE - min(max(score, 1), BEST_SCORE)) / (BEST_SCORE - 1)
        return offer.cost_usd_micros_per_hour * lost * scarce


@parameters(
    Parameter("stay_seconds", STAY_SECONDS, "a machine is kept for at least so long"),
    Parameter("margin", MARGIN, "spot must be cheaper by this share to be moved to"),
    Parameter("machine_hours", MACHINE_HOURS, "life of a machine that an interruption band is reckoned for"),
    Parameter("interruption_hours", INTERRUPTION_HOURS, "machine hours that an interruption costs"),
    Parameter("score_weight", SCORE_WEIGHT, "how much dearer a zone with the worst placement score counts"),
)
def make_price_capacity(settings: Mapping[str, object]) -> PriceCapacity:
    """Price, weighed with how often a type is taken and where there is room."""
    found = _own("price-capacity", settings, parameters_of(make_price_capacity))
    if below := [name for name, value in found.items() if value < 0]:
        raise ValueError(f"policy.price-capacity: {below[0]} must be 0 or more")
    if found["machine_hours"] < 1:
        raise ValueError("policy.price-capacity: machine_hours must be at least 1")
    return PriceCapacity(**found)
