"""Warm moves: what is done before the final save, how long it is waited for, and that nothing waits after it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_offer, noticed, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.moves import IN_VAIN
from spotsurfer.model.actions import Action, Ask, Decision, Grant, Mark, Plan
from spotsurfer.model.job import Attempt, MoveRequest, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Market
from spotsurfer.model.snapshot import AgentSeen, FitSeen, HeadSeen, JobSeen, Limits

POLICY = Cheapest(60, 0.2)
SAVED = a_head(number=3, checkpoint="000001-000002", sequence=2, checkpoints=("000001-000001", "000001-000002"))
BARE = a_head(number=1)
SMALL = FitSeen(durable_seconds=2.0, reserve_seconds=8.0, gain_seconds=0.2)
LARGE = FitSeen(durable_seconds=60.0, reserve_seconds=95.0, gain_seconds=50.0)
HOLDER = an_agent(fit=SMALL)
COLD = an_agent("standby")
HALF = an_agent("standby", warm_checkpoint="000001-000001")
WARM = an_agent("standby", warm_checkpoint="000001-000002")


def decided(holder: AgentSeen, waiter: AgentSeen, head: HeadSeen = SAVED, here: Attempt | None = None, **more: Any) -> Decision:
    """A move for its user: attempt 1 holds the job, attempt 2 stands by for 100 s."""
    since = more.pop("ready_since", ago(100))
    limits = more.pop("limits", Limits())
    job = more.pop("job", a_job(move=MoveRequest(1, NOW)))
    there = an_attempt(2, A.READY, for_move=1, since=since, desired_want=more.pop("wants", "run"))
    world = seen([here or an_attempt(1), there], head, agents={1: replace(holder, head=head.number), 2: waiter}, job=job)
    return decide(a_snapshot(world, limits=limits), POLICY, NOW)


def asked(decision: Decision) -> dict[int, str]:
    """What is asked of whom: drain, hurry, or save."""
    asks = [a for a in decision.actions if isinstance(a, Ask)]
    return {a.attempt: "save" if a.want == "run" and a.save_at_least else a.want for a in asks}


# ---- a move that is merely wanted


def test_it_waits_until_the_next_machine_holds_the_newest_checkpoint() -> None:
    assert asked(decided(HOLDER, COLD)) == {}
    assert asked(decided(HOLDER, HALF)) == {}
    assert asked(decided(HOLDER, WARM)) == {1: "drain", 2: "hurry"}


def test_why_it_waits_is_told_without_figures_that_change() -> None:
    assert "attempt 2 stands by and fetches" in decided(HOLDER, COLD).notes[a_job().id]


def test_it_waits_no_longer_than_the_setting() -> None:
    assert asked(decided(HOLDER, COLD, ready_since=ago(301)))[1] == "drain"
    assert asked(decided(HOLDER, COLD, limits=Limits(warm_wait_seconds=90)))[1] == "drain"


def test_without_patience_it_never_waits() -> None:
    assert asked(decided(HOLDER, COLD, ready_since=NOW, limits=Limits(warm_wait_seconds=0)))[1] == "drain"


def test_an_old_base_is_renewed_before_the_drain() -> None:
    assert asked(decided(replace(HOLDER, fit=LARGE), WARM)) == {1: "save"}
    assert asked(decided(replace(HOLDER, fit=LARGE), COLD)) == {}, "the fetch of what is there comes first"


def test_it_is_renewed_only_where_that_pays() -> None:
    assert asked(decided(HOLDER, WARM, limits=Limits(precopy_gain_seconds=0.1))) == {1: "save"}
    assert asked(decided(replace(HOLDER, fit=None), WARM)) == {1: "drain", 2: "hurry"}


def test_a_job_without_any_checkpoint_gets_one_first() -> None:
    assert asked(decided(replace(HOLDER, fit=None), COLD, BARE)) == {1: "save"}


def test_the_save_under_way_is_awaited_and_asked_for_once() -> None:
    here = an_attempt(1, desired_save=3)
    assert asked(decided(replace(HOLDER, fit=LARGE), WARM, here=here)) == {}
    assert asked(decided(replace(HOLDER, fit=LARGE, state="saving"), WARM))[1] == "drain", "one is under way already"


def test_a_forecast_from_before_the_newest_checkpoint_says_nothing() -> None:
    world = decided(replace(HOLDER, fit=LARGE), WARM)
    assert asked(world) == {1: "save"}
    stale = replace(HOLDER, fit=LARGE, head=2)
    there = an_attempt(2, A.READY, for_move=1)
    job = a_job(move=MoveRequest(1, NOW))
    late = decide(a_snapshot(seen([an_attempt(1), there], SAVED, agents={1: stale, 2: WARM}, job=job)), POLICY, NOW)
    assert asked(late)[1] == "drain"


def test_a_drain_that_began_goes_on_whatever_the_next_machine_holds() -> None:
    here = an_attempt(1, A.DRAINING, desired_sequence=1, desired_want="drain")
    assert asked(decided(replace(HOLDER, state="draining"), COLD, here=here)) == {2: "hurry"}


def test_the_next_machine_is_told_once() -> None:
    here = an_attempt(1, A.DRAINING, desired_sequence=1, desired_want="drain")
    assert asked(decided(replace(HOLDER, state="draining"), COLD, here=here, wants="hurry")) == {}


def test_a_suspended_job_waits_for_nobody() -> None:
    assert asked(decided(HOLDER, COLD, job=a_job(wish=Wish.HOLD)))[1] == "drain"


def test_a_live_save_that_fails_does_not_hold_up_the_move() -> None:
    failed = replace(HOLDER, error="the disk is full", error_kind="save")
    assert asked(decided(failed, COLD, BARE, here=an_attempt(1, desired_save=1)))[1] == "drain"


def cheaper(since: float, **says: Any) -> Decision:
    """A policy's move: the job runs on an on-demand machine since then, and a cheaper one stands by."""
    here = an_attempt(1, market=Market.ON_DEMAND, price_usd_micros_per_hour=100_000, since=ago(since), desired_sequence=3)
    job, agent = says.pop("job", a_job()), replace(HOLDER, head=SAVED.number, **says)
    there = an_attempt(2, A.READY, purpose="it is cheaper", since=ago(1000))
    world = seen([here, there], SAVED, agents={1: agent, 2: WARM}, job=job)
    return decide(a_snapshot(world), Cheapest(stay_seconds=0, margin=0.2, pause_share=1), NOW)


FAILED = {"drain_failed": 2, "error": "the disk is full", "error_kind": "save"}
TAKEN = {"notice_id": "n", "notice_kind": "interruption"}


@pytest.mark.parametrize(
    ("since", "says", "asks"),
    [
        (5, {}, True),
        (5, FAILED, False),
        (5, {**FAILED, "error_kind": ""}, False),  # a live save went well meanwhile
        (59, FAILED, False),
        (60, FAILED, True),
        (5, {**FAILED, **TAKEN}, True),
        (5, {**FAILED, "job": a_job(resumed_at=ago(3))}, True),
    ],
)
def test_a_move_whose_final_save_failed_is_tried_again_after_a_while(since: float, says: dict[str, Any], asks: bool) -> None:
    found = cheaper(since, **says)
    assert asked(found) == ({1: "drain", 2: "hurry"} if asks else {})
    why = "its final save failed: the disk is full; it runs on, and the next try is made within a minute"
    assert (found.notes[a_job().id] == why) is not asks


@pytest.mark.parametrize(("ordered", "asks"), [(3, True), (50, False)])
def test_a_move_that_its_user_asks_for_after_a_final_save_that_failed_does_not_wait(ordered: float, asks: bool) -> None:
    here = an_attempt(1, since=ago(5), desired_sequence=3)
    found = decided(replace(HOLDER, **FAILED), WARM, here=here, job=a_job(move=MoveRequest(1, ago(ordered))))
    assert asked(found) == ({1: "drain", 2: "hurry"} if asks else {})


def test_a_job_that_nobody_can_save_waits_for_nobody() -> None:
    starts_over = a_job({"engine": "none"}, move=MoveRequest(1, NOW))
    assert asked(decided(replace(HOLDER, fit=None), COLD, BARE, job=starts_over))[1] == "drain"
    assert asked(decided(replace(HOLDER, fit=None, protection="none"), COLD, BARE))[1] == "drain"


# ---- a reclaim


def reclaimed(left: float, fit: FitSeen | None, waiter: AgentSeen | None, **more: Any) -> Decision:
    agent = replace(noticed(), fit=fit, head=3, notice_deadline_at=NOW + timedelta(seconds=left), **more)
    there = [an_attempt(2, A.READY, purpose="the cloud gave notice on the present machine")] if waiter else []
    agents = {1: agent} | ({2: waiter} if waiter else {})
    return decide(a_snapshot(seen([an_attempt(1), *there], SAVED, agents=agents)), POLICY, NOW)


def test_a_noticed_job_runs_on_until_the_next_machine_is_warm() -> None:
    assert asked(reclaimed(100, SMALL, None)) == {}
    assert asked(reclaimed(100, SMALL, COLD)) == {}
    assert asked(reclaimed(100, SMALL, WARM)) == {1: "drain", 2: "hurry"}


def test_but_never_so_long_that_the_final_save_would_be_late() -> None:
    assert asked(reclaimed(8, SMALL, COLD))[1] == "drain"
    assert asked(reclaimed(94, LARGE, None)) == {1: "drain"}


def test_a_final_save_that_would_be_in_vain_is_not_asked_for() -> None:
    huge = replace(LARGE, least_seconds=40.0)
    for waiter in (None, COLD, WARM):
        found = reclaimed(39, huge, waiter)
        assert 1 not in asked(found)
        assert found.notes[a_job().id] == IN_VAIN
    assert asked(reclaimed(41, huge, None)) == {1: "drain"}
    assert asked(reclaimed(39, huge, COLD, state="draining"))[1] == "drain", "its agent tries it at the very end"


def test_a_job_nobody_measured_drains_at_once() -> None:
    assert asked(reclaimed(100, None, None)) == {1: "drain"}


def test_who_drains_by_itself_is_not_held_back_and_the_next_machine_is_told() -> None:
    assert asked(reclaimed(100, SMALL, COLD, state="draining")) == {1: "drain", 2: "hurry"}


# ---- the hand-over


def handed_over(state: A, head: HeadSeen) -> list[Action]:
    here = an_attempt(1, state, desired_sequence=1)
    there = an_attempt(2, A.READY, desired_want="hurry")
    world = seen([here, there], head, agents={1: an_agent("draining"), 2: COLD})
    return list(decide(a_snapshot(world), POLICY, NOW).actions)


def test_the_grant_comes_with_the_look_that_sees_the_final_checkpoint() -> None:
    for state in (A.DRAINING, A.RUNNING):
        mark, grant = handed_over(state, replace(SAVED, number=4, final=True))
        assert isinstance(mark, Mark)
        assert isinstance(grant, Grant)
        assert (grant.attempt, grant.after) == (2, 4)


def hurries(*attempts: Attempt, **agents: AgentSeen) -> bool:
    world: JobSeen = seen(list(attempts), SAVED)
    return decide(a_snapshot(replace(world, agents={**world.agents, **agents})), POLICY, NOW).hurry


def test_looks_follow_each_other_at_once_only_while_a_job_stands_still() -> None:
    assert hurries(an_attempt(1, A.DRAINING))
    assert hurries(an_attempt(1, A.DRAINED), an_attempt(2, A.READY))
    assert hurries(an_attempt(1, A.RELEASED), an_attempt(2, A.RESTORING, from_checkpoint="000001-000002"))
    assert not hurries(an_attempt(1))
    assert not hurries(an_attempt(1), an_attempt(2, A.BOOTING))
    assert not hurries(an_attempt(1, A.RESTORING)), "a start from the beginning loses nothing by waiting"


# ---- a machine that could not take the job, or not yet


@pytest.mark.parametrize("patience", [300.0, 0.0])
@pytest.mark.parametrize(
    "told", [{"unfit": "build-id abc here"}, {"unfit": "x", "unfit_kind": "image"}, {"waits": "no registry"}]
)
def test_nobody_is_drained_for_a_machine_that_could_not_take_the_job(told: dict[str, str], patience: float) -> None:
    limits = Limits(warm_wait_seconds=patience)
    assert asked(decided(HOLDER, WARM, limits=limits, ready_since=ago(1000)))[1] == "drain"
    assert asked(decided(HOLDER, replace(WARM, **told), limits=limits, ready_since=ago(1000))) == {}


def test_a_machine_that_is_not_ready_is_waited_for_alone_and_why_is_told() -> None:
    waits = an_agent("standby", waits="the registry r can't be reached; it is asked again")
    boots = [an_attempt(1, A.RELEASED), an_attempt(2, A.BOOTING, since=ago(3000))]
    for attempts in (boots, [an_attempt(1), an_attempt(2, A.BOOTING, for_move=1)]):
        world = seen(attempts, SAVED, agents={1: HOLDER, 2: waits}, job=a_job(move=MoveRequest(1, NOW)))
        made = decide(a_snapshot(world), POLICY, NOW)
        assert made.actions == ()
        assert made.notes[a_job().id] == "attempt 2 gets ready: the registry r can't be reached; it is asked again"


def test_with_a_notice_it_goes_although_the_next_machine_is_not_ready() -> None:
    waits = an_agent("standby", waits="the registry r can't be reached")
    assert asked(decided(noticed(fit=None), waits))[1] == "drain"


def test_a_cheaper_machine_is_not_tried_again_soon_where_none_could_take_the_job() -> None:
    holder = an_attempt(1, A.RUNNING, market=Market.ON_DEMAND, price_usd_micros_per_hour=100_000, since=ago(10_000))
    for tried, wanted in (
        (an_attempt(2, A.RELEASED, since=ago(600), reason="no registry"), 1),
        (an_attempt(2, A.RELEASED, since=ago(600), reason="no registry", store_failed=True), 0),
        (an_attempt(2, A.RELEASED, since=ago(2000), reason="no registry", store_failed=True), 1),
    ):
        made = decide(a_snapshot(seen([holder, tried], SAVED), offers=[an_offer(price=1_000)]), POLICY, NOW)
        assert sum(isinstance(a, Plan) for a in made.actions) == wanted
        assert wanted or made.rejected[-1].why == "no registry"
