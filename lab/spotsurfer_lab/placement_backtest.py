"""Simulates placement policies on recorded markets of several pools, bills the machines, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np

from spotsurfer.common.charts import Stripes
from spotsurfer.common.plugins import PLACEMENT, made
from spotsurfer.core.scheduling.deadline import kept
from spotsurfer.core.scheduling.deadline_simulation import DONE, Bools, Ints, ticks_of
from spotsurfer.ledger.costs import cost
from spotsurfer.ledger.facts import MachineFacts, Rules
from spotsurfer.model.job import Attempt, AttemptNumber, AttemptState, JobId
from spotsurfer.model.lifetimes import AGES, Lives
from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.policies import Buy, Floats, MachineKind, Placed, Placement, PlaceView, PoolView, PurchaseMoment, Terms
from spotsurfer.ports.provider import BillingRule
from spotsurfer_lab.results import HELD, OPTIMUM, Comparison, Match, Outcome, Step, need, part, settings_of, spread
from spotsurfer_lab.size_backtest import Held, Ride

# ---- Simulation: one job that may move freely between pools.
# The rules are those of `core.scheduling.deadline_simulation`. In addition, the job's state lies in the pool of its last
# machine, and a launch in another pool pays for the transfer. Every tick observes all pools; policies see earlier observations
# as spells by age.

EVIDENCE_SECONDS = 6 * 3600.0  # period of updates of the tallies; the present spells are always known


@dataclass(frozen=True, slots=True)
class Zones:
    """A market of several pools at once. Rows are ticks, columns pools; prices in USD an hour."""

    pools: tuple[str, ...]
    up: Bools
    spot: Floats
    on_demand: Floats  # one value a pool
    move_usd: float = 0.0  # cost of moving the state between any two pools


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
    """One run: its cost and its path."""

    usd: float
    missed: bool
    wasted_hours: float
    machines: tuple[Machine, ...]


class Watch:
    """Observations of all pools up to a tick: spells by age, as sums from the beginning of the trace."""

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
        """Free and empty spells, as observed in these ticks. Ended ones ended within them."""
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
    begin: int = 0


def travel(policy: Placement, zones: Zones, watch: Watch, terms: Terms, start: int, history: int) -> Journey:
    """One run from tick `start` (a row) on; it knows the `history` ticks before."""
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
    return Journey(run.usd, missed, (run.paid - min(run.done, terms.work_seconds)) / 3600, tuple(machines))


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
    """The wanted machine, or on-demand in the state's pool if the deadline could not be met after it."""
    tick, row = when
    known = want.pool is not None and 0 <= want.pool < len(zones.pools)
    stays = want.buy is run.held and want.pool == run.at
    moment = PurchaseMoment(
        tick * terms.tick_seconds,
        np.array([run.done]),
        np.array([run.held if stays else Buy.WAIT], dtype=np.int8),
        np.array([run.owed]),
        np.array([int(known and bool(zones.up[row, want.pool]))], dtype=np.int8),
    )
    buy = Buy(int(kept(np.array([want.buy], dtype=np.int8), moment, terms)[0]))
    if buy is want.buy and (known or buy is Buy.WAIT):
        return want
    home = run.at if run.at is not None else int(np.argmin(zones.on_demand))
    return Placed(buy, home, want.why if buy is want.buy else "the deadline")


def _pass(run: _Run, machines: list[Machine], want: Placed, zones: Zones, terms: Terms, when: tuple[int, int]) -> None:
    """Advance by one tick."""
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
    """The least cost with the future known: a dynamic program over (tick, pool, machine held, spare time)."""
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
        over = tick * step - work  # if this little is spent on anything but work, the job ends before this tick
        if over >= 0:
            for part in (none, spot, on_demand):
                part[:, : over + 1] = 0.0
    return float(none[:, 0].min())


def _sooner(values: Floats, steps: int) -> Floats:
    """The value after spending so much of the spare time."""
    moved = np.full_like(values, np.inf)
    if steps < values.shape[-1]:
        moved[:, : values.shape[-1] - steps] = values[:, steps:]
    return moved


# ---- Bills: the ledger's own rule, as for real machines.

AWS = Rules({"trace": (BillingRule(minimum_seconds=60.0, reclaimed_first_hour_free=True),)})
MICROS = 1e6
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


def billed_usd(journey: Journey, zones: Zones, tick_seconds: float, start: int) -> float:
    """The cost of all machines of a run, and of its moves."""
    total = sum(_of(m, zones, tick_seconds, start) for m in journey.machines)
    places = [m.pool for m in journey.machines]
    return total + zones.move_usd * sum(a != b for a, b in pairwise(places))


def machines_usd(ride: Ride, kinds: Sequence[MachineKind]) -> float:
    """The cost of all machines of a run with changing sizes."""
    return sum(_machine(stay, kinds[stay.kind]) for stay in ride.held)


def _machine(stay: Held, kind: MachineKind) -> float:
    micros = round(kind.usd_per_hour * MICROS)
    life = Life(kind.name, Market.SPOT, micros, stay.begin, stay.end, stay.reclaimed)
    return _charged(life, [(stay.begin, micros)])


def _of(machine: Machine, zones: Zones, tick_seconds: float, start: int) -> float:
    spot = machine.buy is Buy.SPOT
    rows = np.arange(start + machine.begin, start + machine.end)
    usd = zones.spot[rows, machine.pool] if spot else np.full(len(rows), zones.on_demand[machine.pool])
    micros = np.round(usd * MICROS).astype(np.int64)
    changes = [0, *(np.flatnonzero(np.diff(micros)) + 1).tolist()]
    begin, end = machine.begin * tick_seconds, machine.end * tick_seconds
    on_demand = round(float(zones.on_demand[machine.pool]) * MICROS)
    market = Market.SPOT if spot else Market.ON_DEMAND
    life = Life(zones.pools[machine.pool], market, on_demand, begin, end, machine.reclaimed)
    return _charged(life, [(begin + i * tick_seconds, int(micros[i])) for i in changes])


@dataclass(frozen=True, slots=True)
class Life:
    """One machine. Seconds since the run began; micro-dollars an hour."""

    name: str
    market: Market
    on_demand_usd_micros: int
    begin: float
    end: float
    reclaimed: bool


def _charged(life: Life, prices: Sequence[tuple[float, int]]) -> float:
    """`prices`: start in seconds, and micro-dollars an hour."""
    launched, ended = EPOCH + timedelta(seconds=life.begin), EPOCH + timedelta(seconds=life.end)
    steps = [(EPOCH + timedelta(seconds=at), usd) for at, usd in prices]
    attempt = Attempt(
        JobId("run"),
        AttemptNumber(1),
        AttemptState.RELEASED,
        ended,
        Pool("trace", life.name, life.name, "machine"),
        life.market,
        steps[0][1],
        life.on_demand_usd_micros,
        "",
        launched,
        launched_at=launched,
        released_at=ended,
        reclaimed=life.reclaimed,
    )
    return cost(MachineFacts(attempt, attempt.job, steps[1:]), AWS, ended).usd_micros / MICROS


# ---- Comparison: every window is a run.

BEST_SINGLE = "best-single-zone"  # Uniform Progress in the one pool that proves cheapest afterwards


@dataclass(frozen=True, slots=True)
class Setting:
    """The market and windows: windows begin at these rows, and the `history` ticks before are known."""

    zones: Zones
    terms: Terms
    starts: Sequence[int]
    history: int


def compare(setting: Setting, names: Sequence[str], step: Step) -> Match:
    """All runs of all policies, in the same order. Raises UsageError, ConfigError."""
    need(setting.starts, ticks_of(setting.terms), len(setting.zones.up))
    watch = Watch(setting.zones.up, setting.terms.tick_seconds)
    outcomes, drawn = list[Outcome](), dict[str, Journey]()
    for i, name in enumerate(names):
        step(i * len(setting.starts), len(names) * len(setting.starts))
        if name == OPTIMUM:
            usd = np.array([best_of_all(setting.zones, setting.terms, s) for s in setting.starts])
            outcomes.append(Outcome(name, usd, np.array(setting.starts)))
            continue
        played = _played(name, setting, watch, part(step, i, len(setting.starts), len(names)))
        outcomes.append(_outcome(name, played, setting))
        drawn[name] = played[len(played) // 2]
    told = settings_of(setting.terms, len(setting.zones.pools), len(setting.starts))
    told |= {"move_usd": setting.zones.move_usd, "history_hours": setting.history * setting.terms.tick_seconds / 3600}
    comparison = Comparison("A job with a deadline that may move between pools", told, outcomes)
    return Match(comparison, [spread(comparison), _timeline(drawn, setting)])


def _played(name: str, setting: Setting, watch: Watch, told: Callable[[int], None]) -> list[Journey]:
    if name == BEST_SINGLE:
        each = [_all(made(PLACEMENT, "single", {"pool": i}), setting, watch, told) for i in range(len(setting.zones.pools))]
        return min(each, key=lambda runs: sum(j.usd for j in runs))
    return _all(made(PLACEMENT, name, {}), setting, watch, told)


def _all(policy: Placement, setting: Setting, watch: Watch, told: Callable[[int], None]) -> list[Journey]:
    found = []
    for start in setting.starts:
        found.append(travel(policy, setting.zones, watch, setting.terms, start, setting.history))
        told(len(found))
    return found


def _outcome(name: str, runs: Sequence[Journey], setting: Setting) -> Outcome:
    tick = setting.terms.tick_seconds
    means = {
        "moves": np.array([float(sum(a.pool != b.pool for a, b in pairwise(j.machines))) for j in runs]),
        "launches": np.array([float(len(j.machines)) for j in runs]),
        "wasted_hours": np.array([j.wasted_hours for j in runs]),
        "aws_usd": np.array([billed_usd(j, setting.zones, tick, s) for j, s in zip(runs, setting.starts, strict=True)]),
    }
    missed = np.array([j.missed for j in runs], dtype=np.int64)
    return Outcome(name, np.array([j.usd for j in runs]), np.array(setting.starts), means, {"deadline_misses": missed})


def _timeline(drawn: dict[str, Journey], setting: Setting) -> Stripes:
    """The run in the middle of the list."""
    hours = setting.terms.tick_seconds / 3600
    rows = [(n, [(m.begin * hours, m.end * hours, HELD[m.buy]) for m in j.machines]) for n, j in drawn.items()]
    return Stripes(f"One run: from row {setting.starts[len(setting.starts) // 2]}", rows)
