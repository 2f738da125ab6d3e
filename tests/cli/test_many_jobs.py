"""Many jobs: which are listed, and what is done to several of them at once."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.cli.commands import show
from spotsurfer.model.job import Job, JobState, Wish
from spotsurfer.web.request_models import SORTED, Sorting


@pytest.fixture
def jobs(controller: FakeService, call: Call) -> list[str]:
    """asm-a (held), asm-b (succeeded), other; the last is the newest."""
    made = [
        str(json.loads(call("submit", "--json", "--name", name, "--tag", tag, "--", "prog").out)["id"])
        for name, tag in (("asm-a", "run=7"), ("asm-b", "run=8"), ("other", "run=7"))
    ]
    controller.change(made[0], state=JobState.HELD, wish=Wish.HOLD)
    controller.end(made[1], JobState.SUCCEEDED, 0)
    for job, changes in zip(made, ({"phase": "held", "level": 10}, {"usd_micros": 20_000}, {}), strict=True):
        controller.statuses[job] = replace(controller.statuses[job], **changes)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], [2, 1, 0]),
        (["--open"], [2, 0]),
        (["--state", "held"], [0]),
        (["--state", "held", "--state", "succeeded"], [1, 0]),
        (["--state", "active"], [2]),
        (["--tag", "run=7"], [2, 0]),
        (["--tag", "run"], [2, 1, 0]),
        (["--tag", "run=7", "--tag", "other"], []),
        (["--name", "asm-*"], [1, 0]),
        (["--name", "asm"], []),
        (["--limit", "2"], [2, 1]),
        (["--name", "asm-*", "--open", "--limit", "1"], [0]),
        (["--state", "paused"], [0]),
        (["--sort", "age"], [2, 1, 0]),
        (["--sort", "cost"], [1, 2, 0]),
        (["--sort", "name"], [0, 1, 2]),
        (["--sort", "state"], [2, 0, 1]),
        (["--sort", "priority"], [0, 2, 1]),
        (["--sort", "cost", "--limit", "1"], [1]),
        (["--sort", "name", "--tag", "run=7"], [0, 2]),
    ],
)
def test_filters(jobs: list[str], call: Call, options: list[str], found: list[int]) -> None:
    assert [job["id"] for job in json.loads(call("list", "--json", *options).out)] == [jobs[i] for i in found]
    assert call("list", "-q", *options).out.split() == [jobs[i] for i in found]


def test_a_state_that_there_is_not(jobs: list[str], call: Call) -> None:
    wrong = call("list", "--state", "runing")
    assert (wrong.code, "Did you mean 'running'?" in wrong.err) == (2, True)
    assert "No jobs are like that" in call("list", "--name", "nobody").out
    wrong = call("list", "--sort", "costs")
    assert (wrong.code, "Did you mean 'cost'?" in wrong.err) == (2, True)


def test_orders_are_those_of_the_controller() -> None:
    assert set(show.SORTS) == set(Sorting) == set(SORTED)


def test_states_are_told_in_words(jobs: list[str], controller: FakeService, call: Call) -> None:
    controller.change(jobs[1], exit_code=3)
    controller.statuses[jobs[1]] = replace(controller.statuses[jobs[1]], phase="failed")
    shown = call("list").out
    assert "  paused  " in shown and "  failed, exit code 3  " in shown and "held" not in shown


def test_the_age_is_told(job: str, call: Call) -> None:
    head, row = call("list").out.splitlines()
    assert head.split()[-1] == "AGE"
    assert row.split()[-1].endswith("h"), "since March 2026"


@pytest.mark.parametrize(
    ("words", "resumed"),
    [
        (["--all"], [0]),
        (["--all", "--yes"], [0]),
        (["--tag", "run=7"], [0]),
        (["--tag", "run=8"], []),
        (["--all", "--tag", "run=7"], [0]),
        (["--all", "--tag", "run=8"], []),
        (["--all", "--owner", "nobody"], []),
        (["asm-a"], [0]),
    ],
)
def test_held_jobs_are_resumed_together(
    jobs: list[str], controller: FakeService, call: Call, words: list[str], resumed: list[int]
) -> None:
    result = call("resume", *words)
    assert result.code == 0, result.err
    assert [i for i in range(3) if f"{jobs[i]} goes on" in result.out] == resumed
    assert (controller.statuses[jobs[0]].job.state == "active") == bool(resumed)


@pytest.mark.parametrize(
    ("words", "suspended"),
    [(["--all"], [2]), (["--tag", "run=7"], [2]), (["--tag", "run=8"], []), (["other", "asm-a"], [2, 0])],
)
def test_jobs_are_suspended_together(
    jobs: list[str], controller: FakeService, call: Call, words: list[str], suspended: list[int]
) -> None:
    """One that is held, or has ended, is left alone unless it is named."""
    result = call("suspend", *words, "--json")
    assert result.code == 0, result.err
    assert [x["job"] for x in json.loads(result.out)["jobs"]] == [jobs[i] for i in suspended]
    assert (controller.statuses[jobs[2]].job.wish is Wish.HOLD) == (2 in suspended)


def test_who_is_being_cancelled_or_suspended_already_is_not_suspended(
    jobs: list[str], controller: FakeService, call: Call
) -> None:
    for wish in (Wish.CANCEL, Wish.HOLD):
        controller.change(jobs[2], wish=wish)
        assert call("suspend", "--all").out == "There is no such job.\n"
    assert call("suspend").code == call("suspend", "other", "--all").code == 2


@pytest.mark.parametrize("command", ["cancel", "suspend", "resume"])
def test_a_job_that_ends_while_its_order_is_on_the_way_is_no_failure(
    jobs: list[str], controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Between the list of jobs with a tag and the order to one of them it may end by itself."""
    wish = Wish.HOLD if command == "resume" else Wish.RUN
    for job in (jobs[0], jobs[2]):
        controller.change(job, state=JobState.HELD if command == "resume" else JobState.ACTIVE, wish=wish)
    name = "hold" if command == "suspend" else command
    order = getattr(controller, name)

    def ends_first(job: str) -> Job:
        if job == jobs[2]:
            controller.end(job, JobState.SUCCEEDED, 0)
        return order(job)

    monkeypatch.setattr(controller, name, ends_first)
    result = call(command, "--tag", "run=7", "--json")
    assert (result.code, result.err) == (0, "1 of 2 jobs had ended meanwhile.\n")
    assert [x["job"] for x in json.loads(result.out)["jobs"]] == [jobs[0]]
    named = call(command, jobs[1], jobs[2])
    assert (named.code, "2 of 2 jobs could not be" in named.err) == (14, True), "who is named must be there"


def test_who_can_not_be_resumed_keeps_none_of_the_others(jobs: list[str], controller: FakeService, call: Call) -> None:
    result = call("resume", "nobody", "other", "asm-a", "--json")
    assert result.code == 13
    assert [x["job"] for x in json.loads(result.out)["jobs"]] == [jobs[0]]
    assert "2 of 3 jobs could not be resumed" in result.err
    refused = json.loads(result.out)["refused"]
    assert [(x["job"], x["error"]) for x in refused] == [("nobody", "NotFound"), ("other", "Conflict")]
    assert "not held" in refused[1]["message"]
    assert json.loads(call("suspend", "asm-a", "--json").out)["job"] == jobs[0], "one alone is answered as ever"


@pytest.mark.parametrize(
    ("words", "answer", "goes_on"),
    [(["--all"], "n", False), (["--all"], "y", True), (["--all", "--yes"], None, True), (["asm-a", "other"], None, True)],
)
def test_on_a_terminal_it_asks_before_all_that_it_found_go_on(
    jobs: list[str],
    controller: FakeService,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    answer: str | None,
    goes_on: bool,
) -> None:
    controller.change(jobs[2], state=JobState.HELD, wish=Wish.HOLD)
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text) or answer == "y")
    assert call("resume", *words).code == 0
    assert asked == ([] if answer is None else ["Let these 2 jobs go on?"])
    assert [controller.statuses[jobs[i]].job.wish is Wish.RUN for i in (0, 2)] == [goes_on] * 2


@pytest.mark.parametrize("words", [["--all"], ["--tag", "run=7"]])
def test_what_is_being_cancelled_already_is_not_cancelled_again(
    jobs: list[str], controller: FakeService, call: Call, words: list[str]
) -> None:
    controller.change(jobs[2], wish=Wish.CANCEL)
    done = call("cancel", *words, "--json")
    assert (done.code, done.err) == (0, "")
    assert [x["job"] for x in json.loads(done.out)["jobs"]] == [jobs[0]]


@pytest.mark.parametrize("words", [[], ["a", "--all"], ["a", "--tag", "x=y"], ["a", "b", "--from", "3"]])
def test_what_to_resume_is_said_in_one_way(jobs: list[str], controller: FakeService, call: Call, words: list[str]) -> None:
    assert call("resume", *words).code == 2
    assert controller.statuses[jobs[0]].job.state == "held"


def test_quiet_says_what_was_asked_for_and_errors(controller: FakeService, call: Call) -> None:
    made = call("submit", "-q", "--name", "asm", "--secret", "A=env:PATH", "--", "prog")
    job = made.out.strip()
    assert (made.code, made.err, list(controller.statuses)) == (0, "", [job])
    for words in (["suspend", job], ["resume", job, "--quiet"], ["priority", job, "5"], ["cancel", job]):
        done = call(*words, "-q")
        assert (done.code, done.out, done.err) == (0, "", ""), words
    refused = call("cancel", job, "-q")
    assert (refused.code, refused.out) == (14, "")
    assert "ended" in refused.err
    assert "is being cancelled" in call("cancel", call("submit", "-q", "--", "x").out.strip()).out, "it is no habit"
