"""Intervals that do not change with age: as asked, never, and by the formulas of Young (1974) and Daly (2006)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from spotsurfer.core.hazard import BAND_SHARE, MACHINE_SECONDS, UNKNOWN_BAND
from spotsurfer.ports.interval import SaveView
from spotsurfer.ports.parameters import Parameter, parameters

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
    """Seconds between losses: those seen, and one of the advisor's."""
    share = BAND_SHARE[min(max(UNKNOWN_BAND if view.band is None else view.band, 0), 4)]
    before = MACHINE_SECONDS / -math.log1p(-share)
    return (sum(view.lives.watched) + before) / (view.lives.losses + 1)


def young(view: SaveView) -> float:
    """sqrt(2 c M): save cost c, mean time between losses M."""
    return math.sqrt(2 * view.save_seconds * mean_life(view))


def daly(view: SaveView) -> float:
    """Daly's higher order estimate; M itself where a save costs more than twice that."""
    c, m = view.save_seconds, mean_life(view)
    if c >= 2 * m:
        return m
    return math.sqrt(2 * c * m) * (1 + math.sqrt(c / (2 * m)) / 3 + c / (2 * m) / 9) - c


def _never(view: SaveView) -> None:
    del view


@parameters(Parameter("minutes", MINUTES, "where neither user nor operator named an interval"))
def make_fixed(settings: Mapping[str, object]) -> Regular:
    """The same interval always."""
    minutes = settings.get("minutes", MINUTES)
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or minutes <= 0 or set(settings) - {"minutes"}:
        raise ValueError("interval.fixed: its one parameter is minutes, a number above 0")
    seconds = float(minutes) * 60
    return Regular(lambda view: view.asked_seconds or seconds)


def make_never(settings: Mapping[str, object]) -> Regular:
    """Saves on notices alone."""
    return _plain(settings, "never", _never)


def make_young(settings: Mapping[str, object]) -> Regular:
    """Young's formula with the mean life seen so far."""
    return _plain(settings, "young", young)


def make_daly(settings: Mapping[str, object]) -> Regular:
    """Daly's formula with the mean life seen so far."""
    return _plain(settings, "daly", daly)


def _plain(settings: Mapping[str, object], name: str, rule: Callable[[SaveView], float | None]) -> Regular:
    if settings:
        raise ValueError(f"interval.{name}: it has no parameters, not {', '.join(map(str, settings))}")
    return Regular(rule)
