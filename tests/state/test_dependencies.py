"""What jobs wait for: fulfilled, waiting or never, from the ends of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import Connection, Engine, select
from support.builders import NOW, a_job, an_attempt

from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import Job, JobId, JobState
from spotsurfer.model.queueing.arrays import task_id
from spotsurfer.model.queueing.dependencies import read_after
from spotsurfer.state import dependencies
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database
from spotsurfer.state.schema import job as J

BAD, GOOD, GONE = JobState.FAILED, JobState.SUCCEEDED, JobState.CANCELLED


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_database(None)


@pytest.fixture
def c(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection
        connection.rollback()


def add(c: Connection, name: str, *after: str, tasks: Sequence[int] = ()) -> list[Job]:
    job = a_job(id=JobId(name), state=JobState.QUEUED, owner="ada")
    job = replace(job, spec=replace(job.spec, name=name, array="1-9" if tasks else ""))
    made = [replace(job, id=task_id(name, n), array=name, task=n) for n in tasks] or [job]
    made = rows.add_jobs(c, made)
    dependencies.add(c, [(x, read_after(after)) for x in made])
    return made


def end(c: Connection, job: Job, state: JobState) -> None:
    rows.save_job(c, replace(rows.load_job(c, job.id), state=state))


def gate(c: Connection, job: str) -> str:
    return str(c.execute(select(J.c.waits_for).where(J.c.id == job)).scalar_one())


@pytest.mark.parametrize(
    ("kind", "ends", "waits", "never"),
    [
        ("afterok", [], True, ""),
        ("afterok", [GOOD], True, ""),
        ("afterok", [GOOD, GOOD], False, ""),
        ("afterok", [BAD], True, "first did not succeed (1 of its tasks)"),
        ("afterok", [GOOD, GONE], True, "first did not succeed (1 of its tasks)"),
        ("afterany", [GOOD], True, ""),
        ("afterany", [GOOD, BAD], False, ""),
        ("afternotok", [BAD], True, ""),
        ("afternotok", [BAD, GOOD], False, ""),
        ("afternotok", [GOOD, GOOD], True, "first succeeded"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_job_waits_for_an_array(c: Connection, kind: str, ends: list[JobState], waits: bool, never: str, late: bool) -> None:
    first = add(c, "first", tasks=[1, 2])
    if not late:
        add(c, "second", f"{kind}:first")
    for job, state in zip(first, ends, strict=False):
        end(c, job, state)
    if late:
        add(c, "second", f"{kind}:first")
    assert (gate(c, "second") == "dependency") is waits
    assert [why for _, why in dependencies.waiting(c, [JobId("second")]).get(JobId("second"), [])] == ([never] if waits else [])


def test_all_conditions_must_hold(c: Connection) -> None:
    (a,), (b,) = add(c, "a"), add(c, "b")
    add(c, "both", "afterok:a:b")
    end(c, a, GOOD)
    assert gate(c, "both") == "dependency"
    end(c, b, GOOD)
    assert gate(c, "both") == ""


def test_a_singleton_waits_for_earlier_ones_of_its_name_and_owner_alone(c: Connection) -> None:
    (first,) = add(c, "night")
    job = replace(first, id=JobId("night-2"), number=0)
    (second,) = rows.add_jobs(c, [job])
    (third,) = rows.add_jobs(c, [replace(job, id=JobId("night-3"))])
    (others,) = rows.add_jobs(c, [replace(job, id=JobId("night-4"), owner="bob")])
    dependencies.add(c, [(x, read_after(["singleton"])) for x in (second, third, others)])
    assert [gate(c, x.id) for x in (second, third, others)] == ["dependency", "dependency", ""]
    assert [str(one) for one, _ in dependencies.waiting(c, [second.id])[second.id]] == ["singleton"]
    end(c, first, BAD)
    assert [gate(c, x.id) for x in (second, third)] == ["", "dependency"]
    end(c, second, GOOD)
    assert gate(c, third.id) == ""


def test_a_job_may_begin_once_another_one_began_or_ended_before(c: Connection) -> None:
    first, second = add(c, "first", tasks=[1, 2])
    (plain,) = add(c, "plain")
    for name, on in (("one", "first-1"), ("all", "first"), ("other", "plain")):
        add(c, name, f"after:{on}")
    rows.add_attempt(c, replace(an_attempt(1, A.PLANNED), job=second.id, granted_at=None))
    dependencies.began(c, first)  # nothing has begun: only the attempts' grants count
    assert [gate(c, name) for name in ("one", "all", "other")] == ["dependency"] * 3
    rows.add_attempt(c, replace(an_attempt(1, A.RESTORING), job=first.id, token="t", granted_at=NOW))
    dependencies.began(c, first)
    assert [gate(c, name) for name in ("one", "all", "other")] == ["", "dependency", "dependency"]
    end(c, plain, GONE)
    end(c, second, GONE)
    assert [gate(c, name) for name in ("one", "all", "other")] == ["", "", ""]
    add(c, "late", "after:first-1")
    assert gate(c, "late") == ""
