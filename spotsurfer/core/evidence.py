"""What our own machines tell of their pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from spotsurfer.model.job import Attempt
from spotsurfer.model.lives import Lives
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.model.snapshot import Snapshot


def lives_of(attempts: Sequence[Attempt], now: datetime) -> Mapping[tuple[Pool, Market], Lives]:
    """How long machines lived, by pool and market; those that the cloud did not take count as watched alone."""
    found: dict[tuple[Pool, Market], Lives] = {}
    for a in attempts:
        if a.launched_at is not None:
            seconds = max(((a.released_at or now) - a.launched_at).total_seconds(), 0.0)
            key = (a.pool, a.market)
            found[key] = found.get(key, Lives()).plus(seconds, a.reclaimed)
    return found


def told(snapshot: Snapshot, now: datetime) -> Sequence[Offer]:
    """The offers, each with the lives of the machines of all jobs that were in its pool, and the GPU driver seen there."""
    lives = lives_of([a for seen in snapshot.jobs for a in seen.attempts], now)
    told = [replace(o, lives=lives[o.pool, o.market]) if (o.pool, o.market) in lives else o for o in snapshot.offers]
    drivers = snapshot.gpu_drivers
    return [_driven(o, drivers.get((o.pool.provider, o.pool.region), "")) if o.gpus.count else o for o in told]


def _driven(offer: Offer, driver: str) -> Offer:
    """All machines of a region boot one image, which has one driver."""
    return replace(offer, gpus=replace(offer.gpus, driver=driver))
