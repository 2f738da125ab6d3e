"""`watch`: what is new, and as much of what was before as is wanted."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from cli.conftest import Call
from support.fake_service import START, FakeService

from spotsurfer.cli import follow
from spotsurfer.model.job import JobState


class Enough(Exception):
    """The test has seen what it wanted."""


@pytest.fixture
def story(job: str, controller: FakeService) -> str:
    """A job that ended, one line a second: submitted, twenty saves, its end."""
    for number in range(20):
        controller.say(job, "saved", f"checkpoint {number}")
    controller.end(job, JobState.SUCCEEDED, 0)
    return job


def test_all_of_one_job_with_date_and_zone(story: str, call: Call) -> None:
    lines = call("watch", story).out.splitlines()
    assert len(lines) == 22
    assert lines[0].startswith("2026-03-01 12:00:00 UTC  #1  submitted")


def test_since_then(story: str, call: Call) -> None:
    lines = call("watch", story, "--since", (START + timedelta(seconds=19)).isoformat()).out.splitlines()
    assert [line.split()[4:6] for line in lines] == [["saved", "checkpoint"], ["saved", "checkpoint"], ["ended", "succeeded:"]]
    wrong = call("watch", story, "--since", "yesterday")
    assert (wrong.code, "so long ago, like" in wrong.err) == (2, True)


def test_of_all_jobs_the_last_lines_and_what_comes(
    story: str, controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It told the whole history first."""
    seen: list[str] = []

    def shown(text: str) -> None:
        seen.append(text)
        if text.endswith("news"):
            raise Enough

    monkeypatch.setattr(follow, "paragraph", shown)
    threading.Timer(0.5, lambda: controller.say(story, "alert", "news")).start()
    assert call("watch").code == 1
    assert len(seen) == follow.LAST_LINES + 1
    assert f"{story} #1" in seen[0]


def test_what_another_line_says_is_left_out(job: str, controller: FakeService, call: Call) -> None:
    controller.say(job, "attempt", "epoch granted: from the beginning", event="epoch granted")
    controller.say(job, "granted", "owns the job, from the beginning")
    controller.end(job, JobState.SUCCEEDED, 0)
    assert "epoch" not in call("watch", job).out
    assert "epoch granted" in call("watch", job, "--json").out, "programs get all of it, as it is"
