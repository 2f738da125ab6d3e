"""The policy price-capacity: what advice is worth in money."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsurfer_policies.offer_choice import make_price_capacity
from support.builders import NOW, POOL, a_job, an_offer

from spotsurfer.model.market import Market, Offer

POLICY = make_price_capacity({})


def spot(price: int, zone: str = "a", band: int | None = 0, score: int | None = 10) -> Offer:
    return replace(an_offer(price=price, pool=replace(POOL, zone=zone)), interruption_band=band, placement_score=score)


def best(*offers: Offer) -> Offer:
    return POLICY.rank(a_job(), offers, NOW)[0]


def test_price_decides_between_equals() -> None:
    assert best(spot(30_001, "a"), spot(30_000, "b")).pool.zone == "b"


@pytest.mark.parametrize(("score", "wins"), [(10, "a"), (9, "a"), (1, "b")])
def test_a_zone_without_room_must_be_much_cheaper(score: int, wins: str) -> None:
    assert best(spot(30_000, "a", score=score), spot(40_000, "b")).pool.zone == wins


def test_a_zone_with_the_worst_score_counts_twice() -> None:
    assert POLICY.expected_cost(spot(30_000, score=1)) == pytest.approx(2 * POLICY.expected_cost(spot(30_000)))


def test_a_type_that_is_often_taken_costs_the_hours_that_are_lost() -> None:
    calm, wild = POLICY.expected_cost(spot(1_000_000, band=0)), POLICY.expected_cost(spot(1_000_000, band=4))
    # A day takes 25 % of machines: 0.01199 an hour (-ln 0.75 / 24), each time an hour: 1.2 % dearer; 0.1 % in the best band.
    assert (calm, wild) == (pytest.approx(1_001_055, abs=5), pytest.approx(1_011_987, abs=5))
    costly = make_price_capacity({"interruption_hours": 24.0})
    assert costly.expected_cost(spot(1_000_000, band=4)) == pytest.approx(1_287_682, abs=5)


def test_nothing_known_is_worse_than_good_and_better_than_the_worst() -> None:
    known, unknown, worst = spot(30_000), spot(30_000, band=None, score=None), spot(30_000, band=4, score=1)
    costs = [POLICY.expected_cost(o) for o in (known, unknown, worst)]
    assert costs == sorted(costs)
    assert len(set(costs)) == 3


def test_on_demand_comes_last_whatever_it_costs() -> None:
    listed = an_offer(Market.ON_DEMAND, 1)
    assert best(listed, spot(30_000, score=1)).market is Market.SPOT


@pytest.mark.parametrize(
    "wrong", [{"margin": "a"}, {"score_weight": -1}, {"interruption_hours": True}, {"machine_hours": 0}], ids=str
)
def test_wrong_settings_are_said(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"policy\.price-capacity: {next(iter(wrong))} must be"):
        make_price_capacity(wrong)
