"""Hints: the program's side and the agent's, by files alone; what a job may write there to do harm; and with CRIU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_agent.host import hints
from spotsurfer_agent.host.hints import Hints, Told
from support.minibox import minibox
from support.tree import ROOT

HELPER = ROOT / "wire/spotsurfer_wire/helper"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / hints.OWN).mkdir()
    (tmp_path / hints.INSIDE).mkdir()
    hints.lay(tmp_path)
    return tmp_path


@contextlib.contextmanager
def begun(scratch: Path, call: str, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """A program that wants to be called, in its own session."""
    program = f"import os; os.chdir({str(scratch)!r})\n" + LISTENS.format(call=call, then=then)
    environment = hints.environment({"PATH": "/usr/bin:/bin"}, str(scratch))
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, text=True, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def run(scratch: Path, *words: str) -> int:
    environment = hints.environment({"PATH": "/usr/bin:/bin"}, str(scratch))
    return subprocess.run(["spotsurfer", *words], env=environment, check=False, capture_output=True).returncode


LISTENS = """
import sys, time, spotsurfer_job
def call(): {call}
spotsurfer_job.before_freeze(call)
{then}
print("ready", flush=True)
time.sleep(60)
"""


def test_a_script_tells_its_stage_and_asks_for_a_checkpoint(scratch: Path) -> None:
    told = Hints(scratch)
    assert (told.told().stage, told.wants_checkpoint()) == ("", False)
    assert run(scratch, "hint", "stage", "variant calling; $(rm)") == 0
    assert run(scratch, "hint", "checkpoint") == 0
    assert (told.told().stage, told.wants_checkpoint()) == ("variant calling; $(rm)", True)
    told.heard()
    assert not told.wants_checkpoint()
    assert run(scratch, "hint", "stage") == run(scratch, "submit") == 2


def test_outside_of_spotsurfer_nothing_happens(tmp_path: Path) -> None:
    clean = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HELPER)}
    program = "import spotsurfer_job as s; print(s.stage('x'), s.please_checkpoint(), s.before_freeze(len) is len)"
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["False", "False", "True"]
    gone = {**clean, hints.FOLDER: str(tmp_path / "not there")}
    done = subprocess.run([sys.executable, "-c", program], env=gone, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
    assert list(tmp_path.iterdir()) == []


def test_what_the_job_has_itself_stays_in_front() -> None:
    made = hints.environment({"PATH": "/mine", "PYTHONPATH": "/own"}, "/base")
    assert made["PATH"] == "/mine:/base/.spotsurfer/bin"
    assert made["PYTHONPATH"] == "/own:/base/.spotsurfer/python"
    assert hints.environment({}, "/base")["PYTHONPATH"] == "/base/.spotsurfer/python"


def test_callbacks_run_before_the_save_and_one_that_fails_holds_nothing_up(scratch: Path) -> None:
    for call, file in (("open('a', 'w')", "a"), ("open('b', 'w'); raise ValueError('on purpose')", "b")):
        with begun(scratch, call):
            assert Hints(scratch).call_before_freeze(20.0) == ""
            assert (scratch / file).exists()
        assert Hints(scratch).call_before_freeze(20.0) == "", "who has ended is not waited for"


@pytest.mark.alone
def test_who_does_not_come_back_is_told_and_not_waited_for(scratch: Path) -> None:
    with begun(scratch, "time.sleep(60)") as program:
        began = time.monotonic()
        why = Hints(scratch).call_before_freeze(0.5)
        assert 0.4 < time.monotonic() - began < 5.0
        assert why == f"before_freeze of process {program.pid} did not end within 0.5 s and was not waited for"


def test_a_forked_child_is_not_mistaken_for_its_parent(scratch: Path) -> None:
    with begun(scratch, "open('n', 'a').write('x')", then="os.fork()"):
        assert Hints(scratch).call_before_freeze(20.0) == ""
        assert (scratch / "n").read_text() == "x"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"", ""),
        (b"\xff\xfe\x00 \x1b[31mred\x07\n", "��   [31mred"),
        (b"x" * 10**6, "x" * 80),
        (b"\n\nsecond line", ""),
        ("über\u202e\u0000 tief\nmore".encode(), "über   tief"),
    ],
    ids=["empty", "control characters", "huge", "empty line", "letters"],
)
def test_whatever_stands_in_a_stage_a_bounded_and_printable_piece_is_shown(scratch: Path, written: bytes, shown: str) -> None:
    (scratch / hints.INSIDE / "stage").write_bytes(written)
    assert Hints(scratch).told().stage == shown


def test_a_stage_says_what_it_needs_by_script_and_by_program(scratch: Path) -> None:
    told = Hints(scratch)
    assert run(scratch, "hint", "stage", "sort it", "--memory", "40G", "--cores", "8") == 0
    assert told.told() == Told("sort it", 40 << 30, 8.0)
    assert run(scratch, "hint", "stage", "write") == 0
    assert told.told() == Told("write"), "what was said holds until the next stage"
    with begun(scratch, "pass", then="spotsurfer_job.stage('x', memory=3 << 30, cores=1.5)"):
        assert told.told() == Told("x", 3 << 30, 1.5)
    for words in (["--memory"], ["--disk", "1"], ["8"]):
        assert run(scratch, "hint", "stage", "y", *words) == 2


@pytest.mark.parametrize(
    ("said", "bytes_", "cores"),
    [
        ("memory=1.5 GiB", 3 << 29, 0.0),
        ("memory=512m\ncores=2", 512 << 20, 2.0),
        ("memory=-5\ncores=many", 0, 0.0),
        ("memory=1e99", 0, 0.0),
        ("memory=999999999T\ncores=999999999", 1 << 50, 4096.0),
        ("disk=5G\nmemory=nan", 0, 0.0),
    ],
)
def test_needs_that_are_no_numbers_count_as_not_said_and_huge_ones_are_cut(
    scratch: Path, said: str, bytes_: int, cores: float
) -> None:
    (scratch / hints.INSIDE / "stage").write_text(f"name\n{said}\n")
    assert Hints(scratch).told() == Told("name", bytes_, cores)


def test_links_pipes_and_folders_are_not_read(scratch: Path) -> None:
    stage = scratch / hints.INSIDE / "stage"
    for make in (lambda: stage.symlink_to("/etc/passwd"), lambda: os.mkfifo(stage), lambda: stage.symlink_to("/dev/zero")):
        make()
        assert Hints(scratch).told().stage == ""
        stage.unlink()
    stage.mkdir()
    assert Hints(scratch).told().stage == ""
    (scratch / hints.INSIDE / "checkpoint").mkdir()
    assert Hints(scratch).wants_checkpoint()
    Hints(scratch).heard()  # a folder can't be taken away, which must not fail


@pytest.mark.alone
def test_pipes_that_are_no_listeners_cost_no_time(scratch: Path) -> None:
    folder = scratch / hints.INSIDE
    for n in range(3000):
        (folder / f"freeze-{n}x").touch()
    for name in ("freeze-1", "freeze-²", "freeze-" + "9" * 200):
        (folder / name).symlink_to("/dev/null")
    full = folder / "freeze-2"
    os.mkfifo(full)
    held = os.open(full, os.O_RDWR | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(held, b"x" * 4096)
    began = time.monotonic()
    assert Hints(scratch).call_before_freeze(10.0) == ""
    assert time.monotonic() - began < 2.0
    os.close(held)


def test_a_flood_of_stages_is_read_at_the_agents_pace(scratch: Path) -> None:
    over = threading.Event()

    def flood() -> None:
        number = 0
        while not over.is_set():
            number += 1
            half = scratch / hints.INSIDE / "half"
            half.write_text(f"stage {number}\n")
            half.replace(scratch / hints.INSIDE / "stage")

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        told = Hints(scratch)
        while not told.told().stage:
            time.sleep(0.01)
        assert {told.told().stage.split()[0] for _ in range(200)} == {"stage"}
    finally:
        over.set()
        thread.join()
    assert sorted(p.name for p in (scratch / hints.INSIDE).iterdir()) == ["stage"]


def test_what_a_step_put_in_the_way_is_not_written_through(scratch: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    module = scratch / hints.OWN / "python/spotsurfer_job.py"
    module.unlink()
    module.symlink_to(victim)
    hints.lay(scratch)
    assert victim.read_text() == "mine"
    assert "before_freeze" in module.read_text()


@pytest.mark.real
@pytest.mark.parametrize("user", ["", "nobody"])
def test_a_program_that_helps_is_called_here_and_elsewhere(tmp_path: Path, user: str) -> None:
    words = [user] if user else []
    for scene in ("help", "help_elsewhere"):
        with minibox(tmp_path / scene, tmp_path / "store", module="support.hint_scenes") as box:
            box.run(scene, *words)


@pytest.mark.real
def test_a_program_that_means_harm_is_saved_all_the_same(tmp_path: Path) -> None:
    with minibox(tmp_path / "box", tmp_path / "store", module="support.hint_scenes") as box:
        box.run("harm")
