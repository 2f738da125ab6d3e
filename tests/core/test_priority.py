"""Priorities in `decide`: who is saved for whom, what the others are told, how waiting counts, and who is left alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import (
    IN_PART,
    NOW,
    POOL,
    a_head,
    a_job,
    a_snapshot,
    ago,
    an_agent,
    an_attempt,
    an_instance,
    an_offer,
    noticed,
    seen,
)

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.preemption import came_back, levels
from spotsurfer.model.actions import Ask, Decision, Pace, Plan, Terminate
from spotsurfer.model.job import Attempt, InstanceId, Job, JobId, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Gpus
from spotsurfer.model.snapshot import FitSeen, Held, JobSeen, Limits
from spotsurfer.model.state_machine import AttemptEvent as E

POLICY = Cheapest(1e6, 0.2)
FULL = Limits(instances_max=1)
STEP, STAY = FULL.ageing_seconds, FULL.stay_seconds
SAVED = an_agent(protection="criu", fit=FitSeen(2.0, 10.0, 0.0))


def job(name: str, priority: int = 0, submitted: float = 1000, **changes: Any) -> Job:
    spec = {"priority": priority, **changes.pop("spec", {})}
    return a_job(spec, id=JobId(name), submitted_at=ago(submitted), **changes)


def runs(one: Job, since: float = 500, agent: Any = SAVED, earlier: tuple[Attempt, ...] = (), **changes: Any) -> JobSeen:
    """A job that runs on its machine for so many seconds."""
    number = len(earlier) + 1
    times = {"since": ago(since), "granted_at": ago(since + 5), "planned_at": ago(since + 20)}
    here = an_attempt(number, **{**times, "job": one.id, "instance": InstanceId(f"i-{one.id}"), **changes})
    machine = replace(an_instance(number), id=InstanceId(f"i-{one.id}"), token=here.token)
    known = {"instances": {number: machine}, "agents": {number: agent}}
    return seen([*earlier, here], a_head(number), job=one, **known)


def queued(one: Job, *earlier: Attempt) -> JobSeen:
    return seen(earlier, a_head(len(earlier)), job=one, instances={}, agents={})


def gone(name: str, began: float, ended: float, number: int = 1, **changes: Any) -> Attempt:
    """A machine that the job had, seconds ago."""
    times = {"granted_at": ago(began), "since": ago(ended), "released_at": ago(ended), "planned_at": ago(began + 20)}
    return an_attempt(number, A.RELEASED, job=JobId(name), **times, **changes)


def decided(*jobs: JobSeen, limits: Limits = FULL, **changes: Any) -> Decision:
    return decide(a_snapshot(*jobs, limits=limits, **changes), POLICY, NOW)


def drains(decision: Decision) -> dict[str, str]:
    asks = (a for a in decision.actions if isinstance(a, Ask) and a.event is E.DRAIN_ASKED)
    return {a.job: a.gives_way_to for a in asks}


LOW, HIGH = job("low"), job("high", 10, submitted=1)


def test_the_lower_one_is_saved_and_both_are_told() -> None:
    decision = decided(runs(LOW), queued(HIGH))
    assert drains(decision) == {"low": "high"}
    assert decision.notes[LOW.id] == "its machine goes to high of priority 10; it comes back by itself"
    assert decision.notes[HIGH.id].startswith("low of lower priority is suspended for it: limits.instances_max = 1")


@pytest.mark.parametrize(
    "here",
    [
        runs(job("low", 10)),
        runs(LOW, agent=replace(SAVED, protection="none")),
        runs(LOW, agent=replace(SAVED, protection="")),
        runs(job("low", spec={"engine": "none"})),
        runs(LOW, agent=replace(SAVED, frozen=True)),
        runs(LOW, since=30, agent=replace(SAVED, drain_failed=3)),
        runs(LOW, since=STAY - 1, earlier=(gone("low", 900, 400, gave_way_to="other"),)),
        runs(job("low", spec={"deadline_seconds": 4000.0, "work_seconds": 2900.0})),  # 100 s to spare
    ],
    ids=["equal", "can't be saved", "not known", "engine none", "frozen", "save failed", "came back", "deadline"],
)
def test_who_is_left_alone(here: JobSeen) -> None:
    decision = decided(here, queued(HIGH))
    assert drains(decision) == {}
    assert "limits.instances_max" in decision.notes[HIGH.id]


def test_who_came_back_long_ago_or_began_just_now_gives_way_where_nobody_else_may() -> None:
    back = runs(LOW, since=STAY + 1, earlier=(gone("low", 900, 400, gave_way_to="other"),))
    assert drains(decided(back, queued(HIGH))) == {"low": "high"}
    assert drains(decided(runs(LOW, since=1), queued(HIGH))) == {"low": "high"}
    two = Limits(instances_max=2)
    small = replace(SAVED, fit=FitSeen(1.0, 10.0, 0.0))
    young, old = runs(job("young"), since=5, agent=small), runs(job("old"))
    assert drains(decided(young, old, queued(HIGH), limits=two)) == {"old": "high"}


def test_the_cheapest_is_forecast_by_its_agent_else_by_its_size() -> None:
    two = Limits(instances_max=2)
    slow = runs(job("slow"), agent=replace(SAVED, fit=FitSeen(60.0, 70.0, 0.0)))
    unknown = runs(job("unknown", spec={"memory_bytes": 1 << 30}), agent=replace(SAVED, fit=None))
    assert drains(decided(slow, unknown, queued(HIGH), limits=two)) == {"unknown": "high"}


def test_a_machine_that_boots_is_given_up_at_once() -> None:
    boots = seen([an_attempt(1, A.BOOTING, job=LOW.id)], job=LOW)
    (end,) = (a for a in decided(boots, queued(HIGH)).actions if isinstance(a, Terminate))
    assert (end.job, end.gives_way_to) == (LOW.id, HIGH.id)


def test_machines_that_leave_by_themselves_are_waited_for() -> None:
    over = seen([an_attempt(1, A.RELEASING, job=JobId("over"))], a_head(1, done=True, exit_code=0), job=job("over"))
    two = Limits(instances_max=2)
    decision = decided(over, runs(LOW), queued(HIGH), limits=two)
    assert drains(decision) == {}
    held = runs(replace(LOW, wish=Wish.HOLD))
    assert drains(decided(held, queued(HIGH))) == {"low": ""}, "by its user, not for somebody"


def draining(**changes: Any) -> JobSeen:
    found = runs(LOW, state=A.DRAINING, desired_want="drain", desired_sequence=1, gave_way_to="high", **changes)
    return replace(found, agents={1: replace(SAVED, state="draining")})


def test_it_goes_on_until_it_is_done_and_is_called_back_when_nobody_needs_the_machine() -> None:
    assert not [a for a in decided(draining(), queued(HIGH)).actions if isinstance(a, Ask)]
    (back,) = (a for a in decided(draining()).actions if isinstance(a, Ask))
    assert (back.event, back.gives_way_to) == (E.DRAIN_WITHDRAWN, "")


def test_on_a_partial_view_nobody_new_is_suspended() -> None:
    assert drains(decided(runs(LOW), queued(HIGH), listings=IN_PART)) == {}
    assert not [a for a in decided(draining(), queued(HIGH), listings=IN_PART).actions if isinstance(a, Ask)]


def test_who_gets_the_place_is_looked_at_often_until_it_has_a_machine_that_speaks() -> None:
    left = queued(LOW, gone("low", 400, 30, gave_way_to="high"))
    boots = seen([an_attempt(1, A.BOOTING, job=HIGH.id, since=ago(5))], a_head(0), job=HIGH)
    assert decided(left, boots).hurry
    assert not decided(left, runs(HIGH, since=5)).hurry, "it runs"
    assert not decided(queued(LOW, gone("low", 400, 200, gave_way_to="high")), boots).hurry, "a machine that boots for long"
    assert not decided(queued(LOW, gone("low", 400, 30)), boots).hurry, "nobody left for it"


def test_the_place_goes_to_whom_it_was_made_for_and_the_other_one_waits() -> None:
    here = an_attempt(1, A.RELEASING, job=LOW.id, granted_at=ago(400), since=ago(2), gave_way_to="high")
    left = seen([here], a_head(1, final=True), job=LOW)
    decision = decided(left, queued(HIGH))
    assert decision.hurry
    assert decision.notes[LOW.id].startswith("suspended for high of higher priority, it comes back by itself")
    after = queued(LOW, gone("low", 400, 1, gave_way_to="high"))
    assert [a.job for a in decided(after, queued(HIGH)).actions if isinstance(a, Plan)] == ["high"]
    assert [a.job for a in decided(after).actions if isinstance(a, Plan)] == ["low"], "it comes back by itself"


def test_gpus_and_money_are_limits_too() -> None:
    offer = replace(an_offer(), gpus=Gpus(count=4))
    two, spec = Limits(gpus_max=8), {"gpus": 4}
    some = [runs(job(n, spec=spec), gpus=4) for n in ("a", "b")]
    asking = queued(job("high", 10, 1, spec=spec))
    assert len(drains(decided(*some, asking, limits=two, offers=[offer]))) == 1
    assert drains(decided(some[0], asking, limits=two, offers=[offer])) == {}
    money = Limits(hourly_max_usd_micros=50_000)
    decision = decided(runs(LOW), queued(HIGH), limits=money, offers=[an_offer()])
    assert drains(decision) == {"low": "high"}
    assert "limits.hourly_max_usd is 0.0500" in decision.notes[HIGH.id]


def test_what_no_limit_would_ever_allow_is_not_waited_for() -> None:
    eight = replace(an_offer(), gpus=Gpus(count=8))
    decision = decided(queued(job("high", 10, spec={"gpus": 1})), limits=Limits(gpus_max=4), offers=[eight])
    assert {r.why for r in decision.rejected} == {"it has 8 GPUs, limits.gpus_max is 4"}


def test_a_deadline_that_is_near_comes_before_priorities() -> None:
    due = queued(job("due", spec={"deadline_seconds": 4000.0, "work_seconds": 2000.0}))
    assert drains(decided(runs(job("high", 10)), due)) == {"high": "due"}, "1000 s to spare; a launch may take 900"
    calm = queued(job("due", spec={"deadline_seconds": 9000.0, "work_seconds": 2000.0}))
    assert drains(decided(runs(job("high", 10)), calm)) == {}


# ---- waiting


def level(one: JobSeen, *others: JobSeen, held: tuple[Held, ...] = ()) -> int:
    waiting = {s.job.id for s in (one, *others) if not any(a.state is A.RUNNING for a in s.attempts)}
    return levels(a_snapshot(one, *others, limits=FULL, held=held), waiting, NOW)[one.job.id]


def test_a_job_gains_while_nobody_of_its_priority_before_it_has_a_machine() -> None:
    mine = queued(job("mine", -10, submitted=5 * STEP))
    assert level(mine) == -5
    assert level(mine, runs(job("other", 3, 9 * STEP))) == -5
    assert level(mine, runs(job("before", -10, 9 * STEP))) == -10
    assert level(mine, queued(job("before", -10, 9 * STEP))) == -10, "that one is first"
    assert level(mine, runs(job("after", -10, 2 * STEP), since=STEP)) == -5
    ended = Held(JobId("ended"), -10, ago(9 * STEP), ago(8 * STEP), ago(2 * STEP))
    assert level(mine, held=(ended,)) == -8
    assert level(mine, held=(replace(ended, priority=0),)) == -5


def test_what_its_user_held_it_for_is_no_waiting() -> None:
    assert level(queued(job("mine", submitted=9 * STEP, resumed_at=ago(2 * STEP)))) == 2
    assert level(queued(job("mine", submitted=9 * STEP), gone("mine", 8 * STEP, 3 * STEP))) == 3


@pytest.mark.parametrize(("ran", "gained"), [(STAY - 1, 7), (STAY + 1, 0)])
def test_what_was_gained_counts_until_it_ran_for_so_long(ran: float, gained: int) -> None:
    assert level(runs(job("mine", submitted=7 * STEP + ran + 5), since=ran)) == gained


def test_a_starved_job_takes_the_machine_and_gives_it_back() -> None:
    busy = runs(job("high", 10, 20 * STEP), since=15 * STEP)
    starved = queued(job("low", 0, 11 * STEP))
    assert drains(decided(busy, starved)) == {"high": "low"}
    assert drains(decided(busy, queued(job("low", 0, 10 * STEP)))) == {}


def test_who_was_starved_keeps_what_it_gained_while_its_machine_boots() -> None:
    boots = seen([an_attempt(1, A.BOOTING, job=JobId("low"))], job=job("low", 0, 11 * STEP))
    gave = gone("high", 12 * STEP, 20, gave_way_to="low")
    decision = decided(boots, queued(job("high", 10, 20 * STEP), gave))
    assert not [a for a in decision.actions if isinstance(a, Terminate)]


def test_came_back() -> None:
    never = (gone("low", 900, 800),)
    gave = (gone("low", 900, 800, gave_way_to="high"),)
    assert came_back(runs(LOW, earlier=never).attempts, NOW) is None
    assert came_back(gave, NOW) is None
    assert came_back(runs(LOW, since=70, earlier=gave).attempts, NOW) == 70
    moved = (*gave, gone("low", 300, 100, number=2))
    assert came_back(runs(LOW, since=70, earlier=moved).attempts, NOW + timedelta(seconds=1)) == 301


SHARED = Limits(gpus_max=1, gpus_shared=frozenset({POOL.provider}))
ONE_GPU = [replace(an_offer(), gpus=Gpus(count=1))]
TRAIN, SERVE = job("low", spec={"gpus": 1}), job("high", 10, submitted=1, spec={"gpus": 1})


def leaves() -> JobSeen:
    found = runs(TRAIN, state=A.DRAINING, desired_want="drain", desired_sequence=1, gave_way_to="high", gpus=1)
    return replace(found, agents={1: replace(SAVED, state="draining")})


def leaves_for_nobody() -> JobSeen:
    return replace(leaves(), attempts=[replace(leaves().attempts[0], gave_way_to="")])


def bought(decision: Decision) -> list[str]:
    return [a.job for a in decision.actions if isinstance(a, Plan)]


@pytest.mark.parametrize("shared", [True, False])
def test_the_next_machine_of_shared_gpus_is_bought_while_the_one_before_still_leaves(shared: bool) -> None:
    limits = replace(SHARED, gpus_shared=frozenset({POOL.provider} if shared else ()))
    for low, told in ((runs(TRAIN, gpus=1), {"low": "high"}), (leaves(), {})):
        decision = decided(low, queued(SERVE), limits=limits, offers=ONE_GPU)
        assert (drains(decision), bought(decision)) == (told, ["high"] if shared else [])


@pytest.mark.parametrize("state", [A.BOOTING, A.RESTORING, A.RUNNING])
def test_a_drain_goes_on_after_the_next_job_has_its_machine_on_shared_gpus(state: A) -> None:
    decision = decided(leaves(), runs(SERVE, since=1, state=state, gpus=1), limits=SHARED, offers=ONE_GPU)
    assert not [a for a in decision.actions if isinstance(a, Ask) and a.job == "low"]


@pytest.mark.parametrize("state", [A.PLANNED, A.BOOTING, A.RUNNING])
def test_the_lower_one_of_two_that_have_shared_gpus_gives_way_whatever_became_of_the_order_before(state: A) -> None:
    both = runs(TRAIN, gpus=1), runs(SERVE, since=1, state=state, gpus=1)
    assert drains(decided(*both, limits=SHARED, offers=ONE_GPU)) == {"low": "high"}
    assert drains(decided(*both, limits=replace(SHARED, gpus_shared=frozenset()), offers=ONE_GPU)) == {}
    assert drains(decided(*both, limits=replace(SHARED, gpus_max=2), offers=ONE_GPU)) == {}


def test_a_job_whose_machine_boots_goes_again_if_the_one_with_the_shared_gpus_stays_after_all() -> None:
    decision = decided(runs(TRAIN, since=1, state=A.BOOTING, gpus=1), runs(SERVE, gpus=1), limits=SHARED, offers=ONE_GPU)
    assert [getattr(a, "job", "") for a in decision.actions if not isinstance(a, Pace)] == ["low"]


def test_a_third_job_of_higher_priority_takes_shared_gpus_after_the_second() -> None:
    third = queued(job("third", 20, spec={"gpus": 1}))
    two = runs(TRAIN, gpus=1), runs(SERVE, since=1, state=A.BOOTING, gpus=1)
    assert drains(decided(*two, third, limits=SHARED, offers=ONE_GPU)) == {"low": "third"}
    assert drains(decided(runs(SERVE, gpus=1), third, limits=SHARED, offers=ONE_GPU)) == {"high": "third"}


@pytest.mark.parametrize("shared", [True, False])
def test_a_job_that_moves_has_its_shared_gpus_once(shared: bool) -> None:
    limits = replace(SHARED, gpus_shared=frozenset({POOL.provider} if shared else ()))
    moves = runs(TRAIN, gpus=1, agent=noticed(protection="criu", fit=SAVED.fit))
    assert bought(decided(moves, limits=limits, offers=ONE_GPU)) == (["low"] if shared else [])
    other = queued(job("other", spec={"gpus": 1}))
    for here in (moves, leaves_for_nobody(), runs(TRAIN, gpus=1)):
        assert "other" not in bought(decided(here, other, limits=limits, offers=ONE_GPU)), "its GPU goes along"


def test_shared_gpus_of_a_job_that_its_user_suspends_are_free_at_once() -> None:
    held = replace(leaves_for_nobody(), job=replace(TRAIN, wish=Wish.HOLD))
    assert bought(decided(held, queued(SERVE), limits=SHARED, offers=ONE_GPU)) == ["high"]


def test_a_job_with_two_machines_counts_its_shared_gpus_once_in_the_contest() -> None:
    moves = runs(TRAIN, gpus=1)
    target = an_attempt(2, A.BOOTING, job=TRAIN.id, gpus=1)
    moves = replace(moves, attempts=[*moves.attempts, target])
    assert (
        drains(
            decided(moves, runs(SERVE, since=1, state=A.BOOTING, gpus=1), limits=replace(SHARED, gpus_max=2), offers=ONE_GPU)
        )
        == {}
    )
