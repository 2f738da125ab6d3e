"""Jobs on machines that are lost: what intervals cost, what is learned, and the dynamic program that knows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from spotsurfer_lab.interval_backtest import Fleet, Knows, Recorded, hazard, lives, overheads, play, read_lifetimes
from spotsurfer_policies.checkpoint_interval import make_daly, make_fixed, make_never, make_surf, make_young

from spotsurfer.core.checkpoints.hazard import Costs, Survival, learned, plan, prior, survival
from spotsurfer.model.errors import InputMissing
from spotsurfer.model.lifetimes import AGES, Lives
from spotsurfer.ports.policies import SaveView

HOUR = 3600.0
STEADY = Survival((0.0,), (1 / (4 * HOUR),))
YOUNG_DIE = Survival((0.0, HOUR, 4 * HOUR), (0.3 / HOUR, 0.05 / HOUR, 0.01 / HOUR))


def test_with_a_constant_hazard_it_is_young_and_daly() -> None:
    """Of a long job: Daly's second order estimate, and the overhead of the exact formula (his eq. 3)."""
    save, mean = 60.0, 4 * HOUR
    found = plan(STEADY, Costs(save, 0.0), 40 * HOUR, 480).after(30 * HOUR, 0.0)
    daly = math.sqrt(2 * save * mean) * (1 + math.sqrt(save / (2 * mean)) / 3 + save / (2 * mean) / 9) - save
    assert found == pytest.approx(daly, rel=0.15)
    expected = plan(STEADY, Costs(save, 0.0), 40 * HOUR, 960).expected_seconds(40 * HOUR)
    exact = mean * (math.exp((daly + save) / mean) - 1) * 40 * HOUR / daly
    assert expected == pytest.approx(exact, rel=0.005)


def test_what_it_expects_is_what_it_meets() -> None:
    fleet = Fleet(YOUNG_DIE, 6 * HOUR, 120.0, 240.0, 0.0, jobs=2000)
    knows = Knows(fleet)
    met = overheads(play(knows, fleet, 1))
    assert met.mean() == pytest.approx(knows.expected_overhead(fleet.job_seconds), abs=4 * met.std() / math.sqrt(len(met)))


def test_notices_in_time_make_saves_needless() -> None:
    with_notice = Fleet(YOUNG_DIE, 6 * HOUR, 20.0, 60.0, 120.0, jobs=60)
    runs = play(Knows(with_notice), with_notice, 1)
    assert sum(r.saves for r in runs) == 0
    assert overheads(runs).mean() == pytest.approx(np.mean([r.losses for r in runs]) * 80 / (6 * HOUR))
    late = Fleet(YOUNG_DIE, 6 * HOUR, 20.0, 60.0, 22.0, jobs=60)
    assert sum(r.saves for r in play(Knows(late), late, 1)) > 100


def test_young_machines_are_saved_often_and_old_ones_seldom() -> None:
    seen = Lives.of([(600.0, True)] * 30 + [(20 * HOUR, False)] * 30)
    base = {"save_seconds": 60.0, "restart_seconds": 120.0, "final_seconds": 60.0, "left_seconds": 20 * HOUR, "lives": seen}
    first = make_surf({}).save_after(SaveView(age_seconds=0.0, **base))
    later = make_surf({}).save_after(SaveView(age_seconds=8 * HOUR, **base))
    assert first is not None
    assert first < 1800
    assert later is None or later > 3 * first


def test_the_end_of_the_job_needs_no_save() -> None:
    view = SaveView(0.0, 60.0, 120.0, 60.0, left_seconds=120.0)
    assert make_surf({}).save_after(view) is None


def test_it_learns_within_a_fleet() -> None:
    """What the whole learning costs over the dynamic program that knows, in points of overhead; never saving costs far more."""
    fleet = Fleet(YOUNG_DIE, 8 * HOUR, 120.0, 240.0, 0.0, jobs=250)
    known = overheads(play(Knows(fleet), fleet, 5))
    ours = overheads(play(make_surf({}), fleet, 5))
    never = overheads(play(make_never({}), fleet, 5))
    often = overheads(play(make_fixed({"minutes": 10}), fleet, 5))
    assert (ours - known).mean() < 0.006
    assert (never - known).mean() > 0.02
    assert (often - known).mean() > 0.05


def test_evidence_moves_the_hazard_and_a_prior_holds_without() -> None:
    before = prior(None)
    assert learned(Lives(), before) == pytest.approx(before)
    calm = learned(Lives.of([(40 * HOUR, False)] * 50), before)
    assert all(c < b for c, b in zip(calm, before, strict=True))
    wild = Lives.of([(300.0, True)] * 400)
    assert learned(wild, before)[0] == pytest.approx(1 / 300, rel=0.05)
    assert prior(4) > prior(0)


def test_lives_are_counted_where_they_were() -> None:
    one = Lives.of([(1000.0, True), (100.0, False)])
    assert one.ended == (0.0, 1.0, *[0.0] * (len(AGES) - 2))
    assert one.watched[:2] == (1000.0, 100.0)
    assert (one + one).losses == 2


def test_lives_are_drawn_as_the_hazard_says() -> None:
    draw = lives(survival(prior(4), cap_seconds=24 * HOUR), 3)
    found = np.array([next(draw)[0] for _ in range(4000)])
    law = survival(prior(4), cap_seconds=24 * HOUR)
    for age in (1800.0, 4 * HOUR, 12 * HOUR):
        assert (found > age).mean() == pytest.approx(float(law.chance(np.array([age]))[0]), abs=0.03)
    assert found.max() <= 24 * HOUR


def test_a_recorded_hazard_is_found_again_with_censored_lives() -> None:
    draw, rng = lives(YOUNG_DIE, 1), np.random.default_rng(1)
    drawn = np.array([next(draw)[0] for _ in range(6000)])
    stop = rng.uniform(0, 20 * HOUR, len(drawn))
    found = hazard(Recorded(np.minimum(drawn, stop), drawn < stop))
    assert found.chance(np.array([HOUR, 6 * HOUR])) == pytest.approx(YOUNG_DIE.chance(np.array([HOUR, 6 * HOUR])), abs=0.03)
    assert found.cap_seconds == math.inf


@pytest.mark.parametrize(
    "text", ["", "lifetime_s,end\nx,preempted\n", "a,b\n1,2\n", "lifetime_s,end\n5,stopped\n", "lifetime_s,end\n-1,preempted\n"]
)
def test_files_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lives.csv"
    path.write_text(text)
    with pytest.raises(InputMissing, match=r"lives\.csv"):
        read_lifetimes(path)


def test_formulas() -> None:
    view = SaveView(0.0, 50.0, 0.0, 50.0, lives=Lives.of([(10 * HOUR, True)] * 9))
    young, daly = make_young({}).save_after(view), make_daly({}).save_after(view)
    assert young is not None
    assert daly is not None
    assert young == pytest.approx(math.sqrt(2 * 50 * (90 * HOUR + 86400 / -math.log1p(-0.175)) / 10))
    assert daly == pytest.approx(young, rel=0.05)
