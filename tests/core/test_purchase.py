"""Jobs with a deadline: what is bought, when a policy is overruled, and what a bad policy can't do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_policies.purchase_surf import make
from support.builders import JOB, NOW, POOL, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_offer, noticed, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.deadline import slot_seconds, slots, view_of
from spotsurfer.model.actions import Ask, Decision, Plan, Terminate
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobId, JobState, MarketChoice
from spotsurfer.model.market import Cooldown, Market
from spotsurfer.model.snapshot import JobSeen, Limits, SpotSeen
from spotsurfer.ports.policies import Buy, Choice, Purchase, View

HOUR = 3600.0
POLICY = Cheapest(60, 0.2)
SAVED = a_head(number=3, checkpoint="000001-000002", sequence=2, checkpoints=("000001-000001", "000001-000002"))
COOL = Cooldown(POOL, Market.SPOT, NOW + timedelta(seconds=300), 1, "no capacity")


class Says:
    """A policy with one answer."""

    def __init__(self, buy: Any) -> None:
        self.buy = buy

    def choose(self, view: View) -> Choice:
        return Choice(self.buy, "because")


class Broken:
    def choose(self, view: View) -> Choice:
        raise ZeroDivisionError("oops")


def due(deadline: float, work: float, gone: float = 0.5, **spec: Any) -> Any:
    """A job submitted `gone` hours ago."""
    spec = {"deadline_seconds": deadline * HOUR, "work_seconds": work * HOUR, **spec}
    return a_job(spec, submitted_at=ago(gone * HOUR), state=JobState.ACTIVE)


def decided(purchase: Purchase, *worlds: JobSeen, **snapshot: Any) -> Decision:
    return decide(a_snapshot(*worlds, **snapshot), POLICY, NOW, purchase)


def plan(decision: Decision) -> Plan | None:
    return next((a for a in decision.actions if isinstance(a, Plan)), None)


def bought(purchase: Purchase, world: JobSeen, **snapshot: Any) -> Market | None:
    made = plan(decided(purchase, world, **snapshot))
    return None if made is None else made.offer.market


def test_the_policy_says_what_is_bought() -> None:
    job = seen(job=due(20, 5))
    assert bought(Says(Buy.SPOT), job) is Market.SPOT
    assert bought(Says(Buy.ON_DEMAND), job) is Market.ON_DEMAND
    assert bought(Says(Buy.WAIT), job) is None


def test_why_is_told() -> None:
    decision = decided(Says(Buy.WAIT), seen(job=due(20, 5)))
    assert decision.notes[JOB] == "because"
    made = plan(decided(Says(Buy.SPOT), seen(job=due(20, 5))))
    assert made is not None
    assert made.reason.endswith("because")


def test_without_a_deadline_nobody_asks() -> None:
    assert bought(Broken(), seen()) is Market.SPOT
    assert bought(Says(Buy.WAIT), seen(job=due(20, 5, market=MarketChoice.ON_DEMAND))) is Market.ON_DEMAND


def test_waiting_ends_when_the_deadline_asks() -> None:
    job = due(20, 5, gone=16)
    assert bought(Says(Buy.WAIT), seen(job=job)) is Market.ON_DEMAND
    assert "at risk" in str(plan(decided(Says(Buy.WAIT), seen(job=job))))


def test_a_reserve_is_kept_for_times_in_which_nothing_can_be_ordered() -> None:
    """Time to spare: 15 hours at first, and nearly none when on-demand has to be bought."""
    world = seen(job=due(20, 5, gone=14.5))
    assert bought(Says(Buy.WAIT), world, limits=Limits(deadline_reserve_seconds=0.0)) is None
    assert bought(Says(Buy.WAIT), world, limits=Limits(deadline_reserve_seconds=0.5 * HOUR)) is Market.ON_DEMAND
    early = seen(job=due(20, 5, gone=13))
    assert bought(Says(Buy.WAIT), early, limits=Limits(deadline_reserve_seconds=5 * HOUR)) is None, "a tenth of it at most"


def test_on_demand_that_is_refused_is_no_reason_to_hold_nothing() -> None:
    cool = replace(COOL, market=Market.ON_DEMAND)
    assert bought(Says(Buy.WAIT), seen(job=due(20, 5, gone=16)), cooldowns=[cool]) is Market.SPOT


@pytest.mark.parametrize("purchase", [Broken(), Says("spot"), Says(7), Says(None)])
def test_a_policy_that_fails_is_replaced_and_told(purchase: Purchase) -> None:
    decision = decided(purchase, seen(job=due(20, 5)))
    made = plan(decision)
    assert made is not None
    assert made.offer.market is Market.SPOT
    assert len(decision.alarms) == 1
    late = decided(purchase, seen(job=due(20, 5, gone=16)))
    assert str(plan(late)).count("on-demand")


def running(market: Market, job: Any, **changes: Any) -> JobSeen:
    return seen([an_attempt(1, market=market)], SAVED, job=job, **changes)


def test_back_to_spot_and_over_to_on_demand() -> None:
    job = due(20, 5)
    assert bought(Says(Buy.SPOT), running(Market.ON_DEMAND, job)) is Market.SPOT
    assert bought(Says(Buy.ON_DEMAND), running(Market.SPOT, job)) is Market.ON_DEMAND
    assert bought(Says(Buy.SPOT), running(Market.SPOT, job)) is None


def test_a_spot_machine_with_much_to_lose_is_left_in_time() -> None:
    """It may go without a word: what was not saved would have to be done again, and that takes too long."""
    late = due(20, 5, gone=15.5)  # 4.5 hours are left; of 5 hours of work 1.5 are done
    slack = running(Market.SPOT, late, done_seconds=1.5 * HOUR)
    assert bought(Says(Buy.SPOT), slack) is None, "half an hour to spare even if the launch goes badly"
    assert bought(Says(Buy.SPOT), replace(slack, at_risk_seconds=600.0)) is None
    assert bought(Says(Buy.SPOT), replace(slack, at_risk_seconds=3500.0)) is Market.ON_DEMAND


def test_nobody_goes_back_to_spot_who_can_not_afford_to_lose_what_is_done_until_the_first_save() -> None:
    late = due(20, 5, gone=15.5)
    here = running(Market.ON_DEMAND, late, done_seconds=1.5 * HOUR)
    often, seldom = (replace(here, attempts=[replace(here.attempts[0], pace_seconds=s)]) for s in (300.0, 4000.0))
    assert bought(Says(Buy.SPOT), often) is Market.SPOT
    never_asked = replace(here, attempts=[replace(here.attempts[0], pace_seconds=None)])
    assert bought(Says(Buy.SPOT), never_asked, limits=Limits(checkpoint_seconds=300.0)) is Market.SPOT
    assert bought(Says(Buy.SPOT), never_asked, limits=Limits(checkpoint_seconds=4000.0)) is None, "the operator's interval"
    assert bought(Says(Buy.SPOT), seldom) is None


def test_a_jobs_first_launch_is_reckoned_to_take_what_those_of_others_did() -> None:
    first = seen(job=due(0.4, 0.2, gone=0))
    assert bought(Says(Buy.SPOT), first) is Market.ON_DEMAND, "a launch may take long as far as anybody knows"
    other = an_attempt(1, planned_at=ago(230), granted_at=ago(200))
    known = seen([other], SAVED, job=a_job(id=JobId("other")))
    decision = decided(Says(Buy.SPOT), first, known)
    made = next(a for a in decision.actions if isinstance(a, Plan) and a.job == JOB)
    assert made.offer.market is Market.SPOT


def test_who_is_to_wait_leaves_an_on_demand_machine_but_no_spot_one() -> None:
    job = due(20, 5)
    asked = [a for a in decided(Says(Buy.WAIT), running(Market.ON_DEMAND, job)).actions if isinstance(a, Ask)]
    assert [a.want for a in asked] == ["drain"]
    assert decided(Says(Buy.WAIT), running(Market.SPOT, job)).actions == ()


@pytest.mark.parametrize(("since", "asks"), [(5, False), (59, False), (60, True)])
def test_who_is_to_wait_and_could_not_be_saved_is_left_alone_for_a_while(since: float, asks: bool) -> None:
    here = an_attempt(1, market=Market.ON_DEMAND, since=ago(since), desired_sequence=3)
    failed = an_agent(drain_failed=2, error="the disk is full", error_kind="save")
    decision = decided(Says(Buy.WAIT), seen([here], SAVED, job=due(20, 5), agents={1: failed}))
    assert [a.want for a in decision.actions if isinstance(a, Ask)] == ["drain"] * asks
    assert asks or decision.notes[JOB].startswith("its final save failed: the disk is full; it runs on")


def test_a_spot_machine_that_boots_for_ever_is_given_up_for_the_deadline() -> None:
    world = seen([an_attempt(1, A.BOOTING)], job=due(20, 5, gone=15))
    assert [type(a) for a in decided(Says(Buy.SPOT), world).actions if isinstance(a, Terminate)] == [Terminate]
    early = seen([an_attempt(1, A.BOOTING)], job=due(20, 5))
    assert not [a for a in decided(Says(Buy.SPOT), early).actions if isinstance(a, Terminate)]


def test_what_a_policy_sees() -> None:
    world = running(Market.SPOT, due(20, 5, gone=2), done_seconds=1.5 * HOUR)
    view = view_of(a_snapshot(world), world, NOW)
    assert view is not None
    assert (view.terms.tick_seconds, view.elapsed_seconds, view.held) == (200.0, 2 * HOUR, Buy.SPOT)
    assert (round(view.done_seconds), view.terms.spot_usd_per_hour, view.terms.on_demand_usd_per_hour) == (
        1.5 * HOUR,
        0.03,
        0.1,
    )
    assert len(view.spot_seen) == 37
    assert view.spot_seen[-1] is True


def test_a_machine_that_is_taken_is_none() -> None:
    world = replace(running(Market.SPOT, due(20, 5)), agents={1: noticed()})
    view = view_of(a_snapshot(world, cooldowns=[COOL]), world, NOW)
    assert view is not None
    assert (view.held, view.spot_seen[-1]) == (Buy.WAIT, False)


def test_slow_launches_of_the_past_count() -> None:
    slow = an_attempt(1, A.RELEASED, planned_at=ago(3000), granted_at=ago(600))
    world = seen([slow], job=due(20, 5))
    view = view_of(a_snapshot(world), world, NOW)
    assert view is not None
    assert (view.terms.restart_seconds, view.terms.safe_restart_seconds) == (2400.0, 7200.0)


def test_slots_are_of_few_lengths() -> None:
    lengths = {slot_seconds(hours * HOUR) for hours in range(1, 200)}
    assert len(lengths) < 30
    assert all(300 <= h * HOUR / slot_seconds(h * HOUR) <= 400 for h in range(1, 200))


def test_slots_take_the_newest_sign_of_the_luckiest_pool() -> None:
    job = due(20, 5, gone=1)
    past = [SpotSeen(ago(5000), False), SpotSeen(ago(3000), True), SpotSeen(ago(1500), None), SpotSeen(ago(700), False)]
    found = slots({POOL: past}, job, 600.0, 7, NOW)
    assert found == (False, True, True, True, False, False, False)
    other = {POOL: past, replace(POOL, zone="b"): [SpotSeen(ago(600), True)]}
    assert slots(other, job, 600.0, 7, NOW)[-2:] == (True, True)


def test_the_shipped_policy_takes_spot_and_keeps_a_tight_deadline() -> None:
    surf = make({})
    assert bought(surf, seen(job=due(20, 5))) is Market.SPOT
    assert bought(surf, seen(job=due(20, 5)), cooldowns=[COOL]) in (None, Market.ON_DEMAND)
    assert bought(surf, seen(job=due(20, 5, gone=15)), cooldowns=[COOL]) is Market.ON_DEMAND


class Spoilt(Cheapest):
    """A placement policy that ranks what is not there."""

    def rank(self, job: Any, offers: Any, now: Any) -> Any:
        return [an_offer(price=1)]


class Silent(Cheapest):
    def rank(self, job: Any, offers: Any, now: Any) -> Any:
        raise KeyError("zone")

    def worth_moving(self, job: Any, here: Any, there: Any, now: Any, pause: Any) -> Any:
        return 7


@pytest.mark.parametrize("policy", [Spoilt(60, 0.2), Silent(60, 0.2)])
def test_a_placement_policy_that_fails_is_replaced_and_told(policy: Cheapest) -> None:
    decision = decide(a_snapshot(seen()), policy, NOW)
    made = plan(decision)
    assert made is not None
    assert made.offer == an_offer()
    assert decision.alarms
    on_demand = seen([an_attempt(1, market=Market.ON_DEMAND)], SAVED, agents={1: an_agent()})
    assert plan(decide(a_snapshot(on_demand), Silent(60, 0.2), NOW)) is None
