"""Inputs from elsewhere and shared file systems in a job file: what is read, what is refused, and that it travels."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotsurfer.cli.commands.submit import spec_body
from spotsurfer.jobspec.parse import JobRequest, make_request, read_jobfile
from spotsurfer.jobspec.parse import Origin as JobOrigin
from spotsurfer.jobspec.validate import checked
from spotsurfer.model.errors import JobFileError
from spotsurfer.model.job import InputFetch, SharedMount
from spotsurfer.state.jobs import spec_from_doc, spec_to_doc
from spotsurfer.web.request_models import PlanBody

WHOLE = """\
command = ["run"]
inputs = [
  "local.txt",
  "s3://lab/ref/genome.fa",
  { from = "s3://lab/reads/*.fq.gz", to = "reads", region = "eu-west-1" },
  { from = "https://host/x.tar?sig=1", sha256 = "%s" },
  { from = "gs://open/data/", anonymous = true },
  { from = "s3://own/x", endpoint = "http://10.0.0.1:9000", version = "abc" },
]
[[mounts]]
name = "data"
type = "nfs4"
source = "fs-1.local:/export"
target = "/data"
options = "vers=4.2,hard"
[[mounts]]
name = "out"
type = "bind"
source = "/srv/out"
target = "results/shared"
read_only = false
""" % ("ab" * 32)


def read(tmp_path: Path, text: str) -> JobRequest:
    (tmp_path / "local.txt").write_text("x")
    (tmp_path / "job.toml").write_text(text)
    return read_jobfile(tmp_path / "job.toml")


def test_all_of_it_is_read(tmp_path: Path) -> None:
    request = read(tmp_path, WHOLE)
    own = {"endpoint": "http://10.0.0.1:9000", "virtual_hosted_style_request": "false", "allow_http": "true"}
    assert [f.path for f in request.inputs] == ["local.txt"]
    assert request.spec.inputs == ("local.txt",)
    assert request.spec.fetches == (
        InputFetch("s3://lab/ref/genome.fa"),
        InputFetch("s3://lab/reads/*.fq.gz", "reads", options={"region": "eu-west-1"}),
        InputFetch("https://host/x.tar?sig=1", sha256="ab" * 32),
        InputFetch("gs://open/data/", options={"skip_signature": "true"}),
        InputFetch("s3://own/x", version="abc", options=own),
    )
    assert request.spec.mounts == (
        SharedMount("data", "nfs4", "fs-1.local:/export", "/data", "vers=4.2,hard"),
        SharedMount("out", "bind", "/srv/out", "results/shared", read_only=False),
    )


def test_it_survives_the_database_and_the_wire(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE).spec
    assert spec_from_doc(spec_to_doc(spec)) == spec
    assert checked(PlanBody.model_validate({"spec": spec_body(spec)}).spec) == spec


def test_an_option_of_the_command_line_may_be_an_address(tmp_path: Path) -> None:
    given = {"inputs": ["s3://lab/x"], "command": ["run"]}
    request = make_request({}, given, tmp_path, JobOrigin("The command line"))
    assert request.spec.fetches == (InputFetch("s3://lab/x"),)
    assert request.inputs == []


INPUTS = [
    ('["ftp://host/x"]', "unknown beginning"),
    ('["s3://lab"]', "is no address"),
    ('["https://u:p@host/x"]', "user name or password"),
    ('["http://host/x"]', "say its sha256"),
    ('["https://host/"]', "no last name"),
    ('["https://host/*.fq"]', "the web lists no files"),
    ('[{ from = "local.txt", to = "x" }]', "paths are written alone"),
    ('[{ from = "s3://lab/x", too = "x" }]', "Did you mean"),
    ('[{ from = "s3://lab/x", to = "../x" }]', "below the job's folder"),
    ('[{ from = "s3://lab/x", to = "/x" }]', "below the job's folder"),
    ('[{ from = "s3://lab/*", sha256 = "%s" }]' % ("a" * 64), "several files"),
    ('[{ from = "s3://lab/x", sha256 = "abc" }]', "64 hexadecimal digits"),
    ('[{ from = "s3://lab/x", anonymous = "yes" }]', "true or false"),
    ("[7]", "expected a list like"),
]


@pytest.mark.parametrize(("text", "words"), INPUTS)
def test_inputs_that_make_no_sense_are_refused_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(JobFileError, match=words) as e:
        read(tmp_path, f'command = ["run"]\ninputs = {text}\n')
    assert "job.toml line 2: inputs" in str(e.value)


MOUNTS = [
    ('target = "/usr/share"', "belongs to the system"),
    ('target = "/"', "belongs to the system"),
    ('target = "../x"', "below the job's folder"),
    ('target = "/data"\ntypo = 1', "unknown key 'typo'"),
    ('target = "/data"\noptions = "a b"', "mount can't be given"),
    ('target = "/data"\nread_only = "no"', "true or false"),
    ("", "has no target"),
]


@pytest.mark.parametrize(("text", "words"), MOUNTS)
def test_mounts_that_make_no_sense_are_refused(tmp_path: Path, text: str, words: str) -> None:
    head = 'command = ["run"]\n[[mounts]]\nname = "d"\ntype = "nfs"\nsource = "h:/x"\n'
    with pytest.raises(JobFileError, match=words):
        read(tmp_path, head + text + "\n")


def test_a_stranger_can_send_no_credentials(tmp_path: Path) -> None:
    body = {"name": "x", "command": ["x"], "fetches": [{"source": "s3://a/b", "options": {"access_key_id": "x"}}]}
    with pytest.raises(JobFileError, match="has the option 'access_key_id'"):
        checked(PlanBody.model_validate({"spec": body}).spec)
