"""Results that all back-tests share: outcomes, figures with confidence intervals, plots, the sweep over spare time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from spotsurfer.common.charts import Lines, Plot, Series
from spotsurfer.core.scheduling.deadline_simulation import ticks_of
from spotsurfer.model.errors import UsageError
from spotsurfer.ports.policies import Buy, Terms

# ---- Figures

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DRAWS = 1000  # of the bootstrap
LEVEL = 0.95
OPTIMUM = "optimum"  # the policy that knows the future
TAIL = 0.99


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy's runs, in the same order for each policy. `cost`: the compared quantity, one value for each run.

    `groups`: the bootstrap draws runs of one number together (the same window in several pools): they are not independent.
    `means` and `sums`: further quantities, one value for each run, reported as mean or sum.
    """

    policy: str
    cost: Floats
    groups: Ints
    means: Mapping[str, Floats] = field(default_factory=dict)
    sums: Mapping[str, Ints] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies side by side. `unit` ends the names of costs ("usd"); gaps are relative to the policy `reference`."""

    title: str
    settings: Mapping[str, object]
    outcomes: Sequence[Outcome]
    unit: str = "usd"
    reference: str = OPTIMUM

    def of(self, policy: str) -> Outcome | None:
        """The runs of one policy, or None."""
        return next((o for o in self.outcomes if o.policy == policy), None)


def figures(comparison: Comparison, seed: int = 0) -> dict[str, dict[str, object]]:
    """Figures by policy: mean and 99th percentile of the cost, means, sums, the gap to the reference, 95 % intervals."""
    reference = comparison.of(comparison.reference)
    return {o.policy: _of_one(o, reference, comparison.unit, seed) for o in comparison.outcomes}


def _of_one(outcome: Outcome, reference: Outcome | None, unit: str, seed: int) -> dict[str, object]:
    weights = _weights(outcome.groups, np.random.default_rng(seed))
    mean, tail = f"mean_{unit}", f"p99_{unit}"
    found: dict[str, object] = {mean: float(outcome.cost.mean()), tail: float(np.quantile(outcome.cost, TAIL))}
    found |= {name: int(values.sum()) for name, values in outcome.sums.items()}
    found |= {name: float(values.mean()) for name, values in outcome.means.items()}
    drawn = {mean: _drawn_mean(weights, outcome.cost), tail: _drawn_tail(weights, outcome.cost)}
    drawn |= {name: _drawn_mean(weights, values) for name, values in outcome.means.items()}
    if reference is not None:
        found["gap_to_optimum"] = float(outcome.cost.mean() / reference.cost.mean() - 1)
        drawn["gap_to_optimum"] = drawn[mean] / _drawn_mean(weights, reference.cost) - 1
    found["runs"] = len(outcome.cost)
    found["intervals_95"] = {name: _interval(values) for name, values in drawn.items()}
    return found


def _weights(groups: Ints, rng: np.random.Generator) -> Floats:
    """(draws, runs): how often each run is in each draw of whole groups with replacement."""
    names, of_run = np.unique(groups, return_inverse=True)
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    weights: Floats = counts[:, of_run].astype(np.float64)
    return weights


def _drawn_mean(weights: Floats, values: Floats) -> Floats:
    means: Floats = (weights @ values.astype(np.float64)) / weights.sum(axis=1)
    return means


def _drawn_tail(weights: Floats, values: Floats) -> Floats:
    order = np.argsort(values)
    share = np.cumsum(weights[:, order], axis=1) / weights.sum(axis=1, keepdims=True)
    tails: Floats = values[order][np.minimum((share < TAIL).sum(axis=1), len(values) - 1)]
    return tails


def _interval(drawn: Floats) -> list[float]:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]


# ---- Matches: progress, results, and the plots that all back-tests have.

Step = Callable[[int, int], None]  # runs done, total
POINTS = 200  # of a line at most
UNITS = {"usd": "USD"}
HELD = {Buy.SPOT: "spot", Buy.ON_DEMAND: "on-demand"}


@dataclass(frozen=True, slots=True)
class Match:
    """The figures and the plots."""

    comparison: Comparison
    plots: list[Plot]


def need(rows: Sequence[int], ticks: int, recorded: int) -> None:
    """Raises UsageError if no window of so many ticks lies within a record of `recorded` ticks."""
    if not rows:
        raise UsageError(
            f"No window of {ticks} ticks lies within the record of {recorded}: choose other windows, a longer record or a "
            "shorter deadline."
        )


def settings_of(terms: Terms, pools: int, windows: int) -> dict[str, object]:
    """The settings that a comparison of jobs with deadlines tells."""
    return {
        "pools": pools,
        "windows": windows,
        "job_hours": terms.work_seconds / 3600,
        "deadline_hours": terms.deadline_seconds / 3600,
        "restart_hours": terms.restart_seconds / 3600,
        "tick_seconds": terms.tick_seconds,
    }


def part(step: Step, number: int, runs: int, parts: int) -> Callable[[int], None]:
    """The progress callback of one of several parts with equal numbers of runs; it takes the runs done in this part."""
    return lambda done: step(number * runs + done, parts * runs)


def spread(comparison: Comparison) -> Lines:
    """Cost of the runs, sorted: the spread over the windows."""
    series = [Series(o.policy, _thinned(np.sort(o.cost))) for o in comparison.outcomes]
    return Lines("Runs by cost", "per cent of the runs", UNITS.get(comparison.unit, comparison.unit), series)


def _thinned(values: Floats) -> list[tuple[float, float]]:
    at = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).round().astype(int))
    return [(100 * i / max(1, len(values) - 1), float(values[i])) for i in at]


# ---- Sweep: cost, and the gap to the optimum, at shorter and longer deadlines.

SHARES = (0.25, 0.5, 1.0, 1.5, 2.0)  # of the requested spare time
WINDOWS = 20  # played at each deadline, instead of the table's many more


def plots(
    play: Callable[[Terms, Sequence[int]], Comparison], windows: Callable[[int], Sequence[int]], terms: Terms, step: Step
) -> list[Plot]:
    """Mean cost by spare time, and the gap if the optimum is among the policies; no plots if only one deadline fits.

    `windows`: rows at which a window of so many ticks begins; each deadline plays the same ones.
    """
    asked = [t for t in _deadlines(terms) if windows(ticks_of(t))]
    if len(asked) < 2:
        return []
    rows = windows(ticks_of(asked[-1]))  # a window with room for the longest has room for all
    rows = rows[:: math.ceil(len(rows) / WINDOWS)]
    found = []
    for i, t in enumerate(asked):
        step(i, len(asked))
        found.append(((t.deadline_seconds - t.work_seconds) / 3600, play(t, rows)))
    step(len(asked), len(asked))
    return curves(found)


def curves(found: Sequence[tuple[float, Comparison]]) -> list[Plot]:
    """`found`: spare hours, increasing, with the comparison at each."""
    unit, names = found[0][1].unit, [o.policy for o in found[0][1].outcomes]
    means = [(hours, {o.policy: float(o.cost.mean()) for o in c.outcomes}) for hours, c in found]
    label = "hours to spare beyond the work"
    cost = Lines("Cost by time to spare", label, UNITS.get(unit, unit), _series(names, means))
    reference = found[0][1].reference
    if reference not in names or len(names) == 1:
        return [cost]
    gaps = [(hours, {n: 100 * (mean[n] / mean[reference] - 1) for n in names}) for hours, mean in means]
    others = [n for n in names if n != reference]
    return [cost, Lines("Gap to the optimum by time to spare", label, "per cent", _series(others, gaps))]


def _series(names: Sequence[str], values: Sequence[tuple[float, dict[str, float]]]) -> list[Series]:
    return [Series(n, [(hours, of[n]) for hours, of in values]) for n in names]


def _deadlines(terms: Terms) -> list[Terms]:
    """Increasing deadlines; each leaves time for a launch and a slot on top of the work."""
    spare = terms.deadline_seconds - terms.work_seconds
    least = terms.restart_seconds + terms.tick_seconds
    seconds = sorted({max(share * spare, min(least, spare)) for share in SHARES})
    return [replace(terms, deadline_seconds=terms.work_seconds + s) for s in seconds]
