"""Loads that flap never move a job more often than was configured, whatever the policy; and memory always fits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from spotsurfer_lab.size_backtest import Ride, World, play, size_policy

from spotsurfer.core.scheduling.rightsizing import Usage
from spotsurfer.ports.policies import MachineKind, Size, SizeChoice, SizeMoment, SizeTerms

GIB = float(1 << 30)
KINDS = tuple(
    MachineKind(f"{f}.{c}", f, c, int(per * c * GIB), p * c)
    for f, per, p in (("c", 2, 0.04), ("r", 8, 0.06))
    for c in (2, 4, 8, 16)
)
LARGEST = 0.94 * max(k.memory_bytes for k in KINDS)


class Restless:
    """Wants to be on the next type each minute: the worst that a policy could do."""

    def begin(self, terms: SizeTerms) -> tuple[int, int]:
        return 0, terms.start

    def look(self, memory: int, moment: SizeMoment) -> tuple[int, SizeChoice]:
        return memory + 1, SizeChoice(memory % len(KINDS), "restless")


POLICIES: dict[str, Callable[[], Size]] = {
    "surf": lambda: size_policy("surf", {}),
    "threshold": lambda: size_policy("threshold", {"mem_lower": 60.0, "cool_down_seconds": 0}),
    "restless": Restless,
}


def square(seconds: float, low: float, high: float, minutes: int) -> Usage:
    at = np.arange(0.0, minutes * 60.0, 10.0)
    up = (at // seconds) % 2 == 1
    return Usage(np.full(len(at), 10.0), np.where(up, high, low) * LARGEST, np.where(up, 8.0, 1.0))


def spikes(every: float, low: float, high: float, minutes: int) -> Usage:
    at = np.arange(0.0, minutes * 60.0, 10.0)
    up = at % every < 10
    return Usage(np.full(len(at), 10.0), np.where(up, high, low) * LARGEST, np.where(up, 16.0, 2.0))


def noise(seed: int, minutes: int) -> Usage:
    rng, count = np.random.default_rng(seed), minutes * 6
    return Usage(np.full(count, 10.0), rng.random(count) ** 3 * LARGEST + 1, rng.random(count) * 16)


def ramps(seconds: float, steps: int, minutes: int) -> Usage:
    """Up in steps, each a new peak, and down again at once."""
    at = np.arange(0.0, minutes * 60.0, 10.0)
    step = (at // seconds) % steps
    return Usage(np.full(len(at), 10.0), LARGEST * 2.0 ** (step - steps + 1), np.full(len(at), 2.0))


SHARE = st.floats(0.001, 1.0)
LOADS = st.one_of(
    st.builds(square, st.floats(10, 3600), SHARE, SHARE, st.just(300)),
    st.builds(spikes, st.floats(20, 3600), SHARE, SHARE, st.just(300)),
    st.builds(ramps, st.floats(30, 900), st.integers(2, 8), st.just(300)),
    st.builds(noise, st.integers(0, 999), st.just(300)),
)


def most_in_an_hour(ride: Ride) -> int:
    return max((sum(m <= x < m + 3600 for x in ride.moved_at) for m in ride.moved_at), default=0)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@example(load=square(300, 0.01, 1.0, 300), start=7, limit=3, move_seconds=0.0)
@example(load=ramps(240, 6, 300), start=0, limit=3, move_seconds=15.0)
@given(load=LOADS, start=st.integers(0, 7), limit=st.integers(3, 12), move_seconds=st.sampled_from([0.0, 15.0, 180.0]))
def test_never_more_moves_an_hour_than_configured(name: str, load: Usage, start: int, limit: int, move_seconds: float) -> None:
    ride = play(POLICIES[name](), World(load, SizeTerms(KINDS, start, move_seconds, 16), moves_per_hour=limit))
    assert most_in_an_hour(ride) <= limit
    assert ride.ooms == 0
    assert not ride.alarm
