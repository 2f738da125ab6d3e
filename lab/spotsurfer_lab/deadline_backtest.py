"""Compares purchase policies on one trace: every pool and window is a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from spotsurfer.common.charts import Stripes
from spotsurfer.common.plugins import PURCHASE, made, plugin
from spotsurfer.core.scheduling.deadline_simulation import DONE, Bools, Played, play, ticks_of
from spotsurfer.ports.policies import LEAVE_OUT, Buy, Floats, Purchase, Terms, parameters_of
from spotsurfer_lab.markets import Trace
from spotsurfer_lab.results import HELD, OPTIMUM, Comparison, Match, Outcome, Step, need, settings_of, spread

Settings = Mapping[str, Mapping[str, object]]
NONE: Settings = {}


def compare(
    trace: Trace, starts: Sequence[int], terms: Terms, names: Sequence[str], step: Step, settings: Settings = NONE
) -> Match:
    """All runs of all policies, in the same order; `settings` by policy. Raises UsageError, ConfigError."""
    ticks = ticks_of(terms)
    rows = trace.windows(list(starts), ticks)
    need(rows, ticks, len(trace.up))
    usd: dict[str, list[Floats]] = {name: [] for name in names}
    played: dict[str, list[Played]] = {name: [] for name in names}
    for i, pool in enumerate(trace.pools):
        up = np.array([trace.up[r : r + ticks, i] for r in rows])
        for j, name in enumerate(names):
            if name == OPTIMUM:
                usd[name].append(optimum(terms, up))
            else:
                played[name].append(play(policy_for(name, pool, settings.get(name, {})), terms, up))
                usd[name].append(played[name][-1].usd)
            step((i * len(names) + j + 1) * len(rows), len(trace.pools) * len(names) * len(rows))
    outcomes = [_outcome(name, usd[name], played[name], np.array(rows)) for name in names]
    told = settings_of(terms, len(trace.pools), len(rows))
    told |= {"on_demand": terms.on_demand_usd_per_hour, "spot": terms.spot_usd_per_hour}
    comparison = Comparison("A job with a deadline on one pool", told, outcomes)
    return Match(comparison, [spread(comparison), _timeline(played, trace, rows, terms)])


def policy_for(name: str, pool: str, settings: Mapping[str, object]) -> Purchase:
    """A policy that was not trained on this pool. Raises ConfigError with the names there are."""
    learns = any(p.name == LEAVE_OUT for p in parameters_of(plugin(PURCHASE, name)))
    others = settings.get(LEAVE_OUT, [])  # one name may stand alone
    out = [*(others if isinstance(others, list) else [others]), pool]
    policy: Purchase = made(PURCHASE, name, {**settings, LEAVE_OUT: out} if learns else settings)
    return policy


def _outcome(name: str, costs: Sequence[Floats], played: Sequence[Played], rows: np.ndarray) -> Outcome:
    groups, usd = np.tile(rows, len(costs)), np.concatenate(costs)
    if not played:
        return Outcome(name, usd, groups)
    means = {
        "moves": np.concatenate([p.moves for p in played]).astype(np.float64),
        "wasted_hours": np.concatenate([p.wasted_hours for p in played]),
    }
    missed = np.concatenate([p.missed for p in played]).astype(np.int64)
    return Outcome(name, usd, groups, means, {"deadline_misses": missed})


def _timeline(played: dict[str, list[Played]], trace: Trace, rows: Sequence[int], terms: Terms) -> Stripes:
    """The run in the middle of the list."""
    pool, run = len(trace.pools) // 2, len(rows) // 2
    hours, ticks = terms.tick_seconds / 3600, ticks_of(terms)
    free = trace.up[rows[run] : rows[run] + ticks, pool]
    drawn = [("spot to be had", _pieces(free.astype(np.int8), {1: "available"}, hours))]
    for name, found in played.items():
        if found:
            drawn.append((name, _pieces(found[pool].held[run], {int(k): v for k, v in HELD.items()}, hours)))
    return Stripes(f"One run: {trace.pools[pool]}, from tick {rows[run] + trace.first}", drawn)


def _pieces(values: np.ndarray, kinds: dict[int, str], hours: float) -> list[tuple[float, float, str]]:
    """Stretches of equal values."""
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    stretches = [(a, b) for a, b in pairwise(cuts) if int(values[a]) in kinds]
    return [(a * hours, b * hours, kinds[int(values[a])]) for a, b in stretches]


# ---- Hindsight: the least possible cost, for a policy that knows the future. Kept apart from policies, because it looks ahead.


def optimum(terms: Terms, up: Bools, chunk: int = 4) -> Floats:
    """The least cost of each run with the future known: a dynamic program over (tick, machine held, spare time).

    Waiting a tick uses up a tick of the spare time, a launch the restart time, running nothing; it must last to the end.
    `chunk` runs at once stay in the processor's cache.
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
