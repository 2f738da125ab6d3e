"""Plays purchase policies on recorded markets, and on markets that a policy imagines itself, as a forecast. Pure.

The rules are those of the "Can't Be Late" benchmark (Wu et al., NSDI 2024): whole ticks are paid, each launch costs the restart
time, paid, without progress, and work done before an interruption is not lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spotsurfer.core.scheduling.deadline import kept
from spotsurfer.ports.policies import (
    Buy,
    Floats,
    Forecast,
    Imagines,
    Many,
    Modes,
    Pilot,
    Purchase,
    PurchaseMoment,
    Terms,
    View,
)

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
DONE = 1e-6  # seconds of work that don't count as left


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
    """Trouble beyond the terms, by (run, tick): seconds that a launch takes, and whether on-demand is refused."""

    restart_seconds: Floats
    refused: Bools


@dataclass(slots=True)
class _World:
    """The present state of all runs."""

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
    """One run for each row of `up` (run, tick), all in step; from the start, or from the state in `begin`; with trouble."""
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
        moment = PurchaseMoment(began + tick * terms.tick_seconds, w.done, w.held, w.owed, seen.astype(np.int8))
        want = pilot(moment)
        want = kept(want, moment, terms) if guarded else np.where((want == Buy.SPOT) & ~seen, np.int8(Buy.WAIT), want)
        restart: Floats | float = terms.restart_seconds
        if trouble is not None:
            restart = trouble.restart_seconds[:, tick]
            refused = trouble.refused[:, tick] & (want == Buy.ON_DEMAND) & (w.held != Buy.ON_DEMAND)
            want = np.where(refused, w.held, want)  # the held machine is kept until the next one is there
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
    """A pilot that asks a policy for single jobs about each run."""
    seen = [past for _ in range(runs)]

    def pilot(moment: PurchaseMoment) -> Modes:
        want = np.zeros(runs, np.int8)
        for i in range(runs):
            seen[i] = (*seen[i], bool(moment.spot_seen[i]))
            held, owed = Buy(int(moment.held[i])), float(moment.owed_seconds[i])
            view = View(terms, moment.elapsed_seconds, float(moment.done_seconds[i]), held, owed, seen[i])
            want[i] = policy.choose(view).buy
        return want

    return pilot


RUNS, SEED = 200, 0


LOW, HIGH = 0.1, 0.9


def forecast(purchase: Purchase, view: View) -> Forecast | None:
    """The forecast from the view on, always the same; None if the policy can't imagine markets, or no time is left."""
    ticks = ticks_of(view.terms) - round(view.elapsed_seconds / view.terms.tick_seconds)
    if not isinstance(purchase, Imagines) or ticks < 1:
        return None
    up = purchase.imagine(view, RUNS, ticks, np.random.default_rng(SEED))
    played = play(purchase, view.terms, up, view)
    busy = played.held != Buy.WAIT
    last = ticks - busy[:, ::-1].argmax(axis=1)  # ticks until the last one that was paid for
    seconds = np.where(busy.any(axis=1), last, 0) * view.terms.tick_seconds
    low, high = np.quantile(seconds, [LOW, HIGH])
    fallback = float((played.held == Buy.ON_DEMAND).any(axis=1).mean())
    return Forecast(float(seconds.mean()), float(low), float(high), fallback, float(played.usd.mean()))
