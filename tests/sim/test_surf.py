"""The deadline policy: one choice however it is asked, no deadline missed, and worth its money."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from spotsurfer_policies.market_model import bank, decoded, encoded, scaled, strangers
from spotsurfer_policies.purchase_surf import Surf, make

from spotsurfer.core.scheduling.deadline import slot_seconds
from spotsurfer.core.scheduling.deadline_simulation import Trouble, play
from spotsurfer.ports.policies import Buy, Choice, Terms, View

HOUR = 3600.0
TERMS = Terms(600, 12 * HOUR, 16 * HOUR, 720, 0.9731, 3.06)


def flicker(runs: int, seed: int = 7) -> np.ndarray:
    """Markets that stay as they are for some two hours."""
    change = np.random.default_rng(seed).random((runs, 96)) < 1 / 12
    return np.cumsum(change, axis=1) % 2 == 0


class Single:
    """The same policy asked job by job, as production does."""

    def __init__(self, policy: Surf) -> None:
        self.policy = policy

    def choose(self, view: View) -> Choice:
        return self.policy.choose(view)


def test_one_job_is_steered_as_many_are() -> None:
    up = flicker(12)
    many, single = play(make({}), TERMS, up), play(Single(make({})), TERMS, up)
    assert (many.held == single.held).mean() > 0.999  # sums in another order: a tie may fall differently
    assert many.usd == pytest.approx(single.usd, rel=0.02)


def test_the_answer_does_not_depend_on_what_was_asked_before() -> None:
    policy, fresh = make({}), make({})
    up = flicker(1)[0]
    for n in (5, 9, 3, 40, 10):
        view = View(TERMS, (n - 1) * 600.0, 0.0, Buy.WAIT, 0.0, tuple(bool(x) for x in up[:n]))
        assert policy.choose(view) == make({}).choose(view)
    assert fresh.choose(view) == policy.choose(view)


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.3, 0.9, 1.0])
def test_no_deadline_is_missed(chance: float) -> None:
    up = np.random.default_rng(3).random((50, 96)) < chance
    assert not play(make({}), TERMS, up).missed.any()


def troubled(terms: Terms, runs: int) -> Trouble:
    """One launch in five takes up to half an hour, and on-demand is refused for one or two ticks now and then."""
    rng = np.random.default_rng(11)
    slow = np.where(rng.random((runs, 96)) < 0.2, rng.uniform(720, 1800, (runs, 96)), terms.restart_seconds)
    begins = rng.random((runs, 96)) < 0.1
    refused = begins | np.roll(begins, 1, axis=1)
    refused &= ~np.roll(refused, 1, axis=1) | ~np.roll(refused, 2, axis=1)  # never three in a row
    return Trouble(slow, refused)


def test_slow_launches_and_refused_on_demand_are_survived_with_a_margin_and_only_then() -> None:
    up = flicker(200)
    margin = replace(TERMS, worst_restart_seconds=1800 + 2 * 600 + 1800)  # a slow launch, two refusals, and a launch in vain
    assert not play(make({}), margin, up, trouble=troubled(margin, 200)).missed.any()
    assert play(make({}), TERMS, up, trouble=troubled(TERMS, 200)).missed.any()


def test_why_names_the_costs() -> None:
    why = make({}).choose(View(TERMS, 0.0, 0.0, Buy.WAIT, 0.0, (True,))).why
    assert why.startswith("spot costs least from here on; expected USD: waiting ")


@pytest.mark.parametrize(("work", "deadline"), [(0.5, 2.0), (1.0, 2.0), (0.5, 1.0), (12.0, 16.0), (48.0, 70.0)])
def test_nobody_waits_for_what_nobody_will_see(work: float, deadline: float) -> None:
    """A job that waits learns nothing of a market that was never tried, however long it waits."""
    terms = Terms(slot_seconds(deadline * HOUR), work * HOUR, deadline * HOUR, 60, 0.0314, 0.085)
    assert make({}).choose(View(terms, 0.0, 0.0, Buy.WAIT, 0.0, (None,))).buy is Buy.SPOT


def test_nobody_looked_is_no_evidence() -> None:
    policy = make({})
    assert policy.belief(600.0, (True, None)).sum() == pytest.approx(1.0)
    untried = View(TERMS, 600.0, 0.0, Buy.WAIT, 0.0, (True, None))
    assert policy.choose(untried).buy is Buy.SPOT
    down = View(TERMS, 600.0, 0.0, Buy.WAIT, 0.0, (True, False))
    assert policy.choose(down).buy is not Buy.SPOT


def test_a_bank_survives_its_file() -> None:
    models = [m for m in strangers() if len(m.b) == 2][:3]
    back = decoded(encoded(models, {"source": "made up"}))
    assert [m.name for m in back] == [m.name for m in models]
    assert np.allclose(back[0].a, models[0].a, atol=1e-4)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("models"),
        lambda d: d["models"][0].pop("a"),
        lambda d: d["models"][0].update(b=[0.5]),
        lambda d: d["models"][0].update(b=["x", "y"]),
        lambda d: d["models"][0].update(a=[[2, -1], [0, 1]]),
        lambda d: d["models"][0].update(share=[0.5, 0.6]),
        lambda d: d.update(models=d["models"] * 100),
        lambda d: d.update(tick_seconds=0),
    ],
)
def test_a_spoilt_bank_is_refused(spoil: object) -> None:
    doc = json.loads(encoded(strangers()[:2], {}))
    spoil(doc)  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"bank|model|tick"):
        decoded(json.dumps(doc))


def test_a_chain_at_half_the_pace_is_its_root() -> None:
    for model in strangers():
        half = scaled(model.a, 0.5)
        assert np.allclose(half @ half, model.a, atol=0.02)
        assert np.allclose(half.sum(axis=1), 1.0)


def test_a_bank_is_one_chain() -> None:
    whole = bank(strangers()[:3], 600.0, 0.0)
    assert np.allclose(whole.a.sum(axis=1), 1.0)
    assert whole.share.sum() == pytest.approx(1.0)
