"""Evidence about pools from the lives of our own machines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from spotsurfer.model.job import OVER, Attempt
from spotsurfer.model.lifetimes import Fates, Lives
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.model.snapshot import Snapshot

Evidence = Mapping[tuple[Pool, Market], Fates]


def fates_of(attempts: Iterable[Attempt], now: datetime) -> dict[tuple[Pool, Market], Fates]:
    """The fates of machines, by pool and market; machines that the cloud did not reclaim count as watched only."""
    found: dict[tuple[Pool, Market], Fates] = {}
    for a in attempts:
        if a.launched_at is not None:
            seconds = max(((a.released_at or now) - a.launched_at).total_seconds(), 0.0)
            lost = a.reclaimed and a.granted_at is not None
            one = Fates(Lives().plus(seconds, a.reclaimed), int(lost and a.drained), int(lost and not a.drained))
            key = (a.pool, a.market)
            found[key] = found[key] + one if key in found else one
    return found


def evidence(snapshot: Snapshot, now: datetime) -> Evidence:
    """The fates of all machines on record: those that are gone, and those that live."""
    alive = fates_of((a for seen in snapshot.jobs for a in seen.attempts if a.state not in OVER), now)
    return {**snapshot.past, **{k: snapshot.past.get(k, Fates()) + f for k, f in alive.items()}}


def with_evidence(snapshot: Snapshot, known: Evidence) -> Sequence[Offer]:
    """The offers, each with the lives of the machines of all jobs that were in its pool, and the GPU driver seen there."""
    offers = [replace(o, lives=known[o.pool, o.market].lives) if (o.pool, o.market) in known else o for o in snapshot.offers]
    drivers = snapshot.gpu_drivers  # by region: all machines of a region boot one image, which has one driver
    return [
        replace(o, gpus=replace(o.gpus, driver=drivers.get((o.pool.provider, o.pool.region), ""))) if o.gpus.count else o
        for o in offers
    ]
