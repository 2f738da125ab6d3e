"""`surf`: where a job should be, by what it costs to be there: price, hazard by age, restart, move, and time.

With a deadline and known work, a dynamic program over pools (`roaming`) weighs staying, moving, waiting and on-demand.
Without, there is nothing to wait for: of the pools that are free, the one with the least expected cost of an hour of
progress,

    (restart and move now + price * l + q * restart after a loss) / l,

with l the expected life of the machine from the pool's present spell on, at most what is left to do, and q the chance
that it is lost before. Hazards are learned by age, for each pool around what all pools show, from a prior by the
advisor's band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from spotsurfer.core.hazard import learned, prior
from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.parameters import parameters, parameters_of
from spotsurfer.ports.placement import Placed, PlaceView, PoolView
from spotsurfer.ports.policy import PauseSeen
from spotsurfer.ports.purchase import Buy
from spotsurfer_policies.cheapest import Cheapest
from spotsurfer_policies.cheapest import make as make_cheapest
from spotsurfer_policies.roaming import HOUR
from spotsurfer_policies.weighing import hazards_of, life_of, weighed

RESTART_SECONDS = 300.0  # boot, fetch, restore, where nothing was measured
HORIZON_SECONDS = 24 * HOUR  # of work, where nobody knows how much is left


class Surf(Cheapest):
    """The cheapest place in expectation. In production it ranks offers, and leaves a machine for one that pays for the move."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, by the expected cost of an hour of progress; ties by pool so that the answer is always the same."""
        del now
        spot = [o for o in offers if o.market is Market.SPOT]
        rates = self.rates(_seen(job, spot, RESTART_SECONDS)) if spot else []
        others = [o for o in offers if o.market is not Market.SPOT]
        others.sort(key=lambda o: (o.price_usd_micros_per_hour, o.pool))
        return [*(o for _, o in sorted(zip(rates, spot, strict=True), key=lambda x: (x[0], x[1].pool))), *others]

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Back to spot as `cheapest`; between spot machines where the difference in price pays before the next loss."""
        if here.market is not Market.SPOT or there.market is not Market.SPOT:
            return super().worth_moving(job, here, there, now, pause)
        stop = max(pause.expected_seconds or 0.0, 1.0)
        stay = (now - here.since).total_seconds()
        if here.pool == there.pool or stay < self.least_stay(stop):
            return None
        hazards = learned(there.lives, prior(there.interruption_band))
        life, lost = life_of(hazards, 0.0, _left(job) or HORIZON_SECONDS)
        saved = (here.price_usd_micros_per_hour - there.price_usd_micros_per_hour) * life / HOUR
        both = here.price_usd_micros_per_hour + there.price_usd_micros_per_hour  # they run beside each other for a while
        cost = (RESTART_SECONDS * (1 + lost) + stop) / HOUR * both
        if saved <= cost * (1 + self.margin):
            return None
        return f"{there.pool} saves {saved / 1e6:.2f} USD in its expected {life / HOUR:.1f} h, a move costs {cost / 1e6:.2f}"

    def place(self, view: PlaceView) -> Placed:
        """What to hold until the next decision, and where."""
        if view.work_left_seconds is None or view.time_left_seconds is None:
            return self._without_deadline(view)
        return self._with_deadline(view, view.work_left_seconds, view.time_left_seconds)

    def _with_deadline(self, view: PlaceView, work: float, left: float) -> Placed:
        options = weighed(view, work, left)
        usd, _, buy, pool = min(options)
        if view.at is None and buy is Buy.WAIT:
            return Placed(Buy.WAIT, None, "nothing can be had that is worth it")
        others = [o for o in options if (o[2], o[3]) != (buy, pool)]
        why = f"expected {usd:.2f} USD to the end" + (f", next best {min(others)[0]:.2f}" if others else "")
        return Placed(buy, pool, why)

    def _without_deadline(self, view: PlaceView) -> Placed:
        rates = self.rates(view)
        free = [i for i, p in enumerate(view.pools) if p.free is not False]
        if not free:
            return Placed(Buy.ON_DEMAND if view.held is Buy.ON_DEMAND else Buy.WAIT, view.at, "no pool is free")
        best = min(free, key=lambda i: (rates[i], i))
        return Placed(Buy.SPOT, best, f"an hour of progress costs {rates[best]:.4f} USD")

    def rates(self, view: PlaceView) -> list[float]:
        """Expected USD for an hour of progress on spot in each pool from now on, whatever it takes to get there included."""
        hazards = hazards_of(tuple((p.up, p.down, p.band) for p in view.pools))[0]
        horizon = max(view.work_left_seconds or HORIZON_SECONDS, 60.0)
        mean = sum(p.spot_usd_per_hour for p in view.pools) / len(view.pools)
        again = view.restart_seconds / HOUR * mean + 0.5 * sum(p.move_usd for p in view.pools) / len(view.pools)
        found = []
        for i, p in enumerate(view.pools):
            life, lost = life_of(hazards[i], p.spell_seconds if p.free else 0.0, horizon)
            here = view.held is Buy.SPOT and i == view.at
            start = (view.owed_seconds if here else view.restart_seconds) / HOUR * p.spot_usd_per_hour
            move = 0.0 if view.at in (None, i) else p.move_usd
            hours = max(life / HOUR, 1e-3)
            found.append(_scarce(p) * (start + move + lost * again) / hours + _scarce(p) * p.spot_usd_per_hour)
        return found


def _scarce(pool: PoolView) -> float:
    """An order in vain costs time: score 10 counts as it is, 1 by half as much again; 5 where nobody knows."""
    score = min(max(5 if pool.score is None else pool.score, 1), 10)
    return 1 + 0.5 * (10 - score) / 9 if pool.free is None else 1.0


def _left(job: Job) -> float | None:
    """Seconds of work, as its user reckons; how much of it is done, no placement is told."""
    return job.spec.work_seconds


def _seen(job: Job, offers: Sequence[Offer], restart_seconds: float) -> PlaceView:
    """Offers as pools of which nobody knows for how long they have been free."""
    pools = tuple(
        PoolView(
            str(o.pool),
            o.price_usd_micros_per_hour / 1e6,
            o.list_price_usd_micros_per_hour / 1e6,
            None,
            up=o.lives,
            band=o.interruption_band,
            score=o.placement_score,
        )
        for o in offers
    )
    return PlaceView(pools, 60.0, _left(job), None, restart_seconds)


@parameters(*parameters_of(make_cheapest))
def make(settings: Mapping[str, object]) -> Surf:
    """Price, hazard by age, restart, move and time; with a deadline by a dynamic program over pools."""
    cheapest = make_cheapest(settings)
    return Surf(cheapest.stay_seconds, cheapest.margin, cheapest.pause_share)
