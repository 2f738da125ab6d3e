"""Whole jobs: planning, granting, limits, ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import (
    IN_PART,
    JOB,
    NO_HEAD,
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
from spotsurfer.core.facts.ownership import choose_checkpoint
from spotsurfer.model.actions import Action, Ask, Close, Decision, EndJob, Grant, Mark, Plan, Retry, SetWish, Sweep, Terminate
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobState, MarketChoice, MoveRequest, Wish
from spotsurfer.model.market import Cooldown, Market
from spotsurfer.model.snapshot import JobSeen, Limits
from spotsurfer.model.state_machine import AttemptEvent, JobEvent

POLICY = Cheapest(60, 0.2)
SAVED = a_head(number=3, checkpoint="000001-000002", sequence=2, checkpoints=("000001-000001", "000001-000002"))
DRAINED = replace(SAVED, final=True)


def decided(*worlds: JobSeen, **snapshot: Any) -> Decision:
    return decide(a_snapshot(*worlds, **snapshot), POLICY, NOW)


def find(kind: type, *worlds: JobSeen, **snapshot: Any) -> Any:
    """The one action of this kind, or None."""
    found = [a for a in decided(*worlds, **snapshot).actions if isinstance(a, kind)]
    assert len(found) <= 1
    return found[0] if found else None


def actions(*worlds: JobSeen, **snapshot: Any) -> list[Action]:
    return list(decided(*worlds, **snapshot).actions)


# ---- planning


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        ({"wish": Wish.CANCEL}, Close),
        ({"wish": Wish.HOLD, "reason": "by its user"}, EndJob(a_job().id, JobEvent.HELD, "by its user")),
        ({"state": JobState.HELD}, EndJob(a_job().id, JobEvent.RESUMED, "resumed")),
    ],
)
def test_a_wish_between_two_tries_of_the_command_is_carried_out(job: dict[str, Any], wanted: Any) -> None:
    """Such a job hung for ever: its log is done, and it is not finished."""
    failed = a_head(1, 4, done=True, exit_code=7, failures=1)
    between = seen(
        [an_attempt(1, A.RELEASED)], failed, job=a_job({"retries": 1}, **{"state": JobState.ACTIVE, "failures": 1, **job})
    )
    done = decide(a_snapshot(between), POLICY, NOW).actions
    assert wanted in done or wanted in map(type, done), done


def test_a_new_job_gets_the_cheapest_spot_machine() -> None:
    dear = an_offer(price=50_000, pool=replace(POOL, zone="b"))
    plan = find(Plan, seen(job=a_job(state=JobState.QUEUED)), offers=[an_offer(Market.ON_DEMAND, 20_000), dear, an_offer()])
    assert plan.offer == an_offer()


def test_on_demand_when_spot_cools_down() -> None:
    cool = Cooldown(POOL, Market.SPOT, NOW + timedelta(seconds=30), 1, "no capacity")
    decision = decided(seen(), cooldowns=[cool])
    plan = next(a for a in decision.actions if isinstance(a, Plan))
    assert plan.offer.market is Market.ON_DEMAND
    assert "no capacity" in decision.rejected[0].why


def test_spot_only_waits() -> None:
    cool = Cooldown(POOL, Market.SPOT, NOW + timedelta(seconds=30), 1, "no capacity")
    world = seen(job=a_job({"market": MarketChoice.SPOT}))
    decision = decided(world, cooldowns=[cool])
    assert decision.actions == ()
    assert "no machine is on offer" in decision.notes[JOB]


def test_nothing_is_launched_on_a_partial_view() -> None:
    assert actions(seen(), listings=IN_PART) == []


def test_nothing_is_launched_while_the_store_cannot_be_read() -> None:
    assert actions(seen(head=None)) == []


def test_one_waiter_at_most() -> None:
    assert find(Plan, seen([an_attempt(1, A.BOOTING)])) is None


def test_a_notice_orders_the_next_machine_before_the_old_one_is_gone() -> None:
    world = seen([an_attempt(1)], a_head(), agents={1: noticed()})
    plan = find(Plan, world)
    assert plan.attempt == 2
    assert find(Ask, world).want == "drain"


def test_a_machine_too_small_is_no_offer() -> None:
    assert find(Plan, seen(job=a_job({"cpus": 64}))) is None


# ---- granting


def waiter(number: int = 2, **changes: Any) -> Any:
    return an_attempt(number, A.READY, **changes)


def test_a_ready_machine_is_granted_the_newest_checkpoint_after_a_drain() -> None:
    grant = find(Grant, seen([an_attempt(1, A.DRAINED), waiter()], DRAINED))
    assert (grant.attempt, grant.checkpoint, grant.after, grant.sequence) == (2, "000001-000002", 3, 2)


def test_never_two_owners() -> None:
    for state in (A.RESTORING, A.RUNNING, A.DRAINING):
        assert find(Grant, seen([an_attempt(1, state), waiter()], SAVED)) is None


def test_a_lost_machine_blocks_the_grant_until_its_lease_is_surely_over() -> None:
    lost = an_attempt(1, A.LOST, granted_at=ago(500))
    early = seen([lost, waiter()], SAVED, agents={1: an_agent(silent=74), 2: an_agent("standby")})
    assert find(Grant, early) is None
    late = replace(early, agents={1: an_agent(silent=76), 2: an_agent("standby")})
    assert find(Grant, late).attempt == 2


def test_a_lost_machine_that_is_gone_blocks_nothing() -> None:
    lost = an_attempt(1, A.LOST, granted_at=ago(500))
    world = seen([lost, waiter()], SAVED, instances={1: an_instance(1, gone=True), 2: an_instance(2)})
    assert find(Grant, world).checkpoint == "000001-000002"


def test_a_checkpoint_that_failed_gives_way_to_the_one_before() -> None:
    failed = an_attempt(2, A.RELEASED, restore_failed=True, from_checkpoint="000001-000002")
    grant = find(Grant, seen([an_attempt(1, A.RELEASED), failed, waiter(3)], replace(SAVED, epoch=2)))
    assert grant.checkpoint == "000001-000001"


def test_saved_work_is_never_thrown_away_unasked() -> None:
    names = ("000001-000001", "000001-000002")
    failed = [an_attempt(2 + i, A.RELEASED, restore_failed=True, from_checkpoint=names[i], reason="bad") for i in range(2)]
    wish = find(SetWish, seen([an_attempt(1, A.RELEASED), *failed, waiter(4)], replace(SAVED, epoch=3)))
    assert wish.wish is Wish.HOLD
    assert "bad" in wish.reason


def test_no_more_than_two_machines_are_bought_for_checkpoints_that_can_not_be_restored() -> None:
    names = ("000001-000001", "000001-000002", "000001-000003")
    head = replace(SAVED, epoch=3, checkpoint=names[2], checkpoints=names)
    failed = [an_attempt(2 + i, A.RELEASED, restore_failed=True, from_checkpoint=names[2 - i], reason="bad") for i in range(2)]
    assert find(SetWish, seen([an_attempt(1, A.RELEASED), *failed, waiter(4)], head)).wish is Wish.HOLD


# ---- ends


def test_exit_code_zero_is_success() -> None:
    end = find(EndJob, seen([an_attempt(1, A.FINISHED)], a_head(1, 4, done=True, exit_code=0)))
    assert (end.event, end.exit_code) == (JobEvent.SUCCEEDED, 0)


def test_a_failure_is_retried_only_as_often_as_asked() -> None:
    failed = a_head(1, 4, done=True, exit_code=7, failures=1)
    again = seen([an_attempt(1, A.RELEASED)], failed, job=a_job({"retries": 1}))
    assert find(Retry, again).exit_code == 7
    counted = replace(again, job=a_job({"retries": 1}, failures=1))
    assert find(Plan, counted).attempt == 2
    fresh = seen([an_attempt(1, A.RELEASED), waiter()], failed, job=a_job({"retries": 1}, failures=1))
    assert find(Grant, fresh).checkpoint is None
    twice = a_head(2, 6, done=True, exit_code=7, failures=2)
    end = find(EndJob, seen([an_attempt(2, A.FINISHED)], twice, job=a_job({"retries": 1}, failures=1)))
    assert (end.event, end.exit_code) == (JobEvent.FAILED, 7)


def test_a_cancel_closes_the_head_first() -> None:
    world = seen([an_attempt(1)], SAVED, job=a_job(wish=Wish.CANCEL))
    assert find(Close, world).after == 3
    closed = seen([an_attempt(1)], a_head(1, 4, done=True, cancelled=True), job=a_job(wish=Wish.CANCEL))
    assert find(EndJob, closed).event is JobEvent.CANCELLED


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.ACTIVE, JobState.HELD])
def test_a_job_that_is_cancelled_says_by_whom_wherever_it_was(state: JobState) -> None:
    """Of one that was held and never ran it was said that its command had ended."""
    job = a_job(state=state, wish=Wish.CANCEL, reason="cancelled by its user")
    end = find(EndJob, seen(head=a_head(0, 1, done=True, cancelled=True), job=job))
    assert (end.event, end.reason) == (JobEvent.CANCELLED, "cancelled by its user")


def test_a_suspended_job_drains_then_is_held() -> None:
    held = a_job(wish=Wish.HOLD)
    assert find(Ask, seen([an_attempt(1)], SAVED, job=held)).want == "drain"
    assert find(EndJob, seen([an_attempt(1)], SAVED, job=held)) is None
    assert find(EndJob, seen([an_attempt(1, A.DRAINED)], DRAINED, job=held)).event is JobEvent.HELD
    resumed = seen([an_attempt(1, A.RELEASED)], DRAINED, job=a_job(state=JobState.HELD))
    assert find(EndJob, resumed).event is JobEvent.RESUMED


# ---- moves


def moving(**request: Any) -> dict[str, Any]:
    return {"job": a_job(move=MoveRequest(1, NOW, **request))}


def test_a_move_orders_a_machine_then_drains() -> None:
    plan = find(Plan, seen([an_attempt(1)], SAVED, **moving()))
    assert plan.for_move == 1
    agents = {1: an_agent(), 2: an_agent("standby", warm_checkpoint=SAVED.checkpoint)}
    both = seen([an_attempt(1), waiter(for_move=1)], SAVED, agents=agents, **moving())
    asked = {a.attempt: a.want for a in actions(both) if isinstance(a, Ask)}
    assert asked == {1: "drain", 2: "hurry"}


def test_a_move_to_a_type_that_is_not_offered_fails_with_a_sentence() -> None:
    wish = find(SetWish, seen([an_attempt(1)], SAVED, **moving(instance_type="x9.huge")))
    assert wish.clear_move
    assert "x9.huge" in wish.reason


@pytest.mark.parametrize("limits", [Limits(), Limits(budget_usd_micros=9_000)])
def test_a_move_that_no_budget_has_room_for_ends_at_once(limits: Limits) -> None:
    """It was asked for again each tick, and who waited for it waited for ever."""
    job = a_job({} if limits.budget_usd_micros else {"budget_usd_micros": 9_000}, move=MoveRequest(1, NOW))
    world = seen([an_attempt(1)], SAVED, job=job, spent_usd_micros=5_000)
    wish = find(SetWish, world, limits=limits, spent_usd_micros=5_000)
    assert wish.clear_move and wish.wish is None
    assert wish.reason.startswith("the move failed, the job runs on: the ")
    assert "needs at least 0.0010 USD more" in wish.reason and "resume" not in wish.reason
    assert find(Plan, replace(world, spent_usd_micros=4_000), limits=limits, spent_usd_micros=4_000).for_move == 1


def test_a_failed_save_ends_the_move_and_gives_the_new_machine_back() -> None:
    failed = an_agent(drain_failed=4, error="disk full")
    drainer = an_attempt(1, A.DRAINING, desired_sequence=4)
    world = seen([drainer, waiter(for_move=1)], SAVED, agents={1: failed, 2: an_agent("standby")}, **moving())
    assert find(SetWish, world).clear_move
    after = seen([an_attempt(1), waiter(for_move=1)], SAVED)
    assert find(Terminate, after).attempt == 2


def test_back_to_spot_when_it_can_be_had() -> None:
    here = an_attempt(1, market=Market.ON_DEMAND, price_usd_micros_per_hour=100_000)
    plan = find(Plan, seen([here], SAVED))
    assert plan.offer.market is Market.SPOT
    young = replace(here, since=ago(5))
    assert find(Plan, seen([young], SAVED)) is None


# ---- limits


def test_machines_being_released_count() -> None:
    full = Limits(instances_max=1)
    releasing = replace(seen([an_attempt(1, A.RELEASING)], SAVED), job=a_job(state=JobState.SUCCEEDED))
    other = seen(job=replace(a_job(state=JobState.QUEUED), id="other"))
    decision = decided(releasing, other, limits=full)
    assert not any(isinstance(a, Plan) for a in decision.actions)
    assert "instances_max" in decision.notes["other"]  # type: ignore[index]


def test_two_jobs_do_not_take_the_last_place_twice() -> None:
    worlds = [seen(job=replace(a_job(state=JobState.QUEUED), id=i)) for i in ("a", "b")]
    assert find(Plan, *worlds, limits=Limits(instances_max=1)).job == "a"


def test_a_job_is_held_before_the_budget_is_passed() -> None:
    # 300 s of a 30,000 micro-dollar hour are 2,500 micro-dollars.
    world = seen([an_attempt(1)], SAVED)
    limits = Limits(budget_usd_micros=10_000)
    assert find(SetWish, world, limits=limits, spent_usd_micros=7_499) is None
    wish = find(SetWish, world, limits=limits, spent_usd_micros=7_500)
    assert wish.wish is Wish.HOLD
    assert "raise limits.budget_usd" in wish.reason


def test_a_job_that_runs_is_held_before_its_own_budget_is_passed() -> None:
    world = seen([an_attempt(1)], SAVED, job=a_job({"budget_usd_micros": 10_000}))
    assert find(SetWish, replace(world, spent_usd_micros=7_499)) is None
    wish = find(SetWish, replace(world, spent_usd_micros=7_500))
    assert wish.wish is Wish.HOLD
    assert "the job's budget" in wish.reason and "raise it with `spotsurfer budget` and resume" in wish.reason


def test_a_job_without_money_for_a_machine_is_held() -> None:
    """It is told how much would do: 300 s of a 30,000 micro-dollar hour are 2,500 micro-dollars."""
    poor = seen(job=a_job({"budget_usd_micros": 1_000}))
    wish = find(SetWish, poor)
    assert wish.wish is Wish.HOLD
    short = f"the job's budget of 0.0010 USD leaves no room for {POOL}, which needs at least 0.0015 USD more"
    assert wish.reason == f"{short}; raise it with `spotsurfer budget` and resume"
    assert find(Plan, seen(job=a_job({"budget_usd_micros": 2_500}))) is not None, "what it is told is enough"
    wish = find(SetWish, seen(job=a_job()), limits=Limits(budget_usd_micros=40))
    assert "the budget of 0.000040 USD" in wish.reason
    assert "at least 0.0025 USD more; raise limits.budget_usd and resume" in wish.reason


def test_a_command_that_failed_and_is_tried_again_is_said_to_have_failed() -> None:
    """A short one, whose machine ended with it: "the present machine is gone" was said."""
    head = a_head(done=True, failures=1, exit_code=3)
    there = {"instances": {1: an_instance(gone=True)}, "agents": {1: an_agent("finished")}}
    plan = find(Plan, seen([an_attempt(1)], head, job=a_job({"retries": 1}, failures=1), **there))
    assert plan.reason == "its command failed and is tried again"


def test_a_job_that_no_machine_can_run_is_held_in_the_end() -> None:
    tried = [an_attempt(n, A.RELEASED, granted_at=None, reason="no CRIU") for n in range(1, 21)]
    wish = find(SetWish, seen(tried, NO_HEAD))
    assert "20 machines in a row" in wish.reason
    assert "no CRIU" in wish.reason


def test_orphans_are_swept_on_a_full_view_only() -> None:
    orphan = an_instance(9)
    assert find(Sweep, orphans=[orphan]).instance == "i-9"
    assert actions(orphans=[orphan], listings=IN_PART) == []


def test_a_machine_that_refuses_costs_the_checkpoint_nothing_and_its_type_is_left_alone() -> None:
    """Refused = another machine type, the same checkpoint; failed = counts; and when the time is over it is tried again."""
    refused = an_attempt(1, A.RELEASED, restore_refused=True, reason="it has no avx512f", since=ago(60))
    world = seen([refused], replace(SAVED, final=True))
    assert find(Plan, world) is None
    assert "it has no avx512f" in decided(world).notes[JOB]
    other = an_offer(price=90_000, pool=replace(POOL, instance_type="other"))
    assert find(Plan, world, offers=[an_offer(), other]).offer == other
    assert choose_checkpoint(world, Limits()) == SAVED.checkpoint
    later = seen([replace(refused, since=ago(Limits().refusal_seconds + 1))], replace(SAVED, final=True))
    assert find(Plan, later).offer.pool == POOL


def test_a_job_without_checkpoints_is_not_moved_by_a_policy() -> None:
    holder = an_attempt(1, A.RUNNING, market=Market.ON_DEMAND, price_usd_micros_per_hour=100_000, since=ago(10_000))
    for engine, moved in (("auto", True), ("none", False)):
        world = replace(seen([holder], a_head()), job=a_job({"engine": engine}))
        assert bool(find(Plan, world, offers=[an_offer(price=1_000)])) is moved, engine


def test_a_step_that_is_not_protected_is_not_moved_by_a_policy() -> None:
    holder = an_attempt(1, A.RUNNING, market=Market.ON_DEMAND, price_usd_micros_per_hour=100_000, since=ago(10_000))
    cheap = [an_offer(price=1_000)]
    for rung, moved in (("criu", True), ("none", False)):
        says = an_agent(protection=rung)
        world = replace(seen([holder], a_head()), agents={holder.number: says})
        assert bool(find(Plan, world, offers=cheap)) is moved, rung


def test_a_next_step_that_cant_be_started_counts_against_where_it_came_from() -> None:
    holder = an_attempt(1, A.RUNNING, from_checkpoint="000001-000001")
    broken = an_agent("broken", error="the user is unknown", error_kind="start")
    marked = find(Mark, replace(seen([holder], a_head()), agents={holder.number: broken}))
    assert (marked.event, marked.reason) == (AttemptEvent.RESTORE_FAILED, "the user is unknown")


# ---- container images, inputs


@pytest.mark.parametrize("state", [A.READY, A.LOST])
def test_a_waiting_machine_that_knows_of_no_use_holds_the_job_unless_another_one_runs_it(state: A) -> None:
    told = an_agent("standby", unfit="input x changed", unfit_kind="input")
    alone = seen([an_attempt(1, A.RELEASED), an_attempt(2, state=state)], SAVED, agents={2: told})
    assert find(SetWish, alone).reason == "input x changed"
    blameless = {None, AttemptEvent.STORE_FAILED}
    assert getattr(find(Mark, alone), "event", None) in blameless, "nothing speaks against the machine's type"
    runs = seen([an_attempt(1), an_attempt(2, state=state)], SAVED, agents={1: an_agent(), 2: told})
    assert find(SetWish, runs) is None
    assert getattr(find(Mark, runs), "event", None) in blameless
    other = replace(alone, agents={2: replace(told, unfit_kind="")})
    assert find(SetWish, other) is None


@pytest.mark.parametrize("kind", ["image", "input", "secrets", "user"])
def test_what_no_machine_could_use_holds_the_job_at_once_and_a_resume_tries_again(kind: str) -> None:
    told = an_agent("broken", error="the registry x has no image y", error_kind=kind)
    world = seen([an_attempt(1, state=A.LOST)], a_head(), agents={1: told})
    wish = find(SetWish, world)
    assert wish is not None
    assert (wish.wish, wish.reason) == (Wish.HOLD, "the registry x has no image y")
    assert find(SetWish, replace(world, job=replace(world.job, resumed_at=NOW))) is None


def test_outputs_so_far_are_asked_of_one_machine_once() -> None:
    holder = an_attempt(2, A.RUNNING)
    world = replace(seen([holder], a_head(2)), job=a_job(partials_asked=3))
    told = find(Ask, world)
    assert (told.partial, told.want, told.event) == (3, "run", None)
    assert find(Ask, replace(world, attempts=[replace(holder, desired_partial=3)])) is None
    before = an_attempt(1, A.RELEASED, desired_partial=3)
    assert find(Ask, replace(world, attempts=[before, holder])) is None, "nobody waits for it any more"
    starting = an_attempt(2, A.RESTORING)
    assert find(Ask, replace(seen([starting], a_head(2)), job=a_job(partials_asked=3))) is None


# ---- silence


def test_silence_counts_from_when_a_machine_could_speak_again() -> None:
    holder = an_attempt(1, A.RUNNING, since=ago(10_000))
    silent = replace(seen([holder], a_head()), agents={1: an_agent(silent=80)})
    assert find(Mark, silent).event is AttemptEvent.SILENT
    assert find(Mark, replace(silent, silent_from={1: ago(70)})) is None
    assert find(Mark, replace(silent, silent_from={1: ago(76)})).event is AttemptEvent.SILENT


@pytest.mark.parametrize(
    ("said", "silent", "given_up"), [(0.0, 3614, False), (0.0, 3616, True), (60.0, 80, True), (9000.0, 3616, False)]
)
def test_who_does_not_know_the_lease_of_a_machine_goes_by_its_agents_word_else_by_a_long_one(
    said: float, silent: float, given_up: bool
) -> None:
    """The row is from the store, after a backup."""
    holder = an_attempt(1, A.RUNNING, since=ago(10_000), lease_seconds=3600.0)
    world = replace(seen([holder], a_head()), agents={1: an_agent(silent=silent, lease_seconds=said)})
    assert (find(Mark, world) is not None) is given_up


# ---- outputs that are not there


def test_a_command_that_leaves_no_outputs_behind_has_failed() -> None:
    lacks = "no file matched the outputs *.fa"
    ended = a_head(1, 4, done=True, exit_code=0, failures=1, undelivered=lacks)
    end = find(EndJob, seen([an_attempt(1, A.FINISHED)], ended))
    assert (end.event, end.exit_code) == (JobEvent.FAILED, 0)
    assert end.reason == f"the command ended with exit code 0 ({lacks})"
    again = seen([an_attempt(1, A.FINISHED)], ended, job=a_job({"retries": 1}))
    assert lacks in find(Retry, again).reason


# ---- time limits and signals


@pytest.mark.parametrize("code", [0, 143])
def test_a_job_that_its_time_limit_ended_has_failed_and_is_not_tried_again(code: int) -> None:
    ended = a_head(1, 4, done=True, exit_code=code, failures=1, ended_by="time limit")
    end = find(EndJob, seen([an_attempt(1, A.FINISHED)], ended, job=a_job({"retries": 3})))
    assert (end.event, end.exit_code, end.ended_by) == (JobEvent.FAILED, code, "time limit")
    assert end.reason == "it was ended by its time limit"


@pytest.mark.parametrize(
    ("told", "asked", "state", "sent"), [(0, 2, A.RUNNING, True), (2, 2, A.RUNNING, False), (0, 2, A.RESTORING, False)]
)
def test_a_signal_is_sent_once_to_processes_that_run(told: int, asked: int, state: A, sent: bool) -> None:
    holder = an_attempt(1, state, signals_told=told)
    ask = find(Ask, seen([holder], a_head(), job=a_job(signals_asked=asked, signal="USR1")))
    assert (None if ask is None else (ask.want, ask.signal_number, ask.signal)) == (("run", 2, "USR1") if sent else None)


# ---- set aside


ASKED = (Ask, "drain")
TERMINATED, SILENT = (Terminate, ""), (Mark, AttemptEvent.SILENT)


@pytest.mark.parametrize(
    ("wish", "state", "since", "expected"),
    [
        (Wish.HOLD, A.PLANNED, 5, TERMINATED),
        (Wish.HOLD, A.BOOTING, 5, TERMINATED),
        (Wish.HOLD, A.READY, 5, TERMINATED),
        (Wish.HOLD, A.RESTORING, 5, ASKED),
        (Wish.HOLD, A.RUNNING, 5, ASKED),
        (Wish.HOLD, A.DRAINING, 599, None),
        (Wish.HOLD, A.DRAINING, 601, SILENT),
        (Wish.HOLD, A.LOST, 5, TERMINATED),
        (Wish.HOLD, A.RELEASING, 5, None),
        (Wish.HOLD, A.RELEASING, 61, TERMINATED),
        (Wish.CANCEL, A.RUNNING, 5, SILENT),
        (Wish.CANCEL, A.DRAINING, 5, SILENT),
        (Wish.CANCEL, A.READY, 5, TERMINATED),
        (Wish.HOLD, A.RELEASED, 5, (EndJob, JobEvent.HELD)),
        (Wish.CANCEL, A.RELEASED, 5, (EndJob, JobEvent.CANCELLED)),
        (Wish.CANCEL, A.REFUSED, 5, (EndJob, JobEvent.CANCELLED)),
    ],
)
def test_who_is_set_aside_leaves_its_machine_step_by_step(wish: Wish, state: A, since: float, expected: Any) -> None:
    world = seen([an_attempt(1, state, since=ago(since))], None, agents={}, job=a_job(wish=wish), trouble="ValueError: bad")
    of_machines = state not in (A.RELEASED, A.REFUSED)  # the job may be held while its machine ends
    taken = [a for a in actions(world) if not (of_machines and isinstance(a, EndJob))]
    said = [(type(a), getattr(a, "want", None) or getattr(a, "event", "")) for a in taken]
    assert said == ([] if expected is None else [expected])


@pytest.mark.parametrize("state", [A.RUNNING, A.DRAINING, A.RELEASING])
def test_a_machine_of_one_set_aside_that_is_gone_is_known_to_be(state: A) -> None:
    world = seen([an_attempt(1, state)], None, agents={}, job=a_job(wish=Wish.HOLD), trouble="ValueError: bad")
    assert [a.event for a in actions(replace(world, instances={1: an_instance(gone=True)})) if isinstance(a, Mark)] == [
        AttemptEvent.INSTANCE_GONE
    ]


@pytest.mark.parametrize("wish", [Wish.RUN, Wish.HOLD, Wish.CANCEL])
@pytest.mark.parametrize(("since", "expected"), [(5, []), (1e6, [Terminate])])
def test_of_an_ended_job_that_is_set_aside_only_the_machine_is_ended(wish: Wish, since: float, expected: list[Any]) -> None:
    """Each tick it was to be held, which no job is that has ended."""
    job = a_job(state=JobState.SUCCEEDED, wish=wish)
    world = seen([an_attempt(1, A.RELEASING, since=ago(since))], None, agents={}, job=job, trouble="ValueError: bad")
    assert [type(a) for a in actions(world)] == expected


def test_who_is_set_aside_is_held_first_with_what_to_do() -> None:
    world = seen([an_attempt(1)], None, agents={}, trouble="ValueError: bad")
    (held,) = actions(world)
    assert isinstance(held, SetWish) and held.wish is Wish.HOLD
    assert "can't deal with it (ValueError: bad)" in held.reason and "`resume` it" in held.reason
