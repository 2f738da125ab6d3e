"""A machine that was drained keeps the job frozen until the job runs elsewhere: when it is kept, and when it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_instance, noticed, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.facts.ownership import tried_in_vain
from spotsurfer.model.actions import Action, GiveBack, Grant, Mark, Plan, Terminate
from spotsurfer.model.job import Attempt, AttemptState, Rewind, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import AgentSeen, HeadSeen, JobSeen, Limits
from spotsurfer.model.state_machine import AttemptEvent as E

FINAL = "000001-000003"
KEEPS = an_agent("keeping", kept=FINAL)
OWN = a_head(1, 3, checkpoint=FINAL, sequence=3, final=True, checkpoints=(FINAL,))  # nobody was granted the job since
GRANTED = a_head(2, 4, checkpoint=FINAL, sequence=3, checkpoints=(FINAL,), grants=((1, None), (4, FINAL)))
BROKEN = an_agent("broken", error="a chunk is damaged", error_kind="restore")


def source(**changes: Any) -> Attempt:
    return an_attempt(1, A.DRAINED, **{"since": ago(5), "drained": True, **changes})


def target(state: AttemptState = A.RESTORING, **changes: Any) -> Attempt:
    owns = {"granted_at": ago(4), "head_number": 4, "from_checkpoint": FINAL} if state is not A.READY else {}
    return an_attempt(2, state, **{"since": ago(4), **owns, **changes})


def a_world(
    there: Attempt | None, says: AgentSeen | None, head: HeadSeen = GRANTED, keeper: AgentSeen = KEEPS, **changes: Any
) -> JobSeen:
    agents = {1: keeper, **({2: says} if says is not None else {})}
    first = changes.pop("first", source())
    return seen([first, *([there] if there is not None else [])], head, agents=agents, **changes)


def decided(world: JobSeen, **limits: Any) -> Sequence[Action]:
    return decide(a_snapshot(world, limits=Limits(**limits)), Cheapest(60.0, 0.2), NOW).actions


def back(world: JobSeen, **limits: Any) -> GiveBack | None:
    return next((a for a in decided(world, **limits) if isinstance(a, GiveBack)), None)


def released(world: JobSeen, **limits: Any) -> bool:
    return any(isinstance(a, Terminate) and a.attempt == 1 for a in decided(world, **limits))


def test_it_is_kept_while_the_job_is_restored() -> None:
    world = a_world(target(), an_agent("restoring"))
    assert not released(world)
    assert back(world) is None


def test_it_is_kept_until_all_memory_is_there() -> None:
    assert not released(a_world(target(A.RUNNING), an_agent("running", arriving=True)))
    assert not released(a_world(target(A.RUNNING), an_agent("running", pressed=True))), "it stands still for want of memory"
    assert released(a_world(target(A.RUNNING), an_agent("running")))


@pytest.mark.parametrize("kind", ["restore", "store", "refused"])
def test_it_comes_back_in_the_look_that_sees_the_failure(kind: str) -> None:
    actions = decided(a_world(target(), replace(BROKEN, error_kind=kind)))
    assert any(isinstance(a, Mark) and a.attempt == 2 for a in actions)
    given = next(a for a in actions if isinstance(a, GiveBack))
    assert (given.attempt, given.after, given.checkpoint) == (1, 4, FINAL)
    assert "a chunk is damaged" in given.reason
    assert not any(isinstance(a, Plan | Grant) for a in actions), "nobody is bought for a job that is there"


def test_it_comes_back_from_a_target_that_is_gone() -> None:
    gone = {1: an_instance(1), 2: an_instance(2, gone=True)}
    assert back(a_world(target(), an_agent("restoring"), instances=gone)) is not None


def test_nobody_else_may_have_it() -> None:
    """The target is lost, and nothing shows that it stands still."""
    quiet = an_agent("restoring", silent=40.0)
    assert back(a_world(target(A.LOST), quiet)) is None
    assert back(a_world(target(A.LOST), an_agent("restoring", silent=80.0))) is not None


def test_what_was_saved_since_is_not_undone() -> None:
    newer = replace(GRANTED, number=5, checkpoint="000002-000004", checkpoints=(FINAL, "000002-000004"))
    world = a_world(target(A.LOST), BROKEN, newer)
    assert back(world) is None
    assert released(world)


def test_it_goes_on_elsewhere_where_somebody_can_take_it() -> None:
    actions = decided(a_world(target(A.READY), an_agent("standby"), OWN))
    assert [type(a) for a in actions if isinstance(a, Grant | GiveBack)] == [Grant]


def test_it_comes_back_where_nobody_is_there_any_more() -> None:
    assert back(a_world(target(A.RELEASING, granted_at=None, head_number=0), None, OWN)) is not None


def test_who_can_not_take_it_yet_is_waited_for_a_moment() -> None:
    busy = an_agent("standby", waits="its image is fetched")
    assert back(a_world(target(A.READY), busy, OWN)) is None
    assert back(a_world(target(A.READY), busy, OWN, first=source(since=ago(20)))) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"job": a_job(wish=Wish.HOLD)},
        {"job": a_job(wish=Wish.CANCEL)},
        {"job": a_job(rewind=Rewind("000001-000001", 4))},
        {"first": source(since=ago(301))},
        {"keeper": an_agent("drained")},
        {"keeper": replace(noticed(state="keeping", kept=FINAL), notice_deadline_at=NOW)},
    ],
    ids=["suspended", "cancelled", "goes back", "for too long", "keeps nothing", "the cloud takes it"],
)
def test_it_is_kept_no_longer_than_there_is_a_use_for_it(changes: dict[str, Any]) -> None:
    world = a_world(target(A.LOST), BROKEN, **changes)
    assert back(world) is None
    assert released(world)


def test_with_a_notice_it_comes_back_while_there_is_time_to_save_it_again() -> None:
    assert back(a_world(target(), BROKEN, keeper=noticed(state="keeping", kept=FINAL))) is not None


def test_a_record_that_was_missed_is_made_up_for() -> None:
    """We crashed between the head entry and its record."""
    given = a_head(1, 5, checkpoint=FINAL, sequence=3, checkpoints=(FINAL,))
    marks = [a for a in decided(a_world(target(A.LOST), BROKEN, given)) if isinstance(a, Mark)]
    assert [(m.attempt, m.event) for m in marks if m.attempt == 1] == [(1, E.GIVEN_BACK)]


def test_who_failed_needs_no_second_proof_once_the_job_was_given_back() -> None:
    """Its report and its machine may be forgotten by then; the entry that gave the job back was written with proof."""
    given = a_head(1, 5, checkpoint=FINAL, sequence=3, final=True, checkpoints=(FINAL,))
    world = a_world(target(A.RELEASING), None, given, first=source(head_number=5))
    waits = an_attempt(3, A.READY)
    more = replace(world, attempts=[*world.attempts, waits], agents={**world.agents, 3: an_agent("standby")})
    assert any(isinstance(a, Grant) and a.attempt == 3 for a in decided(more))


def test_a_checkpoint_that_could_not_be_restored_is_marked_with_the_reason() -> None:
    failed = an_attempt(2, A.RELEASED, restore_failed=True, from_checkpoint=FINAL, reason="a chunk is damaged")
    refused = an_attempt(3, A.RELEASED, restore_refused=True, from_checkpoint=FINAL, reason="no avx512")
    assert tried_in_vain([source(), failed, refused], FINAL) == "attempt 2 on small could not restore it: a chunk is damaged"
    assert tried_in_vain([source(), refused], FINAL) == "attempt 3 on small could not go on with it: no avx512"
    assert tried_in_vain([source(), failed], "000001-000002") == ""
    assert tried_in_vain([source()], None) == ""
