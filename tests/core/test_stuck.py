"""When a job is stuck: it runs, and does nothing at all for as long as its user allows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire.usage import Window
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.facts.attempt_view import phase
from spotsurfer.core.scheduling.stuck import makes_progress
from spotsurfer.model.actions import Action, SetStuck
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, JobState, Parent, Wish
from spotsurfer.model.snapshot import QuietSeen

SPEC = {"stuck_seconds": 600.0}
STILL = QuietSeen(ago(700), ago(5))
SAVED = a_head(1, 3, checkpoint="000001-000001", sequence=1)
RUNS = an_attempt(1, since=ago(5000))


def told(still: QuietSeen | None = STILL, spec: dict[str, Any] = SPEC, **changes: Any) -> SetStuck | None:
    job = a_job(spec, **changes.pop("job", {}))
    agent = an_agent(**changes.pop("agent", {}))
    world = seen([changes.pop("attempt", RUNS)], SAVED, job=job, agents={1: agent}, still=still)
    actions: tuple[Action, ...] = decide(a_snapshot(world), Cheapest(60, 0.2), NOW).actions
    return next((a for a in actions if isinstance(a, SetStuck)), None)


def test_it_is_told_once_with_since_when() -> None:
    found = told()
    assert found is not None
    assert (found.since, found.attempt) == (STILL.since, 1)
    assert found.reason.startswith("for 11m40s it used no processor, disk, network and printed nothing")
    assert told(job={"stuck_since": STILL.since}) is None, "that is known"


def test_it_is_told_when_it_works_again() -> None:
    known = {"stuck_since": ago(700)}
    found = told(QuietSeen(ago(20), ago(5)), job=known)
    assert found is not None
    assert (found.since, found.reason) == (None, "it works again")
    left = told(job=known, attempt=replace(RUNS, state=A.DRAINING, since=ago(5)))
    assert left is not None
    assert (left.since, left.reason) == (None, "it leaves its machine")


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {}},  # nobody asked
        {"spec": {"stuck_seconds": 720.0}},  # not yet
        {"still": None},  # nothing is known
        {"still": QuietSeen(ago(2000), ago(300))},  # silent since: an agent without news is another trouble
        {"attempt": replace(RUNS, since=ago(100))},  # just begun
        {"attempt": replace(RUNS, state=A.RESTORING)},
        {"attempt": replace(RUNS, state=A.DRAINING)},
        {"agent": {"frozen": True}},  # held still by its lease
        {"job": {"resumed_at": ago(60)}},
        {"job": {"wish": Wish.HOLD, "held_by": HeldBy.USER}},
        {"job": {"parent": Parent(a_job().id, "000001-000001", rehearsal=True)}},
    ],
)
def test_what_is_not_stuck(change: dict[str, Any]) -> None:
    assert told() is not None
    assert told(**change) is None


NOTHING = Window(1, 10.0, 0.0001, 0.001, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "progress"),
    [
        ({}, False),
        ({"cpu_cores": 0.01}, True),
        ({"own_disk_bytes": 8192.0}, False),
        ({"own_disk_bytes": 1e6}, True),
        ({"read_bytes": 1e9, "write_bytes": 1e9}, False),  # on some kernels those of the whole machine
        ({"received_bytes": 66.0, "sent_bytes": 66.0}, False),  # a keep-alive
        ({"received_bytes": 1e5}, True),
        ({"printed_bytes": 1.0}, True),
        ({"gpu_share": 0.0}, False),
        ({"gpu_share": 0.5}, True),
        ({"arriving_bytes": 1e9}, True),
        ({"memory_bytes": 1e9}, False),
    ],
)
def test_what_counts_as_progress(change: dict[str, float], progress: bool) -> None:
    assert makes_progress(a_job().spec, replace(NOTHING, **change)) is progress


def test_gpus_that_nobody_sees_may_be_at_work() -> None:
    assert makes_progress(a_job({"gpus": 1}).spec, NOTHING)


def test_people_see_it() -> None:
    job = a_job(SPEC, state=JobState.ACTIVE, stuck_since=NOW - timedelta(hours=1))
    assert phase(job, [RUNS]) == "stuck"
    assert phase(job, [replace(RUNS, state=A.DRAINING)]) == "saving"
