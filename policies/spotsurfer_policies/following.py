"""Placement baselines: buy by a purchase rule of old, go to a pool by a simple choice, and stay until it is lost.

Uniform Progress decides between spot, on-demand and waiting, as if the pools were one that is free when any of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from spotsurfer.ports.parameters import Parameter, parameters
from spotsurfer.ports.placement import Placed, PlaceView, PoolView
from spotsurfer.ports.purchase import Buy, Moment, Terms
from spotsurfer_policies.purchase import Rule, greedy, uniform_progress

Pick = Callable[[PlaceView], int | None]


class Follower:
    """A purchase rule and a choice among the pools that are free."""

    def __init__(self, rule: Rule, pick: Pick, why: str) -> None:
        """`pick`: index of a pool that is free, or None."""
        self._rule, self._pick, self._why = rule, pick, why

    def place(self, view: PlaceView) -> Placed:
        """What to hold until the next decision, and where."""
        pool = view.at if view.held is Buy.SPOT else self._pick(view)
        buy = self._buy(view, pool is not None)
        return Placed(buy, pool if buy is Buy.SPOT else (pool if view.at is None else view.at), self._why)

    def _buy(self, view: PlaceView, free: bool) -> Buy:
        if view.work_left_seconds is None or view.time_left_seconds is None or view.job_seconds is None:
            return Buy.SPOT if free else Buy.WAIT
        work, time = view.job_seconds
        terms = Terms(view.tick_seconds, work, time, view.restart_seconds, 0.0, 0.0)
        moment = Moment(
            time - view.time_left_seconds,
            np.array([work - view.work_left_seconds]),
            np.array([view.held], dtype=np.int8),
            np.array([view.owed_seconds]),
            np.array([int(free)], dtype=np.int8),
        )
        return Buy(int(self._rule(moment, terms)[0]))


def first_free(view: PlaceView) -> int | None:
    """The first pool of the list that is free."""
    return next((i for i, p in enumerate(view.pools) if p.free), None)


def cheapest_free(view: PlaceView) -> int | None:
    """The free pool with the lowest price now."""
    return min((i for i, p in enumerate(view.pools) if p.free), key=lambda i: view.pools[i].spot_usd_per_hour, default=None)


def most_often_free(view: PlaceView) -> int | None:
    """The free pool that was free for the largest share of the time seen; of equal ones the cheapest."""
    free = [i for i, p in enumerate(view.pools) if p.free]
    return max(free, key=lambda i: (_share(view.pools[i]), -view.pools[i].spot_usd_per_hour), default=None)


def _share(pool: PoolView) -> float:
    up, down = sum(pool.up.watched), sum(pool.down.watched)
    return up / (up + down) if up + down else 0.5


def _only(number: int) -> Pick:
    return lambda view: number if number < len(view.pools) and view.pools[number].free else None


def make_first_free(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress; the first pool of the list that is free."""
    return _plain(settings, "first-free", uniform_progress, first_free)


def make_cheapest_free(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress; the free pool with the lowest price."""
    return _plain(settings, "cheapest-free", uniform_progress, cheapest_free)


def make_history(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress; the pool that was free most of the time."""
    return _plain(settings, "history", uniform_progress, most_often_free)


def make_greedy_history(settings: Mapping[str, object]) -> Follower:
    """Greedy; the pool that was free most of the time."""
    return _plain(settings, "greedy-history", greedy, most_often_free)


@parameters(Parameter("pool", 0, "number of the only pool that is used, from 0 on"))
def make_single(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress in one pool."""
    number = settings.get("pool", 0)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0 or set(settings) - {"pool"}:
        raise ValueError("placement.single: its one parameter is pool, a whole number from 0 on")
    return Follower(uniform_progress, _only(number), f"pool {number} only")


def _plain(settings: Mapping[str, object], name: str, rule: Rule, pick: Pick) -> Follower:
    if settings:
        raise ValueError(f"placement.{name}: it has no parameters, not {', '.join(map(str, settings))}")
    return Follower(rule, pick, name)
