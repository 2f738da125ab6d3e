"""What was spent, as pages and the command line see it while it is brought up to date."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from unittest import mock

from spotsurfer_wire.messages import AgentState, Report
from support.builders import JOB, NOW, a_job, an_attempt

from spotsurfer.ledger import costs as ledger
from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.facts import MachineFacts, Rules
from spotsurfer.model.job import AttemptState
from spotsurfer.state import jobs, observations
from spotsurfer.state.db import open_database


def test_whoever_looks_during_a_refresh_sees_the_figures_before_it() -> None:
    engine, costs = open_database(None), Costs(Rules())
    running = [an_attempt(), an_attempt(2)]
    with engine.begin() as c:
        jobs.add_job(c, a_job())
        costs.refresh(c, {JOB: running}, NOW)
        before, seen = costs.total(), list[tuple[int, int]]()
        assert before > 0

        def cost(*known: object) -> object:
            seen.append((costs.total(), costs.of_job(JOB)))
            return counted(*known)  # type: ignore[arg-type]

        counted = ledger.cost
        ended = [an_attempt(state=AttemptState.RELEASED, released_at=NOW), an_attempt(2)]
        with mock.patch.object(ledger, "cost", cost):
            costs.refresh(c, {JOB: ended}, NOW)
        assert seen == [(before, before)] * 2
        assert costs.total() > 0


def test_a_machine_that_ended_stays_in_the_bill() -> None:
    """As it was when it ended: while its job goes on elsewhere, when that has ended, too, and for the next controller."""
    engine, costs, hour = open_database(None), Costs(Rules()), timedelta(hours=1)
    ended = an_attempt(1, AttemptState.RELEASED, launched_at=NOW - 2 * hour, released_at=NOW - hour)
    runs = an_attempt(2, launched_at=NOW - hour)
    over = replace(runs, state=AttemptState.RELEASED, released_at=NOW)
    with engine.begin() as c:
        jobs.add_job(c, a_job())
        for attempt in (ended, over):
            jobs.add_attempt(c, attempt)
        for _ in range(2):
            costs.refresh(c, {JOB: [ended, runs]}, NOW)
            assert costs.total() == costs.of_job(JOB) == 2 * 30_000
        for known in (costs, Costs(Rules())):
            for _ in range(2):
                known.refresh(c, {}, NOW + hour)
                assert known.total() == known.of_job(JOB) == 2 * 30_000


def test_a_bill_that_is_settled_is_made_again_only_if_its_agent_counted_more() -> None:
    """Ten minutes long after its end it was made anew at each tick: of a machine with many jobs that took most of the tick."""
    engine, costs, made = open_database(None), Costs(Rules()), list[int]()
    ended = an_attempt(1, AttemptState.RELEASED, launched_at=NOW - timedelta(hours=1), released_at=NOW)
    last = Report(JOB, 1, "i", "0", 1, AgentState.FINISHED, 1, store_read_bytes=1)

    def cost(facts: MachineFacts, *known: object) -> object:
        made.append(facts.attempt.number)
        return counted(facts, *known)  # type: ignore[arg-type]

    counted = ledger.cost
    with engine.begin() as c, mock.patch.object(ledger, "cost", cost):
        jobs.add_job(c, a_job())
        jobs.add_attempt(c, ended)
        observations.set_usage(c, last, NOW)
        for second in range(4):
            costs.refresh(c, {JOB: [ended]}, NOW + timedelta(seconds=second))
        assert made == [1, 1], "once, and once when the first counts of it were seen"
        observations.set_usage(c, replace(last, store_read_bytes=2), NOW)
        for second in range(4, 6):
            costs.refresh(c, {JOB: [ended]}, NOW + timedelta(seconds=second))
        assert made == [1, 1, 1]
