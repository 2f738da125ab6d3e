"""`surf` for placement: the cheapest pool in expectation, by price, hazard by age, restart, move, and time.

Among the free pools it goes to the one with the lowest expected cost of an hour of progress (`rates`), and leaves a machine
only if another pool is cheaper with the launch and the move included. With a deadline and known work, a dynamic program over
pools (`placement_dynamic_program`) gives the value of spare time, and weighs spot, on-demand and waiting while the job holds no
machine, or an on-demand one. It waits beside free pools only if they are dearer than the awaited pool with the wait included.
If a move costs more than an hour on spot, the program weighs staying and moving, too. Hazards are learned by age, for each pool
around the mean of all pools, from a prior by the advisor's band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spotsurfer.core.checkpoints.hazard import SHAPE, learned, prior
from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.lifetimes import AGES, Lives
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.policies import Buy, PauseSeen, Placed, PlaceView, PoolView, parameters, parameters_of
from spotsurfer_policies.offer_choice import Cheapest, make_cheapest
from spotsurfer_policies.placement_dynamic_program import CAUTION, EDGES, HOUR, PHASES, Floats, Pools, Table, solve

# ---- Choices: the expected cost to the end of each possible move, by the dynamic program with the pools as they are. Pure.

PRICE_STEP, TIME_STEP = 0.02, 12 * HOUR  # views that differ by less share a table
NONE_AT_REST = 1 / (6 * HOUR)  # prior rate at which a long empty pool comes back
GROUPS = tuple(max(k for k, e in enumerate(EDGES) if e <= age) for age in AGES)
ALL_WEIGHT, OWN_WEIGHT = 4.0, 2.0
AHEAD = 0.1  # of the spare time that may be spent early
LOOKS = tuple(h * HOUR for h in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16))  # when to reconsider a wait


def worth_of_an_hour(view: PlaceView, work: float, left: float) -> float:
    """Expected USD for an hour less of spare time, on the best machine available now, or else on any."""
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
            _up_to_step(left),
            _up_to_step(work),
            view.restart_seconds,
            view.tick_seconds,
        )
    )


def weighed(view: PlaceView, work: float, left: float) -> list[tuple[float, int, Buy, int]]:
    """Every machine that the job could hold now: expected USD to the end, order among equals, what it holds, pool.

    Among equal ones the present state comes first.
    """
    table, chances = _tabled(view, work, left)
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
    """Spends spare time in step with the work, and a little ahead: awaited pools may not come, and may be empty together."""
    whole_work, whole_time = view.job_seconds if view.job_seconds is not None else (work, left)
    spare, whole = left - work, whole_time - whole_work
    return spare - view.tick_seconds >= whole * (work / whole_work - AHEAD)


def _launches(view: PlaceView, table: Table, chances: Floats, work: float, left: float, now: bool) -> Floats:
    """Expected USD by pool of being on spot there from now on; later (`now` False) with a new spell."""
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

    Pools that are free now are assumed to stay free; empty ones come back with the hazard of their spell. The choice is
    reconsidered at `LOOKS`, each time between going on and the best pool then. (The table itself knows only averages of other
    pools.)
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
    """USD of finishing on on-demand."""
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
    """The best of the pools that came back, if any is better than the alternative."""
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
    """Rounded to steps of two per cent."""
    return 0.0 if value <= 0 else math.exp(round(math.log(value) / PRICE_STEP) * PRICE_STEP)


def _up_to_step(seconds: float) -> float:
    return max(math.ceil(seconds / TIME_STEP), 1) * TIME_STEP


Evidence = tuple[tuple[Lives, Lives, int | None], ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """Input of a table; prices and times are rounded, so that similar views share one."""

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
    """The table, and chances of phases one tick later."""
    free, none = hazards_of(case.evidence)
    prices = (np.array(case.spot), np.array(case.on_demand), np.array(case.moves))
    market = Pools(*prices, _grouped(free), _grouped(none))
    table = solve(market, case.time_seconds, case.work_seconds, case.restart_seconds)
    return table, market.chain(case.tick_seconds)


@lru_cache(maxsize=64)
def hazards_of(evidence: Evidence) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]:
    """Hazards a second by class of age for each pool: of free spells, of empty spells."""
    at_rest = tuple(NONE_AT_REST * s for s in SHAPE)
    free = _shrunk([(up, prior(band)) for up, _, band in evidence])
    none = _shrunk([(down, at_rest) for _, down, _ in evidence])
    return free, none


def _shrunk(seen: Sequence[tuple[Lives, tuple[float, ...]]]) -> tuple[tuple[float, ...], ...]:
    """Each pool shrunk towards the mean of all."""
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
    """Expected remaining seconds at this age, at most the horizon, and the chance of an end before it."""
    alive, life = 1.0, 0.0
    for rate, low, high in zip(hazards, AGES, (*AGES[1:], math.inf), strict=True):
        width = max(min(high, age_seconds + horizon_seconds) - max(low, age_seconds), 0.0)
        gone = 1 - math.exp(-rate * width)
        life += alive * (gone / rate if rate * width > 1e-12 else width)
        alive *= 1 - gone
    return life, 1 - alive


# ---- Rates: the cost of an hour of progress in each pool, with the cost of getting there. Pure.
#
# price + (launch + move + time + q * cost of a loss) / l,
#
# with l the expected life (hours) of a machine from the pool's present spell on, at most the work left, and q the chance of a
# loss before. A loss costs a restart, and a move or the wait for the pool, whichever is less. Time without progress costs the
# job's value of spare time: nothing without a deadline. A launch counts more than it costs (`PROGRESS_CAUTION`), because
# hazards are estimates, and trust in them causes too many moves.

HORIZON_SECONDS = 24 * HOUR  # of work: nobody knows more of a pool's future, or of the work left
LEAST_SECONDS, LEAST_HOURS = 600.0, 0.05  # lower bounds of work and of a life
PROGRESS_CAUTION = 0.5  # of a restart
WAIT_SECONDS = 12 * HOUR  # at most, for a pool to come back
HALF_SEEN = HOUR  # prior of an unknown pool: free for an hour and empty for an hour


def rates(view: PlaceView, hour_usd: float = 0.0) -> list[float]:
    """USD for an hour of progress on spot, one value for each pool; for empty pools the wait counts, too.

    `hour_usd`: cost of an hour without progress, besides the price of a machine.
    """
    free, none = hazards_of(tuple((p.up, p.down, p.band) for p in view.pools))
    work = HORIZON_SECONDS if view.work_left_seconds is None else view.work_left_seconds
    restart, horizon = view.restart_seconds / HOUR, max(min(work, HORIZON_SECONDS), LEAST_SECONDS)
    mean = _mean_price(view.pools)
    found = []
    for i, p in enumerate(view.pools):
        life, lost = life_of(free[i], 0.0 if p.free is False else p.spell_seconds, horizon)
        here = view.held is Buy.SPOT and i == view.at
        begin = _begin(view, i, here) + (0.0 if here else restart * hour_usd)
        back = life_of(none[i], 0.0, WAIT_SECONDS)[0] / HOUR
        loss = restart * mean * (1 + PROGRESS_CAUTION) + min(max(q.move_usd for q in view.pools), hour_usd * back)
        wait = life_of(none[i], p.spell_seconds, WAIT_SECONDS)[0] / HOUR if p.free is False else 0.0
        extra = (begin + hour_usd * wait + lost * loss) / max(life / HOUR, LEAST_HOURS)
        found.append(_scarce(p) * (p.spot_usd_per_hour + extra))
    return found


def _begin(view: PlaceView, pool: int, here: bool) -> float:
    """USD until the first progress in that pool."""
    p = view.pools[pool]
    hours = view.owed_seconds / HOUR if here else view.restart_seconds / HOUR * (1 + PROGRESS_CAUTION)
    return hours * p.spot_usd_per_hour + (0.0 if view.at in (None, pool) else p.move_usd)


def _mean_price(pools: Sequence[PoolView]) -> float:
    """The mean, weighted by each pool's share of free time."""
    share = [(sum(p.up.watched) + HALF_SEEN) / (sum(p.up.watched) + sum(p.down.watched) + 2 * HALF_SEEN) for p in pools]
    return sum(s * p.spot_usd_per_hour for s, p in zip(share, pools, strict=True)) / sum(share)


def _scarce(pool: PoolView) -> float:
    """A failed order costs time: score 10 counts once, 1 half as much again; unknown counts as 5."""
    score = min(max(5 if pool.score is None else pool.score, 1), 10)
    return 1 + 0.5 * (10 - score) / 9 if pool.free is None else 1.0


# ---- Policy

RESTART_SECONDS = 300.0  # boot, fetch, restore, if nothing was measured
# A move of a job's state counts this many times its cost: lives are estimates, and trust in them causes too many moves (E2 of
# docs/policies.md: with 200 GB of state, 7.9 % above the optimum with 1, 5.6 with 2, 6.3 with 3).
MOVES = 2.0


class Surf(Cheapest):
    """The cheapest place in expectation. In production it ranks offers, and leaves a machine for one that pays for the move."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, by the expected cost of an hour of progress; ties by pool so that the answer is always the same."""
        del now
        spot = [o for o in offers if o.market is Market.SPOT]
        usd = rates(_seen(job, spot)) if spot else []
        others = [o for o in offers if o.market is not Market.SPOT]
        others.sort(key=lambda o: (o.cost_usd_micros_per_hour, o.pool))
        return [*(o for _, o in sorted(zip(usd, spot, strict=True), key=lambda x: (x[0], x[1].pool))), *others]

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Back to spot as `cheapest`; between spot machines if the price difference pays before the next loss."""
        if here.market is not Market.SPOT or there.market is not Market.SPOT:
            return super().worth_moving(job, here, there, now, pause)
        stop = max(pause.expected_seconds or 0.0, 1.0)
        stay = (now - here.since).total_seconds()
        if here.pool == there.pool or stay < self.least_stay(stop):
            return None
        hazards = learned(there.lives, prior(there.interruption_band))
        life, lost = life_of(hazards, 0.0, job.spec.work_seconds or HORIZON_SECONDS)
        saved = (here.price_usd_micros_per_hour - there.cost_usd_micros_per_hour) * life / HOUR
        both = here.price_usd_micros_per_hour + there.price_usd_micros_per_hour  # both machines run for a while
        cost = (RESTART_SECONDS * (1 + lost) + stop) / HOUR * both
        if saved <= cost * (1 + self.margin):
            return None
        return f"{there.pool} saves {saved / 1e6:.2f} USD in its expected {life / HOUR:.1f} h, a move costs {cost / 1e6:.2f}"

    def place(self, view: PlaceView) -> Placed:
        """The machine to hold until the next decision, and its pool."""
        view = replace(view, pools=tuple(replace(p, move_usd=MOVES * p.move_usd) for p in view.pools))
        if view.work_left_seconds is None or view.time_left_seconds is None:
            if all(p.free is False for p in view.pools):
                return Placed(Buy.ON_DEMAND if view.held is Buy.ON_DEMAND else Buy.WAIT, view.at, "no pool is free")
            return _cheapest(view, rates(view))
        return self._with_deadline(view, view.work_left_seconds, view.time_left_seconds)

    def _with_deadline(self, view: PlaceView, work: float, left: float) -> Placed:
        usd = rates(view, worth_of_an_hour(view, work, left)) if _light(view) else []
        if usd and view.held is Buy.SPOT:
            return _cheapest(view, usd)
        options = weighed(view, work, left)
        cost, _, buy, pool = min(options)
        best = min(range(len(usd)), key=lambda i: (usd[i], i), default=None)
        if best is not None and (buy is Buy.SPOT or (buy is Buy.WAIT and view.pools[best].free is not False)):
            return _cheapest(view, usd)
        if view.at is None and buy is Buy.WAIT:
            return Placed(Buy.WAIT, None, "nothing can be had that is worth it")
        others = [o for o in options if (o[2], o[3]) != (buy, pool)]
        why = f"expected {cost:.2f} USD to the end" + (f", next best {min(others)[0]:.2f}" if others else "")
        return Placed(buy, pool, why)


def _light(view: PlaceView) -> bool:
    """Whether a move costs less than an hour on spot; else the place of the job matters more than today's prices."""
    return max(p.move_usd for p in view.pools) < min(p.spot_usd_per_hour for p in view.pools)


def _cheapest(view: PlaceView, usd: Sequence[float]) -> Placed:
    """The lowest cost of an hour of progress among pools that may be free; of equal ones the present one, then the first."""
    best = min((i for i, p in enumerate(view.pools) if p.free is not False), key=lambda i: (usd[i], i != view.at, i))
    return Placed(Buy.SPOT, best, f"an hour of progress costs {usd[best]:.4f} USD")


def _seen(job: Job, offers: Sequence[Offer]) -> PlaceView:
    """Offers as pools of unknown age. All of the user's estimate of work is left: placement does not know what is done."""
    pools = tuple(
        PoolView(
            str(o.pool),
            o.cost_usd_micros_per_hour / 1e6,
            o.list_price_usd_micros_per_hour / 1e6,
            None,
            up=o.lives,
            band=o.interruption_band,
            score=o.placement_score,
        )
        for o in offers
    )
    return PlaceView(pools, 60.0, job.spec.work_seconds, None, RESTART_SECONDS)


@parameters(*parameters_of(make_cheapest))
def make(settings: Mapping[str, object]) -> Surf:
    """Price, hazard by age, restart, move and time; with a deadline by a dynamic program over pools."""
    cheapest = make_cheapest(settings)
    return Surf(cheapest.stay_seconds, cheapest.margin, cheapest.pause_share)
