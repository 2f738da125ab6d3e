"""`surf` for placement: the expected cost of each move, cost of progress by pool, the policy."""

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

# What each thing that a job could do now is expected to cost to the end: by `roaming`, with the pools as they are. Pure.

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


# What an hour of progress costs in each pool, whatever it takes to get there included. Pure.
#
# price + (launch + move + time + q * what a loss costs) / l,
#
# with l the expected life (hours) of a machine from the pool's present spell on, at most what is left to do, and q the chance
# that it is lost before. A loss costs a restart, and a move or the wait for the pool, whichever is less. Time that passes
# without progress costs what an hour to spare is worth to the job: nothing where there is no deadline. A launch is reckoned
# dearer than it is (`CAUTION`), for hazards are believed, not known, and who believes them hops too often.

HORIZON_SECONDS = 24 * HOUR  # of work: nobody knows more of a pool's future, or how much is left
LEAST_SECONDS, LEAST_HOURS = 600.0, 0.05  # of work that is reckoned with, of a life
PROGRESS_CAUTION = 0.5  # of a restart
WAIT_SECONDS = 12 * HOUR  # at most, for a pool to come back
HALF_SEEN = HOUR  # a pool that nothing is known of was free for an hour and for an hour it was not


def rates(view: PlaceView, hour_usd: float = 0.0) -> list[float]:
    """USD for an hour of progress on spot, one value a pool; of pools that are not free the wait for them counts, too.

    `hour_usd`: what an hour without progress costs, beside what is paid for a machine.
    """
    free, none = hazards_of(tuple((p.up, p.down, p.band) for p in view.pools))
    restart, horizon = view.restart_seconds / HOUR, _horizon(view)
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
    """USD until the first progress there."""
    p = view.pools[pool]
    hours = view.owed_seconds / HOUR if here else view.restart_seconds / HOUR * (1 + PROGRESS_CAUTION)
    return hours * p.spot_usd_per_hour + (0.0 if view.at in (None, pool) else p.move_usd)


def _horizon(view: PlaceView) -> float:
    """Seconds of work that lives are reckoned to."""
    work = HORIZON_SECONDS if view.work_left_seconds is None else view.work_left_seconds
    return max(min(work, HORIZON_SECONDS), LEAST_SECONDS)


def _mean_price(pools: Sequence[PoolView]) -> float:
    """By how much of the time each pool was free."""
    share = [(sum(p.up.watched) + HALF_SEEN) / (sum(p.up.watched) + sum(p.down.watched) + 2 * HALF_SEEN) for p in pools]
    return sum(s * p.spot_usd_per_hour for s, p in zip(share, pools, strict=True)) / sum(share)


def _scarce(pool: PoolView) -> float:
    """An order in vain costs time: score 10 counts as it is, 1 by half as much again; 5 where nobody knows."""
    score = min(max(5 if pool.score is None else pool.score, 1), 10)
    return 1 + 0.5 * (10 - score) / 9 if pool.free is None else 1.0


# `surf`: where a job should be, by what it costs to be there: price, hazard by age, restart, move, and time.
#
# Of the pools that are free it goes where an hour of progress is expected to cost least (`progress`), and leaves a machine only
# for a pool where that is less with the launch and the move. With a deadline and known work, a dynamic program over pools
# (`roaming`) says what an hour to spare is worth there, and weighs what to do while no machine is held, or an on-demand one:
# spot, on-demand or waiting; it waits beside pools that are free only where they are dearer than the one that it waits for, the
# wait included. Where a move is reckoned at more than an hour on spot, the program weighs staying and moving, too. Hazards are
# learned by age, for each pool around what all pools show, from a prior by the advisor's band.

RESTART_SECONDS = 300.0  # boot, fetch, restore, where nothing was measured
# A move of a job's state is taken to be so many times as dear as it is: lives are believed, not known, and who believes them
# hops too often (E2 of docs/policies.md: 200 GB of state 7.9 % above the optimum with 1, 5.6 with 2, 6.3 with 3).
MOVES = 2.0


class Surf(Cheapest):
    """The cheapest place in expectation. In production it ranks offers, and leaves a machine for one that pays for the move."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Spot first, by the expected cost of an hour of progress; ties by pool so that the answer is always the same."""
        del now
        spot = [o for o in offers if o.market is Market.SPOT]
        usd = rates(_seen(job, spot, RESTART_SECONDS)) if spot else []
        others = [o for o in offers if o.market is not Market.SPOT]
        others.sort(key=lambda o: (o.price_usd_micros_per_hour, o.pool))
        return [*(o for _, o in sorted(zip(usd, spot, strict=True), key=lambda x: (x[0], x[1].pool))), *others]

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Back to spot as `cheapest`; between spot machines where the difference in price pays before the next loss."""
        if here.market is not Market.SPOT or there.market is not Market.SPOT:
            return super().worth_moving(job, here, there, now, pause)
        stop = max(pause.expected_seconds or 0.0, 1.0)
        stay = (now - here.since).total_seconds()
        if here.pool == there.pool or stay < self.least_stay(stop):
            return None
        hazards = learned(there.lives, prior(there.interruption_band))
        life, lost = life_of(hazards, 0.0, _left(job) or HORIZON_SECONDS)
        saved = (here.price_usd_micros_per_hour - there.price_usd_micros_per_hour) * life / HOUR
        both = here.price_usd_micros_per_hour + there.price_usd_micros_per_hour  # they run beside each other for a while
        cost = (RESTART_SECONDS * (1 + lost) + stop) / HOUR * both
        if saved <= cost * (1 + self.margin):
            return None
        return f"{there.pool} saves {saved / 1e6:.2f} USD in its expected {life / HOUR:.1f} h, a move costs {cost / 1e6:.2f}"

    def place(self, view: PlaceView) -> Placed:
        """What to hold until the next decision, and where."""
        view = replace(view, pools=tuple(replace(p, move_usd=MOVES * p.move_usd) for p in view.pools))
        if view.work_left_seconds is None or view.time_left_seconds is None:
            return self._without_deadline(view)
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

    def _without_deadline(self, view: PlaceView) -> Placed:
        if all(p.free is False for p in view.pools):
            return Placed(Buy.ON_DEMAND if view.held is Buy.ON_DEMAND else Buy.WAIT, view.at, "no pool is free")
        return _cheapest(view, rates(view))


def _light(view: PlaceView) -> bool:
    """A move is reckoned at less than an hour on spot; else where the job lies matters more than who is cheap now."""
    return max(p.move_usd for p in view.pools) < min(p.spot_usd_per_hour for p in view.pools)


def _cheapest(view: PlaceView, usd: Sequence[float]) -> Placed:
    """Where an hour of progress costs least, of the pools that may be free; of equal ones the present one, then the first."""
    best = min((i for i, p in enumerate(view.pools) if p.free is not False), key=lambda i: (usd[i], i != view.at, i))
    return Placed(Buy.SPOT, best, f"an hour of progress costs {usd[best]:.4f} USD")


def _left(job: Job) -> float | None:
    """Seconds of work, as its user reckons; how much of it is done, no placement is told."""
    return job.spec.work_seconds


def _seen(job: Job, offers: Sequence[Offer], restart_seconds: float) -> PlaceView:
    """Offers as pools of which nobody knows for how long they have been free."""
    pools = tuple(
        PoolView(
            str(o.pool),
            o.price_usd_micros_per_hour / 1e6,
            o.list_price_usd_micros_per_hour / 1e6,
            None,
            up=o.lives,
            band=o.interruption_band,
            score=o.placement_score,
        )
        for o in offers
    )
    return PlaceView(pools, 60.0, _left(job), None, restart_seconds)


@parameters(*parameters_of(make_cheapest))
def make(settings: Mapping[str, object]) -> Surf:
    """Price, hazard by age, restart, move and time; with a deadline by a dynamic program over pools."""
    cheapest = make_cheapest(settings)
    return Surf(cheapest.stay_seconds, cheapest.margin, cheapest.pause_share)
