"""Offers that a job could take now, best first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from spotsurfer.model.job import Job, MarketChoice, MoveRequest
from spotsurfer.model.market import Cooldown, Market, Offer
from spotsurfer.ports.policy import Policy

ALLOWED = {
    MarketChoice.SPOT: frozenset({Market.SPOT}),
    MarketChoice.ON_DEMAND: frozenset({Market.ON_DEMAND}),
    MarketChoice.SPOT_FIRST: frozenset({Market.SPOT, Market.ON_DEMAND}),
}


def fits(job: Job, offer: Offer) -> bool:
    """Large enough and of a market that the user accepts."""
    big = offer.cpus >= job.spec.cpus and offer.memory_bytes >= job.spec.memory_bytes
    return big and offer.market in ALLOWED[job.spec.market]


def cooling(offer: Offer, cooldowns: Sequence[Cooldown], now: datetime) -> Cooldown | None:
    """The cool-down that keeps this offer from being tried."""
    return next((c for c in cooldowns if c.pool == offer.pool and c.market is offer.market and c.until > now), None)


def serves(move: MoveRequest, offer: Offer) -> bool:
    """The offer is what the user asked to move to.

    Without a wish any machine will do, also another of the same pool: the point may be to leave this one.
    """
    right_type = move.instance_type in (None, offer.pool.instance_type)
    return right_type and move.market in (None, offer.market)


def choose(
    job: Job, offers: Sequence[Offer], cooldowns: Sequence[Cooldown], policy: Policy, now: datetime
) -> tuple[Sequence[Offer], list[tuple[Offer, str]]]:
    """Ranked offers, and those passed over with the reason."""
    passed: list[tuple[Offer, str]] = []
    free: list[Offer] = []
    for offer in offers:
        cool = cooling(offer, cooldowns, now)
        if not fits(job, offer):
            continue
        if cool is not None:
            passed.append((offer, f"left alone until {cool.until:%H:%M:%S}: {cool.reason}"))
        else:
            free.append(offer)
    ranked = policy.rank(job, free, now)
    return ranked, passed
