"""The hazard of a machine by age, and the optimal time of the next save under it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotsurfer.model.lifetimes import AGES, Lives

# ---- Hazards by age: from a prior and from observed lifetimes, as rates per second
#
# A hazard is constant within each class of age (`model.lifetimes.AGES`). `learned` takes a posterior mean of Gamma-Poisson
# form twice: first of how much more or less often than expected machines ended at all (the level), then of each class around
# that (the shape). So one loss moves all classes a little, and many losses of one class move that class alone.

Floats = NDArray[np.float64]
LEVEL_WEIGHT, CLASS_WEIGHT = 1.0, 2.0  # the prior counts as so many losses
# Loss rate by class of age, relative to that of old machines: AWS and Google GPU machines of 2020, rounded.
SHAPE = (12.0, 9.0, 6.0, 4.0, 2.5, 1.6, 1.0, 1.0)
# Share of machines reclaimed in a month by AWS's interruption band (the last band is open), applied to a life of one day.
BAND_SHARE = (0.025, 0.075, 0.125, 0.175, 0.25)
MACHINE_SECONDS = 86400.0
UNKNOWN_BAND = 3  # an unknown band counts as a common, bad one


def prior(band: int | None) -> tuple[float, ...]:
    """The assumed hazards by class of age of a pool of this interruption band (0 to 4), before any observation."""
    share = BAND_SHARE[min(max(UNKNOWN_BAND if band is None else band, 0), 4)]
    at_rest = -math.log1p(-share) / MACHINE_SECONDS
    return tuple(at_rest * s for s in SHAPE)


def learned(lives: Lives, before: Sequence[float], level_weight: float = LEVEL_WEIGHT) -> tuple[float, ...]:
    """The hazards `before` (all positive), updated by these observed lives."""
    expected = sum(w * h for w, h in zip(lives.watched, before, strict=True))
    level = (lives.losses + level_weight) / (expected + level_weight)
    return tuple(
        (n + CLASS_WEIGHT) / (w + CLASS_WEIGHT / (level * h))
        for n, w, h in zip(lives.ended, lives.watched, before, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Survival:
    """Piecewise constant hazards, and an age at which everything ends (a cap), if there is one."""

    edges: tuple[float, ...]  # seconds, from 0
    hazards: tuple[float, ...]  # a second, from each edge on
    cap_seconds: float = float("inf")

    def chance(self, ages: Floats) -> Floats:
        """The share of machines that reach each of these ages, in seconds. Past the cap it is nearly, not quite, zero."""
        edges, rates = np.array(self.edges), np.array(self.hazards)
        before = np.concatenate([[0.0], np.cumsum(np.diff(edges) * rates[:-1])])
        k = np.clip(np.searchsorted(edges, ages, "right") - 1, 0, None)
        total = before[k] + (ages - edges[k]) * rates[k]
        return np.asarray(np.exp(-total) * np.where(ages >= self.cap_seconds, 1e-9, 1.0), dtype=np.float64)


def survival(hazards: Sequence[float], cap_seconds: float = float("inf")) -> Survival:
    """A Survival with hazards by the usual classes of age."""
    return Survival(AGES, tuple(hazards), cap_seconds)


# ---- When to save next: the dynamic program over the work left and the machine's age
#
# V(w, a) is the expected time until a job with w seconds of work left is done, on a machine of age a, everything durable
# now. Run for tau, then save for c:
#
# V(w, a) = min over tau of  E[min(L, tau + c)] + P(L > tau + c) V(w - tau, a + tau + c) + sum over losses of (r + V(w', 0))
#
# where L is the rest of the machine's life, r a restart, and w' the work left after a loss: w if the loss came without a
# usable notice, w - (work until then) if the final save fitted the notice. The last stretch needs no save. A constant
# hazard gives Young's and Daly's interval for long jobs; one that falls with age gives short intervals first. On grids:
# work evenly, ages and intervals by quotients; values in between are interpolated.

WORK_STEPS = 240
AGE_STEPS, CHOICES = 40, 36
AGE_SECONDS_FIRST = 60.0
AGE_SECONDS_LAST = 5 * 86400.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one save and one loss, in seconds. `recall`: the share of losses with a notice long enough for a final save."""

    save_seconds: float
    restart_seconds: float
    recall: float = 0.0


@dataclass(frozen=True, slots=True)
class SavePlan:
    """`value[i, j]`: seconds to the end with work i * step left at ages[j]; `interval[i, j]`: work until the next save."""

    step_seconds: float
    ages: Floats
    value: Floats
    interval: Floats

    def after(self, work_seconds: float, age_seconds: float) -> float:
        """Work until the next save, in seconds; `work_seconds` if none pays before the end.

        It takes the nearest point of the grid, because the best interval may jump, and a value in between then fits neither.
        """
        row = min(max(round(work_seconds / self.step_seconds), 1), len(self.value) - 1)
        column = int(np.argmin(np.abs(self.ages - age_seconds)))
        return float(self.interval[row, column]) * work_seconds / (row * self.step_seconds)

    def expected_seconds(self, work_seconds: float) -> float:
        """Time to the end of a job with so much work, on a new machine."""
        return float(np.interp(work_seconds, np.arange(len(self.value)) * self.step_seconds, self.value[:, 0]))


def age_grid(survival: Survival) -> Floats:
    """Ages in a geometric series, with the edges of the hazard and the cap among them."""
    last = min(AGE_SECONDS_LAST, survival.cap_seconds)
    grid = np.concatenate([[0.0], np.geomspace(AGE_SECONDS_FIRST, last, AGE_STEPS)])
    near_cap = survival.cap_seconds - np.array([7200.0, 3600.0, 1800.0, 900.0, 300.0, 60.0, 1.0])
    extra = [*survival.edges, *(near_cap if np.isfinite(survival.cap_seconds) else ())]
    return np.unique(np.concatenate([grid, [e for e in extra if 0 <= e <= last]]))


def choices(steps: int, most: int = CHOICES) -> Floats:
    """Intervals to choose from, in steps of work: a geometric series of whole numbers."""
    return np.unique(np.round(np.geomspace(1, steps, most))).astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Legs:
    """For each choice (row) and age (column): chances and times of one leg, with a save at its end or without."""

    lives: Floats  # it ends well
    spent: Floats  # expected time until it ends, well or badly
    at: Floats  # position of the age at its end in the grid of ages

    @staticmethod
    def of(survival: Survival, ages: Floats, lengths: Floats) -> _Legs:
        fine = np.linspace(0.0, 1.0, 33)
        ends = ages[None, :, None] + lengths[:, None, None] * fine[None, None, :]
        here = survival.chance(ages)[None, :, None]
        chance = survival.chance(ends) / np.maximum(here, 1e-300)
        spent = lengths[:, None] * ((chance[..., 1:] + chance[..., :-1]) / 2).mean(axis=2)
        at = np.interp(ends[..., -1], ages, np.arange(len(ages), dtype=np.float64))
        return _Legs(chance[..., -1], spent, at)


def _kept(survival: Survival, ages: Floats, runs: Floats) -> Floats:
    """The chance of a loss between one choice and the one before, by choice and age."""
    chance = survival.chance(ages[None, :] + runs[:, None]) / np.maximum(survival.chance(ages), 1e-300)[None, :]
    return np.asarray(-np.diff(np.concatenate([np.ones((1, len(ages))), chance]), axis=0), dtype=np.float64)


def plan(survival: Survival, costs: Costs, work_seconds: float, steps: int = WORK_STEPS) -> SavePlan:
    """The best intervals for a job of this length, in `steps` of work."""
    step = work_seconds / steps
    ages, counts = age_grid(survival), choices(steps)
    saving = _Legs.of(survival, ages, counts * step + costs.save_seconds)
    ending = _Legs.of(survival, ages, np.arange(1, steps + 1, dtype=np.float64) * step)
    lost = _kept(survival, ages, counts * step)
    value, interval = np.zeros((steps + 1, len(ages))), np.zeros((steps + 1, len(ages)))
    for i in range(1, steps + 1):
        n = int(np.searchsorted(counts, i))  # choices that leave something to do
        known, again = _legs_with_save(value, i, counts[:n], saving, lost[:n], costs)
        last = ending.spent[i - 1] + (1 - ending.lives[i - 1]) * costs.restart_seconds
        known = np.concatenate([known, last[None]])
        again = np.concatenate([again, (1 - ending.lives[i - 1])[None]])
        if costs.recall > 0:
            known[-1], again[-1] = _last_with_notice(value, i, counts[:n], lost, ending, costs)
        fresh = float(np.min(known[:, 0] / np.maximum(1 - again[:, 0], 1e-12)))
        total = known + again * fresh
        best = np.argmin(total, axis=0)
        value[i] = total[best, np.arange(len(ages))]
        interval[i] = np.append(counts[:n], i)[best] * step
    return SavePlan(step, ages, value, interval)


def _legs_with_save(value: Floats, i: int, counts: Floats, legs: _Legs, lost: Floats, costs: Costs) -> tuple[Floats, Floats]:
    """The cost of each choice without a restart at the same work, and the chance of such a restart, by choice and age."""
    n = len(counts)
    rows = (i - counts).astype(np.intp)
    lives, spent, at = legs.lives[:n], legs.spent[:n], legs.at[:n]
    low = np.minimum(at.astype(np.intp), value.shape[1] - 2)
    part = at - low
    went_well = value[rows[:, None], low] * (1 - part) + value[rows[:, None], low + 1] * part
    known = spent + lives * went_well + (1 - lives) * costs.restart_seconds
    again = 1 - lives
    if costs.recall > 0 and n:
        return _noticed(
            known, again, np.cumsum(lost * _reached(value, i, counts)[:, None], axis=0), np.cumsum(lost, axis=0), costs
        )
    return known, again


def _reached(value: Floats, i: int, counts: Floats) -> Floats:
    """The cost to go after a loss with notice between each choice and the one before: half of that work is kept."""
    before = np.concatenate([[0.0], counts[:-1]])
    fresh = np.append(value[:i, 0], 2 * value[i - 1, 0] - value[max(i - 2, 0), 0])  # the last is being computed
    left: Floats = np.interp(i - (counts + before) / 2, np.arange(i + 1, dtype=np.float64), fresh)
    return left


def _noticed(known: Floats, again: Floats, left: Floats, met: Floats, costs: Costs) -> tuple[Floats, Floats]:
    """Correct the costs for losses with a notice: they keep the work done, but each costs the final save."""
    share = costs.recall
    return known + share * (left + met * costs.save_seconds), again - share * met


def _last_with_notice(
    value: Floats, i: int, counts: Floats, lost: Floats, ending: _Legs, costs: Costs
) -> tuple[Floats, Floats]:
    n = len(counts)
    known = ending.spent[i - 1] + (1 - ending.lives[i - 1]) * costs.restart_seconds
    again = 1 - ending.lives[i - 1]
    met = lost[:n].sum(axis=0) if n else np.zeros_like(known)
    left = (lost[:n] * _reached(value, i, counts)[:, None]).sum(axis=0) if n else np.zeros_like(known)
    rest = np.maximum(again - met, 0.0)  # lost after the longest choice: half of what follows it is left
    half = float(np.interp((i - (counts[-1] if n else 0.0)) / 2, np.arange(i), value[:i, 0]))
    known = known + costs.recall * (left + rest * half + (met + rest) * costs.save_seconds)
    return known, again - costs.recall * (met + (rest if i > 1 else 0.0))
