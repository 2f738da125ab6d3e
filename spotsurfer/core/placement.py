"""Offers that a job could take now, best first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase

from spotsurfer.core import gpus
from spotsurfer.model.gpus import Gpus
from spotsurfer.model.job import Job, MarketChoice, MoveRequest
from spotsurfer.model.market import Cooldown, Market, Offer
from spotsurfer.model.money import usd
from spotsurfer.model.snapshot import JobSeen, Limits
from spotsurfer.ports.policy import Policy

GIB = 1 << 30
ALLOWED = {
    MarketChoice.SPOT: frozenset({Market.SPOT}),
    MarketChoice.ON_DEMAND: frozenset({Market.ON_DEMAND}),
    MarketChoice.SPOT_FIRST: frozenset({Market.SPOT, Market.ON_DEMAND}),
}


def fits(job: Job, offer: Offer) -> bool:
    """Large enough and of a market that the user accepts."""
    return too_little(job, offer) is None


def too_little(job: Job, offer: Offer) -> str | None:
    """Why an offer does not fit the job, or None."""
    if offer.market not in ALLOWED[job.spec.market]:
        return f"the job takes no {offer.market} machine (market = {job.spec.market})"
    if offer.cpus < job.spec.cpus:
        return f"it has {offer.cpus} processors, the job asks for {job.spec.cpus}"
    if offer.memory_bytes < job.spec.memory_bytes:
        return f"it has {offer.memory_bytes / GIB:.1f} GiB of memory, the job asks for {job.spec.memory_bytes / GIB:.1f}"
    return gpus.lacking(job.spec, offer.gpus)


def wrong_gpus(image: Gpus | None, offer: Offer) -> str | None:
    """Why a checkpoint that was made on these GPUs could not go on there, with both values, or None."""
    return None if image is None else gpus.unlike(image, offer.gpus)


def barred(job: Job, offer: Offer, limits: Limits) -> str | None:
    """The rail that keeps an offer from being bought: of its operator or of its user. None = it may be."""
    kind, price = offer.pool.instance_type, offer.price_usd_micros_per_hour
    for types, whose in ((limits.instance_types, "limits.instance_types"), (job.spec.instance_types, "its instance_types")):
        if types and not any(fnmatchcase(kind, pattern) for pattern in types):
            return f"{whose} allow only {', '.join(types)}"
    for most, whose in (
        (limits.price_max_usd_micros, "limits.price_max_usd"),
        (limits.hourly_max_usd_micros, "limits.hourly_max_usd"),
        (job.spec.price_max_usd_micros, "its price_max_usd"),
    ):
        if most is not None and price > most:
            return f"it costs {usd(price)} USD an hour, {whose} is {usd(most)}"
    if limits.gpus_max is not None and offer.gpus.count > limits.gpus_max:
        return f"it has {offer.gpus.count} GPUs, limits.gpus_max is {limits.gpus_max}"
    return None


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
    seen: JobSeen, offers: Sequence[Offer], cooldowns: Sequence[Cooldown], policy: Policy, now: datetime, limits: Limits
) -> tuple[Sequence[Offer], list[tuple[Offer, str]]]:
    """Ranked offers, and those passed over with the reason."""
    job = seen.job
    passed: list[tuple[Offer, str]] = []
    free: list[Offer] = []
    for offer in offers:
        cool = cooling(offer, cooldowns, now)
        why = too_little(job, offer) or wrong_gpus(seen.image_gpus, offer) or barred(job, offer, limits)
        if why is not None:
            passed.append((offer, why))
        elif cool is not None:
            passed.append((offer, f"left alone until {cool.until:%H:%M:%S}: {cool.reason}"))
        else:
            free.append(offer)
    ranked = policy.rank(job, free, now)
    return ranked, passed
