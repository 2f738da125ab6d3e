"""Arrays, dependencies and signals on the command line."""

from __future__ import annotations

import json

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.cli import array_lines
from spotsurfer.model.job import JobState

SUBMIT = ("submit", "--name", "sweep", "--array", "1-9%2", "--", "prog", "{task}")


@pytest.fixture
def array(controller: FakeService, call: Call) -> str:
    result = call("submit", "-q", *SUBMIT[1:])
    assert result.code == 0
    return result.out.strip()


def test_an_array_is_submitted_under_one_id(controller: FakeService, call: Call) -> None:
    result = call(*SUBMIT)
    array = next(iter(controller.statuses.values())).job.array
    assert result.out == f"Submitted {array} with 9 tasks. `spotsurfer list` shows them.\n"
    assert [s.job.spec.command for s in controller.statuses.values()][:2] == [("prog", "1"), ("prog", "2")]


def test_a_list_has_tasks_that_wait_in_one_line(controller: FakeService, call: Call, array: str) -> None:
    controller.end(f"{array}-2", JobState.FAILED, 3)
    for n in (1, 4):
        controller.end(f"{array}-{n}", JobState.SUCCEEDED, 0)
    lines = {line.split()[0]: line.split()[1] for line in call("list").out.splitlines()[1:]}
    assert lines == {
        f"{array}-[3,5-9%2]": "queued", f"{array}-[1,4]": "succeeded", f"{array}-2": "failed,",
    }  # fmt: skip
    assert len(json.loads(call("list", "--json").out)) == 9
    assert len(call("list", "-q", "--state", "queued").out.split()) == 6
    assert call("list", "-q", "--name", "other").out == ""


def test_show_of_an_array_has_its_tasks(controller: FakeService, call: Call, array: str) -> None:
    assert f"{array}-[1-9%2]" in call("show", array).out
    assert len(json.loads(call("show", array, "--json").out)) == 9
    assert f"1, task 7 of {array}" in call("show", f"{array}-7").out


@pytest.mark.parametrize(("state", "code", "exit_code"), [(JobState.SUCCEEDED, 0, 0), (JobState.FAILED, 1, 16)])
def test_wait_is_for_all_tasks(
    controller: FakeService, call: Call, array: str, state: JobState, code: int, exit_code: int
) -> None:
    for n in range(1, 10):
        controller.end(f"{array}-{n}", state if n == 4 else JobState.SUCCEEDED, code if n == 4 else 0)
    assert call("wait", array).code == exit_code
    assert call("wait", f"{array}-4").code == exit_code
    assert call("wait", f"{array}-5").code == 0


def test_orders_to_an_array_go_to_the_array(controller: FakeService, call: Call, array: str) -> None:
    asked: list[str] = []
    controller.hold = lambda job: asked.append(job) or controller.statuses[f"{array}-1"].job  # type: ignore[method-assign, func-returns-value]
    assert "all that have not ended" in call("suspend", array).out
    assert asked == [array]
    assert call("suspend", array, "--wait").code == 2


def test_a_signal(controller: FakeService, call: Call, job: str) -> None:
    assert call("signal", job, "SIGUSR1").out == f"{job} is sent SIGUSR1.\n"
    assert controller.statuses[job].job.signal == "USR1"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("array", "9-1", "9-1 ends before it begins"),
        ("array", "1-x", "expected numbers of tasks"),
        ("array", "1-999999", "more than 100000 tasks"),
        ("array", "1-3%0", "how many tasks may run"),
        ("after", "ok:x", 'expected "afterok:JOB"'),
        ("after", "singleton:x", "expected"),
        ("begin", "2026-01-01", "without a zone"),
        ("begin", "soon", "expected a time like"),
        ("time-limit", "0", "at least 1"),
    ],
)
def test_bad_values_are_named(controller: FakeService, call: Call, key: str, value: str, why: str) -> None:
    result = call("submit", f"--{key}", value, "--", "prog")
    assert (result.code, controller.statuses) == (3, {})
    assert f"The command line: {key.replace('-', '_')}" in result.err
    assert why in result.err


def test_names_of_lines() -> None:
    task = {"array": "a", "phase": "queued", "exit_code": None, "machine": "", "array_limit": 0, "id": "a-3", "task": 3}
    assert array_lines.name([task]) == "a-3"
    assert array_lines.name([{**task, "array_limit": 2}]) == "a-[3%2]"
    assert [len(x) for x in array_lines.lines([task, {**task, "id": "a-4", "machine": "i-1"}, {**task, "id": "a-5"}])] == [2, 1]


def test_orders_to_all_jobs_take_an_array_as_one(controller: FakeService, call: Call, array: str) -> None:
    asked: list[str] = []
    controller.cancel = lambda job: asked.append(job) or controller.statuses[f"{array}-1"].job  # type: ignore[method-assign, func-returns-value]
    assert call("cancel", "--all").code == 0
    assert asked == [array]
