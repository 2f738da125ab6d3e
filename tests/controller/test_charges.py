"""The lines of the bill, as the service gives them: by UTC days, of a job with its rehearsals, or of everything."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from spotsurfer_wire.messages import AgentState, Report
from support.builders import JOB, NOW, a_job, an_attempt

from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.facts import Rules
from spotsurfer.model.charges import ChargeKind, ChargeLine, KeptImage
from spotsurfer.model.job import AttemptState, JobId, Parent
from spotsurfer.model.market import Pool
from spotsurfer.model.prices import GIB, EgressPrices, ListPrice, Match, Place, Tariff
from spotsurfer.state import jobs, ledger_facts, observations
from spotsurfer.state.db import open_database

PRICES = [
    ListPrice(Match(ChargeKind.STORED), 23_000),
    ListPrice(Match(ChargeKind.IMAGE), 50_000),
    ListPrice(Match(ChargeKind.REQUESTS, detail="put"), 5_000),
]
TARIFF = Tariff(Place("one", "east"), {"one": EgressPrices(20_000, 90_000)})
RULES = Rules(prices={"one": PRICES}, tariff=TARIFF, controller_usd_micros_per_hour=41_600)
DAY = timedelta(days=1)
MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)


def test_budgets_and_lines_agree_to_the_micro_dollar() -> None:
    """Machines that run and that ended, a rehearsal, stored bytes, late reports, the controller's host, a machine image."""
    engine, begin = open_database(None), NOW - 40 * DAY
    image = KeptImage("ami-1", "one", 8.0, begin)
    costs = Costs(RULES, [image], begin)
    rehearsal = a_job(id=JobId("try"), parent=Parent(JOB, "000001-000001", rehearsal=True))
    pool = Pool("one", "west", "a", "large")
    ended = an_attempt(1, AttemptState.RELEASED, launched_at=begin, released_at=NOW - DAY, pool=pool)
    runs = an_attempt(2, launched_at=NOW - 3 * DAY + timedelta(seconds=7), pool=pool)
    trial = an_attempt(1, AttemptState.RELEASED, job=rehearsal.id, token="t", launched_at=NOW, released_at=NOW, pool=pool)
    report = Report("job", 1, "i", "0", 1, AgentState.RUNNING, 1, store_read_bytes=GIB, store_sent_bytes=3 * GIB, store_puts=7)
    with engine.begin() as c:
        for job in (a_job(), rehearsal):
            jobs.add_job(c, job)
        for attempt in (ended, runs, trial):
            jobs.add_attempt(c, attempt)
        ledger_facts.set_stored(c, JOB, begin, 10 * GIB)
        ledger_facts.set_stored(c, JOB, NOW - DAY, 0)
        costs.refresh(c, {JOB: [ended, runs]}, NOW)
        before = costs.total()
        observations.set_usage(c, replace(report, attempt=2), NOW - DAY)
        observations.set_usage(c, report, NOW)  # a day after its machine was released
        observations.set_usage(c, replace(report, job="try"), NOW)  # of a job that is not open any more
        of_trial = costs.of((rehearsal.id, trial.number)).usd_micros
        costs.refresh(c, {JOB: [ended, runs]}, NOW)
        assert costs.total() > before
        assert costs.of((rehearsal.id, trial.number)).usd_micros > of_trial
        everything = costs.lines(c, None, NOW)
        of_job = costs.lines(c, [a_job(), rehearsal], NOW)
        assert sum(x.usd_micros for x in everything) == costs.total()
        assert sum(x.usd_micros for x in of_job) == costs.of_job(JOB)
        assert {x.payer for x in of_job} == {JOB}
        assert {x.job for x in everything if x.payer is None} == {None}
        for key, attempt in {("job", 1): ended, ("job", 2): runs, ("try", 1): trial}.items():
            some = [x for x in everything if (x.job, x.attempt) == key]
            assert sum(x.usd_micros for x in some) == costs.of((attempt.job, attempt.number)).usd_micros > 0
        new = Costs(RULES, [image], begin)
        new.refresh(c, {}, NOW)
        assert new.total() == costs.total(), "the next controller reckons the same"


def test_what_is_kept_is_reckoned_on_from_the_last_change() -> None:
    engine, costs = open_database(None), Costs(RULES)
    with engine.begin() as c:
        jobs.add_job(c, a_job())
        for hours, gib in ((0, 1), (1, 3), (30, 2), (31, 0), (50, 7)):
            at = NOW + timedelta(hours=hours)
            ledger_facts.set_stored(c, JOB, at, gib * GIB)
            for later in (0, 11, 700):
                now = at + timedelta(seconds=later)
                costs.refresh(c, {}, now)
                assert costs.of_job(JOB) == sum(x.usd_micros for x in costs.lines(c, None, now))
        assert costs.of_job(JOB) > 0


def test_days_are_those_of_utc() -> None:
    engine, costs = open_database(None), Costs(Rules())
    attempt = an_attempt(1, launched_at=NOW - DAY)
    with engine.begin() as c:
        jobs.add_job(c, a_job())
        jobs.add_attempt(c, attempt)
        short = an_attempt(2, AttemptState.RELEASED, launched_at=MIDNIGHT - timedelta(seconds=9), released_at=MIDNIGHT)
        jobs.add_attempt(c, short)  # its minimum is of the day after

        def lines(since: datetime | None = None, until: datetime | None = None) -> list[ChargeLine]:
            return costs.lines(c, None, NOW + DAY, since, until)

        assert [x.begins.day for x in lines()] == [31, 1, 1, 2, 2]
        assert [x.begins.day for x in lines(NOW)] == [1, 1, 2, 2]
        assert [x.begins.day for x in lines(NOW, MIDNIGHT)] == [1, 1]
        assert [x.begins.day for x in lines(until=MIDNIGHT + timedelta(seconds=1))] == [31, 1, 1, 2, 2]
        assert lines(until=MIDNIGHT) + lines(MIDNIGHT) == lines(), "ranges that follow each other count nothing twice"
