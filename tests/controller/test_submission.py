"""Half a submission is no job."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from support.builders import NOW, an_offer

from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.jobs.submission import Submission
from spotsurfer.model import errors as e
from spotsurfer.model.job import InputFetch, JobId, JobSpec
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database

JOB = JobId("job-1")


@pytest.fixture
def store(tmp_path: Path) -> ObstoreStore:
    return open_store((tmp_path / "store").as_uri())


def many_inputs(job: str, inputs: Sequence[str]) -> None:
    """A provider that has room for one input."""
    if len(inputs) > 1:
        raise e.Invalid(f"the rights of job {job} do not fit: bring its inputs together in fewer buckets")


@pytest.fixture
def submission(tmp_path: Path, store: ObstoreStore) -> Submission:
    clock = ManualClock(NOW)
    vault = Vault(lambda lineage: Keys.derive(b"k" * 32, lineage), {}.__getitem__)
    addresses = (OwnStore("file:///x"), OwnStore("s3://bucket/fleet"))
    spool, offers = tmp_path / "spool", lambda: (an_offer(),)
    return Submission(open_database(None), clock, store, spool, vault, many_inputs, offers, 600.0, addresses)


def spec(**changes: object) -> JobSpec:
    return JobSpec(name="job", command=("work",), inputs=("a",), **changes)  # type: ignore[arg-type]


def test_uploads_then_the_job(submission: Submission, store: ObstoreStore, tmp_path: Path) -> None:
    submission.upload(JOB, "a", iter([b"one", b"two"]), 6)
    made = submission.submit(JOB, spec(), {"a": 0o755})
    data = store.get(object_keys.spec_key(JOB))
    assert data is not None
    wire = json_codec.decode(Spec, data)
    assert (wire.inputs, wire.input_modes, wire.checkpoint_interval_seconds) == ({"a": 6}, {"a": 0o755}, 600.0)
    assert made.state == "queued"
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(("asked", "kept"), [(None, "unprivileged"), ("root", "root"), ("alice", "alice")])
def test_a_job_that_does_not_say_who_it_is_has_no_privileges(
    submission: Submission, store: ObstoreStore, asked: str | None, kept: str
) -> None:
    made = submission.submit(JOB, JobSpec(name="job", command=("work",), user=asked), {})
    data = store.get(object_keys.spec_key(JOB))
    assert data is not None
    assert (made.spec.user, json_codec.decode(Spec, data).user) == (kept, kept)


def test_a_job_of_before_keeps_its_user() -> None:
    """Its row and its specification say nothing; root is who it was."""
    row = rows.spec_to_doc(JobSpec(name="job", command=("work",)))
    assert rows.spec_from_doc(row).user is None
    del row["user"]
    assert rows.spec_from_doc(row).user is None
    old = json.loads(json_codec.encode(Spec(JOB, ["work"])))
    del old["user"]
    assert json_codec.decode(Spec, json.dumps(old).encode()).user is None


def test_an_input_that_never_came(submission: Submission, store: ObstoreStore) -> None:
    with pytest.raises(e.InputMissing, match="'a'"):
        submission.submit(JOB, spec(), {"a": 0o644})
    assert store.get(object_keys.spec_key(JOB)) is None
    with submission.engine.connect() as c:
        assert rows.all_jobs(c) == []


def test_an_input_that_changed_on_the_way(submission: Submission, store: ObstoreStore) -> None:
    with pytest.raises(e.InputMissing, match="changed"):
        submission.upload(JOB, "a", iter([b"one"]), 6)
    assert store.list("jobs/") == []


@pytest.mark.parametrize(
    "source", ["s3://bucket/fleet/jobs/other-abc123/chunks/", "s3://bucket/*.fq", "s3://bucket//fleet/live/x"]
)
def test_what_other_jobs_keep_in_the_store_is_no_input(submission: Submission, store: ObstoreStore, source: str) -> None:
    fetches = (InputFetch("s3://bucket/reads/x.fq"), InputFetch(source))
    with pytest.raises(e.JobFileError, match="lies in the store of spotsurfer"):
        submission.submit(JOB, spec(fetches=fetches), {})
    assert store.list("jobs/") == []
    submission.submit(JOB, spec(fetches=fetches[:1]), {})


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "", "a//b", "x\0y"])
def test_paths_that_leave_the_folder(submission: Submission, path: str) -> None:
    with pytest.raises(e.JobFileError):
        submission.upload(JOB, path, iter([b""]), 0)


def test_nothing_changes_after_the_submission(submission: Submission) -> None:
    submission.upload(JOB, "a", iter([b"x"]), 1)
    submission.submit(JOB, spec(), {"a": 0o644})
    with pytest.raises(e.Conflict):
        submission.upload(JOB, "a", iter([b"y"]), 1)
    with pytest.raises(e.Conflict):
        submission.discard(JOB)
    with pytest.raises(e.Conflict):
        submission.submit(JOB, spec(), {"a": 0o644})


def test_what_was_never_submitted_can_be_thrown_away(submission: Submission, store: ObstoreStore) -> None:
    submission.upload(JOB, "a", iter([b"x"]), 1)
    submission.discard(JOB)
    assert store.list("jobs/") == []


def test_more_than_any_machine_has_is_said_at_once(submission: Submission) -> None:
    with pytest.raises(e.JobFileError, match="64 processors"):
        submission.submit(JOB, spec(cpus=64), {})


def test_inputs_that_no_credentials_can_open_are_said_at_once(submission: Submission, store: ObstoreStore) -> None:
    """Such a job began, and then each renewal was refused: it stood still and cost."""
    far = tuple(InputFetch(f"s3://lab-{i}/reads/", "reads") for i in range(2))
    with pytest.raises(e.JobFileError, match="job-1 do not fit: bring its inputs together in fewer buckets"):
        submission.submit(JOB, JobSpec(name="job", command=("work",), fetches=far), {})
    assert store.list("jobs/") == []
    submission.submit(JOB, JobSpec(name="job", command=("work",), fetches=far[:1]), {})


def test_a_store_that_fails_is_said(submission: Submission, tmp_path: Path) -> None:
    (tmp_path / "store" / "jobs").write_text("in the way")
    with pytest.raises(e.StoreUnwritable):
        submission.upload(JOB, "a", iter([b"x"]), 1)


def test_gpus_that_no_machine_has_are_said_at_once(submission: Submission) -> None:
    with pytest.raises(e.JobFileError, match="no machine has its GPUs: it has no GPU, the job asks for 2"):
        submission.submit(JOB, spec(gpus=2), {})


def test_who_gives_up_while_it_is_submitted_finds_a_whole_job_or_none(submission: Submission, store: ObstoreStore) -> None:
    """Ctrl-C took the specification away, and then the job was added without one."""
    submission.upload(JOB, "a", iter([b"x"]), 1)
    told: list[object] = []

    def discard() -> None:
        try:
            submission.discard(JOB)
        except e.Conflict as conflict:
            told.append(conflict)

    giving_up = threading.Thread(target=discard)
    add = rows.add_submissions

    def later(*words: object) -> object:
        giving_up.start()
        giving_up.join(0.3)
        return add(*words)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "add_submissions", later)
        submission.submit(JOB, spec(), {"a": 0o644})
    giving_up.join()
    assert len(told) == 1
    assert store.get(object_keys.spec_key(JOB)) is not None


def test_what_was_given_up_is_not_submitted_later(submission: Submission) -> None:
    submission.discard(JOB)
    with pytest.raises(e.Conflict, match="was given up"):
        submission.submit(JOB, spec(), {})
