"""The policy surf as `decide` asks it: offers ranked by price, hazard and room, moves that pay; evidence of our machines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from spotsurfer_policies.placement_surf import make, rates, worth_of_an_hour
from support.builders import NOW, POOL, a_job, an_attempt, an_offer

from spotsurfer.core.facts.pool_evidence import fates_of
from spotsurfer.model.job import AttemptState
from spotsurfer.model.lifetimes import Lives
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.policies import Buy, PauseSeen, PlaceView, PoolView

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
    with pytest.raises(ValueError, match="must be a number"):
        make(wrong)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, float("nan")])
def test_a_share_of_time_is_one(share: float) -> None:
    with pytest.raises(ValueError, match=r"pause_share must be (above 0|a number)"):
        make({"pause_share": share})


def test_who_allows_longer_pauses_comes_back_sooner() -> None:
    assert make({}).least_stay(30.0) == pytest.approx(600.0)
    assert make({"pause_share": 0.3}).least_stay(30.0) == pytest.approx(100.0)
    assert make({"stay_seconds": 7}).least_stay(0.0) == 7.0


def two(old: PoolView, new: PoolView, held: Buy = Buy.SPOT, left: float = 40 * HOUR) -> PlaceView:
    return PlaceView((old, new), 600.0, 20 * HOUR, left, 720.0, held, 0)


def seen(usd: float, spell: float, move: float = 0.4, free: bool = True) -> PoolView:
    """A pool whose spells are lost within the hour or last for days."""
    up = Lives.of([(1200.0, True)] * 12 + [(48 * HOUR, False)] * 2)
    down = Lives.of([(1800.0, True)] * 12)
    return PoolView(f"at {usd}", usd, 3.0, free, spell, up, down, move_usd=move)


def test_a_spell_that_has_just_begun_is_not_worth_an_old_one() -> None:
    """A tenth cheaper, but most new spells end within the hour: launch, move and loss would eat it up."""
    assert make({}).place(two(seen(1.0, 5 * HOUR), seen(0.9, 0.0))).pool == 0
    assert make({}).place(two(seen(1.0, 5 * HOUR), seen(0.9, 30 * HOUR, move=0.02))).pool == 1


def test_time_is_dearer_the_less_there_is_to_spare() -> None:
    """A dear pool is launched in rather than waited beside when little time is left to spare."""
    cheap, dear = seen(0.6, 600.0, free=False), seen(1.4, 30 * HOUR)
    plenty, little = (two(cheap, dear, Buy.WAIT, 20 * HOUR + spare * HOUR) for spare in (200, 1))
    worth, more = (worth_of_an_hour(v, 20 * HOUR, v.time_left_seconds or 0.0) for v in (plenty, little))
    assert 0 <= worth < 0.1 < more
    assert rates(plenty, worth)[0] < rates(plenty, worth)[1]
    assert rates(little, more)[0] > rates(little, more)[1]
    assert make({}).place(plenty).buy is Buy.WAIT
    assert make({}).place(little).buy is Buy.SPOT


def test_without_a_deadline_time_costs_nothing() -> None:
    view = two(seen(1.0, HOUR), seen(1.0, HOUR, free=False), Buy.WAIT)
    free, gone = rates(replace(view, time_left_seconds=None))
    assert gone == pytest.approx(rates(replace(view, time_left_seconds=None, pools=(view.pools[0], seen(1.0, 0.0))))[1])
    assert free < gone


def test_a_large_state_stays_where_the_outage_will_pass() -> None:
    """By what is believed a move for 4 USD just pays: who believes that hops to and fro. For 1 USD it is made."""

    def lost(move: float) -> PlaceView:
        up, down = Lives.of([(8 * HOUR, True)] * 4), Lives.of([(2 * HOUR, True)] * 4)
        pools = tuple(PoolView(n, 1.0, 3.0, n == "b", 600.0, up, down, move_usd=move) for n in "ab")
        return PlaceView(pools, 195.0, 30 * HOUR, 32 * HOUR, 720.0, Buy.WAIT, 0, job_seconds=(48 * HOUR, 51 * HOUR))

    cheap, dear = (make({}).place(lost(move)) for move in (1.0, 4.0))
    assert (cheap.buy, cheap.pool) == (Buy.SPOT, 1)
    assert (dear.buy, dear.pool) == (Buy.ON_DEMAND, 0)
