"""Where a connection is to go, by what is known of its job."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import a_job, an_attempt, seen

from spotsurfer.ingress.connection import At, Target, target_of
from spotsurfer.model.job import Attempt, HeldBy, JobState, Parent, Wish
from spotsurfer.model.job import AttemptState as A

ASLEEP = {"wish": Wish.HOLD, "held_by": HeldBy.IDLE}


@pytest.mark.parametrize(
    ("attempt", "job", "at"),
    [
        (an_attempt(1), {}, At.RUNS),
        (an_attempt(1, A.RESTORING), {}, At.COMES),
        (an_attempt(1, A.DRAINING), {}, At.COMES),
        (an_attempt(1, A.RELEASED), {}, At.COMES),
        (an_attempt(1, A.RELEASED), {"state": JobState.HELD, **ASLEEP}, At.SLEEPS),
        (an_attempt(1), ASLEEP, At.SLEEPS),
        (an_attempt(1, A.RELEASED), {"state": JobState.HELD, "wish": Wish.HOLD, "held_by": HeldBy.BUDGET}, At.AWAY),
        (an_attempt(1, A.RELEASED), {"state": JobState.HELD}, At.COMES),
        (an_attempt(1, A.RELEASED), {"state": JobState.HELD, "wish": Wish.HOLD}, At.AWAY),
        (an_attempt(1), {"wish": Wish.CANCEL}, At.AWAY),
        (an_attempt(1, A.FINISHED), {"state": JobState.SUCCEEDED}, At.AWAY),
        (an_attempt(1), {"parent": Parent(a_job().id, "000001-000001", rehearsal=True)}, At.AWAY),
    ],
)
def test_what_to_do_with_a_connection(attempt: Attempt, job: dict[str, Any], at: At) -> None:
    assert target_of(seen([attempt], job=a_job(**job))).at is at


def test_connections_live_as_long_as_the_job_is_on_that_machine() -> None:
    there = an_attempt(2)
    assert target_of(seen([an_attempt(1, A.RELEASED), there])) == Target(At.RUNS, 2, "token-2", there.since, there.instance)
    leaving = seen([an_attempt(2, A.DRAINING), an_attempt(3, A.READY)])
    assert target_of(leaving).attempt == 2
    assert target_of(seen([an_attempt(2, A.DRAINED), an_attempt(3, A.RESTORING)])).attempt == 0
