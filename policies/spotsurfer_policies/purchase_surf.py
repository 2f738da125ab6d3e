"""`surf` for purchase: keeps a deadline at the least expected cost, with market models, a belief, and a dynamic program.

Each tick, spot availability updates the belief over the models of a bank. The next machine is the one with the least expected
cost by the table (`Outlook`), averaged over the belief. Nothing is tuned to a deadline, a price or a restart time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.policies import (
    LEAVE_OUT,
    Buy,
    Choice,
    Floats,
    Modes,
    Parameter,
    Pilot,
    PurchaseMoment,
    Terms,
    View,
    parameters,
    parameters_of,
)
from spotsurfer_policies.baselines import moment_of
from spotsurfer_policies.market_model import Bank, Model, bank, decoded, learn, learn_more
from spotsurfer_policies.parameter_values import values

# ---- Table: the expected cost to the end, by dynamic programming over a bank of hidden Markov models.
#
# State: ticks left, machine held, spare time (time left minus work left, with the rest of a start-up counted as work), and the
# hidden state of the market one tick ago. A tick of running leaves the spare time unchanged, waiting uses up a tick of it, a
# launch the restart time. The minimum assumes that the hidden state of the past tick is known ("fast informed bound"); the
# choice then takes the mean over the belief. Costs are in on-demand hours, so that one table serves all prices of one ratio.

Table = npt.NDArray[np.float32]
LATE_ONCE, LATE_TICK = 1.6, 1.6  # on-demand hours that lateness costs, once and each tick; matters only at the table's edge
NEVER = np.float32(1e9)
STEPS = ((24, 0.5), (96, 1.0), (240, 2.0), (math.inf, 4.0))  # up to so many spare ticks: the grid's step, in ticks
WAIT, SPOT, ON_DEMAND = Buy


@dataclass(frozen=True, slots=True)
class Market:
    """Inputs of a table besides the bank. Times in seconds; `ratio` is the price of spot over that of on-demand."""

    tick: float
    restart: float
    ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """`table[ticks left, held, spare time, hidden state]`; `grid` holds the spare times, seconds."""

    market: Market
    table: Table
    grid: Floats

    def at(self, left: int, held: int, spare: Floats, belief: Floats) -> Floats:
        """Expected cost to the end of each run, in on-demand hours, `left` ticks before the end."""
        rows = self.table[left, held]
        x = np.interp(spare, self.grid, np.arange(len(self.grid)))
        below = np.minimum(x.astype(np.int64), len(self.grid) - 2)
        part = (x - below)[:, None]
        mean = rows[below] * (1 - part) + rows[below + 1] * part
        found: Floats = np.einsum("rk,rk->r", mean, belief)
        return found


def outlook(model: Bank, market: Market, ticks: int, spare: float) -> Outlook:
    """The table for up to this many ticks and this much spare time (seconds)."""
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
    """Spare times of the table: half a tick apart if short, coarser for long ones, because a tick matters less there."""
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
        """The grid position of each spare time after `by` is gone: the place above, and the share of the one below."""
        x = np.interp(self._grid - by, self._grid, np.arange(len(self._grid)))
        above = np.ceil(x - 1e-9).astype(np.int64)
        return above, (above - x).clip(0.0).astype(np.float32)[:, None]

    def late(self, left: int) -> Table:
        """(held, spare): finish on on-demand, plus the price of lateness."""
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
    """Rows at other spare times."""
    above, share = places
    if not share.any():
        return rows[above]
    found: Table = (rows[above] * (1 - share) + rows[np.maximum(above - 1, 0)] * share).astype(np.float32, copy=False)
    return found


# ---- Policy

SHIPPED = "aws_2022.json"
STRANGE = 0.02
TABLES = 6  # kept at a time, some 50 MB each
SHARED_TICKS, SHARED_SPARE = 40, 12
SLIP = 1e-9
WORDS = ("waiting", "spot", "on-demand")


class Surf:
    """See the module. `models` are the known markets; `strange` is the weight of others."""

    def __init__(self, models: Sequence[Model], strange: float = STRANGE) -> None:
        self._models = tuple(models)
        self._banks = lru_cache(maxsize=TABLES)(lambda tick: bank(self._models, tick, strange))
        self._tables = lru_cache(maxsize=TABLES)(
            lambda market, ticks, spare: outlook(self._banks(market.tick), market, ticks, spare)
        )
        self._last: tuple[float, tuple[bool | None, ...], Floats] | None = None

    def choose(self, view: View) -> Choice:
        """The machine for the next tick, with the expected cost of each choice."""
        belief = self.belief(view.terms.tick_seconds, view.spot_seen or (None,))
        costs = self._costs(moment_of(view), view.terms, belief[None])[:, 0].tolist()
        buy = Buy(costs.index(min(costs)))
        per_hour = view.terms.on_demand_usd_per_hour
        told = ", ".join(f"{word} {cost * per_hour:.2f}" for word, cost in zip(WORDS, costs, strict=True))
        return Choice(buy, f"{WORDS[buy]} costs least from here on; expected USD: {told}")

    def pilot(self, terms: Terms, runs: int, past: tuple[bool | None, ...] = ()) -> Pilot:
        """The same for many runs; carries the belief along."""
        model = self._banks(terms.tick_seconds)
        state = [np.tile(self.belief(terms.tick_seconds, past), (runs, 1))]
        begun = [bool(past)]

        def pilot(moment: PurchaseMoment) -> Modes:
            belief = state[0] = learn(state[0], model, moment.spot_seen, not begun[0])
            begun[0] = True
            best: Modes = self._costs(moment, terms, belief).argmin(axis=0).astype(np.int8)
            return best

        return pilot

    def belief(self, tick: float, seen: tuple[bool | None, ...]) -> Floats:
        """The belief about the market after all observations, a chance for each state. Does not compute the past twice."""
        model = self._banks(tick)
        belief: Floats = model.share[None]
        known = 0
        if self._last is not None and self._last[0] == tick and self._last[1] == seen[: len(self._last[1])]:
            known, belief = len(self._last[1]), self._last[2]
        for i in range(known, len(seen)):
            belief = learn(belief, model, np.array([-1 if seen[i] is None else seen[i]], dtype=np.int8), first=i == 0)
        self._last = (tick, seen, belief)
        only: Floats = belief[0]
        return only

    def imagine(self, view: View, runs: int, ticks: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Random continuations of the market by the bank, from the present belief."""
        tick, seen = view.terms.tick_seconds, view.spot_seen
        model = self._banks(tick)
        state = _drawn(np.cumsum(self.belief(tick, seen))[None, :].repeat(runs, axis=0), rng)
        ahead, up = np.cumsum(model.a, axis=1), np.zeros((runs, ticks), np.bool_)
        for i in range(ticks):
            up[:, i] = rng.random(runs) < model.b[state]
            state = _drawn(ahead[state], rng)
        if seen and seen[-1] is not None:
            up[:, 0] = seen[-1]
        return up

    def _costs(self, moment: PurchaseMoment, terms: Terms, belief: Floats) -> Floats:
        """(buy, run): expected cost to the end, in on-demand hours, of holding each during the next tick."""
        unseen = moment.spot_seen < 0
        if unseen.any():  # not observed: a try is free, so decide for the case that spot is available
            belief = learn_more(belief, self._banks(terms.tick_seconds), unseen)
        tick, hours = terms.tick_seconds, terms.tick_seconds / 3600
        left = max(1, math.floor((terms.deadline_seconds - moment.elapsed_seconds) / tick + SLIP))
        table = self._outlook(terms)
        spare = left * tick - (terms.work_seconds - moment.done_seconds)

        def then(buy: Buy) -> Floats:
            owed = np.where(moment.held == buy, moment.owed_seconds, terms.restart_seconds)
            return table.at(left - 1, buy, spare - (tick if buy is Buy.WAIT else owed), belief)

        spot = np.where(moment.spot_seen != 0, hours * table.market.ratio + then(Buy.SPOT), np.inf)
        # The table takes it that the market is seen while nothing is held. Nobody sees it then: only a try tells. What could be
        # known by waiting is worth a launch at most.
        unknown = np.where(unseen, table.market.ratio * terms.restart_seconds / 3600, 0.0)
        return np.stack([then(Buy.WAIT) + unknown, spot, hours + then(Buy.ON_DEMAND)])

    def _outlook(self, terms: Terms) -> Outlook:
        tick = terms.tick_seconds
        ticks = math.floor(terms.deadline_seconds / tick + SLIP)
        market = Market(
            terms.tick_seconds, terms.restart_seconds, terms.spot_usd_per_hour / (terms.on_demand_usd_per_hour or 1.0)
        )
        # Rounded up: a table serves every shorter deadline, so that jobs share them.
        steps = math.ceil((terms.deadline_seconds - terms.work_seconds) / tick / SHARED_SPARE)
        return self._tables(market, SHARED_TICKS * math.ceil(ticks / SHARED_TICKS), steps * SHARED_SPARE * tick)


def _drawn(sums: Floats, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A state for each run, by running sums of chances."""
    found: npt.NDArray[np.int64] = (sums < rng.random((len(sums), 1))).sum(axis=1).clip(0, sums.shape[1] - 1)
    return found


@parameters(
    Parameter("bank", "", "file of market models, as `spotsurfer policies train` writes it; empty = those that ship"),
    Parameter("strange", STRANGE, "weight of made-up markets that no model is like, 0 to 1"),
    Parameter("leave_out", [], "names of models that are not used"),
)
def make(settings: Mapping[str, object]) -> Surf:
    """A deadline kept at the least expected cost: market models, a belief, a dynamic program. Raises ValueError."""
    found = values("purchase.surf", settings, parameters_of(make))
    strange, out, path = found["strange"], found[LEAVE_OUT], found["bank"]
    if not 0 <= strange <= 1:
        raise ValueError("purchase.surf: strange must be from 0 to 1")
    if not all(isinstance(x, str) for x in out):
        raise ValueError("purchase.surf: leave_out must be a list of names")
    try:
        models = decoded(Path(path).read_text() if path else (files("spotsurfer_policies.banks") / SHIPPED).read_text())
    except (OSError, UnicodeDecodeError, ValueError) as e:
        raise ValueError(f"purchase.surf: the bank {path or SHIPPED} can't be used: {e}") from e
    return Surf([m for m in models if m.name not in out], strange)
