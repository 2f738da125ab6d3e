"""The second run of a named step: what it begins on, what its size policy is told, and which runs count."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from spotsurfer_lab.size_backtest import size_policy
from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire.messages import AgentState, Report
from spotsurfer_wire.usage import Window
from support.builders import NOW, a_head, a_snapshot
from support.rides import GIB, OFFERS, TYPES, Ride, asks

from spotsurfer.controller.jobs.rightsizing import EarlierRuns, Rightsizing, Sizes
from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.rightsizing import SizeRules
from spotsurfer.model.actions import Plan
from spotsurfer.model.job import SIZE_OFF, Job, JobId, JobState, Parent
from spotsurfer.model.snapshot import JobSeen
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.policies import Size, SizeChoice, SizeMoment, SizeTerms
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs, observations, timeline, usage_history

SECOND = asks(size_policy="surf")


class Asks:
    """A policy without an opinion that remembers what it was told."""

    def begin(self, terms: SizeTerms) -> tuple[int, int]:
        self.terms = terms
        return 0, terms.start

    def look(self, memory: int, moment: SizeMoment) -> tuple[int, SizeChoice]:
        return memory, SizeChoice()


def ran(ride: Ride, name: str = "run-1", gib: tuple[float, ...] = (1.0,), protection: str = "criu", **changes: Any) -> None:
    """An earlier run of the step: so many GiB, each for some minutes."""
    minutes = changes.pop("minutes", 20)
    spec = {"name": "job", "command": ("work", "-x"), **changes.pop("spec", {})}
    ended = changes.pop("ended_at", NOW - timedelta(hours=1))
    base = replace(SECOND, **{"id": JobId(name), "state": JobState.SUCCEEDED, "ended_at": ended, **changes})
    with ride.engine.begin() as c:
        jobs.add_job(c, replace(base, spec=replace(base.spec, **spec)))
        for i, m in enumerate(g * GIB for g in gib for _ in range(minutes)):
            row = Window(6 * i, 60.0, 1.0, 1.0, m, m, m, m, 0.0, 0.0)
            usage_history.add(c, name, 1, [(NOW - timedelta(days=1) + timedelta(minutes=i), row)])
        runs = Report(name, 1, "i-1", "0", 9, AgentState.RUNNING, 1, protection=protection)
        for told in (runs, replace(runs, protection=""), replace(runs, protection="", state=AgentState.FINISHED)):
            observations.set_usage(c, told, NOW)


def begins(ride: Ride, policy: Size, job: Job = SECOND) -> JobSeen:
    """The job before it ever ran, as `decide` sees it."""
    queued = JobSeen(replace(job, state=JobState.QUEUED), (), head=a_head(0))
    courses = Rightsizing(ride.engine, Sizes(lambda _n, _p: policy, rules=SizeRules()))
    world = a_snapshot(queued, offers=OFFERS)
    return courses.sized(world, lambda _: {}, world.jobs, NOW).jobs[0]


def ordered(seen: JobSeen) -> str:
    decision = decide(a_snapshot(seen, offers=OFFERS), Cheapest(60, 0.2), NOW)
    (plan,) = (a for a in decision.actions if isinstance(a, Plan))
    return plan.offer.pool.instance_type


@pytest.fixture
def ride() -> Ride:
    return Ride(lambda _n, _p: Asks())


def test_without_an_earlier_run_it_begins_on_what_it_asks_for(ride: Ride) -> None:
    seen = begins(ride, Asks())
    assert (ordered(seen), seen.size) == ("a.medium", None)


def test_the_second_run_begins_on_what_the_earlier_one_teaches_and_says_so(ride: Ride) -> None:
    ran(ride, gib=(1.0, 2.0, 1.0))
    seen = begins(ride, size_policy("surf", {}))
    assert ordered(seen) == "a.small"
    assert seen.size is not None
    assert seen.size.why == "1 earlier run of job used 2.00 GiB at most: it begins on a.small instead of a.medium"


def test_a_run_that_ended_this_moment_is_known_to_the_next(ride: Ride) -> None:
    began = a_snapshot(JobSeen(SECOND, tuple(ride.attempts), head=a_head(0)), offers=OFFERS)
    assert ride.courses.sized(began, lambda _: {}, began.jobs, NOW).jobs[0].size is not None, "it was asked what came before"
    ran(ride, name=str(SECOND.id), ended_at=NOW)
    after = a_snapshot(JobSeen(replace(SECOND, id=JobId("again"), state=JobState.QUEUED), (), head=a_head(0)), offers=OFFERS)
    [seen] = ride.courses.sized(after, lambda _: {}, after.jobs, NOW + timedelta(seconds=1)).jobs
    assert seen.size is not None and seen.size.why.startswith("1 earlier run of job")


def test_a_short_peak_at_the_end_is_moved_up_for_and_no_larger_machine_bought_for_all_of_it(ride: Ride) -> None:
    ran(ride, gib=(1.0, 1.0, 1.0, 1.0, 20.0))
    assert ordered(begins(ride, size_policy("surf", {}))) == "a.small"
    assert ordered(begins(ride, Asks())) == "a.large", "who has no plan begins where the peak has room"


def test_a_peak_counts_also_while_memory_is_brought_back(ride: Ride) -> None:
    ran(ride, gib=(1.0,))
    m = 20.0 * GIB
    row = Window(10**6, 60.0, 1.0, 1.0, m, m, m, m, 0.0, 0.0, arriving_bytes=5.0)
    with ride.engine.begin() as c:
        usage_history.add(c, "run-1", 2, [(NOW - timedelta(hours=2), row)])
    assert ordered(begins(ride, Asks())) == "a.large"


def test_a_policy_without_an_opinion_gets_room_for_the_peak_and_the_cores_that_were_asked_for(ride: Ride) -> None:
    ran(ride, gib=(20.0,))
    assert ordered(begins(ride, Asks())) == "a.large"
    assert begins(ride, Asks(), asks(memory_bytes=30 * GIB)).job.spec.memory_bytes == 30 * GIB, "few cores are no gain"


@pytest.mark.parametrize(("protection", "engine"), [("app", "auto"), ("none", "auto"), ("criu", "app"), ("criu", "none")])
def test_without_the_guard_it_begins_on_no_less_than_was_asked_for(ride: Ride, protection: str, engine: str) -> None:
    ran(ride, gib=(1.0,), protection=protection)
    job = asks(size_policy="surf", engine=engine)
    assert ordered(begins(ride, size_policy("surf", {}), job)) == "a.medium"


def test_what_it_used_is_told_to_its_size_policy_while_it_runs() -> None:
    says = Asks()
    ride = Ride(lambda _n, _p: says)
    ran(ride, gib=(1.0, 3.0))
    ran(ride, "run-2", gib=(2.0,), ended_at=NOW - timedelta(minutes=5))
    for _ in range(7):
        ride.use(1.0 * GIB, 1.0)
    assert [sum(e.seconds) for e in says.terms.earlier] == [40 * 60.0, 20 * 60.0]
    assert max(says.terms.earlier[0].memory_bytes) == 3.0 * GIB
    assert "2 earlier runs are known" in str(ride.snapshot().size)


def test_a_run_that_follows_the_earlier_one_costs_less_than_a_first_run() -> None:
    """It knows that it will stay small, and does not wait until not having moved has cost as much as a move."""

    def run(known: bool) -> float:
        ride = Ride(lambda n, p: size_policy("surf", p), job=asks(cpus=2))
        if known:
            ran(ride, gib=(6.0, 2.0), minutes=10)
        spent = 0.0
        for gib in (6.0, 2.0):
            for _ in range(10 * 6):
                ride.use(gib * GIB, 1.0)
                spent += TYPES[ride.kind][2]
        return spent

    assert run(known=True) < run(known=False)


def test_jobs_of_a_rule_teach_each_other_whatever_their_names_are_and_tell_the_numbers(ride: Ride) -> None:
    of_rule = {"tags": {"rule": "align"}}
    for number in range(3):
        ran(ride, f"r{number}", gib=(1.0 + number,), spec={"name": f"sample-{number}", **of_rule})
    ran(ride, "other", gib=(30.0,), spec={"name": "sample-9", "tags": {"rule": "sort"}})
    job = asks(size_policy="surf", memory_bytes=32 * GIB, **of_rule)
    seen = begins(ride, Asks(), replace(job, spec=replace(job.spec, name="sample-17")))
    assert seen.size is not None
    assert seen.size.why == "3 earlier runs of rule align used 3.00 GiB at most: it begins on a.medium instead of a.large"


def test_the_size_of_inputs_foretells_memory(ride: Ride) -> None:
    for size in (1, 2, 3, 4):
        ran(ride, f"r{size}", gib=(1.5 * size,), spec={"tags": {"input_bytes": str(size * GIB)}})

    def first(size: int) -> JobSeen:
        return begins(ride, Asks(), asks(size_policy="surf", tags={"input_bytes": str(size * GIB)}))

    assert [ordered(first(size)) for size in (1, 4, 12)] == ["a.medium", "a.medium", "a.large"]
    large = first(12).size
    assert large is not None and "with inputs of 12.00 GiB it may need 19.45" in large.why


def test_courses_are_as_large_as_the_inputs_let_expect() -> None:
    says = Asks()
    ride = Ride(lambda _n, _p: says, job=asks(tags={"input_bytes": str(8 * GIB)}))
    for size in (1, 2, 4):
        ran(ride, f"r{size}", gib=(size / 2,), spec={"tags": {"input_bytes": str(size * GIB)}})
    ran(ride, "last", gib=(0.5,), spec={"tags": {"input_bytes": str(GIB)}}, ended_at=NOW - timedelta(minutes=1))
    for _ in range(7):
        ride.use(1.0 * GIB, 1.0)
    assert max(says.terms.earlier[-1].memory_bytes) == pytest.approx(4.0 * GIB)


def test_a_run_that_was_killed_for_memory_counts_with_more(ride: Ride) -> None:
    ran(ride, "fine", gib=(4.0,))
    ran(ride, "killed", gib=(6.0,), state=JobState.FAILED)
    assert ordered(begins(ride, Asks())) == "a.medium", "a failure of its own tells nothing"
    with ride.engine.begin() as c:
        timeline.add_many(c, [Moment(NOW, JobId("killed"), None, str(Kind.OUT_OF_MEMORY), "")])
    assert ordered(begins(ride, Asks())) == "a.large"


def test_the_operator_may_turn_history_off(ride: Ride) -> None:
    ran(ride, gib=(20.0,))
    ride.rules = SizeRules(history=False)
    queued = JobSeen(replace(SECOND, state=JobState.QUEUED), (), head=a_head(0))
    world = a_snapshot(queued, offers=OFFERS)
    assert ride.anew().sized(world, lambda _: {}, world.jobs, NOW).jobs[0].size is None


def the_runs(ride: Ride, job: Job = SECOND, before: datetime = NOW) -> list[str]:
    return [p.job for p in EarlierRuns(ride.engine).of(job, before, NOW)]


@pytest.mark.parametrize(
    "other",
    [
        {"spec": {"name": "another"}},
        {"spec": {"command": ("other-program",)}},
        {"owner": "somebody"},
        {"spec": {"project": "p"}},
        {"spec": {"name": "jobs"}},
        {"spec": {"image": "docker://host/other"}},
        {"state": JobState.FAILED},
        {"gib": ()},
        {"ended_at": NOW + timedelta(seconds=1)},
        {"parent": Parent(JobId("x"), "1-1")},
    ],
    ids=str,
)
def test_runs_that_tell_nothing_of_this_one_are_left_out(ride: Ride, other: dict[str, Any]) -> None:
    ran(ride, "right")
    ran(ride, "wrong", **other)
    assert the_runs(ride) == ["right"]


def test_they_come_in_the_order_in_which_they_ended(ride: Ride) -> None:
    for name, hours in (("b", 1), ("a", 3), ("c", 2)):
        ran(ride, name, ended_at=NOW - timedelta(hours=hours))
    assert the_runs(ride) == ["a", "c", "b"]
    assert the_runs(ride, before=NOW - timedelta(hours=2)) == ["a", "c"]


def test_it_is_not_asked_where_sizes_are_off(ride: Ride) -> None:
    ran(ride)
    assert begins(ride, Asks(), asks(size_policy=SIZE_OFF)).size is None
