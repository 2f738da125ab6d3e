"""`watch`: what is new, and as much of what was before as is wanted."""

from __future__ import annotations

import json
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


def test_the_newest_part_of_one_job_with_date_and_zone(story: str, call: Call) -> None:
    told = call("watch", story)
    lines = told.out.splitlines()
    assert len(lines) == follow.PIPED_LINES
    assert lines[-1] == "2026-03-01 12:00:21 UTC  #1   Finished well"
    assert f"`spotsurfer watch {story} --all`" in told.err


def test_all_of_one_job(story: str, call: Call) -> None:
    told = call("watch", story, "--all")
    assert len(told.out.splitlines()) == 22
    assert told.out.startswith("2026-03-01 12:00:00 UTC  #1   Submitted: ")
    assert told.err == ""


@pytest.mark.parametrize("tail", [0, 1, 3])
def test_so_many_of_the_newest(story: str, call: Call, tail: int) -> None:
    assert len(call("watch", story, "--tail", str(tail)).out.splitlines()) == tail
    assert len(call("watch", story, "--tail", str(tail), "--json").out.splitlines()) == tail


def test_since_then(story: str, call: Call) -> None:
    lines = call("watch", story, "--since", (START + timedelta(seconds=19)).isoformat()).out.splitlines()
    assert [line.split("#1")[1].split()[0] for line in lines] == ["Saved:", "Saved:", "Finished"]
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

    monkeypatch.setattr(follow, "put", shown)
    threading.Timer(0.5, lambda: controller.say(story, "alert", "news")).start()
    assert call("watch").code == 1
    assert len(seen) == follow.PIPED_LINES + 1
    assert f"{story}  #1" in seen[0]


def test_some_jobs_until_all_of_them_have_ended(story: str, controller: FakeService, call: Call) -> None:
    names = [story]
    for name in ("other", "third"):
        assert call("submit", "--name", name, "--", "prog").code == 0
        names.append(next(job for job in controller.statuses if job.startswith(name)))
    controller.say(names[1], "alert", "news of the other")
    controller.say(names[2], "alert", "news of the third")
    controller.end(names[1], JobState.FAILED, 3, "exit code 3")
    told = call("watch", names[0], names[1], "--all").out
    assert "news of the other" in told and "Failed: exit code 3" in told
    assert "third" not in told


def test_steps_in_between_are_told_on_request(job: str, controller: FakeService, call: Call) -> None:
    controller.say(job, "attempt", "epoch granted: from the beginning", event="epoch granted")
    controller.say(job, "granted", "owns the job, from the beginning")
    controller.end(job, JobState.SUCCEEDED, 0)
    assert [line.split("#1")[1].strip() for line in call("watch", job).out.splitlines()[1:]] == [
        "Starts from the beginning",
        "Finished well",
    ]
    assert "The machine gets the job: from the beginning" in call("watch", job, "-v").out
    told = [json.loads(line) for line in call("watch", job, "--json").out.splitlines()]
    assert [m["text"] for m in told if m["inner"]] == ["epoch granted: from the beginning"], "programs get all of it, as it is"


def test_a_hold_is_a_pause(job: str, controller: FakeService, call: Call) -> None:
    controller.say(job, "wish", "over its budget", wish="hold")
    controller.say(job, "ended", "held: over its budget", state="held", usd_micros=2_500_000)
    controller.say(job, "ended", "held: over its budget", state="held", usd_micros=2_500_000)
    controller.end(job, JobState.CANCELLED, None)
    lines = [line.split("#1")[1].strip() for line in call("watch", job).out.splitlines()[1:]]
    assert lines == ["Paused: over its budget; 2.5000 USD so far", "Cancelled"]
