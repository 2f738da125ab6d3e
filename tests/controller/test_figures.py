"""The counts for metrics, by a real database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from support.fake_service import START, an_attempt

from spotsurfer.model.job import AttemptState, Job, JobId, JobSpec, JobState, Parent
from spotsurfer.model.market import Market
from spotsurfer.ports.service import Moment
from spotsurfer.state import figures, ledger_facts, timeline
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database

SPEC = JobSpec("j", ("true",))


def test_everything_is_counted_once() -> None:
    with open_database(None).begin() as c:
        for n, state in enumerate([JobState.QUEUED, JobState.QUEUED, JobState.ACTIVE, JobState.HELD]):
            rows.add_job(c, Job(JobId(f"j{n}"), SPEC, state, 1, START + timedelta(minutes=n)))
        rehearsal = Job(JobId("r"), SPEC, JobState.QUEUED, 1, START - timedelta(days=1))
        rows.add_job(c, replace(rehearsal, parent=Parent(JobId("j2"), "1", rehearsal=True)))
        running = an_attempt(JobId("j2"), 3)
        gone = replace(an_attempt(JobId("j2"), 1, AttemptState.RELEASED), reclaimed=True, restore_failed=True)
        never = replace(an_attempt(JobId("j2"), 2, AttemptState.REFUSED), launched_at=None, market=Market.ON_DEMAND)
        for attempt in (gone, never, running):
            rows.add_attempt(c, attempt)
        for kind in ("saved", "saved", "notice"):
            timeline.add(c, Moment(START, JobId("j2"), 3, kind, "", {}))
        for minute, size in enumerate((10, 30)):
            ledger_facts.set_stored(c, JobId("j2"), START + timedelta(minutes=minute), size)
        ledger_facts.set_stored(c, JobId("j3"), START, 5)
        found = figures.figures(c, START + timedelta(hours=1))
    assert found.jobs == {"queued": 2, "active": 1, "held": 1, "succeeded": 0, "failed": 0, "cancelled": 0}
    assert found.oldest_queued_at == START
    assert found.machines == {("local", "spot", "running"): 1}
    assert found.launched == {("local", "spot"): 2}
    assert found.reclaimed == {("local", "spot"): 1}
    assert found.refused == {("local", "on-demand"): 1}
    assert found.restores_failed == 1
    assert found.moments == {"saved": 2, "notice": 1}
    assert found.stored_bytes == 35
