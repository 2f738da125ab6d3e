"""How long a move stopped its job: durations of the old machine, instants of the controller's own clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from spotsurfer_wire.final_save_forecast import Fit, say
from spotsurfer_wire.messages import AgentState, Head, HeadKind, Report, SaveFacts
from sqlalchemy import Engine
from support.builders import JOB, NOW, a_job, an_attempt
from support.dict_store import DictStore

from spotsurfer.controller.apply import Apply
from spotsurfer.controller.event_recorder import news
from spotsurfer.controller.history import past_attempts
from spotsurfer.model.actions import Mark
from spotsurfer.model.job import Attempt, AttemptNumber
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.state_machine import AttemptEvent
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.head_logs import HeadLogs

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
        observations.set_usage(c, REPORT, NOW)
    return made


def waiter(**changes: object) -> Attempt:
    granted = NOW - timedelta(seconds=3.5)
    return replace(an_attempt(2, A.RESTORING, granted_at=granted, from_checkpoint=FINAL.checkpoint), **changes)  # type: ignore[arg-type]


def test_the_three_parts_of_a_pause(engine: Engine) -> None:
    with engine.connect() as c:
        found = past_attempts.measure(c, waiter(), None, NOW)
    assert found is not None
    assert found == past_attempts.Pause(3.9, 0.5, 3.5)
    assert found.seconds == pytest.approx(7.9)
    assert "stood still for 7.9 s" in str(found)


@pytest.mark.parametrize(("committed", "unseen"), [(4.8, 0.8), (3600, 1.1), (1, 0.0), (None, 0.0)])
def test_a_clock_that_is_wrong_makes_no_pause(engine: Engine, committed: float | None, unseen: float) -> None:
    """It was told to drain 9 s ago, took 3.9 s, and was seen drained 4 s ago."""
    at = NOW - timedelta(seconds=committed) if committed is not None else None
    with engine.connect() as c:
        found = past_attempts.measure(c, waiter(), at, NOW)
    assert found is not None and found.unseen_seconds == pytest.approx(unseen)


def test_the_pause_of_a_job_that_left_while_the_controller_was_dead_begins_when_it_stood_still() -> None:
    """The agent saved it 24 s ago; the controller came back 4 s ago, and told 7.9 s."""
    made = open_database(None)
    with made.begin() as c:
        rows.add_job(c, a_job())
        steps = [(60, "attempt", {"to": "running"}), (4.4, "saved", {"checkpoint": FINAL.checkpoint}), (4.4, "notice", {})]
        for seconds, kind, data in [*steps, (4, "attempt", {"to": "drained"})]:
            timeline.add(c, Moment(NOW - timedelta(seconds=seconds), JOB, 1, kind, "", data))
        observations.set_usage(c, REPORT, NOW)
        found = past_attempts.measure(c, waiter(), NOW - timedelta(seconds=24), NOW)
    assert found is not None and found.seconds == pytest.approx(27.9)
    assert "saved in 3.9 s, seen as saved 20.0 s later (by its old machine's clock), handed over in 0.5 s" in str(found)


def test_when_the_final_save_was_committed_is_read_from_its_entry(engine: Engine) -> None:
    heads, unused = HeadLogs(DictStore()), cast("Any", None)
    for number, seconds in ((1, 600.0), (2, 4.8)):
        at, final = (NOW - timedelta(seconds=seconds)).isoformat(), number == 2
        kind, checkpoint = (HeadKind.COMMIT, FINAL.checkpoint) if final else (HeadKind.GRANT, None)
        heads.log(JOB).append(Head(number, kind, 1, checkpoint, 4, final, None, 0.0, str(number), at))
    with engine.begin() as c:
        rows.add_attempt(c, waiter())
    apply = Apply(engine, unused, DictStore(), heads, ManualClock(NOW), "f", unused, unused, lambda _token, _id: None)
    apply.carry_out(Mark(JOB, AttemptNumber(2), AttemptEvent.WORKLOAD_STARTED, "it runs"))
    with engine.connect() as c:
        told = [m.data for _, m in timeline.read(c, JOB, 0) if m.kind == "moved"]
    assert [m["unseen_seconds"] for m in told] == [pytest.approx(0.8)]


@pytest.mark.parametrize(("seconds", "counts"), [(4, False), (2, False), (20, True)])
def test_the_time_for_which_a_job_was_held_is_no_pause_of_a_move(engine: Engine, seconds: float, counts: bool) -> None:
    with engine.begin() as c:
        timeline.add(c, Moment(NOW - timedelta(seconds=seconds), JOB, None, "ended", "", {"state": "held"}))
        assert (past_attempts.measure(c, waiter(), None, NOW) is not None) is counts


def test_a_job_that_was_not_handed_over_has_none(engine: Engine) -> None:
    with engine.connect() as c:
        assert past_attempts.measure(c, waiter(from_checkpoint=None), None, NOW) is None
        assert past_attempts.measure(c, waiter(from_checkpoint="000001-000003"), None, NOW) is None, (
            "it went back to an older one"
        )


def test_without_the_old_machines_last_word_none_is_made_up(engine: Engine) -> None:
    with engine.begin() as c:
        observations.set_usage(c, replace(REPORT, last_save=None), NOW)
        assert past_attempts.measure(c, waiter(), None, NOW) is None


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
