"""Which part of the timeline is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from spotsurfer_wire.messages import AgentState, Report

from spotsurfer.model.job import JobId
from spotsurfer.ports.service import Moment
from spotsurfer.state import observations, timeline
from spotsurfer.state.db import open_database
from spotsurfer.state.remembered_rows import RememberedRows

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EAST = timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    ("job", "after", "since", "last", "found"),
    [
        (None, 0, None, None, [1, 2, 3, 4]),
        ("a", 0, None, None, [1, 3]),
        (None, 2, None, None, [3, 4]),
        (None, 0, NOON + timedelta(seconds=2), None, [3, 4]),
        (None, 0, (NOON + timedelta(seconds=2)).astimezone(EAST), None, [3, 4]),
        (None, 0, None, 3, [2, 3, 4]),
        ("a", 0, None, 1, [3]),
        (None, 3, NOON, 3, [4]),
        (None, 0, NOON + timedelta(hours=1), 3, []),
    ],
)
def test_parts(job: str | None, after: int, since: datetime | None, last: int | None, found: list[int]) -> None:
    with open_database(None).begin() as connection:
        for number, name in enumerate("abab"):
            timeline.add(connection, Moment(NOON + timedelta(seconds=number), JobId(name), None, "saved", str(number), {}))
        told = timeline.read(connection, JobId(job) if job else None, after, since, last)
    assert [number for number, _ in told] == found


def test_a_list_decodes_each_report_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand jobs that have ended took most of a second, at each call."""
    decoded: list[object] = []
    decode = observations.report_of
    monkeypatch.setattr(observations, "report_of", lambda doc: decoded.append(doc) or decode(doc))
    known, jobs = RememberedRows(), [JobId(f"job-{i}") for i in range(5)]
    with open_database(None).begin() as c:
        for job in jobs:
            observations.set_usage(c, Report(job, 1, "i-1", "0", 1, AgentState.FINISHED, 1), NOON)
        first = known.reports(c, jobs)
        assert (len(first), len(decoded)) == (5, 5)
        assert known.reports(c, jobs) == first and len(decoded) == 5
        observations.set_usage(c, Report(jobs[2], 1, "i-1", "0", 2, AgentState.FINISHED, 1), NOON + timedelta(seconds=1))
        again = known.reports(c, jobs[1:3])
    assert sorted(again) == [(jobs[1], 1), (jobs[2], 1)]
    assert (again[jobs[2], 1].sequence, len(decoded)) == (2, 6)
