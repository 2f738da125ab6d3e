"""`surf`: where a job should be, by what it costs to be there: price, hazard by age, restart, move, and time.

Of the pools that are free it goes where an hour of progress is expected to cost least (`progress`), and leaves a machine only
for a pool where that is less with the launch and the move. With a deadline and known work, a dynamic program over pools
(`roaming`) says what an hour to spare is worth there, and weighs what to do while no machine is held, or an on-demand one:
spot, on-demand or waiting; it waits beside pools that are free only where they are dearer than the one that it waits for, the
wait included. Where a move is reckoned at more than an hour on spot, the program weighs staying and moving, too. Hazards are
learned by age, for each pool around what all pools show, from a prior by the advisor's band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from spotsurfer_policies.progress import HORIZON_SECONDS, rates
from spotsurfer_policies.roaming import HOUR
from spotsurfer_policies.weighing import life_of, weighed, worth_of_an_hour

RESTART_SECONDS = 300.0  # boot, fetch, restore, where nothing was measured
# A move of a job's state is taken to be so many times as dear as it is: lives are believed, not known, and who believes them
# hops too often (E2 of docs/policies.md: 200 GB of state 7.9 % above the optimum with 1, 5.6 with 2, 6.3 with 3).
MOVES = 2.0


class Surf(Cheapest):
    """The cheapest place in expectation. In production it ranks offers, and leaves a machine for one that pays for the move."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, by the expected cost of an hour of progress; ties by pool so that the answer is always the same."""
        del now
        spot = [o for o in offers if o.market is Market.SPOT]
        usd = rates(_seen(job, spot, RESTART_SECONDS)) if spot else []
        others = [o for o in offers if o.market is not Market.SPOT]
        others.sort(key=lambda o: (o.price_usd_micros_per_hour, o.pool))
        return [*(o for _, o in sorted(zip(usd, spot, strict=True), key=lambda x: (x[0], x[1].pool))), *others]

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
        view = replace(view, pools=tuple(replace(p, move_usd=MOVES * p.move_usd) for p in view.pools))
        if view.work_left_seconds is None or view.time_left_seconds is None:
            return self._without_deadline(view)
        return self._with_deadline(view, view.work_left_seconds, view.time_left_seconds)

    def _with_deadline(self, view: PlaceView, work: float, left: float) -> Placed:
        usd = rates(view, worth_of_an_hour(view, work, left)) if _light(view) else []
        if usd and view.held is Buy.SPOT:
            return _cheapest(view, usd)
        options = weighed(view, work, left)
        cost, _, buy, pool = min(options)
        best = min(range(len(usd)), key=lambda i: (usd[i], i), default=None)
        if best is not None and (buy is Buy.SPOT or (buy is Buy.WAIT and view.pools[best].free is not False)):
            return _cheapest(view, usd)
        if view.at is None and buy is Buy.WAIT:
            return Placed(Buy.WAIT, None, "nothing can be had that is worth it")
        others = [o for o in options if (o[2], o[3]) != (buy, pool)]
        why = f"expected {cost:.2f} USD to the end" + (f", next best {min(others)[0]:.2f}" if others else "")
        return Placed(buy, pool, why)

    def _without_deadline(self, view: PlaceView) -> Placed:
        if all(p.free is False for p in view.pools):
            return Placed(Buy.ON_DEMAND if view.held is Buy.ON_DEMAND else Buy.WAIT, view.at, "no pool is free")
        return _cheapest(view, rates(view))


def _light(view: PlaceView) -> bool:
    """A move is reckoned at less than an hour on spot; else where the job lies matters more than who is cheap now."""
    return max(p.move_usd for p in view.pools) < min(p.spot_usd_per_hour for p in view.pools)


def _cheapest(view: PlaceView, usd: Sequence[float]) -> Placed:
    """Where an hour of progress costs least, of the pools that may be free; of equal ones the present one, then the first."""
    best = min((i for i, p in enumerate(view.pools) if p.free is not False), key=lambda i: (usd[i], i != view.at, i))
    return Placed(Buy.SPOT, best, f"an hour of progress costs {usd[best]:.4f} USD")


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
