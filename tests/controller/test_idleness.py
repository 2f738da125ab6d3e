"""Since when jobs do nothing: out of the database, once for each report, and again after a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from spotsurfer_wire.usage import Window
from support.builders import JOB, NOW, a_job, a_snapshot, an_attempt, seen

from spotsurfer.controller.history.usage import Idleness
from spotsurfer.model.snapshot import QuietSeen, Snapshot
from spotsurfer.state import jobs as rows
from spotsurfer.state import usage_history
from spotsurfer.state.db import open_database

WORLD = a_snapshot(seen([an_attempt(1)], job=a_job({"idle_seconds": 60.0})))
CHANGED = {(str(JOB), 1)}


def window(number: int, cpu: float) -> tuple[datetime, Window]:
    return NOW + timedelta(seconds=10 * number), Window(number, 10.0, cpu, cpu, 0, 0, 0, 0, 0, 0)


def quiet(snapshot: Snapshot) -> QuietSeen | None:
    return snapshot.jobs[0].quiet


def test_it_follows_what_agents_tell_and_a_restart_knows_the_same() -> None:
    engine = open_database(None)
    one = Idleness(engine)
    with engine.begin() as c:
        rows.add_job(c, a_job())
        usage_history.add(c, JOB, 1, [window(0, 0.9), window(1, 0.0), window(2, 0.0)])
    now = NOW + timedelta(seconds=30)
    first = quiet(one.noted(WORLD, CHANGED, now))
    assert first is not None
    assert (first.since, first.until) == (NOW + timedelta(seconds=10), now)
    with engine.begin() as c:
        usage_history.add(c, JOB, 1, [window(3, 0.0)])
    assert quiet(one.noted(WORLD, (), now)) == first, "no report, no question"
    later = quiet(one.noted(WORLD, CHANGED, now + timedelta(seconds=10)))
    assert later is not None
    assert (later.since, later.until) == (first.since, NOW + timedelta(seconds=40))
    assert quiet(Idleness(engine).noted(WORLD, (), now + timedelta(seconds=10))) == later


def test_connections_are_told_along_and_others_are_left_alone() -> None:
    engine = open_database(None)
    with engine.begin() as c:
        rows.add_job(c, a_job())
        usage_history.add(c, JOB, 1, [window(0, 0.0)])
    found = quiet(Idleness(engine, lambda _: (2, NOW)).noted(WORLD, CHANGED, NOW))
    assert found is not None
    assert (found.connections, found.last_closed_at) == (2, NOW)
    plain = a_snapshot(seen([an_attempt(1)]))
    assert Idleness(engine).noted(plain, CHANGED, NOW) is plain


def test_a_job_that_prints_makes_progress() -> None:
    engine = open_database(None)
    world = a_snapshot(seen([an_attempt(1)], job=a_job({"stuck_seconds": 60.0})))
    with engine.begin() as c:
        rows.add_job(c, a_job())
        at, prints = window(1, 0.0)
        usage_history.add(c, JOB, 1, [window(0, 0.0), (at, replace(prints, printed_bytes=3.0)), window(2, 0.0)])
    found = Idleness(engine).noted(world, CHANGED, NOW + timedelta(seconds=30)).jobs[0]
    assert found.quiet is None, "nobody asked whether it is idle"
    assert found.still is not None
    assert found.still.since == NOW + timedelta(seconds=20)
