"""Budgets of several jobs: what they hold, when they warn, and when their jobs go on. All of it is pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, an_offer, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.capacity import reserve
from spotsurfer.model.actions import Action, Ask, EndJob, Plan, SetWish, TellBudget
from spotsurfer.model.budgets import SCOPE, USED_UP, Budget, BudgetSeen, Per, begins, ends, scopes_of
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, JobId, JobState, MoveRequest, Wish
from spotsurfer.model.snapshot import FitSeen, JobSeen, Limits

USD = 1_000_000
MINE, OTHERS = "owner:ada", "owner:bob"
HELD = {"state": JobState.HELD, "wish": Wish.HOLD, "held_by": HeldBy.BUDGET}


def job(name: str, owner: str = "ada", attempts: Any = (), spec: dict[str, Any] | None = None, **changes: Any) -> JobSeen:
    own = [replace(a, job=JobId(name), token=f"{name}-{a.number}") for a in attempts]
    head = a_head() if own else seen().head
    return seen(own, head, job=a_job(spec, id=JobId(name), owner=owner, **changes))


def budget(spent: float, usd: float = 10, scope: str = MINE, told: Any = (), **more: Any) -> BudgetSeen:
    made = Budget(scope, int(usd * USD), more.pop("per", Per.TOTAL), more.pop("warn_at", (50, 80, 100)))
    return BudgetSeen(made, int(spent * USD), told=frozenset(told), **more)


def actions(*jobs: JobSeen, of: Any, **snapshot: Any) -> list[Action]:
    found = [of] if isinstance(of, BudgetSeen) else of
    return list(decide(a_snapshot(*jobs, budgets=found, **snapshot), Cheapest(60, 0.2), NOW).actions)


def wishes(found: list[Action]) -> dict[str, SetWish]:
    return {a.job: a for a in found if isinstance(a, SetWish)}


# ---- what is held


def test_what_runs_and_what_waits_is_held_with_the_reason_and_the_remedy() -> None:
    runs, waits = job("runs", attempts=[an_attempt()]), job("waits", state=JobState.QUEUED)
    found = actions(runs, waits, job("his", "bob", state=JobState.QUEUED), of=budget(10.25, per=Per.MONTH, ends=NOW))
    held = wishes(found)
    assert set(held) == {"runs", "waits"}
    assert all((w.wish, w.held_by) == (Wish.HOLD, HeldBy.BUDGET) for w in held.values())
    reason = held["waits"].reason
    assert "the budget of owner:ada, 10.0000 USD per month, is used up: 10.2500 USD were spent" in reason
    assert "`spotsurfer budget set owner:ada 16 --per month`" in reason
    assert "2026-01-01 UTC" in reason, "or wait for the next month"
    assert [a.job for a in found if isinstance(a, Plan)] == ["his"]


def test_machines_that_are_being_released_count_until_they_are_gone() -> None:
    leaves = job("leaves", attempts=[an_attempt(1, A.RELEASING)], state=JobState.SUCCEEDED)
    kept = reserve(leaves.attempts, Limits())
    assert kept > 0
    waits = job("waits", state=JobState.QUEUED)
    for short, held in ((kept + 1, False), (kept, True)):
        found = actions(leaves, waits, of=budget(10 - short / USD))
        assert ("waits" in wishes(found)) is held


@pytest.mark.parametrize(
    ("scope", "holds"),
    [
        ("all", True),
        (MINE, True),
        (OTHERS, False),
        ("project:x", True),
        ("tag:run=7", True),
        ("tag:run=8", False),
        ("job:one", True),
    ],
)
def test_a_scope_holds_its_own_jobs(scope: str, holds: bool) -> None:
    one = job("one", spec={"project": "x", "tags": {"run": "7"}}, state=JobState.QUEUED)
    assert bool(wishes(actions(one, of=budget(10, scope=scope)))) is holds


def test_what_was_used_up_stays_so_until_the_amount_is_raised() -> None:
    """What was kept for the release of its machines comes back, and would start them again for some minutes."""
    held = job("held", **HELD, reason=str(budget(0).budget))
    assert not wishes(actions(held, of=budget(9.9, told=[50, 80, 100, USED_UP])))
    assert not wishes(actions(job("new", state=JobState.QUEUED), of=budget(9.9, told=[50, 80, 100]))), "this one was not"
    assert wishes(actions(job("new", state=JobState.QUEUED), of=budget(9.9, told=[USED_UP])))["new"].wish is Wish.HOLD


@pytest.mark.parametrize("of", [[], [budget(10, usd=20)], [budget(0, told=[])]], ids=["removed", "raised", "a new month"])
def test_a_job_goes_on_by_itself(of: list[BudgetSeen]) -> None:
    held = job("held", **HELD, reason="the budget of owner:ada, 10.0000 USD in all, is used up")
    goes_on = wishes(actions(held, of=of))["held"]
    assert (goes_on.wish, goes_on.reason) == (Wish.RUN, "its budget has money again")
    resumed = job("held", state=JobState.HELD)
    assert any(isinstance(a, EndJob) for a in actions(resumed, of=of))


def test_another_budget_that_is_used_up_keeps_it_and_is_named() -> None:
    held = job("held", **HELD, reason="the budget of all, 5.0000 USD in all, is used up")
    now = wishes(actions(held, of=[budget(1, scope="all"), budget(10, told=[50, 80, 100, USED_UP])]))["held"]
    assert (now.wish, now.held_by) == (Wish.HOLD, HeldBy.BUDGET)
    assert "owner:ada" in now.reason
    assert not actions(job("held", **HELD, reason=now.reason), of=budget(10, told=[50, 80, 100, USED_UP]))


def test_what_a_user_held_does_not_go_on() -> None:
    assert not actions(job("held", state=JobState.HELD, wish=Wish.HOLD), of=budget(0))
    assert not wishes(actions(job("held", state=JobState.HELD, wish=Wish.HOLD), of=budget(10)))


# ---- one more machine


def test_a_machine_is_ordered_only_if_the_money_lasts_to_release_it_again() -> None:
    cost = 30_000 * 300 / 3600 / USD
    first, second = (job(name, state=JobState.QUEUED) for name in ("first", "second"))
    found = decide(a_snapshot(first, second, budgets=[budget(10 - 1.5 * cost)]), Cheapest(60, 0.2), NOW)
    assert [a.job for a in found.actions if isinstance(a, Plan)] == ["first"], "the first one's machine counts for the second"
    assert "leaves no room for" in found.notes[JobId("second")]
    assert "raise it with `spotsurfer budget set owner:ada 16`" in found.notes[JobId("second")]
    assert not wishes(list(found.actions)), "it waits: the next month, or the end of another job, brings money"


def test_a_job_without_money_takes_no_machine_from_another() -> None:
    """Priority counts for nothing if the budget lets the job have no machine."""
    saved = an_agent(protection="criu", fit=FitSeen(2.0, 10.0, 0.0))
    runs = an_attempt(since=ago(500), granted_at=ago(505), planned_at=ago(520))
    low = replace(job("low", "bob", attempts=[runs]), agents={1: saved})
    high = job("high", state=JobState.QUEUED, spec={"priority": 10})

    def asked(of: Any) -> list[str]:
        return [a.job for a in actions(low, high, of=of, limits=Limits(instances_max=1)) if isinstance(a, Ask)]

    assert asked([]) == ["low"], "else it does"
    assert asked(budget(9.9999)) == []


def test_a_move_that_the_budget_does_not_allow_is_settled() -> None:
    moves = job("moves", attempts=[an_attempt()], move=MoveRequest(1, NOW, None, None))
    kept = reserve(moves.attempts, Limits()) / USD
    told = wishes(actions(moves, of=budget(10 - kept - 0.0001), offers=[an_offer(), an_offer(price=40_000)]))["moves"]
    assert told.wish is None
    assert told.clear_move
    assert "the move failed, the job runs on: the budget of owner:ada" in told.reason


# ---- warnings


def tells(of: BudgetSeen, *jobs: JobSeen) -> list[TellBudget]:
    return [a for a in actions(*jobs, of=of) if isinstance(a, TellBudget)]


def test_the_highest_share_that_was_passed_is_told_once() -> None:
    assert not tells(budget(4.99))
    (first,) = tells(budget(5))
    assert (first.shares, first.share) == ((50,), 50)
    assert first.reason == "50 % of the budget of owner:ada, 10.0000 USD in all are spent: 5.0000 USD"
    assert not tells(budget(7.99, told=[50]))
    (both,) = tells(budget(8))
    assert (both.shares, both.share) == ((50, 80), 80)
    (full,) = tells(budget(10, told=[50, 80]))
    assert (full.shares, full.share) == ((USED_UP, 100), 100)
    assert "is used up" in full.reason
    assert not tells(budget(12, told=[50, 80, 100, USED_UP]))


def test_one_without_warnings_still_tells_that_it_holds() -> None:
    assert not tells(budget(9, warn_at=()))
    (full,) = tells(budget(10, warn_at=()))
    assert full.shares == (USED_UP,)


# ---- times and scopes

MOMENTS = st.datetimes(NOW.replace(year=2020, tzinfo=None), NOW.replace(year=2040, tzinfo=None), timezones=st.just(UTC))
PERIODS = [Per.DAY, Per.WEEK, Per.MONTH]


@given(MOMENTS, st.sampled_from(PERIODS))
def test_each_moment_is_in_one_time_that_begins_at_midnight(now: datetime, per: Per) -> None:
    first, last = begins(per, now), ends(per, now)
    assert first is not None
    assert last is not None
    assert first <= now < last
    assert (first.hour, first.minute, first.second, first.microsecond) == (0, 0, 0, 0)
    assert begins(per, last) == last, "the next one begins where it ends"
    assert ends(per, last - timedelta(microseconds=1)) == last
    assert begins(per, first) == first


@pytest.mark.parametrize(
    ("per", "now", "first", "last"),
    [
        (Per.DAY, datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), "2026-12-31", "2027-01-01"),
        (Per.WEEK, datetime(2026, 11, 29, 12, tzinfo=UTC), "2026-11-23", "2026-11-30"),
        (Per.MONTH, datetime(2028, 2, 29, tzinfo=UTC), "2028-02-01", "2028-03-01"),
        (Per.MONTH, datetime(2026, 12, 31, 20, tzinfo=UTC) - timedelta(0), "2026-12-01", "2027-01-01"),
    ],
)
def test_times_are_those_of_the_calendar_in_utc(per: Per, now: datetime, first: str, last: str) -> None:
    assert (f"{begins(per, now):%F}", f"{ends(per, now):%F}") == (first, last)


def test_another_zone_changes_nothing() -> None:
    late = datetime(2026, 1, 31, 23, 30, tzinfo=UTC).astimezone(timezone(timedelta(hours=2)))
    assert f"{begins(Per.MONTH, late):%F}" == "2026-01-01"


def test_in_all_has_no_end() -> None:
    assert begins(Per.TOTAL, NOW) is None
    assert ends(Per.TOTAL, NOW) is None


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@given(NAMES, NAMES, st.dictionaries(NAMES.filter(lambda s: "=" not in s), NAMES, max_size=3))
def test_each_scope_of_a_job_can_be_given_a_budget(owner: str, project: str, tags: dict[str, str]) -> None:
    found = scopes_of(a_job({"project": project, "tags": tags}, owner=owner))
    assert len(set(found)) == 4 + len(tags)
    assert all(SCOPE.fullmatch(scope) for scope in found)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y"]), st.integers(0, 3)), max_size=6))
def test_what_machines_are_kept_for_adds_up_over_scopes(some: list[tuple[str, str, int]]) -> None:
    """Owners part all jobs, so that their reserves add up to that of everything: it is used up exactly with their sum."""
    jobs = [
        job(f"j{i}", owner, [an_attempt(n + 1, A.RELEASING) for n in range(count)], {"project": project})
        for i, (owner, project, count) in enumerate(some)
    ]
    kept = {owner: sum(reserve(j.attempts, Limits()) for j in jobs if j.job.owner == owner) for owner in "ab"}
    for scope, amount in (("owner:a", kept["a"]), ("owner:b", kept["b"]), ("all", sum(kept.values()))):
        for more, used_up in ((0, True), (1, False)):
            of = BudgetSeen(Budget(scope, amount + more + 1), 1)
            assert any(USED_UP in t.shares for t in tells(of, *jobs)) is used_up
