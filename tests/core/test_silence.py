"""When silence is evidence, and how a doubt about it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_instance, seen

from spotsurfer.core.decide import ASKS_SECONDS, GIVES_UP_SECONDS, decide
from spotsurfer.model.actions import Mark, Plan, Terminate
from spotsurfer.model.job import Attempt, JobId, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import Hearing, JobSeen, Limits
from spotsurfer.model.state_machine import AttemptEvent as E

LONG = 10 * GIVES_UP_SECONDS  # for so long all these machines run
LAPSED = 75.0  # lease and margin
FULL = Limits(instances_max=4)


def a_holder(name: str, silent: float, launched: float = LONG, others: Sequence[Attempt] = (), **changes: Any) -> JobSeen:
    """A job on a machine that was ordered `launched` seconds ago and spoke last `silent` seconds ago."""
    holder = an_attempt(1, since=ago(launched), planned_at=ago(launched), launched_at=ago(launched))
    attempts = [replace(a, job=JobId(name)) for a in (holder, *others)]
    values = {"job": a_job(id=JobId(name)), "agents": {1: an_agent(silent=silent)}, **changes}
    return seen(attempts, a_head(), **values)


def a_fleet(silent: float, number: int = 3, **changes: Any) -> list[JobSeen]:
    """So many that are silent, and one that speaks."""
    return [*(a_holder(f"job-{i}", silent, **changes) for i in range(number)), a_holder("well", 1.0)]


def acts(kind: type, fleet: Sequence[JobSeen], limits: Limits = FULL) -> list[Any]:
    found = decide(a_snapshot(*fleet, limits=limits), Cheapest(60, 0.2), NOW).actions
    return [a for a in found if isinstance(a, kind)]


def given_up(fleet: Sequence[JobSeen], limits: Limits = FULL) -> list[tuple[str, int]]:
    return [(m.job, m.attempt) for m in acts(Mark, fleet, limits) if m.event is E.SILENT]


# ---- credentials


def test_who_is_handed_credentials_anew_lifts_no_doubt_about_the_others() -> None:
    """It counted as not quiet for half a lease, so the others were no majority any more, and were given up at once."""
    fleet = a_fleet(silent=200.0)
    assert given_up(fleet) == []
    assert given_up([replace(fleet[0], silent_from={1: ago(10)}), *fleet[1:]]) == []


def test_a_new_machine_is_evidence_only_against_who_had_credentials_for_long_enough() -> None:
    """Nobody could renew any, so all fell silent. Then all were handed some, and a new machine speaks first."""
    new = a_holder("new", 1.0, launched=300.0)
    for handed, expected in ((20.0, 0), (LAPSED - 1, 0), (LAPSED + 1, 3)):
        fleet = a_fleet(silent=7000.0, silent_from={1: ago(handed)})
        assert given_up(fleet) == [], "without a new machine"
        assert len(given_up([*fleet, new])) == expected, handed


# ---- listings


@pytest.mark.parametrize(("silent", "expected"), [(1.0, None), (29.0, None), (31.0, E.INSTANCE_GONE)])
def test_who_speaks_is_there_whatever_a_listing_leaves_out(silent: float, expected: E | None) -> None:
    """One listing without our machines, which called itself complete, ended the whole fleet."""
    world = a_holder("job-0", silent, instances={})
    assert [m.event for m in acts(Mark, [world])] == ([] if expected is None else [expected])
    said = replace(world, instances={1: an_instance(gone=True)})
    assert [m.event for m in acts(Mark, [said])] == [E.INSTANCE_GONE], "the cloud says that it ended"


@pytest.mark.parametrize(("heard", "expected"), [(0.0, []), (1.0, [E.INSTANCE_GONE])])
def test_who_may_have_spoken_before_we_could_hear_is_there_all_the_same(heard: float, expected: list[E]) -> None:
    """A controller that was just started, and could not list the reports, ended all machines after one such listing."""
    world = a_holder("job-0", 1.0, instances={}, agents={})
    hearing = Hearing(((ago(10 * LONG), ago(heard)),))
    found = decide(a_snapshot(world, hearing=hearing), Cheapest(60, 0.2), NOW).actions
    assert [a.event for a in found if isinstance(a, Mark)] == expected


def test_a_machine_that_ended_while_it_booted_is_known_to_be_gone() -> None:
    for since, expected in ((29.0, []), (31.0, [E.INSTANCE_GONE])):
        attempt = an_attempt(1, A.BOOTING, since=ago(since), launched_at=ago(since), planned_at=ago(since))
        world = seen([attempt], a_head(epoch=0), instances={}, agents={})
        assert [m.event for m in acts(Mark, [world])] == expected


# ---- how a doubt ends


def test_a_new_machine_is_ordered_that_shows_whether_the_store_takes_reports() -> None:
    """Nobody ordered one, so the jobs stood still for ever."""
    room = Limits()
    assert acts(Plan, a_fleet(LAPSED + ASKS_SECONDS - 1), room) == []
    (plan,) = acts(Plan, a_fleet(LAPSED + ASKS_SECONDS + 1), room)
    assert (plan.job, plan.attempt) == ("job-0", 2)
    assert "shows whether the store takes reports" in plan.reason
    assert given_up(a_fleet(LAPSED + ASKS_SECONDS + 1), room) == []


def test_credentials_that_nobody_could_renew_are_no_reason_to_order_one() -> None:
    assert acts(Plan, a_fleet(silent=7000.0, silent_from={1: ago(800)}), Limits()) == []


def a_probe(state: A, ordered: float) -> Attempt:
    """The machine that was ordered to find out, as it is `ordered` seconds later."""
    purpose = "a new machine shows whether the store takes reports"
    return an_attempt(2, state, purpose=purpose, since=ago(5), planned_at=ago(ordered), launched_at=ago(ordered))


def test_one_at_a_time_and_the_next_one_for_another_job() -> None:
    for state, ordered, expected in ((A.BOOTING, 500.0, []), (A.RELEASED, 1700.0, []), (A.RELEASED, 1900.0, ["job-1"])):
        fleet = a_fleet(5000.0)
        fleet[0] = a_holder("job-0", 5000.0, others=[a_probe(state, ordered)])
        assert [p.job for p in acts(Plan, fleet, Limits())] == expected, (state, ordered)
        assert acts(Terminate, fleet, Limits()) == []


def test_it_waits_beside_a_silent_holder_and_goes_when_that_one_speaks() -> None:
    """What it shows is not that it should have the job."""
    probe, agents = a_probe(A.READY, 100.0), {1: an_agent(silent=1000.0), 2: an_agent("standby")}
    fleet = a_fleet(1000.0)
    fleet[0] = a_holder("job-0", 1000.0, others=[probe], agents=agents)
    assert sorted(given_up(fleet)) == [("job-0", 1), ("job-1", 1), ("job-2", 1)]
    assert acts(Terminate, fleet) == []
    well = a_fleet(1.0)
    well[0] = a_holder("job-0", 1.0, others=[probe], agents={**agents, 1: an_agent(silent=1.0)})
    assert [(t.job, t.attempt) for t in acts(Terminate, well)] == [("job-0", 2)]


def test_where_no_machine_can_be_ordered_the_one_with_the_least_to_lose_is_given_up_after_hours() -> None:
    fleet = a_fleet(LAPSED + GIVES_UP_SECONDS + 1, at_risk_seconds=500.0)
    fleet[1] = replace(fleet[1], at_risk_seconds=20.0)
    assert given_up(fleet) == [("job-1", 1)]
    assert given_up(a_fleet(LAPSED + GIVES_UP_SECONDS - 1)) == []
    assert given_up(fleet, Limits()) == [("job-1", 1)], "there was room for hours, and none was ordered: no offer fits, say"


def test_an_older_machine_that_stands_by_and_speaks_tells_nothing() -> None:
    """It waited for a grant that the doubt forbids, and the doubt for it: for ever."""
    waiter = an_attempt(2, A.READY, since=ago(LONG), planned_at=ago(LONG), launched_at=ago(LONG))
    for silent, asked, ended in (
        (LAPSED + ASKS_SECONDS + 1, ["job-1"], []),
        (LAPSED + GIVES_UP_SECONDS + 1, ["job-1"], [("job-1", 1)]),
    ):
        agents = {1: an_agent(silent=silent), 2: an_agent("standby")}
        fleet = a_fleet(silent, 3, at_risk_seconds=20.0)
        fleet[0] = a_holder("job-0", silent, others=[waiter], agents=agents, at_risk_seconds=500.0)
        assert [p.job for p in acts(Plan, fleet, Limits())] == asked, "the one with a waiter needs no other machine"
        assert given_up(fleet) == ended


def test_suspended_jobs_stand_in_doubt_no_longer_than_others() -> None:
    """No machine is ordered for them, so nothing would ever show how they are."""
    held = a_job(wish=Wish.HOLD)
    fleet = a_fleet(LAPSED + GIVES_UP_SECONDS + 1)
    fleet = [replace(s, job=replace(held, id=s.job.id)) if s.job.id != "well" else s for s in fleet]
    assert given_up(fleet, Limits()) == [("job-0", 1)]


def test_the_next_one_is_given_up_only_after_the_first_had_time_to_be_replaced() -> None:
    left = an_attempt(1, A.RELEASED, launched_at=ago(LONG))
    for since, expected in ((1700.0, []), (1900.0, [("job-1", 1)])):
        fleet = a_fleet(20_000.0)
        fleet[0] = seen([replace(left, job=JobId("job-0"), since=ago(since))], a_head(), job=a_job(id=JobId("job-0")))
        assert given_up(fleet) == expected


def test_a_machine_that_was_given_up_in_doubt_has_to_be_gone_before_another_owns_its_job() -> None:
    lost = an_attempt(1, A.LOST, job=JobId("job-0"), since=ago(60))
    ready = an_attempt(2, A.READY, job=JobId("job-0"), since=ago(5), launched_at=ago(50), planned_at=ago(50))
    agents = {1: an_agent(silent=9000.0), 2: an_agent("standby", silent=40.0)}
    fleet = a_fleet(9000.0)
    fleet[0] = seen([lost, ready], a_head(), job=a_job(id=JobId("job-0")), agents=agents)
    decision = decide(a_snapshot(*fleet, limits=FULL), Cheapest(60, 0.2), NOW)
    assert any("may still run: wait until it is gone" in r.why for r in decision.rejected)
