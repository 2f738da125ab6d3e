"""`[[steps]]` of a job file: what arrives, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_wire.messages import StepRun

from spotsurfer.cli.commands.submit import spec_body
from spotsurfer.controller.event_recorder import steps_news
from spotsurfer.jobspec.parse import read_jobfile
from spotsurfer.jobspec.validate import checked
from spotsurfer.model.errors import JobFileError
from spotsurfer.model.job import JobSpec, JobStep
from spotsurfer.state.jobs import spec_from_doc, spec_to_doc
from spotsurfer.web.request_models import PlanBody

STEPS = """
[[steps]]
name = "setup"
command = "tar xf reads.tar"
[[steps]]
name = "main"
command = ["sh", "-c", "count *.fq > n"]
[[steps]]
name = "finish"
command = "gzip n"
protect = false
always = true
"""
EXPECTED = (
    JobStep("setup", ("tar", "xf", "reads.tar"), protect=False),
    JobStep("main", ("sh", "-c", "count *.fq > n")),
    JobStep("finish", ("gzip", "n"), protect=False, always=True),
)


def read(folder: Path, text: str) -> JobSpec:
    path = folder / "job.toml"
    path.write_text(text)
    return read_jobfile(path).spec


def test_steps_arrive_and_survive_the_wire_and_the_database(tmp_path: Path) -> None:
    spec = read(tmp_path, STEPS)
    assert spec.steps == EXPECTED
    assert spec.command == ("sh", "-c", "count *.fq > n")
    assert spec_from_doc(spec_to_doc(spec)) == spec
    for command in (list(spec.command), []):
        assert checked(PlanBody.model_validate({"spec": {**spec_body(spec), "command": command}}).spec) == spec


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('steps = "x"', "steps is 'x', expected tables like"),
        ("steps = []", "expected tables like"),
        ('[[steps]]\ncommand = "x"', "steps has no name in step 1"),
        ('[[steps]]\nname = "a"', "steps has no command in step 'a'"),
        ('[[steps]]\nname = "a"\ncommand = "x \'"', "can't be split into words"),
        ('[[steps]]\nname = "a"\ncommand = []', "has no command in step 'a'"),
        ('[[steps]]\nname = "a"\ncommand = "x"\nprotct = true', "unknown key 'protct' in step 1. Did you mean"),
        ('[[steps]]\nname = "a"\ncommand = "x"\nalways = "yes"', "always = 'yes' in step 'a', expected true or false"),
        ('[[steps]]\nname = "a b"\ncommand = "x"', "has the name 'a b'"),
        ('[[steps]]\nname = "a"\ncommand = "x"\n' * 2, "has 'a' 2 times"),
        ('command = "y"\n[[steps]]\nname = "a"\ncommand = "x"', "line 1: command stands beside [[steps]]"),
        (
            '[app]\nsignal = "USR1"\ndone_file = "s"\n[[steps]]\nname = "a"\ncommand = "x"',
            "line 4: steps has no step 'main'",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(JobFileError) as e:
        read(tmp_path, text)
    assert told in str(e.value)


def test_the_timeline_tells_what_an_attempt_saw_end_and_begin() -> None:
    setup, main = StepRun("setup", 0, exit_code=0, cpu_seconds=2.0), StepRun("main", 1)
    running = StepRun("setup", 0)
    assert [text for _, text, _ in steps_news([running], [setup, main])] == [
        "setup ended with 0 after 2.0 s of processor",
        "main began",
    ]
    assert list(steps_news([], [setup, main])) == [], "taken over from another attempt"
    assert list(steps_news([setup, main], [setup, main])) == []
    assert list(steps_news([StepRun("main", 0)], [StepRun("main", 0, exit_code=0)])) == [], (
        "the only one: the job's end says it"
    )
