"""The dynamic program of a job with a deadline that may move freely between pools. Pure numpy.

State: time left, work left, the pool that holds the job's state, the machine held (none, spot, on-demand), and the phase of
that pool: free or not, and for how long (four classes of age each, because old spells last). Other pools count by their share
of free time: when the job leaves, it goes to the best one that happens to be free. The present state of *all* pools counts
in the first step, which makes the decision (`placement_surf.weighed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
EDGES = (0.0, 1800.0, 7200.0, 28800.0)  # of spells, seconds; the last class is open
PHASES = len(EDGES)
STEP = 1800.0  # seconds between two rows
WORK_CELLS = 120
LATE_USD, LATE_USD_PER_STEP = 5.0, 5.0  # smooths rows that can't finish in time; the caller gives the guarantee
HOUR = 3600.0
# A launch on spot counts as this many additional restarts: the table assumes that pools are independent and hazards exact,
# which would cause too many moves.
CAUTION = 1.5
NEWS = 0.1  # chance that the states of the other pools change in a step
TOGETHER = 0.6  # correlation of empty pools: 0 = chance alone, 1 = the rarer ones whenever the commoner ones are empty


@dataclass(frozen=True, slots=True)
class Pools:
    """One row for each pool. Hazards a second, by phase: of the end of a free spell, and of an empty spell."""

    spot_usd_per_hour: Floats
    on_demand_usd_per_hour: Floats
    move_usd: Floats
    end_of_free: Floats  # (pool, PHASES)
    end_of_none: Floats

    def chain(self, seconds: float) -> Floats:
        """Chances (pool, from, to) of phases after `seconds`: PHASES free ones, then PHASES empty ones."""
        n = PHASES
        rates = np.zeros((len(self.move_usd), 2 * n, 2 * n))
        width = np.diff(EDGES)
        for b in range(n):
            rates[:, b, n] += self.end_of_free[:, b]
            rates[:, n + b, 0] += self.end_of_none[:, b]
            if b < n - 1:
                rates[:, b, b + 1] += 1 / width[b]
                rates[:, n + b, n + b + 1] += 1 / width[b]
        every = np.arange(2 * n)
        rates[:, every, every] -= rates.sum(axis=2)
        halvings = max(0, int(np.ceil(np.log2(max(float(-rates.min()) * seconds, 1e-9)))) + 6)
        step = np.eye(2 * n) + rates * (seconds / 2**halvings)
        for _ in range(halvings):
            step = step @ step
        found: Floats = step
        return found

    def at_rest(self) -> Floats:
        """The share of time (pool, phase) in the long run."""
        chain = self.chain(4 * HOUR)
        for _ in range(10):
            chain = chain @ chain
        first: Floats = chain[:, 0, :]
        return first


@dataclass(frozen=True, slots=True)
class Table:
    """Expected USD to the end by time left (row), pool, phase and work left: without a machine, on spot, on on-demand."""

    market: Pools
    cell_seconds: float
    none: NDArray[np.float32]  # (row, pool, 2 PHASES, cell)
    spot: NDArray[np.float32]  # (row, pool, PHASES, cell)
    on_demand: NDArray[np.float32]

    def usd(self, part: NDArray[np.float32], time_seconds: float, work_seconds: Floats) -> Floats:
        """Interpolated: (pool, phase) for one amount of work in each pool."""
        row = min(max(time_seconds, 0.0) / STEP, len(part) - 1.0)
        low = min(int(row), len(part) - 2)
        cell = np.clip(work_seconds / self.cell_seconds, 0, part.shape[-1] - 1.001)
        left = cell.astype(np.intp)
        share, pools = (cell - left)[:, None], np.arange(part.shape[1])
        two = part[low : low + 2]
        both = two[:, pools, :, left] * (1 - share[:, None]) + two[:, pools, :, left + 1] * share[:, None]
        found: Floats = (both[:, 0] * (1 - (row - low)) + both[:, 1] * (row - low)).astype(np.float64)
        return found


def solve(market: Pools, time_seconds: float, work_seconds: float, restart_seconds: float) -> Table:
    """The table for a job with at most this much time and work left."""
    return _Solver(market, work_seconds + restart_seconds, restart_seconds).run(max(int(np.ceil(time_seconds / STEP)), 1))


class _Solver:
    """One backward pass. Arrays are (pool, phase, cell)."""

    def __init__(self, market: Pools, most_seconds: float, restart_seconds: float) -> None:
        self.m, self.restart = market, restart_seconds
        self.cell = most_seconds / (WORK_CELLS - 1)
        self.work = np.arange(WORK_CELLS) * self.cell
        self.pools = len(market.move_usd)
        self.chain = market.chain(STEP)
        rest = market.at_rest()
        self.free = rest[:, :PHASES].sum(axis=1)
        self.fresh = rest[:, :PHASES] / np.maximum(self.free, 1e-12)[:, None]
        self.gained = max(STEP - restart_seconds, 0.0) ** 2 / (2 * STEP)  # work by a machine that is lost in its first step
        self.shifts = {by: self._shift(by) for by in {STEP, STEP / 2, STEP - restart_seconds, self.gained}}
        gone = self.chain[:, :PHASES, PHASES:].sum(axis=2)[:, :, None]  # lost in mid-step: half is paid
        usd = market.spot_usd_per_hour[:, None, None] / HOUR * (1 - gone / 2)
        self.go_on_usd = usd * np.minimum(self.work, STEP)
        fear = CAUTION * restart_seconds * market.spot_usd_per_hour[:, None, None] / HOUR
        self.launch_usd = usd * np.minimum(self.work + restart_seconds, STEP) + fear
        self.od_usd = market.on_demand_usd_per_hour[:, None, None] / HOUR

    def run(self, rows: int) -> Table:
        n, p, w = PHASES, self.pools, WORK_CELLS
        none = np.zeros((rows + 1, p, 2 * n, w), np.float32)
        spot = np.zeros((rows + 1, p, n, w), np.float32)
        on_demand = np.zeros((rows + 1, p, 2 * n, w), np.float32)
        for part, owed in ((none, self.restart), (spot, self.restart), (on_demand, 0.0)):
            part[0] = self._late(0, owed)
        for part in (none, spot, on_demand):
            part[0, :, :, 0] = 0
        for r in range(1, rows + 1):
            none[r], spot[r], on_demand[r] = self._row(r, none[r - 1], spot[r - 1], on_demand[r - 1])
        return Table(self.m, self.cell, none, spot, on_demand)

    def _row(self, r: int, none: Floats, spot: Floats, on_demand: Floats) -> tuple[Floats, Floats, Floats]:
        n = PHASES
        idle, od = self.chain @ none, self.chain @ on_demand
        kept, lost = self.chain[:, :n, :n] @ spot, self.chain[:, :n, n:] @ none[:, n:]
        go_on = self.go_on_usd + self._less(kept, STEP) + self._less(lost, STEP / 2)
        launch = self.launch_usd + self._less(kept, STEP - self.restart) + self._less(lost, self.gained)
        pay_on = self.od_usd * np.minimum(self.work, STEP) + self._less(od, STEP)
        pay = self.od_usd * np.minimum(self.work + self.restart, STEP) + self._less(od, STEP - self.restart)
        away = self._elsewhere(launch)
        new_none = np.minimum(idle, pay)
        new_none[:, n:] = np.minimum(new_none[:, n:], away)
        new_none[:, :n] = self._tempted(np.minimum(new_none[:, :n], launch), away)
        new_spot = self._tempted(np.minimum(go_on, new_none[:, :n]), away)
        new_od = np.minimum(pay_on, new_none)
        for part, owed in ((new_none, self.restart), (new_spot, self.restart), (new_od, 0.0)):
            late = self.work + owed > r * STEP
            part[..., late] = self._late(r, owed)[..., late]
            part[..., 0] = 0
        return new_none, new_spot, new_od

    def _tempted(self, stays: Floats, away: Floats) -> Floats:
        """A job that could stay leaves when a better pool comes up: not in each step, because the others' states last, too."""
        return np.where(away < stays, (1 - NEWS) * stays + NEWS * away, stays)

    def _elsewhere(self, launch: Floats) -> Floats:
        """Go to the best pool that happens to be free, without waiting for a better one."""
        there = self.m.move_usd[:, None] + (launch * self.fresh[:, :, None]).sum(axis=1)
        order = np.argsort(there, axis=0)
        sorted_usd, free = np.take_along_axis(there, order, axis=0), self.free[order]
        empty, most = np.cumprod(1 - free, axis=0), np.maximum.accumulate(free, axis=0)
        alone = -np.diff(np.concatenate([np.ones((1, free.shape[1])), empty]), axis=0)
        alike = np.diff(np.concatenate([np.zeros((1, free.shape[1])), most]), axis=0)
        first = (1 - TOGETHER) * alone + TOGETHER * alike
        some = first.sum(axis=0)
        mean = (sorted_usd * first).sum(axis=0) / np.maximum(some, 1e-9)
        return np.where(some > 0.5, mean, np.inf)

    def _shift(self, seconds: float) -> tuple[NDArray[np.intp], Floats]:
        cell = np.asarray(np.clip((self.work - seconds) / self.cell, 0, WORK_CELLS - 1.001), dtype=np.float64)
        left = cell.astype(np.intp)
        return left, np.asarray(cell - left, dtype=np.float64)

    def _less(self, values: Floats, seconds: float) -> Floats:
        """The values after so much work (negative: time was lost)."""
        left, share = self.shifts[seconds]
        low: Floats = values.take(left, axis=-1)
        return low + share * (values.take(left + 1, axis=-1) - low)

    def _late(self, r: int, owed: float) -> Floats:
        need = self.work + owed
        over = need - r * STEP
        usd = self.od_usd * need + np.where(over > 0, LATE_USD + LATE_USD_PER_STEP * over / STEP, 0.0)
        return np.asarray(usd, dtype=np.float64)
