"""What is foretold of a job by the newest report of its agent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsurfer_wire.final_save_forecast import Fit, Prospect
from spotsurfer_wire.messages import AgentState, Report

from spotsurfer.core.facts.notice_prospects import NOTICE_SECONDS, foretold

SAVED, TRIED, LOST = Prospect.SAVED, Prospect.TRIED, Prospect.LOST
FIT = Fit(1.0, 1, 40.0, 115.0, "fits", 65.0, 0.0, 40.0, 60.0, enough_seconds=65.0, least_seconds=35.0)
RUNS = Report("job", 1, "i-1", "0", 9, AgentState.RUNNING, 7, fit=FIT, save_age_seconds=50.0, protection="criu")


def outcomes(report: Report) -> list[Prospect]:
    return [f.outcome for f in foretold(report)]


def test_each_notice_has_its_outcome_and_its_cost() -> None:
    assert [(f.notice_seconds, f.outcome, f.lost_seconds) for f in foretold(RUNS)] == [
        (120.0, SAVED, 0.0),
        (30.0, LOST, 80.0),  # it runs on until the end
        (0.0, LOST, 50.0),
    ]
    assert all(f.measured for f in foretold(RUNS))


def test_a_live_save_that_is_under_way_ends_first() -> None:
    busy = replace(RUNS, state=AgentState.SAVING, fit=replace(FIT, live_seconds=60.0))
    assert outcomes(busy) == [TRIED, LOST, LOST]


@pytest.mark.parametrize("fit", [None, FIT])
def test_what_is_never_saved_is_lost_with_any_notice(fit: Fit | None) -> None:
    assert outcomes(replace(RUNS, protection="none", fit=fit)) == [LOST, LOST, LOST]


def test_before_the_first_save_a_speed_is_assumed_and_that_is_said() -> None:
    first = replace(RUNS, fit=None, memory_bytes=4 << 30, save_age_seconds=None)
    assert [(f.outcome, f.lost_seconds, f.measured) for f in foretold(first)] == [
        (SAVED, 0.0, False),
        (TRIED, None, False),
        (LOST, None, False),
    ]


def test_of_an_agent_that_knows_less_nothing_is_promised() -> None:
    assert outcomes(replace(RUNS, fit=replace(FIT, enough_seconds=None, least_seconds=0.0))) == [TRIED, TRIED, LOST]


@pytest.mark.parametrize("state", [s for s in AgentState if s not in (AgentState.RUNNING, AgentState.SAVING)])
def test_of_a_job_that_does_not_run_nothing_is_told(state: AgentState) -> None:
    assert foretold(replace(RUNS, state=state)) == ()


def test_the_longest_comes_first_and_none_last() -> None:
    assert list(NOTICE_SECONDS) == sorted(NOTICE_SECONDS, reverse=True)
    assert NOTICE_SECONDS[-1] == 0.0
