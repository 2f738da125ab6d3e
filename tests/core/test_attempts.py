"""One attempt: given this world, expect this action."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import (
    IN_PART,
    NO_HEAD,
    NOW,
    a_head,
    a_job,
    a_snapshot,
    ago,
    an_agent,
    an_attempt,
    an_instance,
    noticed,
    seen,
)

from spotsurfer.core.decide import decide
from spotsurfer.model.actions import Action, Ask, Launch, Mark, Terminate
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import Wish
from spotsurfer.model.snapshot import HeadSeen, JobSeen
from spotsurfer.model.state_machine import AttemptEvent as E

POLICY = Cheapest(60, 0.2)


def about(world: JobSeen, attempt: int = 1, **snapshot: Any) -> Action | None:
    """What is decided about one attempt."""
    found = [a for a in decide(a_snapshot(world, **snapshot), POLICY, NOW).actions if getattr(a, "attempt", None) == attempt]
    assert len(found) <= 1, "at most one action an attempt and tick"
    return found[0] if found else None


def event(action: Action | None) -> E | None:
    return action.event if isinstance(action, Mark | Ask) else None


def one(state: A, head: HeadSeen | None = None, agent: Any = "default", instance: Any = "default", **changes: Any) -> JobSeen:
    """A job with one attempt."""
    attempt = an_attempt(1, state, **changes)
    world = seen([attempt], head or (a_head() if attempt.granted_at else NO_HEAD))
    agents = world.agents if agent == "default" else ({1: agent} if agent else {})
    instances = world.instances if instance == "default" else ({1: instance} if instance else {})
    return replace(world, agents=agents, instances=instances)


SAVED = a_head(number=3, checkpoint="000001-000002", sequence=2)
BROKEN = an_agent("broken", error="x", error_kind="refused")
UNWHOLE = an_agent("broken", error="x", error_kind="restore")

MARKS: list[tuple[str, JobSeen, E | None]] = [
    ("seen by the cloud", one(A.REQUESTED), E.INSTANCE_SEEN),
    ("not yet in the listing", one(A.REQUESTED, instance=None, launched_at=ago(5)), None),
    ("never in the listing", one(A.REQUESTED, instance=None), E.INSTANCE_GONE),
    ("the agent speaks", one(A.BOOTING, agent=an_agent("standby")), E.AGENT_READY),
    ("still booting", one(A.BOOTING), None),
    ("never boots", one(A.BOOTING, since=ago(700)), E.SILENT),
    ("gone while booting", one(A.BOOTING, instance=an_instance(gone=True)), E.INSTANCE_GONE),
    ("granted before the crash", one(A.READY, a_head(1)), E.EPOCH_GRANTED),
    ("silent while waiting", one(A.READY, agent=an_agent("standby", silent=80)), E.SILENT),
    ("the job runs", one(A.RESTORING, agent=an_agent("running")), E.WORKLOAD_STARTED),
    ("its first commit says so too", one(A.RESTORING, replace(SAVED, number=2)), E.WORKLOAD_STARTED),
    ("the restore failed", one(A.RESTORING, agent=an_agent("broken", error="bad")), E.RESTORE_FAILED),
    ("it can go on elsewhere", one(A.RESTORING, agent=an_agent("broken", error="x", error_kind="refused")), E.RESTORE_REFUSED),
    ("the store did not answer", one(A.RESTORING, agent=an_agent("broken", error="x", error_kind="store")), E.STORE_FAILED),
    ("its memory can't come", one(A.RUNNING, agent=an_agent("broken", error="x", error_kind="restore")), E.RESTORE_FAILED),
    ("nor while it drains", one(A.DRAINING, agent=an_agent("broken", error="x", error_kind="restore")), E.RESTORE_FAILED),
    ("broken in another way", one(A.RUNNING, agent=an_agent("broken", error="x", error_kind="lost")), None),
    ("an input is bad", one(A.RESTORING, agent=an_agent("broken", error="x", error_kind="input")), E.STORE_FAILED),
    ("its secrets do not open", one(A.RESTORING, agent=an_agent("broken", error="x", error_kind="secrets")), E.STORE_FAILED),
    ("its user is unknown", one(A.RESTORING, agent=an_agent("broken", error="x", error_kind="user")), E.STORE_FAILED),
    ("an agent of another version", one(A.RESTORING, agent=an_agent("broken", error="x", error_kind="news")), E.RESTORE_FAILED),
    ("found unfit while it waits", one(A.READY, NO_HEAD, agent=an_agent("standby", unfit="no avx")), E.RESTORE_REFUSED),
    ("fit while it waits", one(A.READY, NO_HEAD, agent=an_agent("standby")), None),
    ("no machine could", one(A.READY, NO_HEAD, agent=an_agent("standby", unfit="x", unfit_kind="image")), E.STORE_FAILED),
    ("it is not ready yet", one(A.BOOTING, since=ago(700), agent=an_agent("standby", waits="no registry")), None),
    ("not ready and silent", one(A.BOOTING, agent=an_agent("standby", silent=80, waits="no registry")), E.SILENT),
    ("it hangs while it boots", one(A.BOOTING, since=ago(700), agent=an_agent("boot")), E.SILENT),
    ("still restoring", one(A.RESTORING), None),
    ("it ended", one(A.RUNNING, a_head(1, 4, done=True, exit_code=0)), E.WORKLOAD_EXITED),
    ("closed by its user", one(A.RUNNING, a_head(1, 4, done=True, cancelled=True)), E.WORKLOAD_EXITED),
    ("ended while draining", one(A.DRAINING, a_head(1, 4, done=True, exit_code=0)), E.WORKLOAD_EXITED),
    ("final", one(A.DRAINING, replace(SAVED, final=True)), E.FINAL_SAVED),
    ("drained by itself", one(A.RUNNING, replace(SAVED, final=True)), E.FINAL_SAVED),
    ("gone without a word", one(A.RUNNING, instance=an_instance(gone=True)), E.INSTANCE_GONE),
    ("gone, its work done", one(A.RUNNING, replace(SAVED, final=True), instance=an_instance(gone=True)), E.FINAL_SAVED),
    ("silent for less than lease and margin", one(A.RUNNING, agent=an_agent(silent=70)), None),
    ("silent for longer", one(A.RUNNING, agent=an_agent(silent=76)), E.SILENT),
    ("the cloud gave notice", one(A.RUNNING, agent=noticed()), E.DRAIN_ASKED),
    ("notice before it ran", one(A.RESTORING, agent=noticed(state="restoring")), E.DRAIN_ASKED),
    ("gone, it said why", one(A.RESTORING, agent=BROKEN, instance=an_instance(gone=True)), E.RESTORE_REFUSED),
    ("gone, its memory lacked", one(A.RUNNING, agent=UNWHOLE, instance=an_instance(gone=True)), E.RESTORE_FAILED),
    ("confirmed gone", one(A.RELEASING, instance=an_instance(gone=True)), E.INSTANCE_GONE),
    ("still there", one(A.RELEASING, since=ago(5)), None),
    ("over", one(A.RELEASED, instance=None), None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "world", "expected"), MARKS, ids=[m[0] for m in MARKS])
def test_marks(name: str, world: JobSeen, expected: E | None) -> None:
    assert event(about(world)) == expected


@pytest.mark.parametrize(
    ("cancelled", "last", "released"),
    [(True, "the job was cancelled", "cancelled"), (False, "its command has ended", "finished")],
)
def test_the_machine_of_a_cancelled_job_says_so(cancelled: bool, last: str, released: str) -> None:
    """It was said to have finished."""
    head = a_head(1, 4, done=True, cancelled=cancelled, exit_code=None if cancelled else 0)
    for state, why in ((A.RUNNING, last), (A.FINISHED, released)):
        action = about(one(state, head))
        assert isinstance(action, Mark | Terminate) and action.reason == why


def test_a_plan_is_ordered_on_a_full_view_only() -> None:
    world = one(A.PLANNED)
    assert isinstance(about(world), Launch)
    assert about(world, listings=IN_PART) is None


def test_absence_is_no_evidence_in_a_partial_listing() -> None:
    world = one(A.RUNNING, instance=None, agent=an_agent(silent=40))
    assert event(about(world)) is E.INSTANCE_GONE
    assert about(world, listings=IN_PART) is None


def test_a_positive_end_counts_in_a_partial_listing_too() -> None:
    assert event(about(one(A.RUNNING, instance=an_instance(gone=True)), listings=IN_PART)) is E.INSTANCE_GONE


def test_lost_is_not_over() -> None:
    assert isinstance(about(one(A.LOST)), Terminate)


def test_an_order_to_end_is_repeated_after_a_while() -> None:
    assert isinstance(about(one(A.RELEASING, since=ago(61))), Terminate)


def test_a_drained_machine_gets_a_moment_for_its_last_report() -> None:
    talking = one(A.DRAINED, replace(SAVED, final=True), agent=an_agent("draining"), since=ago(3))
    assert about(talking) is None
    assert isinstance(about(one(A.DRAINED, replace(SAVED, final=True), since=ago(3))), Terminate)
    assert isinstance(about(one(A.DRAINED, replace(SAVED, final=True), agent=an_agent("draining"), since=ago(11))), Terminate)


def test_a_machine_that_cannot_do_the_work_is_given_back() -> None:
    action = about(one(A.BOOTING, agent=an_agent("broken", error="no CRIU")))
    assert isinstance(action, Terminate)
    assert action.reason == "no CRIU"


def test_a_waiter_with_a_notice_is_given_back() -> None:
    assert isinstance(about(one(A.READY, agent=noticed(state="standby"))), Terminate)


def test_waiters_go_when_the_job_is_held() -> None:
    world = replace(one(A.READY), job=a_job(wish=Wish.HOLD))
    assert isinstance(about(world), Terminate)


def test_a_drain_that_failed_leaves_the_job_running() -> None:
    failed = an_agent("running", drain_failed=4, error="the store is full")
    world = one(A.DRAINING, agent=failed, desired_sequence=4)
    action = about(replace(world, job=a_job(wish=Wish.HOLD)))
    assert isinstance(action, Ask)
    assert (action.want, action.event, action.reason) == ("run", E.SAVE_FAILED, "the store is full")


def test_a_failed_drain_after_a_notice_is_the_agents_business() -> None:
    failed = noticed(state="draining", drain_failed=4)
    assert about(one(A.DRAINING, agent=failed, desired_sequence=4)) is None


def test_a_drain_without_a_reason_is_withdrawn() -> None:
    action = about(one(A.DRAINING, desired_sequence=1))
    assert isinstance(action, Ask)
    assert action.event is E.DRAIN_WITHDRAWN


def test_the_seconds_left_are_told() -> None:
    action = about(one(A.RUNNING, agent=noticed()))
    assert isinstance(action, Ask)
    assert action.seconds_left == 90


def test_a_checkpoint_is_asked_for_once() -> None:
    world = replace(one(A.RUNNING, SAVED), job=a_job(save_at_least=3))
    action = about(world)
    assert isinstance(action, Ask)
    assert (action.want, action.save_at_least, action.event) == ("run", 3, None)
    assert about(replace(one(A.RUNNING, SAVED, desired_save=3), job=a_job(save_at_least=3))) is None


def test_an_unreadable_store_stops_no_job() -> None:
    assert about(replace(one(A.RUNNING), head=None)) is None
