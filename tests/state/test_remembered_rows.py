"""A list that remembers rows is the list that reads all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsurfer_wire.messages import AgentState, Report
from sqlalchemy import Connection, event
from support.builders import NOW, a_job, ago, an_attempt

from spotsurfer.model.job import AttemptState, JobId
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, remembered_rows
from spotsurfer.state.db import open_database
from spotsurfer.state.remembered_rows import RememberedRows

JOBS = [JobId(f"job-{n}") for n in range(6)]


def report(job: str, cpu: float) -> Report:
    return Report(job, 1, "i", "0.2.0", 1, AgentState.RUNNING, 1, cpu_seconds=cpu)


def alike(known: RememberedRows, c: Connection) -> None:
    for owner in (None, "ada", "nobody"):
        assert known.jobs(c, owner) == rows.all_jobs(c, owner)
    for some in (JOBS, JOBS[2:4], []):
        assert known.attempts(c, some) == rows.attempts(c, some)
        assert known.reports(c, some) == observations.last_reports(c, some)


@pytest.mark.parametrize("most", [0, 3, 1000])
def test_it_is_the_same_list(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(remembered_rows, "ROWS_MAX", most)
    monkeypatch.setattr(remembered_rows, "AT_ONCE", 4)
    known, engine = RememberedRows(), open_database(None)
    with engine.begin() as c:
        alike(known, c)
        for n, job in enumerate(JOBS):
            rows.add_job(c, a_job(id=job, owner="ada" if n % 2 else "bob", submitted_at=ago(n)))
            rows.add_attempt(c, an_attempt(job=job, token=job))
            observations.set_usage(c, report(job, 1.0), NOW)
        alike(known, c)
        alike(known, c)
        changed = rows.save_job(c, replace(rows.load_job(c, JOBS[1]), reason="new"))
        rows.save_attempt(c, replace(rows.load_attempt(c, JOBS[3], an_attempt().number), state=AttemptState.RELEASED))
        rows.add_attempt(c, an_attempt(2, job=JOBS[3], token="two"))
        observations.set_usage(c, report(JOBS[5], 2.0), NOW)
        alike(known, c)
        assert changed in known.jobs(c)
        assert len(known._jobs) <= most and len(known._attempts) <= most and len(known._reports) <= most


def test_what_is_known_is_not_read_again() -> None:
    known, engine, read = RememberedRows(), open_database(None), list[str]()
    with engine.begin() as c:
        rows.add_job(c, a_job(id=JOBS[0]))
        rows.add_attempt(c, an_attempt(job=JOBS[0]))
        observations.set_usage(c, report(JOBS[0], 1.0), NOW)
        alike(known, c)
        event.listen(engine, "before_cursor_execute", lambda _c, _k, statement, *_: read.append(statement))
        assert len(known.jobs(c)) == len(known.attempts(c, JOBS[:1])) == len(known.reports(c, JOBS[:1])) == 1
    assert len(read) == 3 and not any("spec" in x or "pool" in x or "doc" in x for x in read)
