"""Arrays, dependencies and signals on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cli.conftest import Call
from support.fake_service import FakeService, an_attempt

from spotsurfer.cli import array_lines, follow
from spotsurfer.model.errors import JobHeld, MoveFailed, WaitOver
from spotsurfer.model.job import Job, JobId, JobState, Wish

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


def step_by_step(controller: FakeService, monkeypatch: pytest.MonkeyPatch, steps: Iterator[object]) -> None:
    """Each look at the list comes after one more step."""
    brief = controller.jobs_brief
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(controller, "jobs_brief", lambda *a, **k: (next(steps, None), brief(*a, **k))[1])


def test_waits_for_tasks_to_be_suspended_and_to_run_again(
    controller: FakeService, call: Call, array: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.end(f"{array}-9", JobState.SUCCEEDED, 0)
    left = [f"{array}-{n}" for n in range(1, 9)]
    for task in left[:-1]:  # the last one never began, and its turn is not waited for
        begun = [controller.status(an_attempt(JobId(task)))]
        controller.statuses[task] = replace(controller.statuses[task], attempts=begun)

    def order(name: str, wish: Wish, tasks: list[str]) -> None:
        def ordered(job: str) -> Job:
            for task in tasks:
                controller.change(task, wish=wish)
            return replace(controller.statuses[left[0]].job, id=JobId(job))

        monkeypatch.setattr(controller, name, ordered)

    def each(state: JobState, phase: str) -> Iterator[str]:
        for task in left:
            controller.change(task, state=state)
            controller.statuses[task] = replace(controller.statuses[task], phase=phase)
            yield task

    order("hold", Wish.HOLD, left)
    step_by_step(controller, monkeypatch, steps := each(JobState.HELD, "held"))
    result = call("suspend", array, "--wait")
    assert (result.code, list(steps)) == (0, [])
    assert f"{array}: all that have not ended are saved, and are held until" in result.out
    order("resume", Wish.RUN, left)
    step_by_step(controller, monkeypatch, steps := each(JobState.ACTIVE, "running"))
    result = call("resume", array, "--wait")
    assert (result.code, list(steps)) == (0, left[-1:])
    assert f"{array}: all that had begun run again." in result.out
    order("hold", Wish.HOLD, left[:-1])
    assert call("suspend", array, "--wait").code == MoveFailed.exit_code  # the last one was told to go on
    order("hold", Wish.HOLD, left)
    assert call("suspend", array, "--wait", "--timeout", "0.1s").code == WaitOver.exit_code
    order("resume", Wish.HOLD, left)
    list(each(JobState.HELD, "held"))
    assert call("resume", array, "--wait").code == JobHeld.exit_code


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
    task = {"array": "a", "phase": "queued", "array_limit": 0, "id": "a-3", "task": 3, "tasks": ""}
    assert array_lines.name(task) == "a-3"
    assert array_lines.name({**task, "array_limit": 2}) == "a-[3%2]"
    assert array_lines.name({**task, "array_limit": 2, "tasks": "3-5"}) == "a-[3-5%2]"
    assert array_lines.name({**task, "array_limit": 2, "phase": "failed", "tasks": "3-5"}) == "a-[3-5]"


def test_orders_to_all_jobs_take_an_array_as_one(controller: FakeService, call: Call, array: str) -> None:
    asked: list[str] = []
    controller.cancel = lambda job: asked.append(job) or controller.statuses[f"{array}-1"].job  # type: ignore[method-assign, func-returns-value]
    assert call("cancel", "--all").code == 0
    assert asked == [array]


def test_a_job_that_never_begins_is_told_so(controller: FakeService, call: Call, job: str, array: str) -> None:
    why = "what it waits for can't come any more: x did not succeed"
    for id in (job, f"{array}-4"):
        controller.statuses[id] = replace(controller.statuses[id], note=why, phase="queued")
    out = call("list").out
    assert f"{array}-[4%2]" in out
    assert out.count("queued, never begins") == 2
