"""Two open jobs that say that they write one file are refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from spotsurfer.controller.jobs.writers import refuse_twice
from spotsurfer.model.errors import Conflict, JobFileError
from spotsurfer.model.job import Job, JobId, JobSpec, JobState
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def job(*outputs: str, **more: object) -> JobSpec:
    return JobSpec("new", ("x",), outputs=outputs, **{"home": "/h/w", **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine() -> Engine:
    made = open_database(None)
    with made.begin() as c:
        for id, state in (("open", JobState.ACTIVE), ("over", JobState.FAILED)):
            rows.add_job(c, Job(JobId(id), job(f"{id}.txt", "all/*.txt", folder="out"), state, 1, NOW, owner="ada"))
    return made


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([job("out/open.txt")], "open has not ended and will write out/open.txt in /h/w, too"),
        ([job("./open.txt", folder="out/")], "open has not ended"),
        ([job("a"), job("b"), job("x/../a")], "would both write a in /h/w"),
    ],
)
def test_it_is_said_who_writes_what(engine: Engine, specs: list[JobSpec], said: str) -> None:
    with engine.connect() as c, pytest.raises(Conflict, match=said):
        refuse_twice(c, "ada", specs)


def test_tasks_of_an_array_write_files_of_their_own(engine: Engine) -> None:
    with engine.connect() as c:
        refuse_twice(c, "ada", [job("part-{task}.txt", array="1-9")])
        with pytest.raises(JobFileError, match=r"result.txt, which all tasks of the array would write: put \{task\}"):
            refuse_twice(c, "ada", [job("result.txt", array="1-9")])


@pytest.mark.parametrize(
    "spec",
    [
        job("out/over.txt"),
        job("out/*.txt"),
        job("out/open.txt", home="/h/other"),
        job("out/open.txt", home=""),
        job("out/open.txt", after=("afterok:open",)),
    ],
)
def test_what_can_not_meet_is_taken(engine: Engine, spec: JobSpec) -> None:
    with engine.connect() as c:
        refuse_twice(c, "ada", [spec])
        refuse_twice(c, "bob", [job("out/open.txt")])
