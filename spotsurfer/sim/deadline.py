"""One job with a deadline on one pool: policies played on recorded availability, and the least that hindsight could have paid.

The rules are those of the "Can't Be Late" benchmark (Wu et al., NSDI 2024): whole ticks are paid, each launch costs the restart
time, paid, without progress, and what was done before an interruption is not lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spotsurfer.core.deadline import kept
from spotsurfer.ports.purchase import Buy, Floats, Many, Modes, Moment, Pilot, Purchase, Terms, View

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
DONE = 1e-6  # seconds of work that don't count as left
OPTIMUM = "optimum"


@dataclass(frozen=True, slots=True)
class Played:
    """One value a run. `wasted_hours` were paid and brought no progress; `moves` are launches after the first."""

    usd: Floats
    missed: Bools
    moves: Ints
    wasted_hours: Floats
    held: Modes  # (run, tick): what was paid for


@dataclass(frozen=True, slots=True)
class Trouble:
    """What the terms do not promise, by (run, tick): seconds that a launch takes, and whether on-demand is refused."""

    restart_seconds: Floats
    refused: Bools


@dataclass(slots=True)
class _World:
    """All runs, mid-way."""

    held: Modes
    owed: Floats
    done: Floats
    usd: Floats
    paid: Floats
    launches: Ints


def _begin(runs: int, begin: View | None) -> _World:
    held, owed, done = (begin.held, begin.owed_seconds, begin.done_seconds) if begin is not None else (Buy.WAIT, 0.0, 0.0)
    launches = np.full(runs, int(held != Buy.WAIT), np.int64)
    return _World(
        np.full(runs, held, np.int8), np.full(runs, owed), np.full(runs, done), np.zeros(runs), np.zeros(runs), launches
    )


def ticks_of(terms: Terms) -> int:
    """Whole ticks until the deadline."""
    return int(terms.deadline_seconds / terms.tick_seconds + DONE)


def play(policy: Purchase, terms: Terms, up: Bools, begin: View | None = None, trouble: Trouble | None = None) -> Played:
    """One run for each row of `up` (run, tick), all in step; from the start, or from where `begin` stands; with trouble."""
    runs, past = len(up), begin.spot_seen[:-1] if begin is not None else ()
    pilot = policy.pilot(terms, runs, past) if isinstance(policy, Many) else _one_by_one(policy, terms, runs, past)
    guarded = getattr(policy, "keeps_deadlines", True)
    w, began = _begin(runs, begin), begin.elapsed_seconds if begin is not None else 0.0
    ticks = ticks_of(terms) - round(began / terms.tick_seconds)
    paid_for = np.zeros((runs, ticks), np.int8)
    for tick in range(ticks):
        busy = w.done < terms.work_seconds - DONE
        if not busy.any():
            break
        seen = up[:, tick]
        w.held = np.where((w.held == Buy.SPOT) & ~seen, np.int8(Buy.WAIT), w.held)
        moment = Moment(began + tick * terms.tick_seconds, w.done, w.held, w.owed, seen.astype(np.int8))
        want = pilot(moment)
        want = kept(want, moment, terms) if guarded else np.where((want == Buy.SPOT) & ~seen, np.int8(Buy.WAIT), want)
        restart: Floats | float = terms.restart_seconds
        if trouble is not None:
            restart = trouble.restart_seconds[:, tick]
            refused = trouble.refused[:, tick] & (want == Buy.ON_DEMAND) & (w.held != Buy.ON_DEMAND)
            want = np.where(refused, w.held, want)  # what is held is kept until the next machine is there
        _pass(w, np.where(busy, want, np.int8(Buy.WAIT)), terms, restart)
        paid_for[:, tick] = np.where(busy, w.held, np.int8(Buy.WAIT))
    hours = np.minimum(w.done, terms.work_seconds) - (begin.done_seconds if begin is not None else 0.0)
    missed = w.done < terms.work_seconds - DONE
    return Played(w.usd, missed, np.maximum(w.launches - 1, 0), (w.paid - hours) / 3600, paid_for)


def _pass(w: _World, want: Modes, terms: Terms, restart: Floats | float) -> None:
    """One tick goes by with `want` held; a launch takes `restart` seconds."""
    runs = want != Buy.WAIT
    launched = runs & (want != w.held)
    w.owed = np.where(launched, restart, w.owed)
    w.launches = w.launches + launched
    used = np.where(runs, np.minimum(w.owed, terms.tick_seconds), 0.0)
    w.owed = w.owed - used
    w.done = w.done + np.where(runs, terms.tick_seconds - used, 0.0)
    price = np.where(want == Buy.SPOT, terms.spot_usd_per_hour, terms.on_demand_usd_per_hour)
    w.usd = w.usd + np.where(runs, price, 0.0) * terms.tick_seconds / 3600
    w.paid = w.paid + np.where(runs, terms.tick_seconds, 0.0)
    w.held = want


def _one_by_one(policy: Purchase, terms: Terms, runs: int, past: tuple[bool | None, ...]) -> Pilot:
    """A policy that knows single jobs only, asked about each run."""
    seen = [past for _ in range(runs)]

    def pilot(moment: Moment) -> Modes:
        want = np.zeros(runs, np.int8)
        for i in range(runs):
            seen[i] = (*seen[i], bool(moment.spot_seen[i]))
            held, owed = Buy(int(moment.held[i])), float(moment.owed_seconds[i])
            view = View(terms, moment.elapsed_seconds, float(moment.done_seconds[i]), held, owed, seen[i])
            want[i] = policy.choose(view).buy
        return want

    return pilot


def optimum(terms: Terms, up: Bools, chunk: int = 4) -> Floats:
    """The least cost of each run for who knows the future: a dynamic program over (tick, what is held, time to spare).

    Waiting a tick uses up a tick of the time to spare, a launch the restart time, running nothing; it must last to the end.
    Kept apart from policies: it looks ahead. `chunk` runs at once, so that they stay in the processor's cache.
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
        ready = _later(idle, restart)  # launched from anything; staying is the better of the two where that was held
        cost[Buy.SPOT] = np.where(up[:, tick, None], np.minimum(cost[Buy.SPOT], ready) + spot, np.inf)
        cost[Buy.ON_DEMAND] = np.minimum(cost[Buy.ON_DEMAND], ready) + on_demand
        cost[Buy.WAIT] = _later(idle, wait)
    found: Floats = cost.min(axis=(0, 2))
    return found


def _later(values: Floats, steps: int) -> Floats:
    """The same with so much less to spare."""
    moved = np.full_like(values, np.inf)
    if steps < values.shape[-1]:
        moved[:, steps:] = values[:, : values.shape[-1] - steps]
    return moved


def _unit(terms: Terms) -> float:
    """The largest step that tick, restart and work are whole multiples of, in seconds; at least one second."""
    whole = [max(1, round(x)) for x in (terms.tick_seconds, terms.work_seconds) if x]
    return float(math.gcd(*whole, *([round(terms.restart_seconds)] if round(terms.restart_seconds) else [])))
