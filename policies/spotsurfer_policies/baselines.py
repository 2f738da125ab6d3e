"""Purchase and placement baselines, against which better policies are measured.

Each purchase baseline is a rule for many runs at once (numpy arrays, one value for each run); a single job is an array of one.
Rules and names are those of Wu et al., "Can't Be Late", NSDI 2024. The caller keeps the deadlines
(`core.scheduling.deadline`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from spotsurfer.ports.policies import (
    Buy,
    Choice,
    Modes,
    Parameter,
    Pilot,
    Placed,
    PlaceView,
    PoolView,
    PurchaseMoment,
    Terms,
    View,
    parameters,
    parameters_of,
)
from spotsurfer_policies.parameter_values import values

# ---- Purchase: policies without memory.

Rule = Callable[[PurchaseMoment, Terms], Modes]
SLICES = 8
WAIT, SPOT, ON_DEMAND = (np.int8(b) for b in Buy)


class Ruled:
    """A policy that is one rule of the present moment."""

    def __init__(self, rule: Rule, why: str, keeps_deadlines: bool = True) -> None:
        """`keeps_deadlines` False: simulations play it without the deadline's guard, because the original has none."""
        self._rule, self._why, self.keeps_deadlines = rule, why, keeps_deadlines

    def choose(self, view: View) -> Choice:
        """What to hold during the next tick."""
        return Choice(Buy(int(self._rule(moment_of(view), view.terms)[0])), self._why)

    def pilot(self, terms: Terms, runs: int, past: tuple[bool | None, ...] = ()) -> Pilot:
        """The rule, on many runs."""
        del runs, past
        return lambda moment: self._rule(moment, terms)


def moment_of(view: View) -> PurchaseMoment:
    """One job as an array of one."""
    last = view.spot_seen[-1] if view.spot_seen else None
    return PurchaseMoment(
        view.elapsed_seconds,
        np.array([view.done_seconds]),
        np.array([view.held], dtype=np.int8),
        np.array([view.owed_seconds]),
        np.array([-1 if last is None else int(last)], dtype=np.int8),
    )


def greedy(moment: PurchaseMoment, terms: Terms) -> Modes:
    """Spot if available, else wait; on-demand, once the time is up, stays to the end."""
    left, work = terms.deadline_seconds - moment.elapsed_seconds, terms.work_seconds - moment.done_seconds
    last_call = (moment.held == ON_DEMAND) & (left <= work + 2 * terms.restart_seconds)
    return np.where(last_call, ON_DEMAND, np.where(moment.spot_seen != 0, SPOT, WAIT))


def uniform_progress(moment: PurchaseMoment, terms: Terms) -> Modes:
    """Spot if available; else on-demand if behind an even pace, until ahead of it."""
    pace = terms.work_seconds / terms.deadline_seconds
    up, t = moment.spot_seen != 0, moment.elapsed_seconds
    ahead = moment.done_seconds > (t + 2 * terms.restart_seconds) * pace
    on_demand = np.where(up & ahead, SPOT, ON_DEMAND)
    else_ = np.where(up, SPOT, np.where(moment.done_seconds < t * pace, ON_DEMAND, WAIT))
    return np.where(moment.held == ON_DEMAND, on_demand, else_)


def sliced(slices: int) -> Rule:
    """Greedy with a quota and a safety net in each slice of the time; work beyond a quota counts for the next one."""

    def rule(moment: PurchaseMoment, terms: Terms) -> Modes:
        length = terms.deadline_seconds / slices
        number = min(int(moment.elapsed_seconds / length + 1e-9) + 1, slices)
        left = number * length - moment.elapsed_seconds
        work = np.maximum(number * terms.work_seconds / slices - moment.done_seconds, 0.0)
        up, tick, d = moment.spot_seen != 0, terms.tick_seconds, terms.restart_seconds
        owed = np.where(moment.held == SPOT, moment.owed_seconds, d)
        gained = np.where(up, np.maximum(0.0, tick - owed), 0.0)
        late = (work > 0) & (left - tick < work - gained + d)
        stay = (moment.held == ON_DEMAND) & (work > 0) & (left <= work + 2 * d)
        return np.where(late | stay, ON_DEMAND, np.where(up, SPOT, WAIT))

    return rule


def spot_only(moment: PurchaseMoment, terms: Terms) -> Modes:
    """SkyPilot's managed jobs by default: recover on spot, retry until spot is available; ignores deadlines."""
    del terms
    return np.where(moment.spot_seen != 0, SPOT, WAIT)


def on_demand(moment: PurchaseMoment, terms: Terms) -> Modes:
    """Nothing but on-demand."""
    del terms
    return np.full_like(moment.held, ON_DEMAND)


def make_greedy(settings: Mapping[str, object]) -> Ruled:
    """Spot whenever there is some, and on-demand once the time is up."""
    values("purchase.greedy", settings)
    return Ruled(greedy, "spot while the time allows")


def make_uniform_progress(settings: Mapping[str, object]) -> Ruled:
    """An even pace: on-demand only when behind it."""
    values("purchase.uniform-progress", settings)
    return Ruled(uniform_progress, "an even pace")


def make_on_demand(settings: Mapping[str, object]) -> Ruled:
    """On-demand from begin to end."""
    values("purchase.on-demand", settings)
    return Ruled(on_demand, "on-demand only")


def make_skypilot(settings: Mapping[str, object]) -> Ruled:
    """As SkyPilot recovers by default: spot only, and no deadline is known."""
    values("purchase.skypilot", settings)
    return Ruled(spot_only, "spot only", keeps_deadlines=False)


@parameters(Parameter("slices", SLICES, "so many parts the time is cut into"))
def make_sliced(settings: Mapping[str, object]) -> Ruled:
    """Greedy in each slice of the time, with a quota each."""
    slices = values("purchase.sliced", settings, parameters_of(make_sliced))["slices"]
    if not 1 <= slices <= 1000:
        raise ValueError("purchase.sliced: slices must be from 1 to 1000")
    return Ruled(sliced(slices), f"greedy in each of {slices} slices")


# ---- Placement: buys by a purchase rule, picks a pool by a simple choice, and stays until the machine is lost.
# Uniform Progress decides between spot, on-demand and waiting as if all pools were one, which is free if any of them is.

Pick = Callable[[PlaceView], int | None]


class Follower:
    """A purchase rule and a choice among the free pools."""

    def __init__(self, rule: Rule, pick: Pick, why: str) -> None:
        """`pick`: index of a pool that is free, or None."""
        self._rule, self._pick, self._why = rule, pick, why

    def place(self, view: PlaceView) -> Placed:
        """The machine to hold until the next decision, and its pool."""
        pool = view.at if view.held is Buy.SPOT else self._pick(view)
        buy = self._buy(view, pool is not None)
        return Placed(buy, pool if buy is Buy.SPOT else (pool if view.at is None else view.at), self._why)

    def _buy(self, view: PlaceView, free: bool) -> Buy:
        if view.work_left_seconds is None or view.time_left_seconds is None or view.job_seconds is None:
            return Buy.SPOT if free else Buy.WAIT
        work, time = view.job_seconds
        terms = Terms(view.tick_seconds, work, time, view.restart_seconds, 0.0, 0.0)
        moment = PurchaseMoment(
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
    """The free pool with the largest share of free time so far; among equal ones the cheapest."""
    free = [i for i, p in enumerate(view.pools) if p.free]
    return max(free, key=lambda i: (_share(view.pools[i]), -view.pools[i].spot_usd_per_hour), default=None)


def _share(pool: PoolView) -> float:
    up, down = sum(pool.up.watched), sum(pool.down.watched)
    return up / (up + down) if up + down else 0.5


def make_first_free(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress; the first pool of the list that is free."""
    values("placement.first-free", settings)
    return Follower(uniform_progress, first_free, "first-free")


def make_cheapest_free(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress; the free pool with the lowest price."""
    values("placement.cheapest-free", settings)
    return Follower(uniform_progress, cheapest_free, "cheapest-free")


def make_history(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress; the pool that was free most of the time."""
    values("placement.history", settings)
    return Follower(uniform_progress, most_often_free, "history")


def make_greedy_history(settings: Mapping[str, object]) -> Follower:
    """Greedy; the pool that was free most of the time."""
    values("placement.greedy-history", settings)
    return Follower(greedy, most_often_free, "greedy-history")


@parameters(Parameter("pool", 0, "number of the only pool that is used, from 0 on"))
def make_single(settings: Mapping[str, object]) -> Follower:
    """Uniform Progress in one pool."""
    number = values("placement.single", settings, parameters_of(make_single))["pool"]
    if number < 0:
        raise ValueError("placement.single: pool must be 0 or more")
    return Follower(
        uniform_progress,
        lambda view: number if number < len(view.pools) and view.pools[number].free else None,
        f"pool {number} only",
    )
