"""The virtual world of a job that moves between pools: what it pays, and what hindsight would have paid."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from spotsurfer_lab.placement_backtest import Watch, Zones, best_of_all, billed_usd, travel
from spotsurfer_policies.baselines import make_first_free, make_greedy_history, make_single
from spotsurfer_policies.placement_surf import make

from spotsurfer.ports.policies import Buy, Placed, PlaceView, Terms

HOUR = 3600.0
TERMS = Terms(600, 2 * HOUR, 3 * HOUR, 120, 0.0, 0.0)


def zones(up: np.ndarray, usd: tuple[float, ...] = (1.0, 1.0), move: float = 0.0) -> Zones:
    names = tuple(f"zone-{i}" for i in range(up.shape[1]))
    return Zones(names, up, np.tile(np.array(usd), (len(up), 1)), np.full(up.shape[1], 3.0), move)


def test_a_calm_market_costs_the_work_and_one_launch_and_moves_never() -> None:
    calm = zones(np.ones((18, 2), dtype=bool), (1.0, 2.0), move=0.5)
    for policy in (make({}), make_first_free({}), make_greedy_history({})):
        journey = travel(policy, calm, Watch(calm.up, 600), TERMS, 0, 0)
        assert journey.usd == pytest.approx(13 / 6)
        assert [m.pool for m in journey.machines] == [0]
    assert best_of_all(calm, TERMS, 0) == pytest.approx(13 / 6)


def test_the_cheaper_pool_is_taken_and_a_dear_one_is_left_when_that_pays() -> None:
    up = np.ones((18, 2), dtype=bool)
    up[:3, 1] = False
    dear = zones(up, (2.9, 0.5), move=0.1)
    journey = travel(make({}), dear, Watch(up, 600), TERMS, 0, 0)
    assert [m.pool for m in journey.machines][-1] == 1
    assert journey.usd < 13 / 6 * 2.9
    stays = travel(make({}), zones(up, (2.9, 0.5), move=50.0), Watch(up, 600), TERMS, 0, 0)
    assert {m.pool for m in stays.machines} == {0}


def test_a_move_between_pools_is_paid_and_staying_is_not() -> None:
    up = np.array([[True, False]] * 6 + [[False, True]] * 12)
    moved = travel(make_first_free({}), zones(up, move=0.5), Watch(up, 600), TERMS, 0, 0)
    free = travel(make_first_free({}), zones(up), Watch(up, 600), TERMS, 0, 0)
    assert [m.pool for m in moved.machines] == [0, 1]
    assert [m.reclaimed for m in moved.machines] == [True, False]
    assert moved.usd == pytest.approx(free.usd + 0.5)


def test_a_policy_that_asks_for_what_is_not_there_is_overruled_in_time() -> None:
    class Nonsense:
        def place(self, view: PlaceView) -> Placed:
            return Placed(Buy.SPOT, 1)

    up = np.array([[True, False]] * 18)
    journey = travel(Nonsense(), zones(up), Watch(up, 600), TERMS, 0, 0)
    assert not journey.missed
    assert {m.buy for m in journey.machines} == {Buy.ON_DEMAND}


def test_nobody_looks_ahead() -> None:
    """Two markets that are equal until a moment lead to the same choices until then."""
    rng = np.random.default_rng(3)
    one = rng.random((200, 3)) < 0.6
    other = one.copy()
    other[120:] = ~other[120:]
    terms = Terms(600, 20 * HOUR, 30 * HOUR, 120, 0.0, 0.0)
    for policy in (make({}), make_first_free({}), make_single({"pool": 1})):
        seen = []
        for up in (one, other):
            market = zones(up, (1.0, 1.1, 0.9), move=0.2)
            journey = travel(policy, market, Watch(up, 600), terms, 20, 20)
            seen.append([(m.pool, m.buy, m.begin, min(m.end, 100)) for m in journey.machines if m.begin < 100])
        assert seen[0] == seen[1]


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_is_the_least_of_all_plans(seed: int) -> None:
    """Every plan of a small world, priced by hand."""
    terms = Terms(600, 1200, 3000, 300, 0.0, 0.0)
    rng = np.random.default_rng(seed)
    market = zones(rng.random((5, 2)) < 0.6, (1.0, 0.7), move=0.1)
    plans = product([(Buy.WAIT, 0), *((b, p) for b in (Buy.SPOT, Buy.ON_DEMAND) for p in (0, 1))], repeat=5)
    assert best_of_all(market, terms, 0) == pytest.approx(min(priced(p, market, terms) for p in plans))


def priced(plan: tuple[tuple[Buy, int], ...], market: Zones, terms: Terms) -> float:
    done, usd, before, home = 0.0, 0.0, (Buy.WAIT, 0), None
    for tick, (buy, pool) in enumerate(plan):
        if buy is Buy.SPOT and not market.up[tick, pool]:
            return np.inf
        if buy is not Buy.WAIT and done < terms.work_seconds:
            done += 600 - (0 if (buy, pool) == before else terms.restart_seconds)
            usd += float(market.spot[tick, pool] if buy is Buy.SPOT else market.on_demand[pool]) / 6
            usd += market.move_usd if home not in (None, pool) else 0.0
            home = pool
        before = (buy, pool)
    return usd if done >= terms.work_seconds else np.inf


def test_the_ledger_bills_the_same_but_for_its_own_rules() -> None:
    up = np.array([[True, False]] * 3 + [[False, True]] * 15)
    market = zones(up, move=0.5)
    journey = travel(make_first_free({}), market, Watch(up, 600), TERMS, 0, 0)
    free = journey.machines[0]
    assert free.reclaimed
    assert (free.end - free.begin) * 600 < HOUR
    assert billed_usd(journey, market, 600, 0) == pytest.approx(journey.usd - 0.5)  # AWS takes nothing for the first half hour


def test_what_was_seen_is_told_by_age() -> None:
    up = np.array([[True]] * 4 + [[False]] * 2 + [[True]] * 6)
    watch = Watch(up, 600)
    first, none = watch.spells(0, 12, 0)
    assert sum(first.ended) == 1
    assert sum(first.watched) == pytest.approx(6000)
    assert (sum(none.ended), sum(none.watched)) == (1, pytest.approx(1200))
    assert sum(watch.spells(0, 4, 0)[0].ended) == 0, "an end shows in the tick after"
    assert sum(watch.spells(0, 5, 0)[0].ended) == 1
