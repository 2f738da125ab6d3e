"""What an event leaves of an attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from spotsurfer_wire.messages import HeadKind
from support import saves
from support.builders import NOW, a_job, ago, an_attempt

from spotsurfer.controller.effects import after, job_after, recalled
from spotsurfer.model.actions import Recall
from spotsurfer.model.job import AttemptNumber, InstanceId, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import InstanceSeen
from spotsurfer.model.state_machine import AttemptEvent as E
from spotsurfer.model.state_machine import JobEvent

UNTOLD = an_attempt(3, A.RELEASING, instance=None, launched_at=None)


def seen(*, gone: bool) -> InstanceSeen:
    return InstanceSeen(InstanceId("i-3"), UNTOLD.token, gone, False, ago(90), ago(10) if gone else None)


@pytest.mark.parametrize(
    ("state", "event", "gone"),
    [(A.RELEASING, E.INSTANCE_GONE, True), (A.PLANNED, E.TERMINATE_CALLED, False)],
)
def test_a_machine_whose_order_was_never_answered_is_billed_from_its_launch(state: A, event: E, gone: bool) -> None:
    """The answer was lost, the job was suspended, and the cloud's API came back only then."""
    left = after(an_attempt(3, state, instance=None, launched_at=None), event, "", NOW, seen(gone=gone))
    assert (left.instance, left.launched_at) == ("i-3", ago(90))
    assert left.released_at == (ago(10) if gone else None)


def test_when_a_machine_was_launched_is_learned_once() -> None:
    known = an_attempt(3, A.RELEASING, instance=InstanceId("i-1"), launched_at=NOW - timedelta(hours=1))
    left = after(known, E.INSTANCE_GONE, "", NOW, seen(gone=True))
    assert (left.instance, left.launched_at) == ("i-1", known.launched_at)


def test_a_public_address_is_remembered_although_an_ended_machine_shows_none() -> None:
    boots = an_attempt(3, A.BOOTING, instance=InstanceId("i-3"))
    ready = after(boots, E.AGENT_READY, "", NOW, replace(seen(gone=False), public_address=True))
    assert ready.public_address
    assert after(replace(ready, state=A.RELEASING), E.INSTANCE_GONE, "", NOW, seen(gone=True)).public_address
    assert not after(boots, E.AGENT_READY, "", NOW, seen(gone=False)).public_address


def test_what_no_cloud_ever_showed_is_not_billed() -> None:
    assert after(UNTOLD, E.INSTANCE_GONE, "", NOW, None).launched_at is None


@pytest.mark.parametrize(("wish", "reason"), [(Wish.HOLD, "adopted from the store"), (Wish.RUN, "")])
def test_a_job_that_is_to_be_held_keeps_its_reason_when_a_machine_of_it_turns_up(wish: Wish, reason: str) -> None:
    """The store knew a machine that the database had lost: `show` said "held", and not why."""
    job = a_job(state=JobState.QUEUED, wish=wish, reason="adopted from the store")
    assert job_after(job, JobEvent.ATTEMPT_PLANNED, "recalled", None, NOW).reason == reason


@pytest.mark.parametrize(("today", "taken"), [(30.0, 3600.0), (7200.0, 7200.0)])
def test_a_machine_that_only_the_store_knows_is_taken_to_have_a_long_lease(today: float, taken: float) -> None:
    """Its agent may be one that does not say which; today's may be shorter than the one that it was ordered with."""
    job = a_job()
    grant = saves.a_head(4, HeadKind.GRANT, 3, None, 0, at=ago(600).isoformat())
    row = recalled(Recall(job.id, AttemptNumber(3), 1, "owns the job in the store"), grant, "token", None, today, NOW)
    assert row.lease_seconds == taken


@pytest.mark.parametrize("event", [JobEvent.HELD, JobEvent.FAILED, JobEvent.CANCELLED])
def test_a_job_that_does_not_run_any_more_is_not_stuck(event: JobEvent) -> None:
    """One that was cancelled for it counted as stuck for ever, and so its alert rang for ever."""
    job = a_job(state=JobState.ACTIVE, stuck_since=NOW)
    assert job_after(job, event, "enough", None, NOW).stuck_since is None
