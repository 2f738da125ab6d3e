"""Kept machines: who takes one, who leaves one, and when it is ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, POOL, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_offer, noticed, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.capacity import strangers
from spotsurfer.core.scheduling.machines import keep_seconds
from spotsurfer.model.actions import EndMachine, Launch, Leave, MachineGone, Mark, Plan, Terminate
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import InstanceId, JobId, JobPort, JobState, Parent
from spotsurfer.model.machine import Machine
from spotsurfer.model.machine import MachineState as M
from spotsurfer.model.market import Market
from spotsurfer.model.snapshot import InstanceSeen, JobSeen, Limits, MachineSeen, SizeSeen, Waiting
from spotsurfer.model.state_machine import AttemptEvent

LIMITS = Limits(idle_seconds=60.0, keeps=frozenset({POOL.provider}))
UP = InstanceSeen(InstanceId("i-1"), "token-1", gone=False, reclaimed=False, launched_at=ago(500))
PEER = Parent(JobId("other"), "c", rehearsal=True)


def a_machine(**changes: Any) -> MachineSeen:
    """One that has been up for a while, and lost its last job some seconds ago."""
    of_seen = {name: changes.pop(name) for name in ("instance", "noticed") if name in changes}
    made = Machine("token-1", M.UP, ago(400), POOL, Market.SPOT, 30_000, 100_000, cpus=4, memory_bytes=8 << 30)
    made = replace(made, keep_seconds=60.0, slots=2, instance=UP.id, idle_since=ago(5))
    found = MachineSeen(replace(made, **{n: v for n, v in changes.items() if n != "instance"}), UP)
    return replace(found, **of_seen)


def queued(name: str = "next", spec: dict[str, Any] | None = None, **changes: Any) -> JobSeen:
    return seen(job=a_job(spec, id=JobId(name), **{"state": JobState.QUEUED, **changes}))


def tenant(state: A = A.RUNNING, says: str = "", spec: dict[str, Any] | None = None, **changes: Any) -> JobSeen:
    """The first job of the machine."""
    done = {"done": True, "exit_code": 0} if state in (A.FINISHED, A.RELEASING) else {}
    some = seen([an_attempt(1, state, **changes)], a_head(**done), job=a_job(spec))
    return replace(some, agents={1: an_agent(says)}) if says else some


def decided(*jobs: JobSeen, machine: MachineSeen | None = None, **values: Any) -> list[Any]:
    there = machine or a_machine()
    world = a_snapshot(*jobs, machines={there.machine.token: there}, **{"limits": LIMITS, **values})
    return list(decide(world, Cheapest(10.0, 0.2), NOW).actions)


def planned(actions: list[Any]) -> list[str]:
    """The machine of each plan; "" = one is bought."""
    return [a.machine for a in actions if isinstance(a, Plan)]


def ended(actions: list[Any]) -> list[str]:
    return [a.reason for a in actions if isinstance(a, EndMachine)]


@pytest.mark.parametrize(
    ("changes", "spec", "takes"),
    [
        ({}, {}, True),
        ({"owner": "ada"}, {}, False),
        ({"noticed": True}, {}, False),
        ({"instance": None}, {}, False),
        ({"instance": replace(UP, gone=True)}, {}, False),
        ({"state": M.RELEASING}, {}, False),
        ({"state": M.REQUESTED}, {}, False),
        ({"market": Market.ON_DEMAND, "price_usd_micros_per_hour": 100_000}, {}, False),  # far dearer than what is on offer
        ({"price_usd_micros_per_hour": 36_000}, {}, True),
        ({"price_usd_micros_per_hour": 40_000}, {}, False),
        ({"pool": replace(POOL, instance_type="large")}, {}, False),
        ({"pool": replace(POOL, zone="b")}, {}, True),
        ({}, {"ports": (JobPort("web", 80),)}, False),
        ({"cpus": 0}, {}, False),  # its size was lost
    ],
)
def test_a_job_takes_a_machine_of_its_owner_that_would_be_bought(
    changes: dict[str, Any], spec: dict[str, Any], takes: bool
) -> None:
    assert planned(decided(queued(spec=spec), machine=a_machine(**changes))) == ["token-1" if takes else ""]


def test_a_rehearsal_has_a_machine_for_itself_that_is_not_kept() -> None:
    (plan,) = [a for a in decided(queued(parent=PEER)) if isinstance(a, Plan)]
    assert (plan.machine, plan.keep_seconds) == ("", 0.0)


@pytest.mark.parametrize(
    ("limits", "kept"), [(LIMITS, 60.0), (replace(LIMITS, idle_seconds=0.0), 0.0), (Limits(idle_seconds=60.0), 0.0)]
)
def test_a_machine_is_bought_to_be_kept_if_that_is_possible(limits: Limits, kept: float) -> None:
    world = a_snapshot(queued(), limits=limits)
    (plan,) = [a for a in decide(world, Cheapest(10.0, 0.2), NOW).actions if isinstance(a, Plan)]
    assert plan.keep_seconds == kept


@pytest.mark.parametrize(("spec", "kept"), [({}, 60.0), ({"gpus": 1}, 0.0), ({"ports": (JobPort("web", 80),)}, 0.0)])
def test_a_machine_for_a_job_that_slots_do_not_suit_goes_with_it(spec: dict[str, Any], kept: float) -> None:
    assert keep_seconds(a_job(spec), an_offer(), LIMITS) == kept


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ({"cpus": 2}, {"cpus": 2}, True),
        ({"cpus": 3}, {"cpus": 2}, False),
        ({"memory_bytes": 3 << 30}, {"memory_bytes": 3 << 30}, True),
        ({"memory_bytes": 4 << 30}, {"memory_bytes": 4 << 30}, False),  # their agents need some, too
        ({"gpus": 1}, {}, False),
    ],
)
def test_jobs_are_packed_by_processors_and_memory(first: dict[str, Any], second: dict[str, Any], together: bool) -> None:
    assert planned(decided(tenant(spec=first), queued(spec=second))) == ["token-1" if together else ""]


@pytest.mark.parametrize(
    ("holds", "changes", "together"),
    [
        (2 << 30, {}, True),
        (4 << 30, {}, False),  # it asked for 1 GiB; its part of the machine would be half of 8, and it holds more
        (2 << 30, {"memory_floor_bytes": 1 << 30}, False),  # memory ended for it before: nobody knows its part
        (2 << 30, {"size": SizeSeen("large", "large", False, frozenset(), 0, "")}, False),
    ],
)
def test_nobody_joins_a_job_that_holds_the_memory_of_others(holds: int, changes: dict[str, Any], together: bool) -> None:
    there = replace(tenant(), agents={1: replace(an_agent(), resident_bytes=holds)}, **changes)
    assert planned(decided(there, queued())) == ["token-1" if together else ""]


@pytest.mark.parametrize("state", [A.RUNNING, A.FINISHED])  # its end is seen now, or was seen before
def test_a_job_that_has_ended_makes_room_before_its_agent_says_so(state: A) -> None:
    """Otherwise the next one, for which there is a licence now, buys a machine; but who was cancelled may still run."""
    whole = {"cpus": 4}
    ended = replace(tenant(state, "running", spec=whole), head=a_head(done=True, exit_code=0))
    assert planned(decided(ended, queued(spec=whole))) == ["token-1"]
    cancelled = replace(ended, head=a_head(done=True, cancelled=True))
    assert planned(decided(cancelled, queued(spec=whole))) == [""]


def test_two_jobs_of_one_decision_do_not_take_the_same_place() -> None:
    jobs = (queued("a", {"cpus": 3}), queued("b", {"cpus": 3}))
    assert sorted(planned(decided(*jobs))) == ["", "token-1"]


SPOILED = [tenant(A.LOST), replace(tenant(), agents={1: noticed()}), tenant(A.RELEASING, "running", since=ago(90))]


@pytest.mark.parametrize("first", SPOILED)
def test_a_machine_on_which_something_went_wrong_takes_no_job(first: JobSeen) -> None:
    assert planned(decided(first, queued()))[-1] == ""


@pytest.mark.parametrize(
    ("first", "others", "leaves"),
    [
        (tenant(A.FINISHED), (queued(),), True),
        (tenant(A.FINISHED), (), False),  # the queue is dry: it ends with its job, as one that is not kept
        (tenant(A.FINISHED), (queued(spec={"cpus": 8}),), False),  # nobody could use it
        (tenant(A.FINISHED), (queued(owner="ada"),), False),
        (tenant(A.DRAINED), (queued(),), True),
        (tenant(A.LOST), (queued(),), False),
        (replace(tenant(A.FINISHED), agents={1: noticed(state="finished")}), (queued(),), False),
    ],
)
def test_an_attempt_leaves_a_machine_that_another_job_could_use(
    first: JobSeen, others: tuple[JobSeen, ...], leaves: bool
) -> None:
    some = replace(first, head=a_head(final=True, checkpoint="c")) if first.attempts[0].state is A.DRAINED else first
    offers = [an_offer(pool=replace(POOL, instance_type="other"))]  # so that it is not taken in the same decision
    kinds = {type(a) for a in decided(some, *others, offers=offers) if isinstance(a, Leave | Terminate)}
    assert kinds == {Leave if leaves else Terminate}


def test_with_others_on_it_a_machine_is_not_ended_for_one_that_is_lost() -> None:
    other = seen([an_attempt(1, job=JobId("other"), slot=1)], a_head(), job=a_job(id=JobId("other")))
    assert {type(a) for a in decided(tenant(A.LOST), other) if isinstance(a, Leave | Terminate)} == {Leave}


def test_two_that_leave_a_machine_and_never_say_so_do_not_wait_for_each_other() -> None:
    """One that never booted: it was paid for ever, as each of them left its end to the other."""
    late, job = an_attempt(1, A.RELEASING, job=JobId("other"), slot=1, since=ago(90)), a_job(id=JobId("other"))
    silent = replace(tenant(A.RELEASING, since=ago(90)), agents={})
    actions = decided(silent, seen([late], a_head(), job=job, agents={}))
    assert {type(a) for a in actions if isinstance(a, Leave | Terminate)} == {Terminate}


@pytest.mark.parametrize(("says", "empty"), [("finished", True), ("publishing", False)])
def test_a_slot_is_empty_when_its_agent_says_so(says: str, empty: bool) -> None:
    marks = [a.event for a in decided(tenant(A.RELEASING, says, since=ago(1))) if isinstance(a, Mark)]
    assert marks == ([AttemptEvent.SLOT_EMPTY] if empty else [])


def test_a_place_is_free_as_soon_as_its_job_is_over() -> None:
    assert planned(decided(tenant(A.FINISHED, spec={"cpus": 4}), queued(spec={"cpus": 4}))) == ["token-1"]


@pytest.mark.parametrize(
    ("changes", "jobs", "waiting", "why"),
    [
        ({}, (), (), "no job could use it"),
        ({}, (), (Waiting("", 4, 8 << 30, 0),), ""),
        ({}, (), (Waiting("ada", 1, 1 << 30, 0),), "no job could use it"),
        ({}, (), (Waiting("", 5, 1 << 30, 0),), "no job could use it"),
        ({"idle_since": ago(61)}, (), (Waiting("", 1, 1 << 30, 0),), "nobody used it for 61 s"),
        ({"noticed": True}, (queued(),), (), "it is gone, or will be soon"),
        ({}, (queued(),), (), ""),
    ],
)
def test_a_machine_that_nobody_uses_is_ended(
    changes: dict[str, Any], jobs: tuple[JobSeen, ...], waiting: tuple[Waiting, ...], why: str
) -> None:
    assert ended(decided(*jobs, machine=a_machine(**changes), waiting=waiting)) == ([why] if why else [])


@pytest.mark.parametrize(
    ("instance", "since", "kind"),
    [
        (replace(UP, gone=True), ago(1), MachineGone),
        (None, ago(40), MachineGone),
        (None, ago(1), None),  # a listing may lag
        (UP, ago(1), None),
        (UP, ago(61), EndMachine),
    ],
)
def test_an_end_is_repeated_until_a_listing_shows_it(instance: InstanceSeen | None, since: Any, kind: type | None) -> None:
    actions = decided(machine=a_machine(state=M.RELEASING, instance=instance, since=since))
    assert [type(a) for a in actions] == ([kind] if kind else [])


def test_an_order_for_a_slot_is_a_launch() -> None:
    some = seen([an_attempt(1, A.PLANNED, slot=1)], job=a_job())
    assert [type(a) for a in decided(some)] == [Launch]


def test_a_shared_machine_counts_once_and_one_without_a_job_counts() -> None:
    other = seen([an_attempt(1, job=JobId("other"), slot=1)], a_head(), job=a_job(id=JobId("other")))
    there = {"token-1": a_machine()}
    assert strangers(a_snapshot(tenant(), other, machines=there)).machines == -1
    assert strangers(a_snapshot(tenant(), machines=there)).machines == 0
    idle = strangers(a_snapshot(machines=there))
    assert (idle.machines, idle.usd_micros_per_hour) == (1, 30_000)
