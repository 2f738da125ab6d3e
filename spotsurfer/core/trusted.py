"""A placement policy whose mistakes can't harm a job: what it raises or says wrongly is replaced by a plain rule and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.policy import PauseSeen, Policy


class Trusted:
    """Asks another policy, and looks at its answers. `alarms` are collected until they are told."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self.alarms: list[str] = []

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Its ranking, where that holds none but the offers it was given, each once; else spot first, then by price."""
        try:
            ranked = list(self._inner.rank(job, offers, now))
            strange = not (_same(ranked, offers) or _among(ranked, offers))
        except Exception as e:  # somebody else's code: whatever it raises must not stop the fleet
            return self._by_price(offers, f"the policy failed to rank offers: {type(e).__name__}: {e}")
        return self._by_price(offers, "the policy ranked offers that there are not") if strange else ranked

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Its reason, where that is a sentence or None; else nobody moves."""
        try:
            why = self._inner.worth_moving(job, here, there, now, pause)
        except Exception as e:
            self._tell(f"the policy failed to judge a move: {type(e).__name__}: {e}")
            return None
        if why is None or isinstance(why, str):
            return why
        self._tell(f"the policy gave no reason for a move but {why!r:.80}")
        return None

    def _by_price(self, offers: Sequence[Offer], alarm: str) -> Sequence[Offer]:
        self._tell(alarm)
        return sorted(offers, key=lambda o: (o.market is not Market.SPOT, o.price_usd_micros_per_hour, o.pool))

    def _tell(self, alarm: str) -> None:
        if alarm not in self.alarms:
            self.alarms.append(alarm)


def _same(ranked: Sequence[Offer], offers: Sequence[Offer]) -> bool:
    """The very objects, each once: what every policy of ours answers. Saves to look into each of thousands."""
    theirs = {id(o) for o in ranked}
    return len(theirs) == len(ranked) and theirs <= {id(o) for o in offers}


def _among(ranked: Sequence[Offer], offers: Sequence[Offer]) -> bool:
    return all(isinstance(o, Offer) for o in ranked) and not Counter(ranked) - Counter(offers)
