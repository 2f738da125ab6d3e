"""What a scope spent since the beginning of a day: by every tick the same as the lines of the bill say."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from spotsurfer_wire.messages import AgentState, Report
from sqlalchemy import Connection
from support.builders import a_job, an_attempt

from spotsurfer.ledger import costs as ledger
from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.facts import Rules
from spotsurfer.model.budgets import EVERYTHING, Per, begins, scopes_of
from spotsurfer.model.charges import ChargeKind, KeptImage
from spotsurfer.model.job import OVER, Attempt, AttemptNumber, AttemptState, Job, JobId, JobState, Parent
from spotsurfer.model.market import Pool
from spotsurfer.model.prices import GIB, EgressPrices, ListPrice, Match, Place, Tariff
from spotsurfer.state import jobs as rows
from spotsurfer.state import ledger_facts, observations
from spotsurfer.state.db import open_database

PRICES = [ListPrice(Match(ChargeKind.STORED), 23_000), ListPrice(Match(ChargeKind.IMAGE), 50_000)]
TARIFF = Tariff(Place("one", "east"), {"one": EgressPrices(20_000, 90_000)})
RULES = Rules(prices={"one": PRICES}, tariff=TARIFF, controller_usd_micros_per_hour=41_600)
POOL = Pool("one", "west", "a", "large")
BEGIN = datetime(2026, 1, 28, 20, tzinfo=UTC)
SCOPES = [EVERYTHING, "owner:ada", "owner:bob", "project:x", "tag:run=1", "tag:run=2", "owner:nobody"]


def a_jobs() -> list[Job]:
    def one(number: int, owner: str, project: str, run: str, **more: object) -> Job:
        spec = {"project": project, "tags": {"run": run}}
        return a_job(spec, id=JobId(f"job-{number}"), owner=owner, **more)

    some = [one(0, "ada", "x", "1"), one(1, "ada", "", "2"), one(2, "bob", "x", "1"), one(3, "bob", "", "2")]
    trial = Parent(JobId("job-0"), "000001-000001", rehearsal=True)
    return [*some, one(4, "ada", "", "2", parent=trial)]  # it counts for job-0, whatever its own labels are


def by_the_lines(costs: Costs, c: Connection, jobs: list[Job], since: datetime | None, now: datetime) -> Counter[str]:
    scopes, found = {j.id: scopes_of(j) for j in jobs}, Counter[str]()
    for x in costs.lines(c, None, now, since):
        for scope in scopes[x.payer] if x.payer is not None else (EVERYTHING,):
            found[scope] += x.usd_micros
    return found


@pytest.mark.parametrize("seed", range(4))
def test_it_is_what_the_lines_of_the_bill_say(seed: int) -> None:
    """Machines begin, end, are reported of late; bytes come and go; days, weeks and a month turn; the controller restarts."""
    rand, engine, jobs, now = random.Random(seed), open_database(None), a_jobs(), BEGIN
    image = KeptImage("ami-1", "one", 8.0, BEGIN - timedelta(days=40))
    costs, attempts = Costs(RULES, [image], BEGIN - timedelta(days=3)), dict[JobId, list[Attempt]]({j.id: [] for j in jobs})
    with engine.begin() as c:
        for job in jobs:
            rows.add_job(c, job)
    for look in range(40):
        now += timedelta(seconds=rand.choice([5, 700, 9000, 30_000]))
        with engine.begin() as c:
            for job in rand.sample(jobs, 2):
                _live(rand, c, attempts[job.id], job, now)
            if rand.random() < 0.1:
                costs = Costs(RULES, [image], BEGIN - timedelta(days=3))
            costs.pay_for(jobs)
            costs.refresh(c, attempts, now)
            wanted = {(scope, begins(per, now)) for scope in SCOPES for per in Per if rand.random() < 0.7}
            spent = costs.spent(c, wanted)
            for day in {since for _, since in wanted}:
                told = by_the_lines(costs, c, jobs, day, now)
                for scope in (scope for scope, since in wanted if since == day):
                    assert spent[scope, day] == told[scope], (look, scope, day)


def _live(rand: random.Random, c: Connection, some: list[Attempt], job: Job, now: datetime) -> None:
    if not some or some[-1].state in OVER:
        number = AttemptNumber(len(some) + 1)
        some.append(an_attempt(number, job=job.id, token=f"{job.id}-{number}", launched_at=now, pool=POOL))
        rows.add_attempt(c, some[-1])
        return
    newest = some[-1]
    if rand.random() < 0.5:
        assert newest.launched_at is not None
        ended = max(newest.launched_at, now - timedelta(seconds=rand.choice([0, 2, 60])))
        some[-1] = rows.save_attempt(c, replace(newest, state=AttemptState.RELEASED, released_at=ended))
    if rand.random() < 0.5:
        ledger_facts.set_stored(c, job.id, now, rand.choice([0, 3, 40]) * GIB)
    counted = rand.randint(0, 50) * GIB
    report = Report(job.id, newest.number, "i", "0", 1, AgentState.RUNNING, 1, store_sent_bytes=counted)
    observations.set_usage(c, report, now)


def test_what_reaches_into_the_day_counts() -> None:
    """The minimum of a machine that ended just before midnight, and what lies in the store without any machine."""
    engine, (short, keeps, *_) = open_database(None), a_jobs()
    midnight = datetime(2026, 2, 1, tzinfo=UTC)
    launched, released = midnight - timedelta(seconds=9), midnight - timedelta(seconds=1)
    costs, ended = Costs(RULES), an_attempt(1, AttemptState.RELEASED, job=short.id, launched_at=launched, released_at=released)
    with engine.begin() as c:
        for job in (short, keeps):
            rows.add_job(c, job)
        rows.add_attempt(c, ended)
        ledger_facts.set_stored(c, keeps.id, midnight - timedelta(days=3), GIB)
        now = midnight + timedelta(hours=1)
        costs.refresh(c, {short.id: [ended]}, now)
        told = by_the_lines(costs, c, [short, keeps], midnight, now)
        for scope in ("project:x", "tag:run=2"):
            assert costs.spent(c, {(scope, midnight)})[scope, midnight] == told[scope] > 0


def test_who_asks_before_the_first_look_spoils_nothing() -> None:
    engine, job, costs, now = open_database(None), a_jobs()[0], Costs(Rules()), BEGIN + timedelta(hours=5)
    runs, midnight = an_attempt(1, job=job.id, launched_at=BEGIN), begins(Per.DAY, now)
    with engine.begin() as c:
        rows.add_job(c, job)
        rows.add_attempt(c, runs)
        assert costs.spent(c, {(EVERYTHING, midnight)}) == {(EVERYTHING, midnight): 0}
        costs.refresh(c, {job.id: [runs]}, now)
        assert costs.spent(c, {(EVERYTHING, midnight)})[EVERYTHING, midnight] == 30_000, "an hour of this day"


def test_scopes_that_part_the_jobs_add_up_to_everything() -> None:
    engine, jobs, costs = open_database(None), a_jobs(), Costs(Rules())
    with engine.begin() as c:
        for job in jobs:
            rows.add_job(c, job)
        attempts = {j.id: [an_attempt(1, job=j.id, token=j.id, launched_at=BEGIN)] for j in jobs}
        for some in attempts.values():
            rows.add_attempt(c, some[0])
        costs.pay_for(jobs)
        costs.refresh(c, attempts, BEGIN + timedelta(days=5))
        for since in (None, BEGIN + timedelta(days=4) - timedelta(hours=20)):
            parts = costs.spent(c, {(scope, since) for scope in SCOPES})
            assert parts["owner:ada", since] + parts["owner:bob", since] == parts[EVERYTHING, since] > 0
            assert parts["tag:run=1", since] + parts["tag:run=2", since] == parts[EVERYTHING, since]
            assert parts["owner:nobody", since] == 0


def test_a_machine_that_is_being_released_still_costs() -> None:
    engine, job, costs = open_database(None), a_jobs()[0], Costs(Rules())
    leaves = an_attempt(1, AttemptState.RELEASING, job=job.id, launched_at=BEGIN)
    seen = []
    with engine.begin() as c:
        rows.add_job(c, replace(job, state=JobState.SUCCEEDED))
        rows.add_attempt(c, leaves)
        for minutes in (10, 20):
            costs.refresh(c, {job.id: [leaves]}, BEGIN + timedelta(minutes=minutes))
            seen.append(costs.spent(c, {("owner:ada", None)})["owner:ada", None])
    assert 0 < seen[0] < seen[1]


def test_a_tick_asks_for_what_ended_only_once() -> None:
    """A thousand jobs with ended machines, a hundred that run, budgets: the ended ones are reckoned at the first look."""
    engine, costs = open_database(None), Costs(Rules())
    jobs = [a_job({"tags": {"run": str(i % 20)}}, id=JobId(f"job-{i}"), owner=f"o{i % 7}") for i in range(1000)]
    ended = AttemptState.RELEASED
    attempts = {
        j.id: [
            an_attempt(1, ended, job=j.id, token=f"{j.id}-1", launched_at=BEGIN, released_at=BEGIN + timedelta(hours=1)),
            *([an_attempt(2, job=j.id, token=f"{j.id}-2", launched_at=BEGIN)] if i < 100 else []),
        ]
        for i, j in enumerate(jobs)
    }
    now = BEGIN + timedelta(days=5)
    wanted = {(f"tag:run={i}", begins(per, now)) for i in range(5) for per in Per}
    with engine.begin() as c:
        for job in jobs:
            rows.add_job(c, job)
            for attempt in attempts[job.id]:
                rows.add_attempt(c, attempt)
        costs.pay_for(jobs)
        costs.refresh(c, attempts, now)
        costs.spent(c, wanted)
        anew = mock.patch.object(Costs, "_lines", side_effect=AssertionError("the lines are read again"))
        with anew, mock.patch.object(ledger, "cost", wraps=ledger.cost) as asked:
            costs.refresh(c, attempts, now + timedelta(seconds=4))
            began = time.perf_counter()
            found = costs.spent(c, wanted)
            took = time.perf_counter() - began
        assert asked.call_count == 100, "only machines that run"
        assert sum(found.values()) > 0
        assert took < 0.1, f"{took:.3f} s: some milliseconds are usual"
