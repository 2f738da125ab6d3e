"""A budget of several jobs in the virtual world: it holds what runs and what waits, and they go on by themselves.

The loop, the tables, the database and the ledger are the real ones; only time, the cloud and the store are made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from simulation.chances import Chances, calm
from simulation.seeds import seeds
from simulation.world import LIMITS, World

from spotsurfer.controller.jobs.scope_budgets import ScopeBudgets
from spotsurfer.core.facts.attempt_view import phase
from spotsurfer.model.budgets import Budget, Per
from spotsurfer.model.errors import Conflict
from spotsurfer.model.job import OVER, AttemptState, HeldBy, Job, JobId, JobState, Wish
from spotsurfer.model.money import usd
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline

SHORT = replace(LIMITS, drain_reserve_seconds=40.0, instances_max=3)
SCOPE = "tag:run=7"
PROJECT = {"tags": {"run": "7"}}
AMOUNT = 9_000  # micro-dollars: a spot machine costs 33,333 an hour and its first minute whole, so it lasts a quarter of one


class Spending(World):
    """A world with budgets. Users let nothing go on that a budget holds."""

    configured: Sequence[Budget] = ()

    def __init__(self, seed: int = 1, jobs: int = 2, work: int = 100_000, chances: Chances | None = None, **spec: Any) -> None:
        super().__init__(seed, 0, work, chances or calm(on_demand_sure=False), limits=SHORT, **{**PROJECT, **spec})
        self.users_busy = chances is not None
        self.wanted = jobs

    def begin(self) -> None:
        super().begin()
        observer = self.loop._observer
        self.budgets = ScopeBudgets(self.engine, self.clock, lambda: observer.costs, lambda: None, self.configured)
        observer.budgets = self.budgets.seen

    def at(self, moment: datetime) -> None:
        """It begins then."""
        self.clock.advance((moment - self.clock.now()).total_seconds())
        for _ in range(self.wanted):
            self.submit()

    def play(self, seconds: int) -> None:
        self.run(limit=seconds, quiet_after=100_000)

    def job(self, number: int = 0) -> Job:
        with self.engine.connect() as c:
            return rows.load_job(c, self.ids[number])

    def states(self) -> list[JobState]:
        return [self.job(number).state for number in range(len(self.ids))]

    def alive(self) -> int:
        return sum(a.state not in OVER for some in self.attempts.values() for a in some)

    def told(self) -> list[str]:
        with self.engine.connect() as c:
            return [m.text for _, m in timeline.read(c, None, 0) if m.kind == "budget"]

    def until(self, what: Any, most: int = 1500) -> int:
        """Plays until that holds; the seconds that it took."""
        for second in range(most):
            if what():
                return second
            self.play(1)
        raise AssertionError(f"not within {most} s: {self.states()}, {self.attempts}")

    def spent(self) -> int:
        (one,) = self.budgets.budgets()
        return one.spent_usd_micros

    def all_held(self) -> bool:
        return set(self.states()) == {JobState.HELD}


def test_it_holds_what_runs_and_what_waits_until_it_is_raised() -> None:
    world = Spending(jobs=4)
    world.budgets.set_scope_budget(SCOPE, AMOUNT)
    world.at(datetime(2026, 1, 10, tzinfo=UTC))
    world.until(lambda: sum(a[-1].state is AttemptState.RUNNING for a in world.attempts.values() if a) == 3)
    assert world.states().count(JobState.QUEUED) == 1, "there is no room for the fourth"
    world.until(lambda: all(world.job(n).wish is Wish.HOLD for n in range(4)))
    assert world.alive() == 3, "they are saved first"
    before = world.spent()
    assert before <= AMOUNT, "it holds while there is money to save and release them"
    world.until(world.all_held)
    world.until(lambda: world.alive() == 0)
    assert world.spent() > before, "machines that were released cost until the end"
    assert world.spent() <= AMOUNT
    for number in range(4):
        job = world.job(number)
        assert job.held_by is HeldBy.BUDGET
        assert phase(job, world.attempts[job.id]) == "held", "suspended jobs sleep until somebody connects to them"
        assert f"the budget of {SCOPE}, {usd(AMOUNT)} USD in all, is used up" in job.reason
        assert "`spotsurfer budget set tag:run=7 0.02`" in job.reason
    assert [text.split(" of ")[0] for text in world.told()] == ["50 %", "80 %", "the budget"]
    with pytest.raises(Conflict, match=r"job job-0 goes on by itself when there is money again: the budget of tag:run=7"):
        world.commands.resume("job-0")
    (listed,) = world.budgets.budgets()
    assert listed.used_up
    assert len(listed.held) == 4
    world.play(300)
    assert world.all_held()
    assert world.alive() == 0, "what was kept for the release does not start them again"

    world.restart()
    world.play(60)
    assert len(world.told()) == 3, "nothing is told twice, not even by the next controller"
    assert world.all_held()

    world.budgets.set_scope_budget(SCOPE, 3 * AMOUNT)
    world.until(lambda: sum(a[-1].state is AttemptState.RUNNING for a in world.attempts.values() if a) == 3)
    assert world.job().reason in ("", "its budget has money again", "resumed")
    went_on = [some[-1] for some in world.attempts.values() if some and some[-1].state is AttemptState.RUNNING]
    assert sum(a.from_checkpoint is not None for a in went_on) >= 2, "from where they were saved"


def test_only_the_jobs_of_the_scope_are_held() -> None:
    world = Spending(jobs=1)
    world.budgets.set_scope_budget("owner:ada", 500)
    world.at(datetime(2026, 1, 10, tzinfo=UTC))
    with world.engine.begin() as c:
        rows.save_job(c, replace(rows.load_job(c, JobId("job-0")), owner="ada"))
    world.until(lambda: world.job().state is JobState.ACTIVE)
    world.submit()
    world.until(lambda: world.job().state is JobState.HELD)
    world.play(30)
    assert world.job(1).state is JobState.ACTIVE
    assert world.spent() < 1_000


def test_a_month_that_turns_lets_them_go_on() -> None:
    world = Spending(jobs=1)
    world.configured = [Budget(SCOPE, 1_500, Per.MONTH)]
    world.restart()
    world.at(datetime(2026, 1, 31, 23, 50, tzinfo=UTC))
    assert world.until(world.all_held) < 400
    world.until(lambda: world.alive() == 0)
    assert "or wait until 2026-02-01 UTC" in world.job().reason
    before = world.spent()
    world.until(lambda: world.clock.now() >= datetime(2026, 2, 1, tzinfo=UTC))
    world.play(30)
    assert world.job().state is JobState.ACTIVE
    assert world.spent() < before / 2, "only what this month cost"
    world.until(world.all_held)
    assert [text.startswith("the budget") for text in world.told()].count(True) == 2, "each month is told of by itself"


def test_what_runs_over_midnight_counts_for_both_days_by_its_parts() -> None:
    world = Spending(jobs=1)
    world.budgets.set_scope_budget(SCOPE, 10_000, Per.DAY)
    world.at(datetime(2026, 1, 10, 23, 58, tzinfo=UTC))
    world.until(lambda: world.clock.now() >= datetime(2026, 1, 11, tzinfo=UTC))
    world.play(60)
    spent = world.spent()
    assert 0 < spent < 33_334 * 70 / 3600
    world.restart()
    world.play(1)
    assert spent < world.spent() <= spent + 10, "the next controller reckons the same"


def test_who_suspends_a_job_that_a_budget_holds_keeps_it() -> None:
    world = Spending(jobs=1)
    world.budgets.set_scope_budget(SCOPE, 1_000)
    world.at(datetime(2026, 1, 10, tzinfo=UTC))
    world.until(world.all_held)
    world.commands.hold("job-0")
    world.budgets.set_scope_budget(SCOPE, 100_000)
    world.play(60)
    assert world.all_held()
    world.commands.resume("job-0")
    world.until(lambda: world.job().state is JobState.ACTIVE)


class Stormy(Spending):
    """Everything goes wrong; the amount grows every ten minutes until the jobs are done."""

    def _resume(self) -> None:
        for job in self._jobs():
            if job.wish is Wish.HOLD and job.held_by is not HeldBy.BUDGET:
                self.commands.resume(job.id)

    def _pass(self) -> None:
        super()._pass()
        seconds = int((self.clock.now() - datetime(2026, 1, 10, tzinfo=UTC)).total_seconds())
        if seconds > 0 and seconds % 600 == 0:
            self.budgets.set_scope_budget(SCOPE, 1_500 * (seconds // 600 + 1))


def test_whatever_goes_wrong_they_come_to_their_end() -> None:
    stormy(1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(20))
def test_many_seeds(seed: int) -> None:
    stormy(1000 + seed)


def stormy(seed: int) -> None:
    world = Stormy(seed, work=150, chances=Chances())
    world.budgets.set_scope_budget(SCOPE, 1_500)
    world.at(datetime(2026, 1, 10, tzinfo=UTC))
    assert world.run(limit=15_000, quiet_after=1200) == "ok"
    world.check_end()
    held = [text for text in world.told() if text.startswith("the budget")]
    assert held, "it held them"
    assert len(held) == len(set(held))
