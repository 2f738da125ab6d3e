"""How often a job is saved: when the interval policy is asked, with what, and what a bad one can't do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_policies.checkpoint_interval import make_surf
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import JOB, NOW, POOL, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_offer, noticed, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.facts.pool_evidence import fates_of
from spotsurfer.core.scheduling.deadline import USUAL_SECONDS
from spotsurfer.core.scheduling.interval import GUESS_SECONDS, LEAST_SECONDS, MOST_SECONDS
from spotsurfer.model.actions import Ask, Decision, Pace
from spotsurfer.model.job import AttemptState, JobId, Parent
from spotsurfer.model.lifetimes import Fates, Lives
from spotsurfer.model.market import Market
from spotsurfer.model.snapshot import AgentSeen, FitSeen, JobSeen
from spotsurfer.ports.policies import Interval, SaveView

HOUR = 3600.0
POLICY = Cheapest(60, 0.2)
KIND = (POOL, Market.SPOT)


class Says:
    """A policy with one answer, which remembers what it was shown."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.views: list[SaveView] = []

    def save_after(self, view: SaveView) -> float | None:
        self.views.append(view)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


def running(agent: AgentSeen | None = None, attempt: dict[str, Any] | None = None, **changes: Any) -> JobSeen:
    world = seen([an_attempt(1, **(attempt or {}))], a_head(), **changes)
    return replace(world, agents={1: agent or an_agent()})  # type: ignore[dict-item]


def decided(interval: Interval | None, world: JobSeen, **snapshot: Any) -> Decision:
    return decide(a_snapshot(world, **snapshot), POLICY, NOW, None, interval)


def pace(interval: Interval | None, world: JobSeen, **snapshot: Any) -> Pace | None:
    return next((a for a in decided(interval, world, **snapshot).actions if isinstance(a, Pace)), None)


def test_it_is_asked_once_a_machine_runs_the_job_and_after_each_save() -> None:
    first = pace(Says(700.0), running())
    assert first is not None
    assert (first.job, first.attempt, first.seconds, first.saves) == (JOB, 1, 700.0, 0)
    asked = {"pace_seconds": 700.0, "pace_saves": 0}
    assert pace(Says(900.0), running(attempt=asked)) is None, "no save since then"
    again = pace(Says(900.0), running(an_agent(saves=1, frozen_seconds=2.0), asked))
    assert again is not None
    assert (again.seconds, again.saves) == (900.0, 1)


def test_what_is_nearly_the_same_is_not_told_again() -> None:
    again = pace(Says(740.0), running(an_agent(saves=1), {"pace_seconds": 700.0, "pace_saves": 0}))
    assert again is not None
    assert again.seconds == 700.0


@pytest.mark.parametrize(
    "world",
    [
        running(job=a_job({"checkpoint_interval_seconds": 20.0})),
        running(job=a_job(parent=Parent(JobId("other"), "000001-000001", rehearsal=True))),
        running(job=a_job({"engine": "none"})),
        running(an_agent(protection="none")),
        running(noticed()),
        running(attempt={"state": AttemptState.DRAINING}),
        running(attempt={"state": AttemptState.RESTORING}),
    ],
    ids=["its user said", "rehearsal", "never saved", "unprotected", "noticed", "drains", "restores"],
)
def test_nobody_asks(world: JobSeen) -> None:
    says = Says(700.0)
    assert pace(says, world) is None
    assert says.views == []


def test_without_a_policy_nothing_is_said() -> None:
    assert pace(None, running()) is None


def test_what_is_shown_is_what_was_measured() -> None:
    says = Says(700.0)
    fit = FitSeen(6.0, 10.0, 2.0, "fits", 110.0)
    agent = an_agent(saves=4, frozen_seconds=10.0, fit=fit)
    machine = {"launched_at": ago(2 * HOUR), "planned_at": ago(2 * HOUR + 100), "granted_at": ago(2 * HOUR)}
    past = {KIND: Fates(Lives.of([(HOUR, True)] * 3), noticed=2, unnoticed=1)}
    offers = [replace(an_offer(), interruption_band=1), an_offer(Market.ON_DEMAND)]
    pace(says, running(agent, machine), past=past, offers=offers)
    (view,) = says.views
    assert (view.save_seconds, view.final_seconds, view.notice_seconds, view.band) == (2.5, 6.0, 110.0, 1)
    assert (view.age_seconds, view.restart_seconds) == (2 * HOUR, pytest.approx(102.5))
    assert (view.noticed, view.unnoticed, view.lives.losses, view.left_seconds) == (2, 1, 3, None)
    assert sum(view.lives.watched) == pytest.approx(5 * HOUR), "its own machine is watched, too"


def test_a_final_save_takes_what_comes_before_its_freeze_too() -> None:
    says = Says(700.0)
    pace(says, running(an_agent(saves=1, fit=FitSeen(6.0, 60.0, 2.0, "never", 25.0, start_seconds=20.0))))
    assert says.views[0].final_seconds == 26.0


@pytest.mark.parametrize("durable", [5.0, 40.0, 200.0])
def test_surf_knows_how_long_the_notice_is(durable: float) -> None:
    """Google's 30 s, and 120 s: of a job that fits into one of them only, the other one's machines are saved more often."""
    seconds = {}
    for window in (115.0, 25.0):
        agent = an_agent(saves=1, frozen_seconds=3.0, fit=FitSeen(durable, 1.5 * durable, 0.0, "", window))
        made = pace(make_surf({}), running(agent), past={KIND: Fates(Lives.of([(HOUR, True)] * 30), noticed=30)})
        assert made is not None
        seconds[window] = made.seconds
    assert (seconds[25.0] < 0.5 * seconds[115.0]) is (durable == 40.0)
    assert seconds[25.0] == seconds[115.0] or durable == 40.0


def test_before_the_first_save_the_last_machines_counts_and_before_any_a_guess() -> None:
    for before, expected in ((None, GUESS_SECONDS), (4.0, 4.0)):
        says = Says(700.0)
        pace(says, running(save_seconds=before))
        assert (says.views[0].save_seconds, says.views[0].notice_seconds) == (expected, 0.0)


def test_on_demand_gives_no_notice_and_is_seldom_lost() -> None:
    says = Says(700.0)
    pace(says, running(an_agent(fit=FitSeen(1.0, 2.0, 0.0, "fits", 110.0)), {"market": Market.ON_DEMAND}))
    assert (says.views[0].notice_seconds, says.views[0].band) == (0.0, 0)


def due(done: float, deadline: float = 100.0) -> JobSeen:
    return running(job=a_job({"deadline_seconds": deadline * HOUR, "work_seconds": 10 * HOUR}), done_seconds=done * HOUR)


def test_no_save_before_the_end_is_one_at_the_end() -> None:
    """The end may not come as foretold, and the agent hastens an interval only where there is one."""
    made = pace(Says(None), due(done=4))
    assert made is not None
    assert made.seconds == 6 * HOUR
    unknown = pace(Says(None), running())
    assert unknown is not None
    assert unknown.seconds == MOST_SECONDS


def test_a_deadline_leaves_little_to_be_risked() -> None:
    """What is not saved counts as not done there: half of the time to spare at risk would call for on-demand much too soon."""
    tight = pace(Says(2 * HOUR), due(done=4, deadline=8))
    assert tight is not None
    spare = 2 * HOUR - 1000
    assert tight.seconds == pytest.approx(0.1 * spare)
    assert "deadline" in tight.reason
    none_left = pace(Says(2 * HOUR), due(done=4, deadline=5))
    assert none_left is not None
    assert none_left.seconds == 2 * HOUR, "on-demand is what is bought then"
    costly = replace(due(done=4, deadline=8), agents={1: an_agent(saves=1, frozen_seconds=90.0)})  # type: ignore[dict-item]
    slow = pace(Says(2 * HOUR), costly)
    assert slow is not None
    assert slow.seconds == 1800.0


def test_a_job_that_outlasts_its_users_word_has_work_left_that_nobody_knows() -> None:
    for done in (9.8, 12.0):
        says = Says(700.0)
        pace(says, due(done))
        assert says.views[0].left_seconds is None


@pytest.mark.parametrize("answer", [0, -5.0, math.nan, math.inf, True, "often", [60], ZeroDivisionError("oops")], ids=repr)
def test_a_policy_that_fails_is_replaced_and_told(answer: object) -> None:
    decision = decided(Says(answer), running())
    made = next(a for a in decision.actions if isinstance(a, Pace))
    assert made.seconds == USUAL_SECONDS
    assert len(decision.alarms) == 1
    assert "interval policy" in decision.alarms[0]
    assert "as usual" in made.reason


def test_answers_have_bounds() -> None:
    for answer, expected in ((0.001, LEAST_SECONDS), (1e12, MOST_SECONDS)):
        made = pace(Says(answer), running())
        assert made is not None
        assert made.seconds == expected
    slow = pace(Says(1.0), running(an_agent(saves=1, frozen_seconds=90.0)))
    assert slow is not None
    assert slow.seconds == 90.0, "the job works half of its time"


def test_a_save_that_its_user_asked_for_comes_first() -> None:
    (action,) = decided(Says(700.0), running(job=a_job(save_at_least=1))).actions
    assert isinstance(action, Ask)


def test_surf_saves_more_often_where_more_is_lost_and_seldom_where_notices_come_in_time() -> None:
    """The object that `backtest interval` plays."""
    fit = FitSeen(6.0, 10.0, 2.0, "fits", 110.0)
    agent = an_agent(saves=1, frozen_seconds=3.0, fit=fit)
    blind = replace(agent, fit=replace(fit, window_seconds=20.0 / 3))
    wild, calm = Lives.of([(HOUR, True)] * 30), Lives.of([(30 * HOUR, False)] * 30)

    def seconds(said: AgentSeen, lives: Lives) -> float:
        made = pace(make_surf({}), running(said), past={KIND: Fates(lives, noticed=round(lives.losses))})
        assert made is not None
        return made.seconds

    assert seconds(blind, wild) < 0.5 * seconds(blind, calm)
    assert seconds(blind, wild) < 0.5 * seconds(agent, wild)


def test_why_tells_the_numbers() -> None:
    past = {KIND: Fates(Lives.of([(HOUR, True)] * 3), noticed=2, unnoticed=1)}
    made = pace(Says(700.0), running(an_agent(saves=2, frozen_seconds=5.0)), past=past)
    assert made is not None
    for part in ("every 11m40s", "for 2.5 s", "3 were lost", "2 jobs saved in time, 1 not"):
        assert part in made.reason
    one = pace(Says(700.0), running(an_agent()), past={KIND: Fates(Lives.of([(HOUR, True)]), noticed=1, unnoticed=0)})
    assert one is not None
    assert "1 was lost (1 job saved in time, 0 not)" in one.reason


def test_fates_tell_losses_that_cost_work() -> None:
    lost = an_attempt(1, AttemptState.RELEASED, reclaimed=True, granted_at=ago(200), released_at=ago(10))
    fates = fates_of([lost, replace(lost, drained=True), replace(lost, granted_at=None), replace(lost, reclaimed=False)], NOW)
    assert (fates[KIND].noticed, fates[KIND].unnoticed, fates[KIND].lives.losses) == (1, 1, 3)
