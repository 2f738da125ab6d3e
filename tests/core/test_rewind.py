"""Going back to a checkpoint of the user's choice, and whose fault a failed restore is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire.messages import Done, HeadKind
from support.builders import NOW, a_head, a_job, a_snapshot, an_agent, an_attempt, seen
from support.saves import a_head as entry

from spotsurfer.core.decide import decide
from spotsurfer.core.facts.ownership import NothingLeft, choose_checkpoint, passed_over
from spotsurfer.model.actions import Ask, EndJob, Grant, Mark, SetWish
from spotsurfer.model.job import AttemptState, JobState, Rewind, Wish
from spotsurfer.model.snapshot import HeadSeen, JobSeen, Limits
from spotsurfer.model.state_machine import AttemptEvent, JobEvent
from spotsurfer.store.head_logs import chosen, summary

POLICY = Cheapest(stay_seconds=10.0, margin=0.2)
OLD, NEW = "000001-000001", "000001-000002"


def actions(one: JobSeen) -> list[object]:
    return list(decide(a_snapshot(one), POLICY, NOW).actions)


def back(after: int = 3) -> Rewind:
    return Rewind(OLD, after)


def saved(**changes: Any) -> HeadSeen:
    return a_head(1, 3, checkpoint=NEW, sequence=2, checkpoints=(OLD, NEW), grants=((1, None),), **changes)


def test_a_running_job_drains_first() -> None:
    one = seen([an_attempt(1)], saved(), job=a_job(rewind=back()))
    asked = [a for a in actions(one) if isinstance(a, Ask)]
    assert [(a.want, a.reason) for a in asked] == [("drain", f"its user goes back to checkpoint {OLD}")]


def test_the_next_grant_is_from_there_and_says_so() -> None:
    waiter = an_attempt(2, AttemptState.READY)
    one = seen([an_attempt(1, AttemptState.RELEASED), waiter], saved(final=True), job=a_job(rewind=back()))
    (grant,) = [a for a in actions(one) if isinstance(a, Grant)]
    assert (grant.checkpoint, grant.reason) == (OLD, f"from checkpoint {OLD}, as its user asked")


def test_an_ended_job_that_was_reopened_is_not_ended_again() -> None:
    head = saved(done=True, exit_code=0)
    one = seen([an_attempt(1, AttemptState.RELEASED)], head, job=a_job(rewind=back()))
    assert not [a for a in actions(one) if isinstance(a, EndJob)]


def test_a_cancelled_one_goes_nowhere() -> None:
    head = saved(done=True, exit_code=0)
    job = a_job(rewind=back(), wish=Wish.CANCEL)
    one = seen([an_attempt(1, AttemptState.RELEASED)], head, job=job)
    assert [a.event for a in actions(one) if isinstance(a, EndJob)] == [JobEvent.SUCCEEDED]


def test_a_held_one_is_resumed() -> None:
    job = a_job(rewind=back(), state=JobState.HELD)
    one = seen([an_attempt(1, AttemptState.RELEASED)], saved(final=True), job=job)
    assert [a.event for a in actions(one) if isinstance(a, EndJob)] == [JobEvent.RESUMED]


def test_it_is_settled_when_the_head_shows_it_or_the_drain_failed() -> None:
    shown = a_head(2, 4, checkpoint=OLD, sequence=2, checkpoints=(OLD,), grants=((1, None), (4, OLD)))
    one = seen([an_attempt(2)], shown, job=a_job(rewind=back()))
    assert [a.clear_rewind for a in actions(one) if isinstance(a, SetWish)] == [True]
    holder = an_attempt(1, AttemptState.DRAINING, desired_sequence=5)
    agent = an_agent("running", drain_failed=5, error="no room")
    one = seen([holder], saved(), job=a_job(rewind=back()), agents={1: agent})
    assert [a.reason for a in actions(one) if isinstance(a, SetWish)] == [
        f"going back to {OLD} failed, the job runs on: no room"
    ]


@pytest.mark.parametrize(("kind", "event"), [("store", AttemptEvent.STORE_FAILED), ("restore", AttemptEvent.RESTORE_FAILED)])
def test_a_store_that_does_not_answer_is_no_fault_of_the_image(kind: str, event: AttemptEvent) -> None:
    broken = an_agent("broken", error_kind=kind, error="because")
    one = seen([an_attempt(1, AttemptState.RESTORING, head_number=3)], saved(), agents={1: broken})
    assert [(a.event, a.reason) for a in actions(one) if isinstance(a, Mark)] == [(event, "because")]


def test_only_restores_that_failed_make_an_older_one_be_taken_and_the_reason_is_told() -> None:
    gone: dict[str, Any] = {"state": AttemptState.RELEASED, "from_checkpoint": NEW}
    away = [an_attempt(n, **gone, store_failed=True) for n in (2, 3)]
    one = seen(away, saved())
    assert choose_checkpoint(one, Limits()) == NEW
    assert passed_over(one, NEW) == ""
    bad = [an_attempt(n, **gone, restore_failed=True, reason="chunk x is missing") for n in (2, 3)]
    one = seen(bad, saved())
    assert choose_checkpoint(one, Limits()) == OLD
    assert passed_over(one, OLD) == f": the newest, {NEW}, could not be restored (chunk x is missing)"


def test_who_resumes_a_job_wants_it_tried_again() -> None:
    gone: dict[str, Any] = {"state": AttemptState.RELEASED, "restore_failed": True, "reason": "chunk x is missing"}
    bad = [an_attempt(n, **gone, from_checkpoint=c) for n, c in ((2, NEW), (3, NEW), (4, OLD), (5, OLD))]
    with pytest.raises(NothingLeft, match="chunk x is missing"):
        choose_checkpoint(seen(bad, saved()), Limits())
    later = a_job(resumed_at=bad[0].planned_at + timedelta(seconds=1))
    assert choose_checkpoint(seen(bad, saved(), job=later), Limits()) == NEW


def test_machines_that_never_reach_the_store_get_the_job_held() -> None:
    lost: dict[str, Any] = {"state": AttemptState.RELEASED, "store_failed": True, "reason": "no answer"}
    many = [an_attempt(1, AttemptState.RELEASED), *(an_attempt(n, from_checkpoint=NEW, **lost) for n in range(2, 5))]
    decision = decide(a_snapshot(seen(many, saved()), limits=Limits(launch_failures_max=3)), POLICY, NOW)
    (held,) = [a for a in decision.actions if isinstance(a, SetWish)]
    assert held.wish is Wish.HOLD
    assert "no answer" in held.reason


def test_the_log_tells_which_checkpoints_led_to_the_newest() -> None:
    log = [
        entry(1, HeadKind.GRANT, 1, None, 0),
        entry(2, HeadKind.COMMIT, 1, OLD, 1),
        entry(3, HeadKind.COMMIT, 1, NEW, 2),
        entry(4, HeadKind.DONE, 1, NEW, 2, done=Done(0, "exited")),
        entry(5, HeadKind.GRANT, 2, OLD, 2),
        entry(6, HeadKind.COMMIT, 2, "000002-000003", 3),
    ]
    assert summary(log).checkpoints == (OLD, "000002-000003")
    assert summary(log).grants == ((1, None), (5, OLD))
    assert [chosen(x, log) for x in (NEW, "2", "3", "9", "x")] == [NEW, NEW, "000002-000003", None, None]


def test_a_log_that_goes_round_ends_all_the_same() -> None:
    log = [entry(1, HeadKind.GRANT, 1, OLD, 0), entry(2, HeadKind.COMMIT, 1, NEW, 1), entry(3, HeadKind.GRANT, 1, NEW, 1)]
    log.append(entry(4, HeadKind.COMMIT, 1, OLD, 2))
    assert set(summary(log).checkpoints) == {OLD, NEW}
