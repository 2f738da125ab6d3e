"""What agents tell of usage and near misses becomes history: on our clock, once, thinned, and never an error."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from spotsurfer_wire.messages import AgentState, NearMiss, Report
from spotsurfer_wire.usage import NAMES, NEEDED, Usage, Window
from sqlalchemy import Engine
from support.builders import JOB, NOW, a_job, a_snapshot, seen

from spotsurfer.controller.event_recorder import EventRecorder, news
from spotsurfer.controller.history.usage import lately, newest, windows
from spotsurfer.model.snapshot import Snapshot
from spotsurfer.model.timeline_events import Kind
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, usage_history
from spotsurfer.state.db import open_database

MISS = NearMiss(8 << 30, 7 << 30, (7 << 30) + 5, 0.012)


def row(number: int, resident: float = 1e9, cores: float = 1.0) -> list[float | None]:
    values: dict[str, float | None] = dict.fromkeys(NEEDED, 0.0)
    values |= {"number": number, "seconds": 10.0, "cpu_cores": cores, "resident_bytes": resident}
    return [values.get(n) for n in NAMES]


def report(*rows_: list[float | None], at: float = 1000.0, **changes: object) -> Report:
    told = Report(JOB, 1, "i-1", "0", 9, AgentState.RUNNING, 7, usage=Usage(at, list(rows_)))
    return replace(told, **changes)  # type: ignore[arg-type]


def test_windows_begin_on_our_clock() -> None:
    found = list(windows(report(row(98), row(99), at=1003.0), NOW))
    assert [(at, w.number) for at, w in found] == [(NOW - timedelta(seconds=23), 98), (NOW - timedelta(seconds=13), 99)]
    assert newest(report(row(98), row(99))) == 99
    assert [w.number for _, w in windows(report(row(98), row(99)), NOW, known=99)] == [99]


@pytest.mark.parametrize(
    "bad",
    [[], [1.0], row(5000), [None, *row(98)[1:]], [98.0, float("nan"), *row(98)[2:]], [98.0, -1.0, *row(98)[2:]], row(-(10**9))],
)
def test_what_cannot_be_is_left_out(bad: list[float | None]) -> None:
    assert [w.number for _, w in windows(report(bad, row(99)), NOW)] == [99]


def test_what_it_used_lately_is_a_window_that_covers_some_seconds() -> None:
    growing = [*row(99)]
    growing[1] = 2.0
    found = lately(report(row(98, resident=5.0), growing))
    assert found is not None
    assert found.resident_bytes == 5.0
    assert lately(None) is None
    assert lately(replace(report(), usage=None)) is None


def test_a_window_in_which_another_agent_began_is_kept_where_it_covers_more() -> None:
    with open_database(None).begin() as c:
        for seconds in (7.0, 2.0, 8.0, 3.0):
            told = [71.0, seconds, *row(71, resident=seconds)[2:]]
            usage_history.add(c, JOB, 1, windows(report(told, at=720.0), NOW))
        assert [(u.window.seconds, u.window.resident_bytes) for u in usage_history.read(c, JOB)] == [(8.0, 8.0)]


def test_history_is_kept_once_grows_and_is_thinned_after_an_hour() -> None:
    engine = open_database(None)
    with engine.begin() as c:
        for number in range(60, 72):
            told = report(row(number, resident=float(number), cores=float(number % 2)), at=number * 10.0 + 10)
            usage_history.add(c, JOB, 1, windows(told, NOW + timedelta(seconds=10 * (number - 60))))
        usage_history.add(c, JOB, 1, windows(report(row(71, resident=99.0), at=720.0), NOW))
        before = usage_history.read(c, JOB)
        assert (len(before), before[-1].window.resident_bytes) == (12, 99.0)
        assert usage_history.thin(c, NOW + timedelta(minutes=30)) == 0
        assert usage_history.thin(c, NOW + timedelta(hours=3)) == 10
        after = usage_history.read(c, JOB)
        found = [(u.window.number, u.window.seconds, u.window.resident_bytes) for u in after]
        assert found == [
            (60, 60.0, 65.0),
            (66, 60.0, 99.0),
        ]
        assert after[0].window.cpu_cores == 0.5
        assert usage_history.thin(c, NOW + timedelta(hours=3)) == 0
        assert usage_history.thin(c, NOW + usage_history.KEPT + timedelta(days=1)) == 2
        assert usage_history.read(c, JOB) == []


def test_the_last_report_keeps_only_the_newest_windows() -> None:
    engine = open_database(None)
    with engine.begin() as c:
        observations.set_usage(c, report(*(row(n) for n in range(70, 99))), NOW)
        kept = observations.last_report(c, JOB, 1)
    assert kept is not None
    assert kept.usage is not None
    assert [r[0] for r in kept.usage.rows] == [97, 98]


def _sized(engine: Engine) -> Snapshot:
    chronicle, snapshot = EventRecorder(engine), a_snapshot(seen())
    chronicle.attend(snapshot.jobs)
    return chronicle.sized(snapshot)


def test_a_near_miss_is_told_once_and_the_job_asks_for_more_from_then_on() -> None:
    missed = report(near_miss=MISS)
    said = [(kind, text) for kind, text, _ in news(report(), missed) if kind is Kind.NEAR_MISS]
    assert len(said) == 1
    assert "frozen after 12 ms" in said[0][1]
    assert "of this machine" in said[0][1]
    assert not [k for k, _, _ in news(missed, missed) if k is Kind.NEAR_MISS]
    engine = open_database(None)
    with engine.begin() as c:
        rows.add_job(c, a_job())
        observations.set_usage(c, missed, NOW)
    snapshot = _sized(engine)  # also where the controller was started anew since
    assert snapshot.jobs[0].memory_floor_bytes == snapshot.jobs[0].job.spec.memory_bytes == 12 << 30


def test_a_kill_for_memory_is_told_as_such_and_counted_by_attempt() -> None:
    killed = report(near_miss=replace(MISS, killed=True))
    [(kind, text)] = [(kind, text) for kind, text, _ in news(report(), killed) if kind is not Kind.ALERT]
    assert kind is Kind.OUT_OF_MEMORY
    assert text == "the kernel killed it, because the 8.0 GiB of its machine ended; the next one has at least 12.0 GiB"
    engine = open_database(None)
    with engine.begin() as c:
        rows.add_job(c, a_job())
        observations.set_usage(c, killed, NOW)
    [job] = _sized(engine).jobs
    assert (job.memory_kills, job.memory_floor_bytes) == (frozenset({killed.attempt}), 12 << 30)


def test_a_window_is_its_row() -> None:
    window = Window.from_row(row(7, 1234.5))
    assert Window.from_row(window.to_row()) == window
