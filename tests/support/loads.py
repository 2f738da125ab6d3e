"""Loads that flap: what a job uses as time, or work, goes by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Load = Callable[[float], tuple[float, float]]  # seconds since the begin -> bytes, cores


def square(most_bytes: float, seconds: float, low: float, high: float) -> Load:
    """Little for so long, then much. `low`, `high`: shares of `most_bytes`."""
    return lambda t: (high * most_bytes, 8.0) if (t // seconds) % 2 == 1 else (low * most_bytes, 1.0)


def spikes(most_bytes: float, every: float, low: float, high: float) -> Load:
    """Much for ten seconds, again and again."""
    return lambda t: (high * most_bytes, 8.0) if t % every < 10 else (low * most_bytes, 2.0)


def noise(most_bytes: float, seed: int, seconds: float) -> Load:
    """Something else each ten seconds, mostly little, for so long."""
    rng = np.random.default_rng(seed)
    drawn = rng.random((int(seconds // 10) + 1, 2))
    return lambda t: (float(drawn[int(t // 10), 0] ** 3 * most_bytes + 1), float(drawn[int(t // 10), 1] * 8))
