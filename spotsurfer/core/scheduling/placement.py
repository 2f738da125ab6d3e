"""The offers that a job could take now, best first, and whether their GPUs match. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from spotsurfer.common.backoff import backoff_seconds
from spotsurfer.model.errors import Invalid, NoCapacity, ProviderDenied, ProviderError, QuotaExceeded
from spotsurfer.model.job import Attempt, Job, JobSpec, MarketChoice, MoveRequest
from spotsurfer.model.market import Cooldown, Gpus, Market, Offer
from spotsurfer.model.money import usd
from spotsurfer.model.snapshot import JobSeen, Limits
from spotsurfer.ports.policies import Policy

# ---- GPUs: whether a machine's GPUs are those that a job asks for and that its checkpoint needs
#
# An image with GPU memory goes on only on the same chip, the same number of GPUs and the same driver (docs/gpu.md). Agents
# compare it with the driver's own facts; this code compares it before a machine is bought, with the facts known then. An
# unknown fact excludes nothing.

MAKERS = frozenset({"nvidia", "tesla"})  # parts of names that don't distinguish chips
NVIDIA_DEVICES = "nvidia.com/gpu"
MEMORY_SHARE = 0.15  # tolerance for the memory size of one chip: sources give 80 GB as 81 559 MiB or as 79 GiB
GIB = 1 << 30


def asked(spec: JobSpec) -> int:
    """How many GPUs a job's machine must have at least."""
    named = bool(spec.gpu) or any(d.startswith(NVIDIA_DEVICES) for d in spec.devices)
    return max(spec.gpus, 1) if named else spec.gpus


def lacking(spec: JobSpec, there: Gpus) -> str | None:
    """Why a machine with these GPUs does not fit the job, or None."""
    count = asked(spec)
    if there.count < count:
        return f"it has {_counted(there)}, the job asks for {count}"
    if count and spec.gpu and not same_chip(Gpus(spec.gpu), there):
        return f"its GPU is {there.chip!r}, the job asks for {spec.gpu!r}"
    return None


def wrong_gpus(image: Gpus | None, there: Gpus) -> str | None:
    """Why a checkpoint that was made on these GPUs could not go on with those, with both values, or None."""
    if image is None:
        return None
    if image.count != there.count:
        return f"it has {_counted(there)}, the checkpoint was made with {_counted(image)}"
    if not same_chip(image, there):
        return f"its GPU is {there.chip!r}, the checkpoint was made on {image.chip!r}"
    if image.driver and there.driver and image.driver != there.driver:
        return f"machines there have the GPU driver {there.driver!r}, the checkpoint was made with {image.driver!r}"
    return None


def same_chip(one: Gpus, other: Gpus) -> bool:
    """Whether two names may mean the same chip: one holds all parts of the other, and the memory is equally large."""
    few, many = sorted((_words(one.chip), _words(other.chip)), key=len)
    if not few <= many:
        return False
    # Memory of each GPU in GB, from the name, or else as given; 0 = unknown.
    words = [re.split(r"[^a-z0-9]+", g.chip.lower()) for g in (one, other)]
    named = [next((x for w in some if (x := _gigabytes(w))), 0.0) for some in words]
    sizes = [size for g, name in zip((one, other), named, strict=True) if (size := name or g.memory_bytes / GIB)]
    return len(sizes) < 2 or abs(sizes[0] - sizes[1]) <= MEMORY_SHARE * max(sizes)


def _words(chip: str) -> frozenset[str]:
    return frozenset(w for w in re.split(r"[^a-z0-9]+", chip.lower()) if w and w not in MAKERS and not _gigabytes(w))


def _gigabytes(word: str) -> float:
    found = re.fullmatch(r"(\d{1,4})gb", word)
    return float(found[1]) if found else 0.0


def _counted(g: Gpus) -> str:
    if not g.count:
        return "no GPU"
    return f"{g.count} GPU{'s' if g.count > 1 else ''}" + (f" ({g.chip})" if g.chip else "")


ALLOWED = {
    MarketChoice.SPOT: frozenset({Market.SPOT}),
    MarketChoice.ON_DEMAND: frozenset({Market.ON_DEMAND}),
    MarketChoice.SPOT_FIRST: frozenset({Market.SPOT, Market.ON_DEMAND}),
}


def fits(job: Job, offer: Offer) -> bool:
    """Whether the offer is large enough and of a market that the user accepts."""
    return too_little(job, offer) is None


def too_little(job: Job, offer: Offer) -> str | None:
    """Why an offer does not fit the job, or None."""
    if offer.market not in ALLOWED[job.spec.market]:
        return f"the job takes no {offer.market} machine (market = {job.spec.market})"
    if offer.cpus < job.spec.cpus:
        return f"it has {offer.cpus} processors, the job asks for {job.spec.cpus}"
    if offer.memory_bytes < job.spec.memory_bytes:
        return f"it has {offer.memory_bytes / GIB:.1f} GiB of memory, the job asks for {job.spec.memory_bytes / GIB:.1f}"
    return lacking(job.spec, offer.gpus)


def barred(job: Job, offer: Offer, limits: Limits) -> str | None:
    """The limit of operator or user that forbids an offer. None = it may be bought."""
    kind, price = offer.pool.instance_type, offer.price_usd_micros_per_hour
    for types, setting in ((limits.instance_types, "limits.instance_types"), (job.spec.instance_types, "its instance_types")):
        if types and not any(fnmatchcase(kind, pattern) for pattern in types):
            return f"{setting} allow only {', '.join(types)}"
    for most, setting in (
        (limits.price_max_usd_micros, "limits.price_max_usd"),
        (limits.hourly_max_usd_micros, "limits.hourly_max_usd"),
        (job.spec.price_max_usd_micros, "its price_max_usd"),
    ):
        if most is not None and price > most:
            return f"it costs {usd(price)} USD an hour, {setting} is {usd(most)}"
    if limits.gpus_max is not None and offer.gpus.count > limits.gpus_max:
        return f"it has {offer.gpus.count} GPUs, limits.gpus_max is {limits.gpus_max}"
    return None


def cooling(offer: Offer, cooldowns: Sequence[Cooldown], now: datetime) -> Cooldown | None:
    """The cool-down of this offer, if it has one."""
    return next((c for c in cooldowns if c.pool == offer.pool and c.market is offer.market and c.until > now), None)


# Seconds without orders to a pool after its first refusal, and the longest wait. Other errors leave the outcome unknown.
REFUSALS: dict[type[ProviderError], tuple[float, float]] = {
    NoCapacity: (60.0, 1800.0),
    QuotaExceeded: (300.0, 3600.0),
    ProviderDenied: (600.0, 3600.0),
    Invalid: (600.0, 3600.0),
}
UNKNOWN_SECONDS = (60.0, 1800.0)  # after an order that was given up without a conclusive answer


def cooled(attempt: Attempt, error: ProviderError, before: Cooldown | None, now: datetime, first: float | None) -> Cooldown:
    """The cool-down after a refusal, longer with each one; `first` overrides the first wait, seconds."""
    usual, longest = REFUSALS.get(type(error), UNKNOWN_SECONDS)
    strikes = 1 + (before.strikes if before else 0)
    wait = backoff_seconds(strikes, usual if first is None else first, longest)
    return Cooldown(attempt.pool, attempt.market, now + timedelta(seconds=wait), strikes, str(error))


def serves(move: MoveRequest, offer: Offer) -> bool:
    """Whether the offer matches the user's move request.

    If the request names no type or market, any machine will do, even one of the same pool: the aim may be to leave this one.
    """
    right_type = move.instance_type in (None, offer.pool.instance_type)
    return right_type and move.market in (None, offer.market)


def choose(
    seen: JobSeen, offers: Sequence[Offer], cooldowns: Sequence[Cooldown], policy: Policy, now: datetime, limits: Limits
) -> tuple[Sequence[Offer], list[tuple[Offer, str]]]:
    """The ranked offers, and the rejected ones with reasons."""
    passed: list[tuple[Offer, str]] = []
    free: list[Offer] = []
    for offer in offers:
        cool = cooling(offer, cooldowns, now)
        why = too_little(seen.job, offer) or wrong_gpus(seen.image_gpus, offer.gpus) or barred(seen.job, offer, limits)
        if why is None and cool is not None:
            why = f"left alone until {cool.until:%H:%M:%S} UTC: {cool.reason}"
        if why is None:
            free.append(offer)
        else:
            passed.append((offer, why))
    return policy.rank(seen.job, free, now), passed
