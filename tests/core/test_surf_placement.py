"""The policy surf as `decide` asks it: offers ranked by price, hazard and room, moves that pay; evidence of our machines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from spotsurfer_policies.placement import make
from support.builders import NOW, POOL, a_job, an_attempt, an_offer

from spotsurfer.core.evidence import fates_of
from spotsurfer.model.job import AttemptState
from spotsurfer.model.lives import Lives
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.policy import PauseSeen

POLICY = make({})
HOUR = 3600.0


def spot(price: int, zone: str = "a", band: int | None = 2, lives: Lives | None = None) -> Offer:
    return replace(an_offer(price=price, pool=replace(POOL, zone=zone)), interruption_band=band, lives=lives or Lives())


def best(*offers: Offer) -> Offer:
    return POLICY.rank(a_job(), offers, NOW)[0]


def test_price_decides_between_equals_and_on_demand_comes_last() -> None:
    assert best(spot(30_001, "a"), spot(30_000, "b")).pool.zone == "b"
    ranked = POLICY.rank(a_job(), [an_offer(Market.ON_DEMAND, 1), spot(30_000)], NOW)
    assert [o.market for o in ranked] == [Market.SPOT, Market.ON_DEMAND]


def test_a_pool_that_took_our_machines_must_be_cheaper() -> None:
    wild = Lives.of([(600.0, True)] * 20)
    calm = Lives.of([(20 * HOUR, False)] * 20)
    assert best(spot(29_500, "a", lives=wild), spot(30_000, "b", lives=calm)).pool.zone == "b"
    assert best(spot(10_000, "a", lives=wild), spot(30_000, "b", lives=calm)).pool.zone == "a"


def test_the_advisors_band_counts_where_nothing_was_seen() -> None:
    assert best(spot(30_000, "a", band=4), spot(30_000, "b", band=0)).pool.zone == "b"


def test_it_moves_between_spot_machines_only_when_the_price_pays_for_it() -> None:
    here = replace(
        an_attempt(1, AttemptState.RUNNING),
        market=Market.SPOT,
        pool=POOL,
        price_usd_micros_per_hour=1_000_000,
        since=NOW - timedelta(hours=2),
    )
    cheap, same = spot(500_000, "b"), spot(990_000, "b")
    why = POLICY.worth_moving(a_job(), here, cheap, NOW, PauseSeen(10.0))
    assert why is not None
    assert "USD" in why
    assert POLICY.worth_moving(a_job(), here, same, NOW, PauseSeen(10.0)) is None
    assert POLICY.worth_moving(a_job(), here, cheap, NOW, PauseSeen(3600.0)) is None, "it has stayed for two pauses only"
    assert POLICY.worth_moving(a_job(), replace(here, since=NOW), cheap, NOW, PauseSeen(10.0)) is None


def test_lives_are_those_of_machines_that_ran() -> None:
    lost = replace(
        an_attempt(1, AttemptState.RELEASED),
        market=Market.SPOT,
        launched_at=NOW - timedelta(hours=3),
        released_at=NOW - timedelta(hours=2),
        reclaimed=True,
    )
    runs = replace(lost, number=2, state=AttemptState.RUNNING, released_at=None, reclaimed=False)
    never = replace(lost, number=3, launched_at=None)
    found = fates_of([lost, runs, never], NOW)[lost.pool, Market.SPOT].lives
    assert found.losses == 1
    assert sum(found.watched) == pytest.approx(4 * HOUR)


@pytest.mark.parametrize("wrong", [{"margin": "a"}, {"stay_seconds": None}, {"pause_share": "5%"}], ids=str)
def test_wrong_settings_are_said(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="numbers"):
        make(wrong)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan")])
def test_a_share_of_time_is_one(share: float) -> None:
    with pytest.raises(ValueError, match="pause_share must be above 0"):
        make({"pause_share": share})


def test_who_allows_longer_pauses_comes_back_sooner() -> None:
    assert make({}).least_stay(30.0) == pytest.approx(600.0)
    assert make({"pause_share": 0.3}).least_stay(30.0) == pytest.approx(100.0)
    assert make({"stay_seconds": 7}).least_stay(0.0) == 7.0
