"""Arrays and jobs that are submitted together."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_wire import json_codec, object_keys, sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.builders import NOW, an_offer

from spotsurfer.controller.jobs.brief import Told, jobs_brief
from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.jobs.submission import Submission
from spotsurfer.model import errors as e
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.service import NewJob
from spotsurfer.state.brief import Which
from spotsurfer.state.db import open_database


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    vault = Vault(lambda lineage: Keys.derive(b"k" * 32, lineage), {}.__getitem__)
    store = open_store((tmp_path / "store").as_uri())
    clock, spool = ManualClock(NOW), tmp_path / "spool"
    return Submission(open_database(None), clock, store, spool, vault, lambda *_: None, lambda: (an_offer(),), 600.0)


def a(name: str, *after: str, **more: object) -> NewJob:
    return NewJob(JobSpec(name=name, command=("work", "{task}"), after=after, **more), JobId(f"{name}-0"))  # type: ignore[arg-type]


def test_each_task_is_a_job(submission: Submission) -> None:
    submission.submit_many([a("before")])
    ((first, second),) = submission.submit_many([a("sweep", array="3,7%1", environment={"N": "x{task}", "S": "${task}"})])
    assert (first.id, second.id, first.array, second.task) == ("sweep-0-3", "sweep-0-7", "sweep-0", 7)
    assert first.spec.command == ("work", "3")
    assert second.spec.environment == {"N": "x7", "S": "${task}"}
    assert (first.number, second.number) == (2, 2)
    assert first.submitted_at < second.submitted_at


def test_jobs_of_a_batch_may_name_each_other(submission: Submission) -> None:
    submission.submit_many([a("merge", "afterok:sweep"), a("sweep", array="1-2"), a("tail", "aftercorr:sweep", array="1-2")])
    with submission.engine.connect() as c:
        waits = {job.id: job.after for job in jobs_brief(c, Which(), Told())}
    assert waits == {
        "sweep-0-1": [], "sweep-0-2": [], "merge-0": ["afterok:2_*"],
        "tail-0-1": ["afterok:2_1"], "tail-0-2": ["afterok:2_2"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([a("x", "afterok:y")], "there is no such job"),
        ([a("x", "afterok:x")], "in a circle"),
        ([a("x", "afterok:y"), a("y", "afterany:z"), a("z", "afterok:x")], "in a circle, and none .* x-0 waits for"),
        ([a("x", "aftercorr:y", array="1-3"), a("y", array="1-2")], "has no task 3"),
        ([a("x", "afterok:hers-0")], "there is no such job"),
    ],
)
def test_what_can_never_come_is_refused(submission: Submission, jobs: list[NewJob], why: str) -> None:
    submission.submit_many([a("hers")], owner="ada")
    with pytest.raises(e.JobFileError, match=why):
        submission.submit_many(jobs, owner="bob", within="bob")
    with submission.engine.connect() as c:
        assert [job.name for job in jobs_brief(c, Which(), Told())] == ["hers"]


def test_jobs_are_found_by_id_number_and_name(submission: Submission) -> None:
    submission.submit_many([a("sweep", array="1-2")])
    for n, name in enumerate(("sweep-0", "1", "sweep-0-2", "1_2", "sweep")):
        submission.submit_many([a(f"next{n}", f"afterok:{name}")])
    with submission.engine.connect() as c:
        found = {job.name: job.after for job in jobs_brief(c, Which(), Told()) if job.after}
    array, task = ["afterok:1_*"], ["afterok:1_2"]
    assert found == {"next0": array, "next1": array, "next2": task, "next3": task, "next4": array}


def test_conditions_are_told_as_they_were_written(submission: Submission) -> None:
    submission.submit_many([a("one"), a("two")])
    spec = JobSpec("one", ("work",), after=("singleton,afterok:two,afterany:one-0",))
    submission.submit_many([NewJob(spec, JobId("one-9"))])
    with submission.engine.connect() as c:
        (told,) = [job.after for job in jobs_brief(c, Which(), Told()) if job.after]
    assert told == ["singleton", "afterok:2", "afterany:1"]


def test_inputs_of_an_array_stay(submission: Submission) -> None:
    submission.submit_many([a("sweep", array="1-2")])
    with pytest.raises(e.Conflict, match="was submitted already"):
        submission.discard(JobId("sweep-0"))
    with pytest.raises(e.Conflict, match="was submitted already"):
        submission.upload(JobId("sweep-0"), "x", iter([b""]), 0)


@pytest.mark.parametrize("id", ["sweep-0-9", "sweep-0"])
def test_nothing_passes_for_a_task_of_somebody_elses_array(submission: Submission, id: str) -> None:
    """Its machine would read the inputs of that array."""
    submission.submit_many([a("sweep", array="1-2")], owner="ada")
    with pytest.raises(e.Conflict):
        submission.submit_many([NewJob(JobSpec(name="thief", command=("cat",)), JobId(id))], owner="bob")


def test_a_task_has_a_specification_and_secrets_before_its_first_machine(submission: Submission) -> None:
    spec = JobSpec(
        name="sweep", command=("work", "{task}"), array="1-2", secrets={"KEY": {"from": "env:KEY", "as": "environment"}}
    )
    ((_, second),) = submission.submit_many([NewJob(spec, JobId("sweep-0"), {}, {"KEY": b"hidden"})])
    assert submission.store.get(object_keys.spec_key(second.id)) is None
    submission.specifications.ready(second)
    submission.specifications.ready(second)
    data = submission.store.get(object_keys.spec_key(second.id))
    assert data is not None
    wire = json_codec.decode(Spec, data)
    assert (wire.job, wire.array, wire.task, wire.command) == ("sweep-0-2", "sweep-0", 2, ["work", "2"])
    keys = Keys.derive(b"k" * 32, second.id)
    assert sealed_objects.fetch_secrets(submission.store, keys, second.id) == {"KEY": b"hidden"}
