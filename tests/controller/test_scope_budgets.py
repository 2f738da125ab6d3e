"""Budgets of several jobs as people set, see and remove them; and what the database keeps over a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from support.builders import NOW, a_job, an_attempt

from spotsurfer.controller.jobs.scope_budgets import ScopeBudgets
from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.facts import Rules
from spotsurfer.model.budgets import USED_UP, Budget, Per, begins
from spotsurfer.model.errors import NotFound, UsageError
from spotsurfer.model.job import HeldBy, JobId, JobState, Wish
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import budgets as kept
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database

USD = 1_000_000
FILE = [Budget("owner:ada", 5 * USD, Per.MONTH, (90,)), Budget("all", 100 * USD)]


class Desk:
    """A database in a file, and a controller on it."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.pokes = path, ManualClock(NOW), 0
        self.engine: Engine
        self.restart()
        with self.engine.begin() as c:
            for name, owner in (("hers", "ada"), ("his", "bob")):
                job = a_job({"project": "x", "tags": {"run": name}}, id=JobId(name), owner=owner)
                rows.add_job(c, job)
                rows.add_attempt(c, an_attempt(1, job=job.id, token=name, launched_at=NOW - timedelta(hours=30)))
        self.look()

    def restart(self) -> None:
        self.engine, self.costs = open_database(self.path), Costs(Rules())
        self.budgets = ScopeBudgets(self.engine, self.clock, lambda: self.costs, self._poke, FILE)
        self.look()

    def _poke(self) -> None:
        self.pokes += 1

    def look(self) -> None:
        with self.engine.connect() as c:
            jobs = rows.open_jobs(c)
            self.costs.pay_for(jobs)
            self.costs.refresh(c, rows.attempts(c, [j.id for j in jobs]), self.clock.now())

    def change(self, job: str, **values: object) -> None:
        with self.engine.begin() as c:
            rows.save_job(c, replace(rows.load_job(c, JobId(job)), **values))  # type: ignore[arg-type]

    def amounts(self, owner: str | None = None) -> dict[str, int]:
        return {f"{b.scope} {b.per}": b.usd_micros // USD for b in self.budgets.budgets(owner)}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "state.db")


def test_one_that_is_set_wins_over_the_file_until_it_is_removed(desk: Desk) -> None:
    assert desk.amounts() == {"all total": 100, "owner:ada month": 5}
    desk.budgets.set_scope_budget("owner:ada", 9 * USD, Per.MONTH, who="root")
    desk.budgets.set_scope_budget("tag:run=a b=c", 3 * USD, Per.DAY, [80, 50, 50])
    desk.restart()
    assert desk.amounts() == {"all total": 100, "owner:ada month": 9, "tag:run=a b=c day": 3}
    found = {b.scope: b for b in desk.budgets.budgets()}
    assert (found["owner:ada"].configured, found["owner:ada"].set_by, list(found["owner:ada"].warn_at)) == (True, "root", [90])
    assert list(found["tag:run=a b=c"].warn_at) == [50, 80]
    assert found["all"].set_at == ""
    again = desk.budgets.remove_scope_budget("owner:ada", Per.MONTH)
    assert again == FILE[0]
    assert desk.budgets.remove_scope_budget("tag:run=a b=c", Per.DAY) is None
    assert desk.amounts() == {"all total": 100, "owner:ada month": 5}
    assert desk.pokes == 4, "the next look comes at once"
    with desk.engine.connect() as c:
        told = [m.text for _, m in timeline.read(c, None, 0)]
    assert told == [
        "the budget of owner:ada, 9.0000 USD per month from now on, instead of 5.0000 USD, by root",
        "the budget of tag:run=a b=c, 3.0000 USD per day from now on",
        "the budget of owner:ada, 9.0000 USD per month was removed; that of the configuration counts again, 5.0000 USD",
        "the budget of tag:run=a b=c, 3.0000 USD per day was removed",
    ]


def test_what_was_spent_is_that_of_the_scope_and_the_time(desk: Desk) -> None:
    """30 hours at 0.03 USD, of which 12 on this day."""
    desk.budgets.set_scope_budget("tag:run=hers", USD, Per.DAY)
    desk.budgets.set_scope_budget("project:x", 2 * USD)
    found = {b.scope: b for b in desk.budgets.budgets()}
    assert begins(Per.DAY, NOW) == NOW - timedelta(hours=NOW.hour)
    assert found["tag:run=hers"].spent_usd_micros == 30_000 * NOW.hour
    assert found["project:x"].spent_usd_micros == found["all"].spent_usd_micros == 2 * 30 * 30_000
    assert found["project:x"].percent == 90.0
    assert (found["tag:run=hers"].begins, found["tag:run=hers"].ends) == (
        NOW - timedelta(hours=NOW.hour),
        NOW + timedelta(hours=24 - NOW.hour),
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda b: b.set_scope_budget("ada", USD), r"The scope is 'ada', expected all, owner:NAME"),
        (lambda b: b.set_scope_budget("tag:run", USD), "The scope is 'tag:run'"),
        (lambda b: b.set_scope_budget("owner:a\nb", USD), "The scope is"),
        (lambda b: b.set_scope_budget("all", 0), "expected more than nothing"),
        (lambda b: b.set_scope_budget("all", 2**63), "expected more than nothing"),
        (lambda b: b.set_scope_budget("all", USD, warn_at=[0]), "expected shares from 1 to 100"),
        (lambda b: b.set_scope_budget("all", USD, warn_at=[101]), "expected shares from 1 to 100"),
    ],
)
def test_nonsense_is_refused(desk: Desk, wrong: Callable[[ScopeBudgets], object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        wrong(desk.budgets)
    assert desk.pokes == 0
    assert len(desk.amounts()) == 2


def test_one_of_the_file_is_not_removed_by_command(desk: Desk) -> None:
    with pytest.raises(NotFound, match="it stands in the configuration: remove it there and say `spotsurfer reload`"):
        desk.budgets.remove_scope_budget("all")
    with pytest.raises(NotFound, match="`spotsurfer budget list` shows all"):
        desk.budgets.remove_scope_budget("all", Per.DAY)


def test_users_see_those_of_their_own_jobs(desk: Desk) -> None:
    for scope in ("owner:bob", "project:x", "project:y", "tag:run=hers", "tag:run=his"):
        desk.budgets.set_scope_budget(scope, USD)
    theirs = {"all total", "owner:bob total", "project:x total", "tag:run=his total"}
    assert set(desk.amounts("bob")) == theirs
    assert set(desk.amounts("nobody")) == {"all total"}
    for name in ("hers", "his"):
        desk.change(name, state=JobState.HELD, wish=Wish.HOLD, held_by=HeldBy.BUDGET)
    with desk.engine.begin() as c:
        kept.tell(c, Budget("project:x", USD), None, [USED_UP], NOW)
    held = {owner: {b.scope: list(b.held) for b in desk.budgets.budgets(owner)} for owner in ("bob", None)}
    assert held["bob"]["project:x"] == ["his"]
    assert sorted(held[None]["project:x"]) == ["hers", "his"]
    assert held[None]["owner:bob"] == [], "this one is not used up"


def told(desk: Desk, usd: int, now: datetime = NOW) -> list[int]:
    desk.clock.advance((now - desk.clock.now()).total_seconds())
    desk.budgets.set_scope_budget("owner:bob", usd * USD, Per.MONTH)
    (found,) = [s for s in desk.budgets.seen(now) if s.budget.scope == "owner:bob"]
    return sorted(found.told)


def test_what_was_told_is_known_after_a_restart_and_forgotten_in_the_next_month_or_at_a_larger_amount(desk: Desk) -> None:
    assert told(desk, 4) == []
    (seen,) = [s for s in desk.budgets.seen(NOW) if s.budget.scope == "owner:bob"]
    with desk.engine.begin() as c:
        kept.tell(c, seen.budget, seen.begins, [50, USED_UP], NOW)
    desk.restart()
    assert told(desk, 4) == [USED_UP, 50]
    assert told(desk, 3) == [USED_UP, 50], "a smaller one passed these shares, too"
    assert told(desk, 5) == []
    assert told(desk, 4) == [USED_UP, 50]
    assert told(desk, 4, NOW + timedelta(days=32)) == []


def test_one_that_was_removed_does_not_hold_when_it_is_set_anew(desk: Desk) -> None:
    """But it does not warn anew."""
    desk.budgets.set_scope_budget("owner:bob", USD)
    with desk.engine.begin() as c:
        kept.tell(c, Budget("owner:bob", USD), None, [50, USED_UP], NOW)
    desk.budgets.remove_scope_budget("owner:bob")
    desk.budgets.set_scope_budget("owner:bob", USD)
    (found,) = [s for s in desk.budgets.seen(NOW) if s.budget.scope == "owner:bob"]
    assert found.told == {50}
