"""`watch` in real terminals: nothing broken at 80 and at 160 columns, a live screen and its keys, text that steers nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
from cli.conftest import Call
from support.fake_service import START, FakeService, an_attempt
from support.terminal import CONTROL, Terminal

from spotsurfer.model.job import AttemptState, JobState

SIZES = [(80, 24), (160, 50)]
LONG = "no machine on offer could go on with its checkpoint because its processor lacks what the program was built for"
EVIL = "evil\x1b[2J\x1b]0;owned\x07\u202egnp.exe \x9b31m\r\nsecond line"


@pytest.fixture
def life(job: str, controller: FakeService) -> str:
    """A job that moved once, over midnight, and runs."""
    controller.say(job, "planned", f"spot local/local-a/m6i.large: {LONG}", usd_micros_per_hour=31_200)
    controller.say(job, "attempt", "epoch granted: from the beginning", event="epoch granted")
    controller.say(job, "granted", "owns the job, from the beginning")
    for number in range(40):
        controller.say(job, "saved", f"{number} checkpoint, {LONG}")
    controller.moments[-1] = replace(controller.moments[-1], at=START + timedelta(days=1))
    controller.say(job, "stage", EVIL)
    controller.moments[-1] = replace(controller.moments[-1], at=START + timedelta(days=1, seconds=5))
    gone = replace(
        an_attempt(controller.statuses[job].job.id, 1, AttemptState.RELEASED), released_at=START + timedelta(hours=1)
    )
    here = replace(an_attempt(controller.statuses[job].job.id, 2), launched_at=START + timedelta(hours=1))
    attempts = [controller.status(gone), replace(controller.status(here), unsaved_seconds=75.0)]
    status = replace(
        controller.statuses[job], attempts=attempts, phase="running", usd_micros=1_234_500, checkpoint="000001-000007"
    )
    controller.statuses[job] = status
    controller.logs[job, "out"] = f"step 1\nstep 2 {LONG} {LONG}\nstep 3 {EVIL}\n".encode()
    return job


def unbroken(lines: list[str], words: str) -> None:
    """All words of a text are there whole."""
    found = " ".join(lines).split()
    assert {word for word in words.split() if word not in found} == set()


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_lines_of_the_timeline(life: str, controller: FakeService, columns: int, rows: int) -> None:
    controller.end(life, JobState.SUCCEEDED, 0)
    with Terminal(["watch", life], columns, rows) as terminal:
        assert terminal.end() == 0
    lines = terminal.text()
    assert max(map(len, lines)) <= columns
    unbroken(lines, LONG)
    days = [line for line in lines if re.fullmatch(r"\w+ 2026-03-0[12], times in UTC", line)]
    assert [day.split()[0] for day in days] == ["Sunday", "Monday", "Sunday"]
    assert f"`spotsurfer watch {life} --all` shows them" in " ".join(" ".join(lines).split())
    assert len(lines) <= rows, "a screenful"
    folded = [line for line in lines if line.startswith("    ")]
    assert all(line.startswith(" " * len("12:00:00  #1   ")) for line in folded), "sentences hang below their beginning"
    assert (len(folded) > 5) is (columns == 80)
    assert not any(c in terminal.raw for c in "\x07\u202e\x9b") and "\x1b[2J" not in terminal.raw


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_a_live_screen_of_one_job(life: str, controller: FakeService, columns: int, rows: int) -> None:
    with Terminal(["watch", "--live", life], columns, rows) as terminal:
        terminal.until(lambda raw: raw.count("Its output") > 1)
        controller.say(life, "alert", "news of the last second")
        terminal.until(lambda raw: "Trouble: news of the last second" in raw)
        terminal.until(lambda raw: raw.rstrip().endswith("jobs go on\x1b[0m"))
        frame = terminal.frames()[-1]
        terminal.press("q")
        assert terminal.end() == 130
    assert len(frame) == rows
    assert max(map(len, frame)) <= columns
    text = "\n".join(frame)
    for words in (
        "asm",
        "running: its command runs",
        "1.2345 USD",
        "000001-000007, 1m15s of work since then",
        "0.0300 USD an hour",
    ):
        assert words in text
    assert re.search(r"^#1 spot m6i.large +▒+ .*given back$", text, re.M) and re.search(
        r"^#2 spot m6i.large +█+ .*runs the job$", text, re.M
    )
    assert "step 3 evil?[2J" in text and "second line" in text
    assert terminal.raw.rstrip().endswith("Interrupted.")
    assert "\x1b[?1049l" in terminal.raw, "the terminal is as it was"
    steering = set(CONTROL.findall(terminal.raw))
    assert not any(c in terminal.raw for c in "\x07\u202e\x9b") and "\x1b[2J" not in steering


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_a_live_screen_of_all_jobs(life: str, controller: FakeService, call: Call, columns: int, rows: int) -> None:
    for number in range(30):
        assert call("submit", "--name", f"more-{number}", "--", "prog").code == 0
    with Terminal(["watch", "--live"], columns, rows) as terminal:
        terminal.until(lambda _: any(f[0].startswith("31 open jobs, ") for f in terminal.frames()[:-1]), 60)
        frame = next(f for f in terminal.frames() if f[0].startswith("31 open jobs, "))
        terminal.press("\x03")
        assert terminal.end() == 130
    assert len(frame) == rows
    assert max(map(len, frame)) <= columns
    assert frame[1].split() == ["JOB", "STATE", "MACHINE", "AGE", "UNSAVED", "USD"]
    assert any("more: `spotsurfer list --open`" in line for line in frame)


def test_a_live_screen_ends_with_its_job(life: str, controller: FakeService) -> None:
    with Terminal(["watch", "--live", life], 80, 24) as terminal:
        terminal.until(lambda raw: "jobs go on" in raw)
        controller.end(life, JobState.FAILED, 3)
        assert terminal.end() == 0
    assert terminal.text()[-1].strip() == f"{life} failed with exit code 3: 1.2345 USD so far."


def test_an_unknown_job_is_told_in_words(job: str) -> None:
    with Terminal(["watch", "--live", "nosuch"], 80, 24) as terminal:
        assert terminal.end() == 13
    assert "There is no job 'nosuch'" in terminal.raw and "\x1b[?1049h" not in terminal.raw


def test_without_a_terminal_there_are_lines(life: str, controller: FakeService) -> None:
    controller.end(life, JobState.SUCCEEDED, 0)
    program = "import sys; from spotsurfer.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for words in (["watch", "--live", life], ["watch", "--live", "--json", life]):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        last = done.stdout.splitlines()[-1]
        assert json.loads(last)["sentence"] == "Finished well" if "--json" in words else last.endswith("Finished well")
