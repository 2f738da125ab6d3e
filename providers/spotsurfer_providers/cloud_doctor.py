"""The checks of a cloud for `spotsurfer doctor`: settings, credentials, and the rights that a controller needs first.

They create nothing: the launch is a dry run, the credentials are dropped, and the queue of events is left alone, because a
read would hide messages from the controller for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spotsurfer.model.market import Market, Offer
from spotsurfer.model.money import usd
from spotsurfer.ports.provider import LaunchPlan, Provider

JOB = "doctor"


class Cloud(Provider, Protocol):
    """A provider that can try an order."""

    def rehearse(self, plan: LaunchPlan) -> str:
        """What is known of the rights that this order takes, as half a sentence; creates nothing.

        Raises as `launch` does, but knows nothing of capacity.
        """
        ...


def look(provider: Cloud) -> str:
    """A summary in half a sentence. Raises ProviderError: a sentence with the remedy."""
    provider.describe()
    offers = provider.offers()
    if provider.boot is None:
        provider.credentials(JOB, 1, [])
    best = {market: _cheapest(offers, market) for market in Market}
    known = ""
    for market, offer in best.items():
        if offer is not None:
            tags = {"spotsurfer:job": JOB, "spotsurfer:attempt": "1"}
            known = provider.rehearse(LaunchPlan(JOB, offer.pool, market, "#!/bin/sh\n", tags))
    prices = [f"{m} from {usd(o.price_usd_micros_per_hour)} USD an hour" for m, o in best.items() if o is not None]
    zones = {o.pool.zone for o in offers}
    return f"{len({o.pool for o in offers})} pools in {len(zones)} zones, {', '.join(prices)}; {known}"


def _cheapest(offers: Sequence[Offer], market: Market) -> Offer | None:
    of_it = (o for o in offers if o.market is market)
    return min(of_it, key=lambda o: o.price_usd_micros_per_hour, default=None)
