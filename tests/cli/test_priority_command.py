"""`spotsurfer priority` against the real API over a Unix socket."""

from __future__ import annotations

import json

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.model.errors import Conflict
from spotsurfer.model.job import JobState


@pytest.mark.parametrize(("asked", "given"), [("high", 10), ("-5", -5), ("+7", 7), ("0", 0)])
def test_a_priority_is_changed(job: str, controller: FakeService, call: Call, asked: str, given: int) -> None:
    result = call("priority", "asm", asked)
    assert (result.code, result.out) == (0, f"{job} has priority {given} from now on.\n")
    assert controller.statuses[job].job.spec.priority == given
    assert json.loads(call("priority", job, asked, "--json").out) == {"job": job, "priority": given}


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("highest",), 2, "is 'highest', expected low, normal, high or a whole number"),
        (("1.5",), 2, "expected low, normal, high or a whole number"),
        (("--", "5", "6"), 2, ""),
        (("--jsn",), 2, "is '--jsn'"),
    ],
)
def test_what_is_no_priority_is_refused(job: str, call: Call, arguments: tuple[str, ...], code: int, why: str) -> None:
    result = call("priority", job, *arguments)
    assert (result.code, result.out) == (code, "")
    assert why in result.err


def test_a_job_that_ended_keeps_its_priority(job: str, controller: FakeService, call: Call) -> None:
    controller.end(job, JobState.SUCCEEDED, 0)
    result = call("priority", job, "high")
    assert (result.code, result.out) == (Conflict.exit_code, "")
    assert "has ended" in result.err
