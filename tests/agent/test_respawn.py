"""The respawner with real processes: crash, hang, replacement, end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent import __main__ as cli
from spotsurfer_agent.control import loop, respawn
from spotsurfer_agent.control.respawn import Plan, Respawner

# argv: a folder. Each start is noted; the n-th start does what the file `n` says, later ones what `0` says.
AGENT = """
import os, pathlib, signal, sys, time
from spotsurfer_agent.control import respawn
folder = pathlib.Path(sys.argv[1])
n = len(list(folder.glob("start-*"))) + 1
beat = respawn.beater()
(folder / "new").write_text(f"{os.getpid()} {os.environ.get(respawn.BEAT_VARIABLE)}")
(folder / "new").rename(folder / f"start-{n}")
plan = folder / str(n)
exec((plan if plan.exists() else folder / "0").read_text())
"""
BEAT_ON = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(respawn.REPLACE))\nwhile True: beat(); time.sleep(0.05)"


class Keeper:
    def __init__(self, folder: Path, stall=1.0, lease=2.0, job=True, **plans: str):
        self.folder, self.off = folder, []
        if job:
            (folder / "job").touch()
        for name, text in plans.items():
            (folder / name.removeprefix("_")).write_text(text)
        command = [sys.executable, "-c", AGENT, str(folder)]
        self.keeper = Respawner(Plan(command, stall, lease, lambda: self.off.append(1), folder / "agent.pid", folder / "job"))
        self.code = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        self.code = self.keeper.run()

    def starts(self) -> int:
        return len(list(self.folder.glob("start-*")))

    def wait(self, condition, seconds=15.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{self.starts()} starts, power-off {self.off}"
            time.sleep(0.02)

    def pid(self, n: int) -> int:
        return int((self.folder / f"start-{n}").read_text().split()[0])


@pytest.fixture
def keep(tmp_path):
    made = []

    def make(**how):
        made.append(Keeper(tmp_path, **how))
        made[-1].thread.start()
        return made[-1]

    yield make
    for k in made:
        k.keeper.leave()
        k.thread.join(10)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(respawn.__file__).parent.parent))


def test_the_end_of_the_attempt_is_the_end(keep):
    k = keep(_0="sys.exit(respawn.OVER)")
    k.thread.join(10)
    assert (k.code, k.starts(), k.off) == (0, 1, [])


def test_killed_it_comes_back(keep):
    k = keep(_0=BEAT_ON)
    k.wait(lambda: k.starts() == 1)
    os.kill(k.pid(1), signal.SIGKILL)
    k.wait(lambda: k.starts() == 2)
    assert k.off == []
    k.wait(lambda: (k.folder / "agent.pid").read_text() == f"{k.pid(2)}\n")


@pytest.mark.alone
def test_told_to_go_another_one_comes_at_once(keep):
    k = keep(_0=BEAT_ON)
    k.wait(lambda: k.starts() == 1)
    time.sleep(0.2)
    began = time.monotonic()
    os.kill(k.pid(1), signal.SIGTERM)
    k.wait(lambda: k.starts() == 2)
    assert time.monotonic() - began < 2


def test_one_that_hangs_is_replaced(keep):
    k = keep(_1="time.sleep(60)", _0=BEAT_ON, lease=10.0)
    k.wait(lambda: k.starts() == 2)
    assert not Path(f"/proc/{k.pid(1)}").exists()
    time.sleep(0.3)
    assert k.off == []


SLOW = f"time.sleep(2)\n{BEAT_ON}"


def test_a_slow_start_harms_nobody_where_no_job_is(keep):
    k = keep(_0=SLOW, job=False, stall=0.5, lease=1.0)
    time.sleep(3)
    assert (k.starts(), k.off) == (1, [])


def test_a_slow_start_under_a_job_ends_the_machine_after_the_lease(keep):
    k = keep(_0=SLOW, stall=0.5, lease=1.0)
    k.thread.join(10)
    assert k.off == [1]


def test_one_that_hangs_without_a_job_is_ended_in_the_end(keep, monkeypatch):
    monkeypatch.setattr(respawn, "START_SECONDS", 1.5)
    k = keep(_0="time.sleep(60)", job=False, stall=0.5, lease=1.0)
    k.thread.join(10)
    assert (k.starts(), k.off) == (1, [1])


@pytest.mark.alone
def test_one_that_never_gets_going_ends_the_machine_after_the_lease(keep):
    began = time.monotonic()
    k = keep(_0="sys.exit(1)", lease=1.5)
    k.thread.join(15)
    assert k.off == [1]
    assert 1.5 <= time.monotonic() - began < 6
    assert k.starts() >= 2


def test_one_that_crashes_now_and_then_is_kept(keep):
    k = keep(_0="beat(); time.sleep(0.3); sys.exit(1)", lease=4.0, stall=2.0)
    k.wait(lambda: k.starts() >= 4)
    assert k.off == []


def test_without_a_program_the_machine_ends_after_the_lease(tmp_path):
    off = []
    plan = Plan([str(tmp_path / "absent")], 0.3, 0.6, lambda: off.append(time.monotonic()), tmp_path / "pid", tmp_path / "job")
    began = time.monotonic()
    assert Respawner(plan).run() == 1
    assert len(off) == 1
    assert off[0] - began >= 0.6


def test_an_agent_that_cannot_be_configured_ends_the_machine(keep):
    k = keep(_0=f"sys.exit({respawn.UNFIT})")
    k.thread.join(10)
    assert (k.code, k.off, k.starts()) == (1, [1], 1)


def test_programs_of_the_agent_do_not_beat_for_it(keep):
    k = keep(_0=BEAT_ON)
    k.wait(lambda: k.starts() == 1)
    assert (k.folder / "start-1").read_text().endswith(" None")


def test_leaving_ends_the_agent_and_starts_no_other(keep):
    k = keep(_0=BEAT_ON)
    k.wait(lambda: k.starts() == 1)
    time.sleep(0.2)
    k.keeper.leave()
    k.thread.join(10)
    assert (k.code, k.starts()) == (0, 1)


def test_switch_points_to_the_other_runtime_and_tells_the_agent(tmp_path):
    for name in ("old", "new"):
        (tmp_path / "runtime" / name / "bin").mkdir(parents=True)
        (tmp_path / "runtime" / name / "bin" / "spotsurfer-agent").write_text("#!/bin/sh\n")
    current = tmp_path / "runtime" / "current"
    current.symlink_to(tmp_path / "runtime" / "old")
    child = subprocess.Popen(["sleep", "60"])
    (tmp_path / "agent.pid").write_text(f"{child.pid}\n")
    assert respawn.switch(tmp_path, tmp_path / "runtime" / "new") == child.pid
    assert child.wait(10) == -signal.SIGTERM
    assert current.resolve().name == "new"
    assert respawn.switch(tmp_path, tmp_path / "runtime" / "old") is None, "nobody left to tell"
    with pytest.raises(FileNotFoundError, match="unpack"):
        respawn.switch(tmp_path, tmp_path / "runtime" / "absent")
    assert current.resolve().name == "old"


# ---------------------------------------------------------------- command line


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("spotsurfer-agent ")


WRONG_KEY = '{"protocol": 1, "job": "j", "attempt": 1, "store_url": "memory:///", "key": "abc"}'
UNKNOWN_DIALECT = '{"protocol": 1, "job": "j", "attempt": 1, "store_url": "x", "metadata_dialect": "?"}'


@pytest.mark.parametrize("text", [None, "{", '{"protocol": 9}', UNKNOWN_DIALECT, WRONG_KEY])
def test_a_configuration_that_cannot_be_used(tmp_path, capsys, text):
    path = tmp_path / "agent.json"
    if text is not None:
        path.write_text(text)
    assert cli.main(["--config", str(path), "--base", str(tmp_path)]) == respawn.UNFIT
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["level"] == "error"
    assert str(path) in line["event"]


def test_a_suspended_machine_has_lost_its_lease_and_its_agent_did_not_hang(tmp_path, monkeypatch):
    """The lease counted only the time in which the guest ran: it was over for everybody but the machine itself."""
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_MONOTONIC: 400.0, time.CLOCK_BOOTTIME: 1000.0}.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: 400.0)
    lease: Any = {f.name: f.default for f in dataclasses.fields(loop.Surroundings)}["now"]
    keeper = Respawner(Plan([], 1.0, 2.0, lambda: None, tmp_path / "agent.pid", tmp_path / "job"))
    assert (lease(), keeper._now()) == (1000.0, 400.0)
