"""The circuit breaker: when it opens, for how long, what passes it, and that calls of other kinds go on."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from spotsurfer_wire.store.port import StoreError

from spotsurfer.controller.machines.circuit_breaker import FAILURES_MAX, LONGEST_SECONDS, Guarded
from spotsurfer.model.errors import CredentialsExpired, NoCapacity, ProviderDenied, ProviderError, Throttled
from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import Capabilities, InstanceState, InstanceView, LaunchPlan, Listing


class Cloud:
    """Counts calls; raises `error` while it is set."""

    name = "cloud"
    capabilities = Capabilities(120.0, "aws")
    witness = None

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.described = self.ended = 0
        self.poison: set[str] = set()  # launch tokens
        self.launched: list[str] = []

    def describe(self) -> Listing:
        self.described += 1
        if self.error is not None:
            raise self.error
        return Listing((), complete=True)

    def launch(self, plan: LaunchPlan) -> InstanceView:
        self.launched.append(plan.token)
        if plan.token in self.poison:
            raise ProviderError("an answer that says nothing")
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return InstanceView(InstanceId("i"), plan.token, plan.pool, plan.market, InstanceState.RUNNING, at)

    def terminate(self, instance: InstanceId) -> None:
        self.ended += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def guarded(cloud: Cloud, clock: ManualClock) -> Guarded:
    return Guarded(cloud, clock)  # type: ignore[arg-type]


def storm(guarded: Guarded, clock: ManualClock, seconds: int) -> None:
    """Somebody asks every second."""
    for _ in range(seconds):
        with pytest.raises(ProviderError):
            guarded.describe()
        clock.advance(1)


@pytest.mark.parametrize("error", [Throttled("slow down"), ProviderError("500"), CredentialsExpired("expired")])
def test_a_storm_of_an_hour_is_met_with_few_calls(
    guarded: Guarded, cloud: Cloud, clock: ManualClock, error: ProviderError
) -> None:
    cloud.error = error
    storm(guarded, clock, 3600)
    # 3 at once, then after 5, 10, 20 … 300 s: 6 to reach the longest wait, one in 300 s from then on.
    assert FAILURES_MAX < cloud.described <= FAILURES_MAX + 7 + 3600 / LONGEST_SECONDS


def test_who_asks_meanwhile_hears_why(guarded: Guarded, cloud: Cloud, clock: ManualClock) -> None:
    cloud.error = Throttled("RequestLimitExceeded")
    storm(guarded, clock, FAILURES_MAX)
    with pytest.raises(ProviderError, match=r"describe failed 3 times and rests for 4 s more: RequestLimitExceeded"):
        guarded.describe()


def test_it_closes_when_the_call_works_again(guarded: Guarded, cloud: Cloud, clock: ManualClock) -> None:
    cloud.error = ProviderError("500")
    storm(guarded, clock, 10)
    cloud.error = None
    clock.advance(60)
    assert guarded.describe().complete
    assert guarded.describe().complete
    cloud.error = ProviderError("500")
    before = cloud.described
    storm(guarded, clock, FAILURES_MAX)
    assert cloud.described == before + FAILURES_MAX  # it has forgotten the first storm


@pytest.mark.parametrize("error", [NoCapacity("none"), ProviderDenied("no rights")])
def test_a_clear_no_shows_that_the_api_works(guarded: Guarded, cloud: Cloud, clock: ManualClock, error: ProviderError) -> None:
    cloud.error = error
    storm(guarded, clock, 50)
    assert cloud.described == 50


def test_two_failures_and_a_success_open_nothing(guarded: Guarded, cloud: Cloud, clock: ManualClock) -> None:
    for _ in range(20):
        cloud.error = ProviderError("500")
        storm(guarded, clock, FAILURES_MAX - 1)
        cloud.error = None
        guarded.describe()
    assert cloud.described == 20 * FAILURES_MAX


def test_machines_are_ended_while_listings_fail(guarded: Guarded, cloud: Cloud, clock: ManualClock) -> None:
    cloud.error = ProviderError("500")
    storm(guarded, clock, 10)
    guarded.terminate(InstanceId("i-1"))
    assert cloud.ended == 1


def test_errors_that_are_not_the_clouds_pass(guarded: Guarded, cloud: Cloud) -> None:
    cloud.error = StoreError("full")
    for _ in range(10):
        with pytest.raises(StoreError):
            guarded.describe()
    assert cloud.described == 10


# ---------------------------------------------------------------- orders


def order(guarded: Guarded, token: str, zone: str = "a") -> bool:
    """Whether it was accepted."""
    try:
        guarded.launch(LaunchPlan(token, Pool("p", "r", zone, "t"), Market.SPOT, "", {}))
    except ProviderError:
        return False
    return True


@pytest.mark.parametrize("bad", [1, 2])
def test_an_order_that_can_not_succeed_does_not_keep_the_others_waiting(
    guarded: Guarded, cloud: Cloud, clock: ManualClock, bad: int
) -> None:
    """The oldest job's order is tried first at each tick: it was the probe for ever, and nobody else got a machine."""
    waiting = [*(f"bad-{n}" for n in range(bad)), "good-1", "good-2"]
    cloud.poison = set(waiting[:bad])
    for _ in range(120):
        waiting = [token for token in waiting if not order(guarded, token)]
        clock.advance(1)
    assert waiting == [f"bad-{n}" for n in range(bad)]


def test_orders_that_are_gone_lose_their_turn(guarded: Guarded, cloud: Cloud, clock: ManualClock) -> None:
    cloud.poison = {"bad"}
    for token in ("bad", "bad", "bad", "gone", "good"):
        assert not order(guarded, token)
    clock.advance(40)
    assert order(guarded, "good")


def test_pools_rest_one_by_one(guarded: Guarded, cloud: Cloud) -> None:
    cloud.poison = {"bad"}
    for _ in range(10):
        order(guarded, "bad", "a")
    assert cloud.launched == ["bad"] * FAILURES_MAX
    assert order(guarded, "good", "b")
