"""What it costs to be away from the store: the nearer place is taken unless the price of a machine pays for the way."""

from __future__ import annotations

import pytest
from spotsurfer_policies.offer_choice import make_cheapest, make_price_capacity
from spotsurfer_policies.placement_surf import make as make_surf
from support.builders import NOW, a_head, a_job, a_snapshot, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.relocation import STAY_HOURS, with_relocation
from spotsurfer.model.actions import Plan
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.model.prices import GIB, EgressPrices, Place, Tariff

EGRESS = {"one": EgressPrices(20_000, 90_000), "two": EgressPrices(20_000, 120_000)}
HERE, NEAR, FAR = Place("one", "east"), Place("one", "west"), Place("two", "east")
TARIFF = Tariff(HERE, EGRESS)
PLACES = {HERE: 0, NEAR: 20_000, FAR: 90_000}


def an_offer(place: Place, price: int, market: Market = Market.SPOT) -> Offer:
    pool = Pool(place.provider, place.region, f"{place.region}-a", f"{place.provider}.large")
    return Offer(pool, market, price, 10 * price, 4, 8 << 30)


@pytest.mark.parametrize("place", PLACES)
def test_a_gib_out_of_the_store(place: Place) -> None:
    assert TARIFF.usd_micros(place, GIB, 0) == PLACES[place]
    assert TARIFF.is_free(place) is (place == HERE)


def test_what_is_sent_is_paid_where_it_leaves() -> None:
    assert TARIFF.usd_micros(FAR, 0, GIB) == 120_000
    assert TARIFF.usd_micros(FAR, GIB, GIB) == 210_000
    assert TARIFF.usd_micros(NEAR, 0, GIB // 2) == 10_000


def test_a_part_of_a_micro_is_a_micro() -> None:
    assert [TARIFF.usd_micros(NEAR, n, 0) for n in (0, 1, GIB // 20_000)] == [0, 1, 1]


@pytest.mark.parametrize("store", [Place(), Place("one")])
def test_a_way_that_is_not_known_costs_nothing(store: Place) -> None:
    """A store on this host, or a bucket of which nobody said where it lies."""
    assert Tariff(store, EGRESS).is_free(Place("one", "west"))


def test_machines_of_this_host_pay_what_leaves_the_store() -> None:
    assert TARIFF.usd_micros(Place("local", "local"), GIB, GIB) == 90_000


# ---- Placement


def test_an_offer_carries_image_and_saves_by_the_hour() -> None:
    job = seen(image_bytes=8 * GIB, sent_bytes_per_hour=float(GIB))
    offers = [an_offer(p, 1_000) for p in PLACES]
    found = with_relocation(job, offers, a_snapshot(tariff=TARIFF))
    arrives = [8 * price / STAY_HOURS for price in PLACES.values()]
    assert [o.relocation_usd_micros_per_hour for o in found] == [0, arrives[1] + 20_000, arrives[2] + 120_000]
    assert with_relocation(seen(), offers, a_snapshot(tariff=TARIFF)) is offers, "a job without an image goes anywhere"


@pytest.mark.parametrize("make", [make_cheapest, make_price_capacity, make_surf])
@pytest.mark.parametrize(
    ("near", "far", "chosen"),
    [
        (50_000, 45_000, HERE),  # 5 000 an hour less do not pay for 5 GiB at 20 000, spread over four hours
        (50_000, 24_000, NEAR),  # 26 000 do
        (50_000, 25_001, HERE),
    ],
)
def test_another_region_is_taken_only_if_its_price_pays_for_the_way(make, near: int, far: int, chosen: Place) -> None:  # type: ignore[no-untyped-def]
    job = seen(head=a_head(0), job=a_job(), image_bytes=5 * GIB)
    world = a_snapshot(
        job, offers=[an_offer(NEAR, far), an_offer(HERE, near)], tariff=TARIFF, listings={"one": NOW, "two": NOW}
    )
    (plan,) = (a for a in decide(world, make({}), NOW).actions if isinstance(a, Plan))
    assert Place(plan.offer.pool.provider, plan.offer.pool.region) == chosen


def test_the_cheaper_one_that_is_too_far_is_explained() -> None:
    job = seen(head=a_head(0), job=a_job(), image_bytes=5 * GIB)
    offers = [an_offer(NEAR, 30_000), an_offer(HERE, 50_000)]
    world = a_snapshot(job, offers=offers, tariff=TARIFF, listings={"one": NOW})
    (told,) = decide(world, make_cheapest({}), NOW).rejected
    assert (told.what, "costs the job 0.0250 USD an hour more" in told.why) == (f"spot {offers[0].pool}", True)
    world = a_snapshot(job, offers=[an_offer(NEAR, 20_000), offers[1]], tariff=TARIFF, listings={"one": NOW})
    assert not decide(world, make_cheapest({}), NOW).rejected, "it is taken"


def test_a_cheap_cloud_far_away_is_not_cheap_for_a_large_image() -> None:
    offers = [an_offer(FAR, 10_000), an_offer(HERE, 30_000)]
    small, large = (seen(head=a_head(0), image_bytes=n, job=a_job()) for n in (GIB // 2, 2 * GIB))
    for job, place in ((small, FAR), (large, HERE)):
        world = a_snapshot(job, offers=offers, tariff=TARIFF, listings={"one": NOW, "two": NOW})
        (plan,) = (a for a in decide(world, make_cheapest({}), NOW).actions if isinstance(a, Plan))
        assert plan.offer.pool.provider == place.provider


def test_only_the_far_one_is_left() -> None:
    """Transfer is a price, no wall."""
    job = seen(head=a_head(0), image_bytes=100 * GIB, job=a_job())
    world = a_snapshot(job, offers=[an_offer(FAR, 10_000)], tariff=TARIFF, listings={"one": NOW, "two": NOW})
    (plan,) = (a for a in decide(world, make_cheapest({}), NOW).actions if isinstance(a, Plan))
    assert plan.offer.price_usd_micros_per_hour == 10_000, "what is bought has its own price"


# ---- Processors: the hash in an agent's words stands for all facts that a restore compares


AMD, INTEL = "AMD EPYC 7R13 (0a0a0a0a)", "Intel(R) Xeon(R) 8375C (1b1b1b1b)"


@pytest.mark.parametrize(
    ("here", "there", "chosen"),
    [(INTEL, AMD, "two"), ("", AMD, "two"), (AMD, INTEL, "one"), (AMD, "", "one"), (AMD, AMD, "one"), ("", "", "one")],
)
def test_of_two_that_cost_alike_the_one_with_the_processor_of_the_image_is_taken(here: str, there: str, chosen: str) -> None:
    job = seen(head=a_head(0), job=a_job(), image_bytes=GIB, image_processor=AMD)
    offers = [an_offer(HERE, 30_000), an_offer(FAR, 30_000)]
    known = {("one", "one.large"): here, ("two", "two.large"): there}
    world = a_snapshot(job, offers=offers, processors=known, listings={"one": NOW, "two": NOW})
    (plan,) = (a for a in decide(world, make_cheapest({}), NOW).actions if isinstance(a, Plan))
    assert plan.offer.pool.provider == chosen


def test_a_processor_that_is_the_same_is_not_worth_a_much_dearer_machine() -> None:
    job = seen(head=a_head(0), job=a_job(), image_bytes=GIB, image_processor=AMD)
    offers = [an_offer(HERE, 29_000), an_offer(FAR, 30_000)]
    world = a_snapshot(job, offers=offers, processors={("two", "two.large"): AMD}, listings={"one": NOW, "two": NOW})
    (plan,) = (a for a in decide(world, make_cheapest({}), NOW).actions if isinstance(a, Plan))
    assert plan.offer.pool.provider == "one"
