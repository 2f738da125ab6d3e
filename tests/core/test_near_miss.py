"""A job that nearly ran out of memory goes on where there is more of it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire import head_log
from spotsurfer_wire.head_log import Place
from support.builders import NOW, POOL, a_head, a_job, a_snapshot, an_agent, an_attempt, an_instance, an_offer, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.capacity import MEMORY_KILLS_MAX
from spotsurfer.core.scheduling.launch import PRESSED
from spotsurfer.model.actions import Action, Ask, Close, Decision, EndJob, Mark, Plan, SetWish
from spotsurfer.model.job import MEMORY, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import JobSeen
from spotsurfer.model.state_machine import JobEvent
from spotsurfer.store.head_logs import summary

FLOOR = 12 << 30
LARGE = replace(an_offer(price=90_000, pool=replace(POOL, instance_type="large")), memory_bytes=16 << 30)
NEEDS_MORE = a_job({"memory_bytes": FLOOR})


def decided(world: JobSeen, offers: list[Offer]) -> Decision:
    return decide(a_snapshot(world, offers=offers), Cheapest(60, 0.2), NOW)


def planned(decision: Decision) -> Plan | None:
    return next((a for a in decision.actions if isinstance(a, Plan)), None)


def pressed(*more: object, **changes: object) -> JobSeen:
    attempts = [an_attempt(1), *more]
    agents = {1: an_agent("draining", pressed=True)}
    return seen(attempts, a_head(), job=NEEDS_MORE, memory_floor_bytes=FLOOR, agents=agents, **changes)  # type: ignore[arg-type]


def test_a_larger_machine_is_ordered_while_it_is_saved() -> None:
    plan = planned(decided(pressed(), [an_offer(), LARGE]))
    assert plan is not None
    assert (plan.offer, plan.reason) == (LARGE, PRESSED)


def test_where_there_is_none_it_waits_and_says_for_what() -> None:
    decision = decided(
        seen([an_attempt(1, A.RELEASED)], a_head(final=True), job=NEEDS_MORE, memory_floor_bytes=FLOOR), [an_offer()]
    )
    assert planned(decision) is None
    assert "12.0 GiB; the largest on offer has 8.0" in decision.notes[NEEDS_MORE.id]


def test_a_machine_that_was_ordered_before_is_let_go() -> None:
    decision = decided(pressed(an_attempt(2, A.BOOTING)), [an_offer(), LARGE])
    acted: list[Action] = [a for a in decision.actions if getattr(a, "attempt", None) == 2]
    assert acted
    assert not any(isinstance(a, Ask) for a in acted)


def killed(times: int, **changes: object) -> JobSeen:
    """The kernel killed the job so often; its next machine must have 12 GiB."""
    gone = [an_attempt(n, A.RELEASED, granted_at=NOW) for n in range(1, times + 1)]
    kills = frozenset(a.number for a in gone)
    return seen(gone, a_head(), memory_floor_bytes=FLOOR, memory_kills=kills, **({"job": NEEDS_MORE} | changes))  # type: ignore[arg-type]


def test_one_that_the_kernel_killed_goes_on_where_there_is_more() -> None:
    plan = planned(decided(killed(1), [an_offer(), LARGE]))
    assert plan is not None
    assert plan.offer == LARGE


def test_the_attempt_tells_why_it_ended_though_its_machine_is_gone_already() -> None:
    said = an_agent("broken", error="the kernel killed it", error_kind="lost")
    world = seen([an_attempt(1)], a_head(), agents={1: said}, instances={1: an_instance(gone=True)})
    assert [a.reason for a in decided(world, []).actions if isinstance(a, Mark)] == ["the kernel killed it"]


def held(decision: Decision) -> str:
    wish = next((a for a in decision.actions if isinstance(a, SetWish)), None)
    assert wish is not None
    assert wish.wish is Wish.HOLD
    return wish.reason


def test_it_is_held_when_that_did_not_help() -> None:
    assert "killed it 3 times" in held(decided(killed(MEMORY_KILLS_MAX), [an_offer(), LARGE]))


def test_it_is_held_where_there_is_nothing_larger() -> None:
    assert "12.0 GiB, and the largest machine on offer has 8.0" in held(decided(killed(1), [an_offer()]))
    assert planned(decided(killed(1), [])) is None  # nothing is known of what there is: it waits


def test_it_ends_if_its_user_wants_it_to() -> None:
    job = replace(NEEDS_MORE, spec=replace(NEEDS_MORE.spec, out_of_memory="fail"))
    for world, offers in ((killed(MEMORY_KILLS_MAX, job=job), [an_offer(), LARGE]), (killed(1, job=job), [an_offer()])):
        (close,) = [a for a in decided(world, offers).actions if isinstance(a, Close)]
        assert close.ended_by == MEMORY
        first = head_log.granted(Place(1, "g", ""), 1, None, 0, None)
        log = [first, head_log.closed(Place(2, "c", ""), first, close.ended_by)]
        ended = decided(replace(world, head=summary(log)), offers).actions
        (end,) = [a for a in ended if isinstance(a, EndJob)]
        assert (end.event, end.ended_by, end.exit_code) == (JobEvent.FAILED, MEMORY, None)
        assert "memory ended" in end.reason
    assert not [a for a in decided(killed(1, job=job), [an_offer(), LARGE]).actions if isinstance(a, Close)]


def test_one_that_runs_on_is_not_held_because_offers_are_gone() -> None:
    world = killed(1)
    on = replace(world, attempts=[*world.attempts, an_attempt(2, pool=LARGE.pool)], agents={2: an_agent()})
    assert not [a for a in decided(on, [an_offer()]).actions if isinstance(a, SetWish)]


def test_who_resumes_it_gets_new_tries() -> None:
    again = replace(NEEDS_MORE, resumed_at=NOW + timedelta(seconds=1))
    assert planned(decided(killed(MEMORY_KILLS_MAX, job=again), [an_offer(), LARGE])) is not None


def test_one_that_is_large_enough_is_kept_until_the_job_runs_on_after_all() -> None:
    waiter = an_attempt(2, A.BOOTING, pool=LARGE.pool, purpose=PRESSED)
    assert not [a for a in decided(pressed(waiter), [an_offer(), LARGE]).actions if getattr(a, "attempt", None) == 2]
    calm = seen([an_attempt(1), waiter], a_head(), job=NEEDS_MORE, memory_floor_bytes=FLOOR, agents={1: an_agent()})
    assert [a for a in decided(calm, [an_offer(), LARGE]).actions if getattr(a, "attempt", None) == 2]
