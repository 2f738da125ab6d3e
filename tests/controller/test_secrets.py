"""Secrets between the one who submits and the sealed object: read, checked, sealed, never kept or shown."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_wire import json_codec, object_keys, sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.builders import NOW, an_offer

from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.jobs.submission import Submission
from spotsurfer.jobspec import secrets
from spotsurfer.jobspec.parse import read_jobfile
from spotsurfer.model import errors as e
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database

JOB = JobId("job-1")
CANARY = b"canary-5d1b8c"


def of(source: str, form: str = "environment") -> dict[str, str]:
    return {"from": source, "as": form}


# ---------------------------------------------------------------- where it is submitted


def jobfile(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text("\n".join(['command = ["work"]', *lines]) + "\n")
    return path


def test_files_and_variables_are_read_by_who_submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_bytes(CANARY + b"\n")
    monkeypatch.setenv("MY_KEY", "from-here")
    monkeypatch.chdir("/")  # paths are relative to the job file
    made = read_jobfile(
        jobfile(
            tmp_path,
            "[secrets]",
            'TOKEN = "file:token"',
            'KEY = "env:MY_KEY"',
            '"token.txt" = { from = "file:token", as = "file" }',
            'CLOUD = "aws-secretsmanager:prod/db"',
        )
    )
    assert made.secrets == {"TOKEN": CANARY, "KEY": b"from-here", "token.txt": CANARY + b"\n"}
    assert made.spec.secrets["TOKEN"] == of("file:token")
    assert made.spec.must_encrypt
    assert CANARY.decode() not in repr(made)


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        ('A = "file:absent"', e.InputMissing, "job.toml line 3: secrets.A names the file"),
        ('A = "env:NOT_SET_ANYWHERE"', e.InputMissing, "the variable NOT_SET_ANYWHERE, which is not set here"),
        ('A = "s3:bucket"', e.JobFileError, "comes from 's3:bucket', expected one of file:"),
        ('A = "file:"', e.JobFileError, "comes from 'file:'"),
        ('A = { from = "file:x", as = "stdin" }', e.JobFileError, "is wanted as 'stdin'"),
        ('A = { form = "file:x" }', e.JobFileError, "has A, which is neither"),
        ("A = 5", e.JobFileError, "has A, which is neither"),
        ('"a-b" = "file:x"', e.JobFileError, "is no name of a variable"),
        ('"../x" = { from = "file:x", as = "file" }', e.JobFileError, "is no name of a file"),
        ('":registry_auth" = { from = "file:x", as = "file" }', e.JobFileError, "is no name of a file"),
        ('A = "file:zero"', e.JobFileError, "holds a zero byte"),
        ('A = "file:long"', e.JobFileError, "is longer than 96 KiB"),
        ('A = "file:empty"', e.JobFileError, "is empty"),
        ('A = { from = "file:huge", as = "file" }', e.InputMissing, "larger than 1 MiB"),
        ('A = "file:token"\n[environment]\nA = "1"', e.JobFileError, "is given in environment, too"),
    ],
)
def test_what_is_wrong_is_one_sentence_without_a_value(tmp_path: Path, line: str, error: type[Exception], said: str) -> None:
    files = {"zero": CANARY + b"\0", "long": CANARY * 8000, "empty": b"\n", "huge": bytes(2 << 20), "token": CANARY}
    for name, value in files.items():
        (tmp_path / name).write_bytes(value)
    with pytest.raises(error) as found:
        read_jobfile(jobfile(tmp_path, "[secrets]", line))
    assert said.replace("the file", str(tmp_path)) in str(found.value)
    assert CANARY.decode() not in str(found.value)


def test_their_sum_has_a_limit(tmp_path: Path) -> None:
    (tmp_path / "half").write_bytes(bytes(700 << 10))
    lines = ("[secrets]", *(f'{n} = {{ from = "file:half", as = "file" }}' for n in "ab"))
    with pytest.raises(e.JobFileError, match="longer than 1 MiB"):
        read_jobfile(jobfile(tmp_path, *lines))
    assert secrets.BYTES_MAX == sealed_objects.SECRETS_BYTES_MAX


# ---------------------------------------------------------------- where it arrives


class Desk:
    """A submission with everything behind it in a folder."""

    def __init__(self, path: Path, sources: dict[str, Any] | None = None) -> None:
        self.path = path
        self.engine = open_database(path / "state.db")
        self.store = open_store((path / "store").as_uri())
        self.keys = Keys.derive(b"k" * 32, JOB)
        vault = Vault(lambda lineage: Keys.derive(b"k" * 32, lineage), (sources or {}).__getitem__)
        clock, offers = ManualClock(NOW), lambda: (an_offer(),)
        spool = path / "spool"
        self.submission = Submission(self.engine, clock, self.store, spool, vault, lambda *_: None, offers, 600.0)

    def submit(self, given: dict[str, bytes], **spec: Any) -> None:
        self.submission.submit(JOB, JobSpec(name="job", command=("work",), **spec), {}, given)

    def opened(self) -> dict[str, bytes]:
        return sealed_objects.fetch_secrets(self.store, self.keys, JOB)


def test_they_are_sealed_and_nowhere_else(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.submit({"TOKEN": CANARY, sealed_objects.REGISTRY_AUTH: b"{}"}, secrets={"TOKEN": of("env:TOKEN")})
    assert desk.opened() == {"TOKEN": CANARY, sealed_objects.REGISTRY_AUTH: b"{}"}
    wire = json_codec.decode(Spec, desk.store.get(object_keys.spec_key(JOB)) or b"")
    assert wire.secrets == {"TOKEN": sealed_objects.SECRET_VARIABLE}
    assert wire.environment == {}
    desk.engine.dispose()
    found = subprocess.run(["grep", "-rlaF", CANARY.decode(), str(tmp_path)], capture_output=True, text=True, check=False)
    assert found.stdout == ""
    with desk.engine.connect() as c:
        texts = [m.text for _, m in timeline.read(c, JOB, 0)]
    assert any("TOKEN" in t and "are encrypted" in t for t in texts), texts


def test_a_job_without_has_no_such_object(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.submit({})
    assert desk.store.get(object_keys.secrets_key(JOB)) is None
    assert desk.opened() == {}


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, e.InputMissing, "secrets.TOKEN: its value was not sent"),
        ({"TOKEN": CANARY, "OTHER": CANARY}, e.JobFileError, "secrets.OTHER was sent"),
        ({"TOKEN": CANARY + b"\0"}, e.JobFileError, "zero byte"),
    ],
)
def test_what_does_not_fit_the_job_is_refused(
    tmp_path: Path, given: dict[str, bytes], error: type[Exception], said: str
) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(error, match=said) as found:
        desk.submit(given, secrets={"TOKEN": of("env:TOKEN")})
    assert CANARY.decode() not in str(found.value)
    assert list(desk.store.list(object_keys.job_prefix(JOB))) == []


def test_a_submission_whose_answer_was_lost_may_be_repeated_only_with_the_same(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.store.create(object_keys.secrets_key(JOB), sealed_objects.seal_secrets({"TOKEN": b"1"}, desk.keys, JOB))
    with pytest.raises(e.Conflict, match="other secrets"):
        desk.submit({"TOKEN": b"2"}, secrets={"TOKEN": of("env:TOKEN")})
    desk.submit({"TOKEN": b"1"}, secrets={"TOKEN": of("env:TOKEN")})


def test_those_of_a_cloud_are_fetched_once_and_sealed_with_the_rest(tmp_path: Path) -> None:
    asked: list[str] = []

    def fetch(place: str) -> bytes:
        asked.append(place)
        return CANARY

    desk = Desk(tmp_path, {"aws-secretsmanager": fetch})
    desk.submit({}, secrets={"DB": of("aws-secretsmanager:prod/db#password", "file")})
    assert desk.opened() == {"DB": CANARY}
    assert asked == ["prod/db#password"]


@pytest.mark.parametrize(("spec", "wanted"), [({}, True), ({"secrets_in_plain_images": True}, False)])
def test_encryption_is_a_matter_of_the_job(spec: dict[str, Any], wanted: bool) -> None:
    assert JobSpec(name="j", command=("x",), secrets={"A": of("env:A")}, **spec).must_encrypt is wanted
    assert not JobSpec(name="j", command=("x",), **spec).must_encrypt


def test_a_specification_goes_through_the_database_as_it_is() -> None:
    from spotsurfer.state.jobs import spec_from_doc, spec_to_doc

    spec = JobSpec(name="j", command=("x",), secrets={"A": of("env:A"), "b.txt": of("file:x", "file")})
    assert spec_from_doc(json.loads(json.dumps(spec_to_doc(spec)))) == spec
