"""What back-tests have in common: the runs of each policy, and the figures that are told about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DRAWS = 1000  # of the bootstrap
LEVEL = 0.95
TAIL = 0.99


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy's runs, in the same order for each policy. `cost`: what is compared, one value a run.

    `groups`: runs of one number (the same window of time in several pools) are drawn together, for they are not independent.
    `means` and `sums`: what else is told, one value a run, as its mean or as its sum.
    """

    policy: str
    cost: Floats
    groups: Ints
    means: Mapping[str, Floats] = field(default_factory=dict)
    sums: Mapping[str, Ints] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies side by side. `unit` ends the names of costs ("usd"); `reference` is the policy that gaps are measured to."""

    title: str
    settings: Mapping[str, object]
    outcomes: Sequence[Outcome]
    unit: str = "usd"
    reference: str = "optimum"

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
