"""What contests have in common: how they tell their progress, what they hand back, and the plots that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from spotsurfer.model.errors import UsageError
from spotsurfer.ports.purchase import Buy
from spotsurfer.sim.outcome import Comparison, Floats
from spotsurfer.sim.plots import Lines, Plot, Series

Step = Callable[[int, int], None]  # runs that are done, of how many
POINTS = 200  # of a line at most
UNITS = {"usd": "USD"}
HELD = {Buy.SPOT: "spot", Buy.ON_DEMAND: "on-demand"}


@dataclass(frozen=True, slots=True)
class Match:
    """The figures and what can be drawn of them."""

    comparison: Comparison
    plots: list[Plot]


def need(rows: Sequence[int], ticks: int, recorded: int) -> None:
    """Raises UsageError where no window of so many ticks lies within a record of so many."""
    if not rows:
        raise UsageError(
            f"No window of {ticks} ticks lies within the record of {recorded}: choose other windows, a longer record or a "
            "shorter deadline."
        )


def part(step: Step, number: int, runs: int, parts: int) -> Callable[[int], None]:
    """How the part of this number, one of several with so many runs each, tells how many of its runs are done."""
    return partial(_tell, step, number * runs, parts * runs)


def _tell(step: Step, before: int, total: int, done: int) -> None:
    step(before + done, total)


def spread(comparison: Comparison) -> Lines:
    """Cost of the runs, sorted: how the windows are spread."""
    series = [Series(o.policy, _thinned(np.sort(o.cost))) for o in comparison.outcomes]
    return Lines("Runs by cost", "per cent of the runs", UNITS.get(comparison.unit, comparison.unit), series)


def _thinned(values: Floats) -> list[tuple[float, float]]:
    at = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).round().astype(int))
    return [(100 * i / max(1, len(values) - 1), float(values[i])) for i in at]
