"""Made-up markets of several pools, seeded: for policies that were tuned on recorded ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from spotsurfer.sim.deadline import Bools

Family = Callable[[int, int, float, int], Bools]


def memoryless(ticks: int, pools: int, tick_seconds: float, seed: int) -> Bools:
    """Spells with ends by chance alone, each pool by itself: free for 1 to 10 h on average, empty for 0.5 to 4 h."""
    rng = np.random.default_rng(seed)
    free, none = rng.uniform(1, 10, pools), rng.uniform(0.5, 4, pools)
    leave, back = (tick_seconds / 3600 / x for x in (free, none))
    up = np.zeros((ticks, pools), dtype=np.bool_)
    state = rng.random(pools) < free / (free + none)
    for tick in range(ticks):
        change = rng.random(pools) < np.where(state, leave, back)
        state = state ^ change
        up[tick] = state
    return up


def daily(ticks: int, pools: int, tick_seconds: float, seed: int) -> Bools:
    """Pools that run empty together each working day, deeper and longer in some, with heavy-tailed spells between."""
    rng = np.random.default_rng(seed)
    hours = np.arange(ticks) * tick_seconds / 3600
    demand = np.sin(2 * np.pi * (hours - 6) / 24)[:, None] * rng.uniform(0.2, 1.0, pools)
    noise = np.zeros((ticks, pools))
    for scale in (0.5, 3.0, 20.0):
        step = max(int(scale * 3600 / tick_seconds), 1)
        drawn = rng.normal(size=(ticks // step + 2, pools))
        noise += np.repeat(drawn, step, axis=0)[:ticks]
    return np.asarray(demand + 0.5 * noise < rng.uniform(0.2, 0.9, pools), dtype=np.bool_)


FAMILIES: Mapping[str, Family] = {"memoryless": memoryless, "daily": daily}
