"""Ports and idleness in a job file: what is read, what is refused, and that it travels."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotsurfer.cli.commands.submit import spec_body
from spotsurfer.jobspec.parse import read_jobfile
from spotsurfer.jobspec.validate import checked
from spotsurfer.model.errors import JobFileError
from spotsurfer.model.job import JobPort, JobSpec
from spotsurfer.state.jobs import spec_from_doc, spec_to_doc
from spotsurfer.web.request_models import PlanBody

BEGIN = 'command = ["serve"]\n'
WHOLE = (
    BEGIN
    + """\
[idle]
suspend_after = "30m"
cpu = 0.1
[[ports]]
name = "notebook"
port = 8888
[[ports]]
name = "metrics"
port = 9000
"""
)


def read(tmp_path: Path, text: str) -> JobSpec:
    (tmp_path / "job.toml").write_text(text)
    return read_jobfile(tmp_path / "job.toml").spec


def test_all_of_it_is_read_and_travels(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE)
    assert spec.ports == (JobPort("notebook", 8888), JobPort("metrics", 9000))
    assert (spec.idle_seconds, spec.idle_cpu, spec.idle_gpu) == (1800.0, 0.1, 0.05)
    assert checked(PlanBody.model_validate({"spec": spec_body(spec)}).spec) == spec
    assert spec_from_doc(spec_to_doc(spec)) == spec


def test_a_port_may_be_a_number_alone(tmp_path: Path) -> None:
    assert read(tmp_path, BEGIN + "ports = [80]").ports == (JobPort("80", 80),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ports = [0]", "line 2: ports has 0, expected 1 to 65535"),
        ("ports = [80, 80]", "ports has the name '80' 2 times"),
        ('ports = ["80"]', "ports has the entry '80', expected something like"),
        ("[[ports]]\nname = 'a b'\nport = 1", "ports has the name 'a b'"),
        ("[[ports]]\nnam = 'x'\nport = 1", "ports has an unknown key 'nam'. Did you mean 'name'"),
        (f"ports = {list(range(1, 18))}", "ports are 17, more than 16"),
        ('idle = "30m"', "idle is '30m', expected a table: [idle] suspend_after = \"30m\""),
        ("[idle]\nsuspend_after = 1", "idle.suspend_after is 1 seconds, expected at least 10"),
        ("[idle]\ncpu = 0", "idle.cpu is 0, expected more than 0"),
        ("[idle]\ngpu = 2", "idle.gpu is 2, expected more than 0 and at most 1"),
        ('[idle]\ncpu = "some"', "idle.cpu is 'some', expected a number"),
        ('engine = "none"\n[idle]\nsuspend_after = "1h"', "such a job would start over"),
        ('deadline = "9h"\nwork = "1h"\n[idle]\nsuspend_after = "1h"', "a deadline exclude each other"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        read(tmp_path, BEGIN + text)
    assert said in str(caught.value)
