"""Licences: what counts as out, who may order a machine or begin, and what those who wait are told. All of it is pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_instance, an_offer, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.launch import preview
from spotsurfer.model.actions import Decision, Grant, Plan, Terminate
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobId, JobState, Wish
from spotsurfer.model.licences import LicencePool
from spotsurfer.model.snapshot import HeadSeen, JobSeen

DONE = a_head(done=True, cancelled=True)
FINAL = a_head(final=True)


def job(name: str, *states: A, vcs: int = 1, age: float = 100, head: HeadSeen | None = None, **more: Any) -> JobSeen:
    own = [replace(an_attempt(n, state), job=JobId(name), token=f"{name}-{n}") for n, state in enumerate(states, 1)]
    own = [replace(a, **more.pop("attempt", {})) for a in own]
    facts = {key: more.pop(key) for key in ("instances", "agents") if key in more}
    spec = {"licences": {"vcs": vcs, **more.pop("licences", {})}, "priority": more.pop("priority", 0)}
    row = a_job(spec, id=JobId(name), submitted_at=ago(age), state=JobState.ACTIVE if own else JobState.QUEUED)
    return seen(own, head or (a_head() if own else seen().head), job=replace(row, **more), **facts)


def decided(*jobs: JobSeen, total: int = 1, **pools: int) -> Decision:
    known = {kind: LicencePool(kind, n) for kind, n in {"vcs": total, **pools}.items()}
    return decide(a_snapshot(*jobs, offers=[an_offer()], licences=known), Cheapest(60, 0.2), NOW)


def names(decision: Decision, kind: type[Grant] | type[Plan] | type[Terminate]) -> list[str]:
    return [a.job for a in decision.actions if isinstance(a, kind)]


def note(decision: Decision, name: str) -> str:
    return decision.notes[JobId(name)]


WAITS = job("waits", age=50)


@pytest.mark.parametrize(
    ("other", "free"),
    [
        (job("other", A.RUNNING), False),
        (job("other", A.RESTORING), False),
        (job("other", A.BOOTING), False),
        (job("other", A.LOST), False),  # it may run, wherever it is
        (job("other", A.LOST, instances={1: an_instance(gone=True)}), False),  # it goes on elsewhere
        (job("other", A.DRAINED, head=FINAL), False),  # the same
        (job("other", A.DRAINED, head=FINAL, wish=Wish.HOLD), True),
        (job("other", A.DRAINED, head=FINAL, attempt={"gave_way_to": "x"}, priority=-1), True),
        (job("other", A.DRAINED, head=FINAL, attempt={"drained": True}, resumed_at=ago(1), priority=-1), True),
        (job("other", A.RELEASING, attempt={"granted_at": ago(90)}, resumed_at=ago(1), instances={}), False),  # it was lost
        (job("other", A.DRAINING, wish=Wish.HOLD), True),  # a machine boots meanwhile
        (job("other", A.DRAINING), False),
        (job("other", A.RELEASED, priority=-1), True),
        (job("other", A.FINISHED, head=a_head(done=True, exit_code=0), state=JobState.SUCCEEDED), True),
        (job("other", A.RUNNING, licences={"vcs": 0}), True),
    ],
)
def test_when_a_machine_is_ordered_for_the_next_job(other: JobSeen, free: bool) -> None:
    found = decided(other, WAITS)
    assert ("waits" in names(found, Plan)) is free
    if not free:
        assert note(found, "waits") == "it waits for 1 of 1 licences vcs: held by other"


@pytest.mark.parametrize(
    ("other", "free"),
    [
        (job("other", A.DRAINING, wish=Wish.HOLD), False),  # it runs still
        (job("other", A.RUNNING, head=DONE, wish=Wish.CANCEL), False),  # its machine may not have heard of it
        (job("other", A.RUNNING, head=DONE, wish=Wish.CANCEL, agents={1: an_agent("fenced")}), True),
        (job("other", A.LOST, instances={1: an_instance(gone=True)}, attempt={"granted_at": ago(90)}), False),
        (job("other", A.DRAINED, head=FINAL, wish=Wish.HOLD), True),
        (replace(job("other", A.READY, wish=Wish.HOLD), head=None), False),  # it may have been granted
        (job("other", head=replace(a_head(), epoch=7)), False),  # a database from a backup does not know its machine
    ],
)
def test_when_the_next_job_may_begin(other: JobSeen, free: bool) -> None:
    found = decided(other, job("waits", A.READY, age=50, agents={1: an_agent("standby")}, head=seen().head))
    assert ("waits" in names(found, Grant)) is free


def test_a_machine_that_is_ready_waits_for_one_that_is_given_back() -> None:
    ready = job("waits", A.READY, age=50, agents={1: an_agent("standby")}, head=seen().head)
    found = decided(job("other", A.DRAINING, wish=Wish.HOLD), ready)
    assert names(found, Terminate) == []
    assert "it waits for 1 of 1 licences vcs: held by other" in note(found, "waits")


def test_two_in_one_look() -> None:
    ready = [job(f"r{n}", A.READY, age=90 - n, agents={1: an_agent("standby")}, head=seen().head) for n in range(3)]
    assert names(decided(*ready, total=2), Grant) == ["r0", "r1"]
    granted = decided(ready[0], WAITS)
    assert (names(granted, Grant), names(granted, Plan)) == (["r0"], [])
    assert names(decided(*(job(f"q{n}", age=90 - n) for n in range(3)), total=2), Plan) == ["q0", "q1"]


def test_all_or_none_and_in_order() -> None:
    both = job("both", licences={"route": 1}, age=90)
    vcs, other, urgent = (
        job("vcs", age=80),
        job("other", A.RUNNING, vcs=1, licences={"route": 1}),
        job("urgent", priority=5, age=1),
    )
    found = decided(other, both, vcs, total=2, route=1)
    assert names(found, Plan) == [], "what the first waits for is not given to those behind it"
    assert note(found, "both") == "it waits for 1 of 1 licences route: held by other"
    assert note(found, "vcs").endswith("held by other; both comes first")
    assert names(decided(other, both, vcs, urgent, total=2, route=1), Plan) == ["urgent"]
    huge = job("huge", vcs=9, age=99)
    found = decided(other, huge, vcs, total=2, route=1)
    assert names(found, Plan) == ["vcs"], "what can never be had keeps nobody waiting"
    assert note(found, "huge") == "it waits for 9 licences vcs, and there are 2 for jobs"


def test_fewer_than_before() -> None:
    jobs = [job("runs", A.RUNNING), job("first", A.BOOTING, age=90), job("last", A.BOOTING, age=80)]
    found = decided(*jobs, total=2)
    assert names(found, Terminate) == ["last"]
    assert names(found, Plan) == []


def test_what_is_said_of_pools_and_many_holders() -> None:
    no = note(decide(a_snapshot(WAITS, offers=[an_offer()]), Cheapest(60, 0.2), NOW), "waits")
    assert no == "it asks for 1 licences vcs, and there is no such pool: [licences] of the configuration says which are"
    many = [job(f"j{n}", A.RUNNING, age=100 - n) for n in range(6)]
    assert (
        note(decided(*many, WAITS, total=6), "waits") == "it waits for 1 of 6 licences vcs: held by j0, j1, j2, j3 and 2 more"
    )
    told = {"vcs": LicencePool("vcs", 0, "they can't be counted: x")}
    unknown = decide(a_snapshot(WAITS, licences=told, offers=[an_offer()]), Cheapest(60, 0.2), NOW)
    assert note(unknown, "waits") == "it waits for 1 licences vcs, and there are 0 for jobs; they can't be counted: x"


def test_a_dry_run_says_so() -> None:
    snapshot = a_snapshot(job("other", A.RUNNING), offers=[an_offer()], licences={"vcs": LicencePool("vcs", 1)})
    assert "held by other" in preview(WAITS.job, snapshot, Cheapest(60, 0.2), NOW).obstacle
