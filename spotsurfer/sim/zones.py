"""One job that may move between pools at will: policies played on recorded markets.

The rules of `sim.deadline`, and: a job's state lies in the pool where it ran last; a launch in another pool pays for
bringing it there. All pools are looked at in every tick; what was seen of them before is told as spells by age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spotsurfer.core.deadline import kept
from spotsurfer.model.lives import AGES, Lives
from spotsurfer.ports.placement import Placed, Placement, PlaceView, PoolView
from spotsurfer.ports.purchase import Buy, Floats, Moment, Terms
from spotsurfer.sim.deadline import DONE, Bools, Ints, ticks_of

EVIDENCE_SECONDS = 6 * 3600.0  # tallies are brought up to date so often; the present spells are always known


@dataclass(frozen=True, slots=True)
class Zones:
    """A market of several pools at once. Rows are ticks, columns pools; prices in USD an hour."""

    pools: tuple[str, ...]
    up: Bools
    spot: Floats
    on_demand: Floats  # one value a pool
    move_usd: float = 0.0  # for bringing the state from any pool to any other


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a run: ticks from `begin` until before `end`."""

    pool: int
    buy: Buy
    begin: int
    end: int
    reclaimed: bool


@dataclass(frozen=True, slots=True)
class Journey:
    """One run: what it cost and where it went."""

    usd: float
    missed: bool
    wasted_hours: float
    machines: tuple[Machine, ...]
    overruled: int  # times that the deadline's guard chose on-demand instead


class Watch:
    """What was seen of all pools up to a tick: spells by age, as sums from the beginning of the trace."""

    def __init__(self, up: Bools, tick_seconds: float) -> None:
        ticks, pools = up.shape
        self._up, self._tick = up, tick_seconds
        began = np.zeros((ticks, pools), dtype=np.int64)
        change = np.zeros((ticks, pools), dtype=np.bool_)
        change[1:] = up[1:] != up[:-1]
        began = np.maximum.accumulate(np.where(change, np.arange(ticks)[:, None], 0), axis=0)
        self.age = (np.arange(ticks)[:, None] - began) * tick_seconds
        group = np.clip(np.searchsorted(AGES, self.age, "right") - 1, 0, None)
        ended = np.zeros((ticks, pools), dtype=np.bool_)
        ended[:-1] = change[1:]
        self._tallies = [_sums(ended & state, state, group, tick_seconds) for state in (up, ~up)]

    def spells(self, begin: int, end: int, pool: int) -> tuple[Lives, Lives]:
        """Spells of being free and of not being free, as seen in these ticks. What ended, ended within them."""
        found = []
        for ended, watched in self._tallies:
            # An end shows in the tick after the last one of its spell.
            ends = ended[max(end - 1, begin), pool] - ended[begin, pool]
            found.append(Lives(tuple(ends.tolist()), tuple((watched[end, pool] - watched[begin, pool]).tolist())))
        return found[0], found[1]


def _sums(ended: Bools, state: Bools, group: Ints, tick_seconds: float) -> tuple[Floats, Floats]:
    """(tick + 1, pool, class): sums over all ticks before."""
    ticks, pools = state.shape
    totals = []
    for flags, unit in ((ended, 1.0), (state, tick_seconds)):
        one = np.zeros((ticks + 1, pools, len(AGES)))
        rows, columns = np.nonzero(flags)
        one[rows + 1, columns, group[rows, columns]] = unit
        totals.append(np.cumsum(one, axis=0))
    return totals[0], totals[1]


@dataclass(slots=True)
class _Run:
    """One run, mid-way."""

    held: Buy = Buy.WAIT
    at: int | None = None
    owed: float = 0.0
    done: float = 0.0
    usd: float = 0.0
    paid: float = 0.0
    overruled: int = 0
    begin: int = 0


def travel(policy: Placement, zones: Zones, watch: Watch, terms: Terms, start: int, history: int) -> Journey:
    """One run from tick `start` (a row) on; what was seen in the `history` ticks before is known."""
    run, machines = _Run(), list[Machine]()
    known: tuple[tuple[Lives, Lives], ...] = ()
    fresh = max(int(EVIDENCE_SECONDS / terms.tick_seconds), 1)
    since, tick = max(start - history, 0), 0
    for tick in range(ticks_of(terms)):
        if run.done >= terms.work_seconds - DONE:
            break
        row = start + tick
        if tick % fresh == 0:
            known = tuple(watch.spells(since, row, i) for i in range(len(zones.pools)))
        if run.held is Buy.SPOT and not zones.up[row, run.at]:
            _end(run, machines, tick, reclaimed=True)
        want = policy.place(_view(run, zones, watch, terms, (tick, row, since), known))
        _pass(run, machines, _kept(want, run, zones, terms, (tick, row)), zones, terms, (tick, row))
    last = min(tick + 1, ticks_of(terms)) if run.done < terms.work_seconds - DONE else tick
    _end(run, machines, last, reclaimed=False)
    missed = run.done < terms.work_seconds - DONE
    return Journey(run.usd, missed, (run.paid - min(run.done, terms.work_seconds)) / 3600, tuple(machines), run.overruled)


def _view(
    run: _Run, zones: Zones, watch: Watch, terms: Terms, when: tuple[int, int, int], known: Sequence[tuple[Lives, Lives]]
) -> PlaceView:
    tick, row, since = when
    most = (row - since) * terms.tick_seconds
    up, spot, age = zones.up[row].tolist(), zones.spot[row].tolist(), watch.age[row].tolist()
    pools = tuple(
        PoolView(
            name,
            spot[i],
            float(zones.on_demand[i]),
            up[i],
            min(age[i], most),
            known[i][0],
            known[i][1],
            None,
            None,
            zones.move_usd,
        )
        for i, name in enumerate(zones.pools)
    )
    return PlaceView(
        pools,
        terms.tick_seconds,
        terms.work_seconds - run.done,
        terms.deadline_seconds - tick * terms.tick_seconds,
        terms.restart_seconds,
        run.held,
        run.at,
        run.owed,
        (terms.work_seconds, terms.deadline_seconds),
    )


def _kept(want: Placed, run: _Run, zones: Zones, terms: Terms, when: tuple[int, int]) -> Placed:
    """What is wanted, or on-demand where the state lies, if the deadline could not be met after it."""
    tick, row = when
    known = want.pool is not None and 0 <= want.pool < len(zones.pools)
    stays = want.buy is run.held and want.pool == run.at
    moment = Moment(
        tick * terms.tick_seconds,
        np.array([run.done]),
        np.array([run.held if stays else Buy.WAIT], dtype=np.int8),
        np.array([run.owed]),
        np.array([int(known and bool(zones.up[row, want.pool]))], dtype=np.int8),
    )
    buy = Buy(int(kept(np.array([want.buy], dtype=np.int8), moment, terms)[0]))
    run.overruled += buy is Buy.ON_DEMAND and want.buy is not buy
    if buy is want.buy and (known or buy is Buy.WAIT):
        return want
    home = run.at if run.at is not None else int(np.argmin(zones.on_demand))
    return Placed(buy, home, want.why if buy is want.buy else "the deadline")


def _pass(run: _Run, machines: list[Machine], want: Placed, zones: Zones, terms: Terms, when: tuple[int, int]) -> None:
    """One tick goes by."""
    tick, row = when
    if (want.buy, want.pool) != (run.held, run.at) and run.held is not Buy.WAIT:
        _end(run, machines, tick, reclaimed=False)
    if want.buy is Buy.WAIT:
        return
    assert want.pool is not None
    if run.held is Buy.WAIT:
        run.owed, run.begin = terms.restart_seconds, tick
        run.usd += zones.move_usd if run.at not in (None, want.pool) else 0.0
    run.held, run.at = want.buy, want.pool
    price = zones.spot[row, want.pool] if want.buy is Buy.SPOT else zones.on_demand[want.pool]
    used = min(run.owed, terms.tick_seconds)
    run.owed -= used
    run.done += terms.tick_seconds - used
    run.usd += float(price) * terms.tick_seconds / 3600
    run.paid += terms.tick_seconds


def _end(run: _Run, machines: list[Machine], tick: int, reclaimed: bool) -> None:
    if run.held is not Buy.WAIT and run.at is not None:
        machines.append(Machine(run.at, run.held, run.begin, tick, reclaimed))
    run.held, run.owed = Buy.WAIT, 0.0


def best_of_all(zones: Zones, terms: Terms, start: int) -> float:
    """The least cost for who knows the future: a dynamic program over (tick, pool, what is held, time to spare)."""
    unit = float(np.gcd.reduce([max(1, round(x)) for x in (terms.tick_seconds, terms.work_seconds, terms.restart_seconds)]))
    ticks, hours = ticks_of(terms), terms.tick_seconds / 3600
    step, restart, work = (round(x / unit) for x in (terms.tick_seconds, terms.restart_seconds, terms.work_seconds))
    spare = ticks * step - work
    if spare < 0:
        return float("inf")
    n = len(zones.pools)
    none, spot, on_demand = (np.zeros((n, spare + 1)) for _ in range(3))
    od_usd = zones.on_demand[:, None] * hours
    for tick in range(ticks - 1, -1, -1):
        row = start + tick
        price = np.where(zones.up[row], zones.spot[row] * hours, np.inf)[:, None]
        launch = _sooner(spot, restart) + price
        pay = _sooner(on_demand, restart) + od_usd
        away = np.minimum(launch, pay).min(axis=0) + zones.move_usd
        fresh = np.minimum(np.minimum(_sooner(none, step), away), np.minimum(launch, pay))
        none, spot, on_demand = fresh, np.minimum(fresh, spot + price), np.minimum(fresh, on_demand + od_usd)
        over = tick * step - work  # with so little spent on anything but work, all is done before this tick
        if over >= 0:
            for part in (none, spot, on_demand):
                part[:, : over + 1] = 0.0
    return float(none[:, 0].min())


def _sooner(values: Floats, steps: int) -> Floats:
    """The value after so much of the time to spare was spent."""
    moved = np.full_like(values, np.inf)
    if steps < values.shape[-1]:
        moved[:, : values.shape[-1] - steps] = values[:, steps:]
    return moved
