"""What each thing that a job could do now is expected to cost to the end: by `roaming`, with the pools as they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spotsurfer.core.hazard import SHAPE, learned, prior
from spotsurfer.model.lives import AGES, Lives
from spotsurfer.ports.placement import PlaceView, PoolView
from spotsurfer.ports.purchase import Buy
from spotsurfer_policies.roaming import CAUTION, EDGES, HOUR, PHASES, Floats, Pools, Table, solve

PRICE_STEP, TIME_STEP = 0.02, 12 * HOUR  # tables are shared by views that differ by less
NONE_AT_REST = 1 / (6 * HOUR)  # a pool that has been empty for long comes back so often, before anything was seen
GROUPS = tuple(max(k for k, e in enumerate(EDGES) if e <= age) for age in AGES)
ALL_WEIGHT, OWN_WEIGHT = 4.0, 2.0
AHEAD = 0.1  # of the time to spare that may be spent before its turn
LOOKS = tuple(h * HOUR for h in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16))  # when a wait is thought over again


def weighed(view: PlaceView, work: float, left: float) -> list[tuple[float, int, Buy, int]]:
    """(expected USD to the end, order among equals, what to hold, pool) of each choice."""
    table, chances = _tabled(view, work, left)
    return list(_options(view, table, chances, work, left))


def worth_of_an_hour(view: PlaceView, work: float, left: float) -> float:
    """USD that an hour less to spare is expected to cost, on the best machine that can be had now, or else on any."""
    table, chances = _tabled(view, work, left)
    can = np.array([p.free is not False for p in view.pools])
    can = can if can.any() else ~can
    now, later = (float(_launches(view, table, chances, work, t, now=True)[can].min()) for t in (left, left - HOUR))
    return max(later - now, 0.0)


def _tabled(view: PlaceView, work: float, left: float) -> tuple[Table, Floats]:
    return _table(
        _Case(
            tuple((p.up, p.down, p.band) for p in view.pools),
            tuple(_rounded(p.spot_usd_per_hour) for p in view.pools),
            tuple(_rounded(p.on_demand_usd_per_hour) for p in view.pools),
            tuple(_rounded(p.move_usd) for p in view.pools),
            _up_to(left, TIME_STEP),
            _up_to(work, TIME_STEP),
            view.restart_seconds,
            view.tick_seconds,
        )
    )


def _options(view: PlaceView, table: Table, chances: Floats, work: float, left: float) -> Sequence[tuple[float, int, Buy, int]]:
    """Expected USD of everything that could be held now; of equal ones the present state comes first."""
    at = -1 if view.at is None else view.at
    running = view.held is Buy.SPOT
    found: list[tuple[float, int, Buy, int]] = []
    free = [i for i, p in enumerate(view.pools) if p.free is not False]
    usd = _launches(view, table, chances, work, left, now=True)
    for i in free:
        found.append((float(usd[i]), int(i != at) + (not running), Buy.SPOT, i))
    if running:
        return found
    for i in range(len(view.pools)) if view.at is None else (view.at,):
        found.append(
            (_hold(view, table, chances, (work, left), i, buy=True), 2 + (view.held is not Buy.ON_DEMAND), Buy.ON_DEMAND, i)
        )
        if not free or _in_pace(view, work, left):
            found.append((_hold(view, table, chances, (work, left), i, buy=False), 1, Buy.WAIT, i))
    return found


def _in_pace(view: PlaceView, work: float, left: float) -> bool:
    """Time to spare is spent as work is done, and some ahead: what is waited for may not come, and pools run empty together."""
    whole_work, whole_time = view.job_seconds if view.job_seconds is not None else (work, left)
    spare, whole = left - work, whole_time - whole_work
    return spare - view.tick_seconds >= whole * (work / whole_work - AHEAD)


def _launches(view: PlaceView, table: Table, chances: Floats, work: float, left: float, now: bool) -> Floats:
    """Expected USD by pool of being on spot there from now on; later (`now` False) with a spell that has just begun."""
    tick, rows = view.tick_seconds, np.arange(len(view.pools))
    here = rows == (-1 if view.at is None else view.at)
    owed = np.where(here & (view.held is Buy.SPOT), view.owed_seconds, view.restart_seconds)
    then = np.maximum(work + owed - tick, 0.0)
    phase = np.array([_phase(p) if now or p.free is not False else 0 for p in view.pools])
    after: Floats = chances[rows, phase]
    on, off = table.usd(table.spot, left - tick, then), table.usd(table.none, left - tick, then)
    move = np.where(here | (view.at is None), 0.0, np.array([p.move_usd for p in view.pools]))
    price = np.array([p.spot_usd_per_hour for p in view.pools]) * tick / HOUR
    fear = np.where(here & (view.held is Buy.SPOT), 0.0, CAUTION * view.restart_seconds / tick * price)
    found: Floats = (
        price + move + fear + (on * after[:, :PHASES]).sum(axis=1) + (off[:, PHASES:] * after[:, PHASES:]).sum(axis=1)
    )
    return found


def _hold(view: PlaceView, table: Table, chances: Floats, state: tuple[float, float], pool: int, buy: bool) -> float:
    """Expected USD of waiting, or of an on-demand machine, until something better comes.

    What is free now is reckoned to stay so, what is not to come back with the hazard of its spell: thought over again
    at `LOOKS`, each time between going on and the best there is then. (The table's own view of other pools knows their
    averages alone.)
    """
    work, left = state
    price = view.pools[pool].on_demand_usd_per_hour / HOUR if buy else 0.0
    owed = (view.owed_seconds if view.held is Buy.ON_DEMAND else view.restart_seconds) if buy else 0.0
    looks = [view.tick_seconds, *(t for t in LOOKS if t > view.tick_seconds)]
    slack = left - work - owed - view.restart_seconds
    looks = [t for t in looks if buy or t <= slack - view.tick_seconds]
    if not looks:
        return math.inf
    free = np.array([p.free is not False for p in view.pools])
    best, back = math.inf, list[float]()
    for k in range(len(looks) - 1, -1, -1):
        todo = max(work + owed - looks[k], 0.0) if buy else work
        rest = left - looks[k]
        if todo <= 0 or rest <= 0:
            best = 0.0 if todo <= 0 else math.inf
        else:
            go = _launches(view, table, chances, todo, rest, now=False)
            stop = float(np.where(free, go, np.inf).min())
            end = _finish(view, pool, todo, rest, held=buy)
            on = min(stop, end, back[-1] if back else math.inf)
            best = _first(go, free, _returns(view, table, looks, k), on)
        length = looks[k] - (looks[k - 1] if k else 0.0)
        paid = min(length, max(work + owed - (looks[k - 1] if k else 0.0), 0.0)) if buy else 0.0
        back.append(best + price * paid)
    return back[-1]


def _finish(view: PlaceView, pool: int, todo: float, rest: float, held: bool) -> float:
    """USD of doing all that is left on on-demand."""
    need = todo + (0.0 if held else view.restart_seconds)
    return view.pools[pool].on_demand_usd_per_hour * need / HOUR if need <= rest else math.inf


def _returns(view: PlaceView, table: Table, looks: Sequence[float], k: int) -> Floats:
    """The chance that each pool comes back between the look before and this one."""
    before = looks[k - 1] if k else 0.0
    ages = np.array([p.spell_seconds + before for p in view.pools])
    phase = np.searchsorted(EDGES, ages, "right") - 1
    rates = table.market.end_of_none[np.arange(len(ages)), phase]
    return np.where([p.free is False for p in view.pools], 1 - np.exp(-rates * (looks[k] - before)), 0.0)


def _first(go: Floats, free: NDArray[np.bool_], chance: Floats, otherwise: float) -> float:
    """The best of the pools that came back, if any is better than what there is otherwise."""
    total, none = 0.0, 1.0
    for i in np.argsort(go):
        if go[i] >= otherwise:
            break
        if not free[i]:
            total += none * float(chance[i]) * float(go[i])
            none *= 1 - float(chance[i])
    return total + none * otherwise


def _phase(pool: PoolView) -> int:
    age = max(k for k, edge in enumerate(EDGES) if edge <= pool.spell_seconds)
    return age + (PHASES if pool.free is False else 0)


def _rounded(value: float) -> float:
    """To steps of two per cent."""
    return 0.0 if value <= 0 else math.exp(round(math.log(value) / PRICE_STEP) * PRICE_STEP)


def _up_to(seconds: float, step: float) -> float:
    return max(math.ceil(seconds / step), 1) * step


Evidence = tuple[tuple[Lives, Lives, int | None], ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """What a table is made for; prices and times are rounded, so that views that differ little share one."""

    evidence: Evidence
    spot: tuple[float, ...]
    on_demand: tuple[float, ...]
    moves: tuple[float, ...]
    time_seconds: float
    work_seconds: float
    restart_seconds: float
    tick_seconds: float


@lru_cache(maxsize=4)
def _table(case: _Case) -> tuple[Table, Floats]:
    """The table, and chances of phases a tick later."""
    free, none = hazards_of(case.evidence)
    prices = (np.array(case.spot), np.array(case.on_demand), np.array(case.moves))
    market = Pools(*prices, _grouped(free), _grouped(none))
    table = solve(market, case.time_seconds, case.work_seconds, case.restart_seconds)
    return table, market.chain(case.tick_seconds)


@lru_cache(maxsize=64)
def hazards_of(evidence: Evidence) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """Hazards a second by class of age for each pool: of free spells, of spells in which nothing can be had."""
    at_rest = tuple(NONE_AT_REST * s for s in SHAPE)
    free = _shrunk([(up, prior(band)) for up, _, band in evidence])
    none = _shrunk([(down, at_rest) for _, down, _ in evidence])
    return free, none


def _shrunk(seen: Sequence[tuple[Lives, tuple[float, ...]]]) -> tuple[tuple[float, ...], ...]:
    """Each pool around what all of them show together."""
    total = Lives()
    for lives, _ in seen:
        total = total + lives
    found = []
    for lives, before in seen:
        common = learned(total, before, ALL_WEIGHT)
        found.append(learned(lives, common, OWN_WEIGHT))
    return tuple(found)


def _grouped(hazards: Sequence[Sequence[float]]) -> Floats:
    """By phase: the mean of the classes in it, by their length."""
    length = np.diff([*AGES, AGES[-1] * 2])
    of = np.array(GROUPS)
    rows = np.array(hazards) * length
    return np.stack([rows[:, of == b].sum(axis=1) / length[of == b].sum() for b in range(PHASES)], axis=1)


def life_of(hazards: Sequence[float], age_seconds: float, horizon_seconds: float) -> tuple[float, float]:
    """Expected seconds that are left at this age, at most the horizon, and the chance of an end before it."""
    alive, life = 1.0, 0.0
    for rate, low, high in zip(hazards, AGES, (*AGES[1:], math.inf), strict=True):
        width = max(min(high, age_seconds + horizon_seconds) - max(low, age_seconds), 0.0)
        gone = 1 - math.exp(-rate * width)
        life += alive * (gone / rate if rate * width > 1e-12 else width)
        alive *= 1 - gone
    return life, 1 - alive
