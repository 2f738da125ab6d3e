"""Checkpoint interval policies: fixed, never, Young, Daly, and `surf`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

from spotsurfer.core.checkpoints.hazard import (
    BAND_SHARE,
    MACHINE_SECONDS,
    UNKNOWN_BAND,
    Costs,
    SavePlan,
    learned,
    plan,
    prior,
    survival,
)
from spotsurfer.ports.policies import Parameter, SaveView, parameters, parameters_of
from spotsurfer_policies.parameter_values import values

# ---- Constant intervals: as asked, never, and by the formulas of Young (1974) and Daly (2006).

MINUTES = 10.0


class Regular:
    """One rule of the view."""

    def __init__(self, rule: Callable[[SaveView], float | None]) -> None:
        """`rule`: seconds between saves, or None."""
        self._rule = rule

    def save_after(self, view: SaveView) -> float | None:
        """Seconds of work until the next live save; None = none before the job's end."""
        after = self._rule(view)
        return None if after is None or (view.left_seconds is not None and after >= view.left_seconds) else after


def mean_life(view: SaveView) -> float:
    """Seconds between losses: the observed ones, and one of the advisor's."""
    share = BAND_SHARE[min(max(UNKNOWN_BAND if view.band is None else view.band, 0), 4)]
    before = MACHINE_SECONDS / -math.log1p(-share)
    return (sum(view.lives.watched) + before) / (view.lives.losses + 1)


def young(view: SaveView) -> float:
    """sqrt(2 c M): save cost c, mean time between losses M."""
    return math.sqrt(2 * view.save_seconds * mean_life(view))


def daly(view: SaveView) -> float:
    """Daly's higher order estimate; M itself if a save costs more than twice that."""
    c, m = view.save_seconds, mean_life(view)
    if c >= 2 * m:
        return m
    return math.sqrt(2 * c * m) * (1 + math.sqrt(c / (2 * m)) / 3 + c / (2 * m) / 9) - c


@parameters(Parameter("minutes", MINUTES, "where neither user nor operator named an interval"))
def make_fixed(settings: Mapping[str, object]) -> Regular:
    """The same interval always."""
    seconds = values("interval.fixed", settings, parameters_of(make_fixed))["minutes"] * 60
    if seconds <= 0:
        raise ValueError("interval.fixed: minutes must be above 0")
    return Regular(lambda view: view.asked_seconds or seconds)


def make_never(settings: Mapping[str, object]) -> Regular:
    """Saves on notices alone."""
    values("interval.never", settings)
    return Regular(lambda _: None)


def make_young(settings: Mapping[str, object]) -> Regular:
    """Young's formula with the mean life seen so far."""
    values("interval.young", settings)
    return Regular(young)


def make_daly(settings: Mapping[str, object]) -> Regular:
    """Daly's formula with the mean life seen so far."""
    values("interval.daly", settings)
    return Regular(daly)


# ---- `surf`: saves when it pays, by the hazard of the machine's age, the costs of a save and of a restart, and notices.
# It solves the dynamic program of `core.checkpoints.hazard` with the hazard as known now. A loss whose notice leaves time for a
# final save costs no work; so the more such losses, the fewer saves. With a constant hazard and a long job this is Young's and
# Daly's interval; with a hazard that falls with age, young machines save often and old ones seldom.

RECALL_PRIOR = (9.0, 1.0)  # as if nine notices had come in time and one not
FINAL_SAFETY = 1.25  # a final save may take this much longer than forecast
RATE_STEP, COST_STEP = 0.25, 0.1  # plans are shared by views that differ by less (of logarithms)
HORIZON_SECONDS = 24 * 3600.0  # of work, if nobody knows how much is left
FINE = 60.0  # a plan covers at most this many of Young's intervals: the end is too far away to matter
LEAST_COVER, COVERS = 600.0, 6.0  # lengths of work of plans: ten minutes, an hour, six, …
LEAST_SECONDS = 30.0  # saves never follow each other faster


class Surf:
    """Follows the plan with the least expected time."""

    def save_after(self, view: SaveView) -> float | None:
        """Seconds of work until the next live save; None = none before the job's end."""
        work = view.left_seconds if view.left_seconds is not None else HORIZON_SECONDS
        rates = tuple(_rounded(h, RATE_STEP) for h in learned(view.lives, prior(view.band)))
        save = _rounded(max(view.save_seconds, 0.1), COST_STEP)
        sight = FINE * math.sqrt(2 * save / max(rates))
        covered = min(LEAST_COVER * COVERS ** math.ceil(math.log(max(work / LEAST_COVER, 1.0), COVERS)), sight)
        table = _plan(rates, view.cap_seconds, save, _rounded(max(view.restart_seconds, 1.0), COST_STEP), recall(view), covered)
        after = table.after(min(work, covered), view.age_seconds)
        if view.left_seconds is not None and after >= view.left_seconds - 1.0:
            return None
        return max(after, LEAST_SECONDS)


def recall(view: SaveView) -> float:
    """The believed share of losses with a notice long enough for a final save: 0, or one of twenty steps."""
    if view.final_seconds * FINAL_SAFETY > view.notice_seconds:
        return 0.0
    good, bad = RECALL_PRIOR
    share = (view.noticed + good) / (view.noticed + view.unnoticed + good + bad)
    return 1 - _rounded(max(1 - share, 1e-3), RATE_STEP)


def _rounded(value: float, step: float) -> float:
    return math.exp(round(math.log(value) / step) * step)


@lru_cache(maxsize=64)
def _plan(rates: tuple[float, ...], cap: float | None, save: float, restart: float, share: float, work: float) -> SavePlan:
    return plan(survival(rates, math.inf if cap is None else cap), Costs(save, restart, share), work)


def make_surf(settings: Mapping[str, object]) -> Surf:
    """The hazard by age, learned; what a save, a loss and a restart cost; notices."""
    values("interval.surf", settings)
    return Surf()
