"""Which part of the timeline is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from spotsurfer.model.job import JobId
from spotsurfer.ports.service import Moment
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database

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
