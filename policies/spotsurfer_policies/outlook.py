"""The expected cost to go of a job with a deadline, by dynamic programming over a bank of hidden Markov models.

State: ticks left, what is held, time to spare (time left minus work left, the start-up that is still owed counted as work),
and the hidden state of the market one tick ago. A tick of running leaves the time to spare as it is, waiting uses up a tick of
it, a launch the restart time. The minimum is taken as if the hidden state of the past tick were known ("fast informed bound");
what is held is then chosen by the mean over the belief. In money of one on-demand hour, so that a table serves all prices of
one ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.purchase import Floats
from spotsurfer_policies.regimes import Bank

Table = npt.NDArray[np.float32]
LATE_ONCE, LATE_TICK = 1.6, 1.6  # on-demand hours that being late costs, once and each tick; only the table's edge meets it
NEVER = np.float32(1e9)
STEPS = ((24, 0.5), (96, 1.0), (240, 2.0), (math.inf, 4.0))  # up to so many ticks to spare: the grid's step, in ticks
WAIT, SPOT, ON_DEMAND = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Market:
    """What a table depends on besides the bank. Times in seconds; `ratio` is the price of spot over that of on-demand."""

    tick: float
    restart: float
    ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """`table[ticks left, held, time to spare, hidden state]`; `grid` are the times to spare, seconds."""

    market: Market
    table: Table
    grid: Floats

    def at(self, left: int, held: int, spare: Floats, belief: Floats) -> Floats:
        """Expected cost to go of each run, in on-demand hours, `left` ticks before the end."""
        rows = self.table[left, held]
        x = np.interp(spare, self.grid, np.arange(len(self.grid)))
        below = np.minimum(x.astype(np.int64), len(self.grid) - 2)
        part = (x - below)[:, None]
        mean = rows[below] * (1 - part) + rows[below + 1] * part
        found: Floats = np.einsum("rk,rk->r", mean, belief)
        return found

    def at_one(self, left: int, held: int, spare: float, belief: Floats) -> float:
        """The same of a single run; `belief` has one value a state."""
        rows = self.table[left, held]
        below = min(max(int(self.grid.searchsorted(spare, "right")) - 1, 0), len(rows) - 2)
        low, high = self.grid[below : below + 2].tolist()
        first, second = (rows[below : below + 2] @ belief).tolist()
        return float(first + (second - first) * min(max((spare - low) / (high - low), 0.0), 1.0))


def outlook(model: Bank, market: Market, ticks: int, spare: float) -> Outlook:
    """The table for up to so many ticks and so much time to spare (seconds)."""
    grid = spares(market, spare)
    down_up = np.stack([model.a * (1 - model.b), model.a * model.b]).astype(np.float32)
    table = np.zeros((ticks + 1, 3, len(grid), len(model.b)), np.float32)
    steps = _Steps(market, grid)
    table[0] = steps.late(0)[:, :, None]
    table[0][:, grid >= 0] = 0.0
    for left in range(1, ticks + 1):
        table[left] = steps.before(left, table[left - 1], down_up)
    return Outlook(market, table, grid)


def spares(market: Market, most: float) -> Floats:
    """Times to spare of the table: half a tick apart while they are short, coarser where a tick more or less matters little."""
    tick = market.tick
    low = -tick / 2 * np.ceil(2 * (market.restart + tick) / tick)
    bounds = [low, *(min(b * tick, most) for b, _ in STEPS)]
    parts = [np.arange(a, b, s * tick) for (a, b), (_, s) in zip(pairwise(bounds), STEPS, strict=True)]
    grid: Floats = np.concatenate([*parts, [max(most, 0.0) + tick]])
    return grid


class _Steps:
    """One step back in time, for all states at once."""

    def __init__(self, market: Market, grid: Floats) -> None:
        self._m, self._grid = market, grid
        self._hours = market.tick / 3600
        self._waited, self._launched = self._places(market.tick), self._places(market.restart)

    def _places(self, by: float) -> tuple[npt.NDArray[np.int64], Table]:
        """Where in the grid each time to spare is when so much of it is gone: the place above, and the share of that below."""
        x = np.interp(self._grid - by, self._grid, np.arange(len(self._grid)))
        above = np.ceil(x - 1e-9).astype(np.int64)
        return above, (above - x).clip(0.0).astype(np.float32)[:, None]

    def late(self, left: int) -> Table:
        """(held, spare): all that is left on-demand, and the price of being late."""
        start = np.array([self._m.restart, self._m.restart, 0.0])[:, None]
        work = left * self._m.tick - self._grid
        late = np.maximum(start - self._grid, 0.0) / self._m.tick
        cost: Floats = (work + start) / 3600 + np.where(late > 0, LATE_ONCE + LATE_TICK * late, 0.0)
        return cost.astype(np.float32)

    def before(self, left: int, after: Table, down_up: Table) -> Table:
        """(held, spare, state) with `left` ticks to go, from the same with one tick less."""
        d, tick, grid = self._m.restart, self._m.tick, self._grid
        work, rest = left * tick - grid, (left - 1) * tick
        may_wait = work + d <= rest
        may_launch = (np.maximum(work + d - tick, 0) + d <= rest) | (work + d <= tick)
        may_stay = (np.maximum(work - tick, 0) + d <= rest) | (work <= tick)
        total = np.zeros_like(after)
        for up, chances in enumerate(down_up):
            ahead = after @ chances.T
            odds = chances.sum(axis=1)
            wait = np.where(may_wait[:, None], _moved(ahead[WAIT], self._waited), NEVER)
            stay_od = odds * self._hours + ahead[ON_DEMAND]
            new_od = odds * self._hours + _moved(ahead[ON_DEMAND], self._launched)
            spot = odds * (self._hours * self._m.ratio)
            new_sp = np.where(may_launch[:, None], spot + _moved(ahead[SPOT], self._launched), NEVER) if up else NEVER
            stay_sp = np.where(may_stay[:, None], spot + ahead[SPOT], NEVER) if up else NEVER
            fresh = np.minimum(np.minimum(wait, new_sp), new_od)
            total[WAIT] += fresh
            total[SPOT] += np.minimum(np.minimum(wait, stay_sp), new_od)
            total[ON_DEMAND] += np.minimum(np.minimum(wait, new_sp), stay_od)
        late = self.late(left)
        for held, need in ((WAIT, d), (ON_DEMAND, 0.0)):
            lost = grid < need
            total[held, lost] = late[held, lost, None]
        total[:, work <= 0] = 0.0
        return total


def _moved(rows: Table, places: tuple[npt.NDArray[np.int64], Table]) -> Table:
    """Rows at other times to spare."""
    above, share = places
    if not share.any():
        return rows[above]
    found: Table = (rows[above] * (1 - share) + rows[np.maximum(above - 1, 0)] * share).astype(np.float32, copy=False)
    return found


def weigh_one(view: Outlook, left: int, after: tuple[float, float, float], may: bool, belief: Floats) -> list[float]:
    """As `weigh`, of a single run: the expected cost of waiting, of spot, of on-demand."""
    hours = view.market.tick / 3600
    spot = hours * view.market.ratio + view.at_one(left - 1, SPOT, after[SPOT], belief) if may else math.inf
    return [
        view.at_one(left - 1, WAIT, after[WAIT], belief),
        spot,
        hours + view.at_one(left - 1, ON_DEMAND, after[ON_DEMAND], belief),
    ]


def weigh(view: Outlook, left: int, after: tuple[Floats, Floats, Floats], may: npt.NDArray[np.bool_], belief: Floats) -> Floats:
    """(buy, run): expected cost in on-demand hours of holding each during the next tick, with `left` ticks to go.

    `after`: time to spare after that tick, one array a buy; `may`: spot can be had.
    """
    hours = view.market.tick / 3600
    return np.stack(
        [
            view.at(left - 1, WAIT, after[WAIT], belief),
            np.where(may, hours * view.market.ratio + view.at(left - 1, SPOT, after[SPOT], belief), np.inf),
            hours + view.at(left - 1, ON_DEMAND, after[ON_DEMAND], belief),
        ]
    )
