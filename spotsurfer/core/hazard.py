"""Hazards by age: from a prior and what was seen. Rates are per second. Pure.

A hazard is constant within each class of age (`model.lives.AGES`). What is learned is a posterior mean of Gamma-Poisson
form, twice: first how much more or less often than expected anything ended at all (the level), then each class around
that (the shape). So one loss moves all classes a little, and many losses of one class move that class alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotsurfer.model.lives import AGES, Lives

Floats = NDArray[np.float64]
LEVEL_WEIGHT, CLASS_WEIGHT = 1.0, 2.0  # the prior counts as so many losses
# How much more often than at rest a machine of a class of age is lost: AWS and Google GPU machines of 2020, rounded.
SHAPE = (12.0, 9.0, 6.0, 4.0, 2.5, 1.6, 1.0, 1.0)
# Share of machines taken in a month by AWS's interruption band; the last band is open. Machines live for a day, as it were.
BAND_SHARE = (0.025, 0.075, 0.125, 0.175, 0.25)
MACHINE_SECONDS = 86400.0
UNKNOWN_BAND = 3  # what is not known counts as bad as what is common


def prior(band: int | None) -> tuple[float, ...]:
    """Hazards by class of age that a pool of this interruption band (0 to 4) is believed to have before anything was seen."""
    share = BAND_SHARE[min(max(UNKNOWN_BAND if band is None else band, 0), 4)]
    at_rest = -math.log1p(-share) / MACHINE_SECONDS
    return tuple(at_rest * s for s in SHAPE)


def learned(lives: Lives, before: Sequence[float], level_weight: float = LEVEL_WEIGHT) -> tuple[float, ...]:
    """The hazards `before` (all positive) after these lives were seen."""
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
        """The share that lives to each of these ages, in seconds. Past the cap it is nearly, not quite, none."""
        edges, rates = np.array(self.edges), np.array(self.hazards)
        before = np.concatenate([[0.0], np.cumsum(np.diff(edges) * rates[:-1])])
        k = np.clip(np.searchsorted(edges, ages, "right") - 1, 0, None)
        total = before[k] + (ages - edges[k]) * rates[k]
        return np.asarray(np.exp(-total) * np.where(ages >= self.cap_seconds, 1e-9, 1.0), dtype=np.float64)


def survival(hazards: Sequence[float], cap_seconds: float = float("inf")) -> Survival:
    """With hazards by the usual classes of age."""
    return Survival(AGES, tuple(hazards), cap_seconds)
