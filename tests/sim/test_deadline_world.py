"""The virtual world of one job on one pool: what is paid, what is lost, what hindsight would have paid."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from spotsurfer_lab.deadline_backtest import optimum
from spotsurfer_policies.baselines import make_greedy, make_on_demand, make_skypilot, make_uniform_progress

from spotsurfer.core.scheduling.deadline_simulation import play
from spotsurfer.ports.policies import Buy, Choice, Terms, View

HOUR = 3600.0
TERMS = Terms(600, 2 * HOUR, 3 * HOUR, 120, 1.0, 3.0)
ALWAYS = np.ones((1, 18), dtype=bool)
NEVER = ~ALWAYS


def test_a_calm_market_costs_the_work_and_one_launch() -> None:
    played = play(make_greedy({}), TERMS, ALWAYS)
    assert played.usd[0] == pytest.approx(13 / 6)  # 2 h 2 min in whole ticks of ten minutes
    assert (played.missed[0], played.moves[0]) == (False, 0)
    assert optimum(TERMS, ALWAYS)[0] == pytest.approx(13 / 6)


def test_without_spot_the_deadline_is_kept_on_demand() -> None:
    for make in (make_greedy, make_uniform_progress, make_on_demand):
        played = play(make({}), TERMS, NEVER)
        assert not played.missed[0]
        assert played.usd[0] == pytest.approx(13 / 6 * 3)


def test_who_knows_no_deadline_misses_it() -> None:
    assert play(make_skypilot({}), TERMS, NEVER).missed[0]


def test_a_policy_that_only_waits_is_overruled_in_time() -> None:
    class Lazy:
        def choose(self, view: View) -> Choice:
            return Choice(Buy.WAIT)

    played = play(Lazy(), TERMS, ALWAYS)
    assert not played.missed[0]
    assert (played.held[0] == Buy.ON_DEMAND).sum() == 13


def test_a_policy_of_single_jobs_is_played_as_one_of_many() -> None:
    class Single:
        def choose(self, view: View) -> Choice:
            return make_uniform_progress({}).choose(view)

    up = np.random.default_rng(1).random((8, 18)) < 0.5
    assert play(Single(), TERMS, up).usd == pytest.approx(play(make_uniform_progress({}), TERMS, up).usd)


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_is_the_least_of_all_plans(seed: int) -> None:
    """Every plan of a small world, priced by hand."""
    terms = Terms(600, 1800, 3600, 300, 1.0, 3.0)
    up = np.random.default_rng(seed).random(6) < 0.6
    assert optimum(terms, up[None])[0] == pytest.approx(min(_priced(plan, up, terms) for plan in product(Buy, repeat=6)))


def _priced(plan: tuple[Buy, ...], up: np.ndarray, terms: Terms) -> float:
    done, usd, before = 0.0, 0.0, Buy.WAIT
    for buy, free in zip(plan, up, strict=True):
        if buy is Buy.SPOT and not free:
            return np.inf
        if buy is not Buy.WAIT:
            done += 600 - (0 if buy is before else terms.restart_seconds)
            usd += (1.0 if buy is Buy.SPOT else 3.0) / 6
        before = buy
    return usd if done >= terms.work_seconds else np.inf
