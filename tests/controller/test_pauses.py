"""How long a move stopped its job: durations of the old machine, instants of the controller's own clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from spotsurfer_agent.fit import Fit, say
from spotsurfer_agent.protocol import AgentState, Report, SaveFacts
from sqlalchemy import Engine
from support.builders import JOB, NOW, a_job, an_attempt

from spotsurfer.controller import pauses
from spotsurfer.controller.chronicle import news
from spotsurfer.controller.events import Kind
from spotsurfer.model.job import Attempt
from spotsurfer.model.job import AttemptState as A
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import market, timeline
from spotsurfer.state.db import open_database

FINAL = SaveFacts("000001-000004", 4, "final", 4_000_000_000, 400_000_000, 0.6, 3.9)
REPORT = Report(JOB, 1, "i-1", "0", 9, AgentState.DRAINED, 7, last_save=FINAL)
FITS = Fit(0.6, 400_000_000, 3.9, 115.0, "fits", 10.0, 0.0, 3.9, 60.0, 2580.0, 600.0)


@pytest.fixture
def engine() -> Engine:
    """A job whose first attempt was seen drained 4 s ago."""
    made = open_database(None)
    with made.begin() as c:
        rows.add_job(c, a_job())
        for state, seconds in (("draining", 9), ("drained", 4), ("releasing", 3)):
            at = NOW - timedelta(seconds=seconds)
            timeline.add(c, Moment(at, JOB, 1, "attempt", "", {"from": "x", "to": state, "event": "x"}))
        market.set_usage(c, REPORT, NOW)
    return made


def waiter(**changes: object) -> Attempt:
    granted = NOW - timedelta(seconds=3.5)
    return replace(an_attempt(2, A.RESTORING, granted_at=granted, from_checkpoint=FINAL.checkpoint), **changes)  # type: ignore[arg-type]


def test_the_three_parts_of_a_pause(engine: Engine) -> None:
    with engine.connect() as c:
        found = pauses.measure(c, waiter(), NOW)
    assert found is not None
    assert found == pauses.Pause(3.9, 0.5, 3.5)
    assert found.seconds == pytest.approx(7.9)
    assert "stood still for 7.9 s" in str(found)


@pytest.mark.parametrize(("seconds", "counts"), [(4, False), (2, False), (20, True)])
def test_the_time_for_which_a_job_was_held_is_no_pause_of_a_move(engine: Engine, seconds: float, counts: bool) -> None:
    with engine.begin() as c:
        timeline.add(c, Moment(NOW - timedelta(seconds=seconds), JOB, None, "ended", "", {"state": "held"}))
        assert (pauses.measure(c, waiter(), NOW) is not None) is counts


def test_a_job_that_was_not_handed_over_has_none(engine: Engine) -> None:
    with engine.connect() as c:
        assert pauses.measure(c, waiter(from_checkpoint=None), NOW) is None
        assert pauses.measure(c, waiter(from_checkpoint="000001-000003"), NOW) is None, "it went back to an older one"


def test_without_the_old_machines_last_word_none_is_made_up(engine: Engine) -> None:
    with engine.begin() as c:
        market.set_usage(c, replace(REPORT, last_save=None), NOW)
        assert pauses.measure(c, waiter(), NOW) is None


def test_the_timeline_tells_when_the_verdict_changes_and_only_then() -> None:
    first, again = replace(REPORT, last_save=None, fit=FITS), replace(REPORT, last_save=None, fit=replace(FITS, send_bytes=9))
    late = replace(again, fit=replace(FITS, verdict="late"))
    assert [k for k, _, _ in news(None, first)] == [Kind.FIT]
    assert list(news(first, again)) == []
    kind, text, data = next(news(again, late))
    assert (kind, data["verdict"]) == (Kind.FIT, "late")
    assert "too old" in text


def test_only_a_job_that_goes_on_is_said_to_go_on() -> None:
    """Of a machine that lost its job while it stood still the timeline said that it still owned it."""
    held = replace(REPORT, last_save=None, frozen=True)
    after = [replace(held, frozen=False, state=state) for state in (AgentState.RUNNING, AgentState.FENCED)]
    assert [[kind for kind, _, _ in news(held, r)] for r in after] == [[Kind.THAWED], []]


def test_each_verdict_is_a_sentence() -> None:
    assert say(FITS) == (
        "a final save now would take 3.9 s (381 MiB to send) and fits the 115 s that a notice leaves; "
        "with a base older than 2580 s it would not"
    )
    assert "faster link" in say(replace(FITS, verdict="never"))
    assert "one is made every 300 s" in say(replace(FITS, hastened=True, interval_seconds=300.0))
    assert "without notice" in say(replace(FITS, verdict="no notice", window_seconds=None))


def test_stages_that_a_job_tells_become_moments_once() -> None:
    first, again = replace(REPORT, last_save=None, hint="align"), replace(REPORT, last_save=None, hint="call")
    assert list(news(None, first)) == [(Kind.STAGE, "align", {"stage": "align", "memory_bytes": 0, "cores": 0.0})]
    assert list(news(first, first)) == []
    assert [text for _, text, _ in news(first, again)] == ["call"]
    assert [text for _, text, _ in news(again, replace(again, hint_memory_bytes=3 << 30))] == ["call: it will need 3.0 GiB"]
    assert list(news(again, replace(again, hint=""))) == []
