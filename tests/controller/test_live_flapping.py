"""Loads that flap never order more machines an hour than configured, through the controller's own eyes, whatever the policy."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from spotsurfer_lab.size_backtest import size_policy
from support.loads import Load, noise, spikes, square
from support.rides import GIB, TYPES, Ride, asks

from spotsurfer.core.scheduling.rightsizing import SizeRules
from spotsurfer.ports.policies import Size, SizeChoice, SizeMoment, SizeTerms

MOST = 29 * GIB  # the largest machine holds it
MINUTES = 75


class Restless:
    """Wants to be on the next type at each look: the worst that a policy could do."""

    def begin(self, terms: SizeTerms) -> tuple[int, int]:
        return 0, terms.start

    def look(self, memory: int, moment: SizeMoment) -> tuple[int, SizeChoice]:
        return memory + 1, SizeChoice(memory % len(TYPES), "restless")


SETTINGS: dict[str, dict[str, object]] = {"surf": {}, "threshold": {"mem_lower": 60.0, "cool_down_seconds": 0}}


def make(name: str) -> Size:
    return Restless() if name == "restless" else size_policy(name, SETTINGS[name])


SHARE = st.floats(0.001, 1.0)
LOADS = st.one_of(
    st.builds(square, st.just(MOST), st.floats(10, 1800), SHARE, SHARE),
    st.builds(spikes, st.just(MOST), st.floats(20, 1800), SHARE, SHARE),
    st.builds(noise, st.just(MOST), st.integers(0, 999), st.just(MINUTES * 60)),
)


@pytest.mark.parametrize("name", ["surf", "threshold", "restless"])
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@example(load=square(MOST, 300, 0.01, 1.0), start="a.large", limit=3, boots=1)
@given(load=LOADS, start=st.sampled_from(sorted(TYPES)), limit=st.integers(3, 12), boots=st.integers(1, 12))
def test_never_more_orders_an_hour_than_configured(name: str, load: Load, start: str, limit: int, boots: int) -> None:
    def made(_: str, __: Mapping[str, object]) -> Size:
        return make(name)

    rules = SizeRules(10.0, limit)
    ride = Ride(made, asks(cpus=2, memory_bytes=8 * GIB), start, rules, boots)
    for i in range(MINUTES * 6):
        ride.use(*load(10.0 * i))
    assert ride.most_in_an_hour() <= limit
    assert not ride.alarms
    if name == "restless":
        assert ride.ordered_at, "nobody moved: that proves nothing"
