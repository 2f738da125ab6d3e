"""The least possible cost of a job with a deadline, for a policy that knows the future."""

from __future__ import annotations

import math

import numpy as np

from spotsurfer.core.scheduling.deadline_simulation import DONE, Bools, ticks_of
from spotsurfer.ports.policies import (
    Buy,
    Floats,
    Terms,
)

OPTIMUM = "optimum"


def optimum(terms: Terms, up: Bools, chunk: int = 4) -> Floats:
    """The least cost of each run with the future known: a dynamic program over (tick, machine held, spare time).

    Waiting a tick uses up a tick of the spare time, a launch the restart time, running nothing; it must last to the end.
    Kept apart from policies, because it looks ahead. `chunk` runs at once stay in the processor's cache.
    """
    unit = _unit(terms)
    spare = math.floor((ticks_of(terms) * terms.tick_seconds - terms.work_seconds) / unit + DONE)
    if spare < 0:
        return np.full(len(up), np.inf)
    least = [_least(terms, up[i : i + chunk], spare, unit) for i in range(0, len(up), chunk)]
    return np.concatenate(least) if least else np.zeros(0)


def _least(terms: Terms, up: Bools, spare: int, unit: float) -> Floats:
    wait, restart = (round(x / unit) for x in (terms.tick_seconds, terms.restart_seconds))
    spot, on_demand = (p * terms.tick_seconds / 3600 for p in (terms.spot_usd_per_hour, terms.on_demand_usd_per_hour))
    cost = np.full((3, len(up), spare + 1), np.inf)
    cost[Buy.WAIT, :, 0] = 0.0
    for tick in range(ticks_of(terms)):
        off = np.minimum(cost[Buy.SPOT], cost[Buy.ON_DEMAND])
        idle = np.minimum(cost[Buy.WAIT], off)
        ready = _later(idle, restart)  # launched from any state; if it was held already, staying is better
        cost[Buy.SPOT] = np.where(up[:, tick, None], np.minimum(cost[Buy.SPOT], ready) + spot, np.inf)
        cost[Buy.ON_DEMAND] = np.minimum(cost[Buy.ON_DEMAND], ready) + on_demand
        cost[Buy.WAIT] = _later(idle, wait)
    found: Floats = cost.min(axis=(0, 2))
    return found


def _later(values: Floats, steps: int) -> Floats:
    """The values with so much less spare time."""
    moved = np.full_like(values, np.inf)
    if steps < values.shape[-1]:
        moved[:, steps:] = values[:, : values.shape[-1] - steps]
    return moved


def _unit(terms: Terms) -> float:
    """The largest step in seconds that divides tick, restart and work; at least one second."""
    whole = [max(1, round(x)) for x in (terms.tick_seconds, terms.work_seconds) if x]
    return float(math.gcd(*whole, *([round(terms.restart_seconds)] if round(terms.restart_seconds) else [])))
