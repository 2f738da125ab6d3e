"""Several clouds behind one controller: an outage of one is no news of the other, and the store belongs to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.builders import NOW, an_attempt
from support.desk import Desk

from spotsurfer.controller.machines.circuit_breaker import Guarded
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.model.errors import ConfigError, NoCapacity, ProviderError
from spotsurfer.model.job import AttemptState, InstanceId
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.model.prices import Place
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import (
    BootBucket,
    Capabilities,
    Credentials,
    InstanceState,
    InstanceView,
    LaunchPlan,
    Listing,
    StoreAccess,
)

BOOT = BootBucket("gs://boot", {"base_url": "http://controller"}, {"base_url": "http://machine"})


class Cloud:
    """One pool, machines that run at once, an API that may be down."""

    witness = None

    def __init__(self, name: str, price: int, stores: Sequence[str] = (), boot: BootBucket | None = None) -> None:
        self.name, self.boot, self.capabilities = name, boot, Capabilities(120.0, name, stores=stores)
        self.offer = Offer(Pool(name, "r", "r-a", f"{name}.large"), Market.SPOT, price, 2 * price, 4, 8 << 30)
        self.machines: dict[str, InstanceView] = {}
        self.is_down, self.is_full, self.is_whole = False, False, True
        self.asked: list[tuple[str, int]] = []
        self.options: dict[str, str] = {}

    def _check(self) -> None:
        if self.is_down:
            raise ProviderError("the API is down")

    def offers(self) -> Sequence[Offer]:
        self._check()
        return [self.offer]

    def launch(self, plan: LaunchPlan) -> InstanceView:
        self._check()
        assert plan.pool.provider == self.name
        if self.is_full:
            raise NoCapacity("nothing left")
        made = InstanceView(
            InstanceId(f"{self.name}-{len(self.machines)}"), plan.token, plan.pool, plan.market, InstanceState.RUNNING, NOW
        )
        return self.machines.setdefault(plan.token, made)

    def terminate(self, instance: InstanceId) -> None:
        self._check()
        assert instance.startswith(self.name)
        self.machines = {t: replace(m, state=InstanceState.GONE) if m.id == instance else m for t, m in self.machines.items()}

    def describe(self) -> Listing:
        self._check()
        return Listing(list(self.machines.values()), self.is_whole)

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:
        return StoreAccess(f"{self.capabilities.stores[0]}://store", self.options, renewed=True)

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        self.asked.append((job, 0))

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        self.asked.append((job, attempt))
        return Credentials({}, NOW)


Pair = tuple[Desk, Cloud, Cloud]


@pytest.fixture
def pair() -> Pair:
    at = ManualClock(NOW)
    near, far = Cloud("near", 10_000), Cloud("far", 20_000)
    return Desk(Guarded(near, at), at, "fam", others=[Guarded(far, at)]), near, far  # type: ignore[arg-type]


def states(desk: Desk) -> list[tuple[str, str]]:
    return [(a.pool.provider, str(a.state)) for a in desk.attempts()]


def test_a_job_goes_to_the_next_cloud_if_one_has_nothing_left(pair: Pair) -> None:
    desk, near, _ = pair
    near.is_full = True
    desk.submit()
    desk.tick(8)
    assert states(desk) == [("near", "refused"), ("far", "booting")]


def test_a_machine_of_a_cloud_that_is_down_is_neither_lost_nor_in_the_way_of_others(pair: Pair) -> None:
    desk, near, far = pair
    desk.submit()
    desk.tick(4)
    assert states(desk) == [("near", "booting")]
    near.is_down = True
    near.machines.clear()  # what it would show if it answered wrongly is nobody's business
    desk.submit("other")
    desk.tick(60, 2.0)
    assert states(desk) == [("near", "booting")]
    assert [(a.pool.provider, a.state) for a in desk.attempts("other")] == [("far", AttemptState.BOOTING)]
    assert "near: " in desk.loop.last_error and "far: " not in desk.loop.last_error
    assert len(far.machines) == 1


def test_nothing_is_swept_where_the_listing_is_not_whole(pair: Pair) -> None:
    desk, near, far = pair
    near.is_whole = False
    for cloud in (near, far):
        cloud.launch(LaunchPlan("strange", cloud.offer.pool, Market.SPOT, "", {}))
    desk.tick(3)
    assert [m.state for cloud in (near, far) for m in cloud.machines.values()] == [InstanceState.RUNNING, InstanceState.GONE]
    near.is_whole = True
    desk.tick()
    assert [m.state for m in near.machines.values()] == [InstanceState.GONE]


def test_what_was_planned_at_a_cloud_that_can_not_be_listed_is_planned_elsewhere(pair: Pair) -> None:
    desk, near, _ = pair
    desk.tick()
    desk.submit()
    launch = near.launch
    near.launch = lambda plan: down(near)  # type: ignore[method-assign]
    desk.tick(2)
    assert states(desk) == [("near", "planned")]
    near.launch = launch  # type: ignore[method-assign]
    desk.tick(40)
    assert states(desk) == [("near", "releasing"), ("far", "booting")]
    near.is_down = False
    desk.tick(400)
    assert states(desk)[0] == ("near", "released")


def down(cloud: Cloud) -> Any:
    """It goes down in the middle of an order."""
    cloud.is_down = True
    raise ProviderError("no answer")


def test_prices_of_one_cloud_are_there_while_the_other_is_down(pair: Pair) -> None:
    desk, near, far = pair
    near.is_down = True
    desk.tick()
    assert desk.observer.offers() == (far.offer,)


# ---- The store belongs to one cloud


def test_credentials_are_made_by_the_cloud_of_the_store_for_machines_of_both() -> None:
    keeper, other = Cloud("near", 1, ("s3", "s3a")), Cloud("far", 1, ("gs",), BOOT)
    clouds = Clouds([other, keeper], "s3://store")  # type: ignore[list-item]
    there, here = (an_attempt(3, pool=cloud.offer.pool) for cloud in (other, keeper))
    assert clouds.store_access(here) == StoreAccess("s3://store", {}, renewed=True)
    assert clouds.store_access(there) == StoreAccess("s3://store", {}, renewed=True, boot=BOOT)
    for attempt in (here, there):
        clouds.credentials(attempt, ())
    clouds.check_inputs("job", ())
    assert (keeper.asked, other.asked) == ([(here.job, 3), (there.job, 3), ("job", 0)], [])


def test_a_store_that_nobody_makes_credentials_for_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"store.url is 's3://store', and no provider .* machines of far need; name"):
        Clouds([Cloud("far", 1, ("gs",), BOOT)], "s3://store")  # type: ignore[list-item]


def test_machines_of_a_provider_that_was_taken_out_of_the_settings_are_not_lost(pair: Pair) -> None:
    desk, near, far = pair
    near.is_full = True
    desk.submit()
    desk.tick(8)
    at = desk.clock
    desk = Desk(Guarded(near, at), at, "fam", (desk.engine, desk.store))  # type: ignore[arg-type]
    desk.tick(60, 2.0)
    assert states(desk) == [("near", "refused"), ("far", "booting")]
    assert "far: [provider] name lists no 'far', which has machines of ours" in desk.loop.last_error
    assert [m.state for m in far.machines.values()] == [InstanceState.RUNNING]


def test_a_provider_that_the_settings_no_longer_name_is_told() -> None:
    clouds = Clouds([Cloud("near", 1)], "memory:///")  # type: ignore[list-item]
    gone = an_attempt(1, pool=Pool("far", "r", "r-a", "x"))
    with pytest.raises(ProviderError, match="lists no 'far', which has machines of ours"):
        clouds.store_access(gone)
    assert clouds.capabilities(gone.pool).notice_seconds == 0.0


def test_the_place_of_the_store_is_that_of_its_cloud() -> None:
    keeper, other = Cloud("near", 1, ("s3",)), Cloud("far", 1, ("gs",), BOOT)
    keeper.options = {"region": "r"}
    assert Clouds([other, keeper], "s3://store").tariff.store == Place("near", "r")  # type: ignore[list-item]
    assert Clouds([other, keeper], "s3://store", "r2").tariff.store == Place("near", "r2")  # type: ignore[list-item]
    assert Clouds([Cloud("near", 1)], "file:///store").tariff.store == Place()  # type: ignore[list-item]
