"""A job that the controller itself suspends: what it may, what follows, and how the job comes back."""

from __future__ import annotations

from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.facts.attempt_view import cases, phase
from spotsurfer.core.scheduling import suspension
from spotsurfer.model.actions import Ask, EndJob, SetWish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, JobState, Wish
from spotsurfer.model.snapshot import JobSeen
from spotsurfer.model.state_machine import JobEvent

POLICY = Cheapest(60, 0.2)
ASLEEP = a_job(wish=Wish.HOLD, held_by=HeldBy.IDLE, reason="idle since 11:30")
SAVED = a_head(1, 3, checkpoint="000001-000001", sequence=1)
DRAINED = a_head(1, 4, checkpoint="000001-000002", sequence=2, final=True)
LEAVES = an_attempt(1, A.DRAINING, desired_sequence=2, desired_want="drain")


def actions(world: JobSeen) -> list[object]:
    return list(decide(a_snapshot(world), POLICY, NOW).actions)


def wish(world: JobSeen) -> SetWish | None:
    return next((a for a in actions(world) if isinstance(a, SetWish)), None)


def test_it_drains_and_is_held_as_by_a_user() -> None:
    asked = next(a for a in actions(seen([an_attempt(1)], SAVED, job=ASLEEP)) if isinstance(a, Ask))
    assert (asked.want, asked.reason) == ("drain", "suspended: idle since 11:30")
    done = next(a for a in actions(seen([an_attempt(1, A.DRAINED)], DRAINED, job=ASLEEP)) if isinstance(a, EndJob))
    assert (done.event, done.reason) == (JobEvent.HELD, "idle since 11:30")


@pytest.mark.parametrize(("by", "word"), [(HeldBy.USER, "held"), (HeldBy.IDLE, "suspended")])
def test_people_see_who_suspended_it(by: HeldBy, word: str) -> None:
    assert phase(a_job(state=JobState.HELD, wish=Wish.HOLD, held_by=by), []) == word


@pytest.mark.parametrize("by", [HeldBy.USER, HeldBy.IDLE])  # one of a budget: test_budgets
def test_it_sleeps_until_somebody_wakes_it(by: HeldBy) -> None:
    job = a_job(state=JobState.HELD, wish=Wish.HOLD, held_by=by)
    assert actions(seen([an_attempt(1, A.RELEASED)], DRAINED, job=job)) == []


def test_a_save_that_fails_ends_the_suspension_and_not_the_job() -> None:
    failed = an_agent("running", drain_failed=2, error="the disk is full", error_kind="save")
    found = wish(seen([LEAVES], SAVED, job=ASLEEP, agents={1: failed}))
    assert found is not None
    assert (found.wish, found.held_by) == (Wish.RUN, HeldBy.USER)
    assert found.reason == "it could not be suspended (idle since 11:30), and runs on: the disk is full"
    assert wish(seen([LEAVES], SAVED, job=a_job(wish=Wish.HOLD), agents={1: failed})) is None, "a user's order stands"


@pytest.mark.parametrize(
    ("since", "says", "job", "asks"),
    [
        (5, {"drain_failed": 2}, {}, False),
        (59, {"drain_failed": 2, "error_kind": "save"}, {}, False),
        (60, {"drain_failed": 2, "error_kind": "save"}, {}, True),
        (5, {}, {}, True),
        (5, {"drain_failed": 2}, {"resumed_at": ago(3)}, True),
        (5, {"drain_failed": 2}, {"resumed_at": ago(50)}, False),
        (5, {"drain_failed": 2, "notice_id": "n", "notice_kind": "interruption"}, {}, True),
    ],
)
def test_a_users_order_whose_save_failed_is_tried_again_after_a_while(
    since: float, says: dict[str, Any], job: dict[str, Any], asks: bool
) -> None:
    world = seen(
        [an_attempt(1, since=ago(since), desired_sequence=3)],
        SAVED,
        job=a_job(wish=Wish.HOLD, reason="by its user", **job),
        agents={1: an_agent(error="the disk is full", **says)},
    )
    found = decide(a_snapshot(world), POLICY, NOW)
    assert ["drain"] * asks == [a.want for a in found.actions if isinstance(a, Ask)]
    why = "its final save failed: the disk is full; it runs on, and the next try is made within a minute"
    assert found.notes.get(world.job.id) == (None if asks else why)


@pytest.mark.parametrize(
    ("says", "able"),
    [
        ({"protection": "criu"}, True),
        ({"protection": ""}, False),
        ({"protection": "none"}, False),
        ({"protection": "criu", "frozen": True}, False),
        ({"protection": "criu", "error_kind": "save"}, False),
        ({"protection": "criu", "notice_id": "n", "notice_kind": "interruption"}, False),
    ],
)
def test_only_what_can_be_saved_may_be_suspended(says: dict[str, object], able: bool) -> None:
    world = seen([an_attempt(1)], SAVED, agents={1: an_agent(**says)})  # type: ignore[arg-type]
    assert suspension.can_be(cases(a_snapshot(world), world, NOW)[0]) is able
