"""Scenes on a minibox: a program that helps, with its hints kept through a checkpoint, and one that means harm."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.host.hints import Hints
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, W, newest, request, until
from support.ladder_scenes import ladder

PROGRAM = """
import subprocess, time
import spotsurfer_job
calls = []
@spotsurfer_job.before_freeze
def empty():
    calls.append(1)
    open("calls", "w").write(str(len(calls)))
    spotsurfer_job.stage("called %d times" % len(calls))
spotsurfer_job.stage("first")
subprocess.run(["spotsurfer", "hint", "checkpoint"], check=True)
while True:
    time.sleep(0.05)
"""
HARM = """
import os, threading, time
import spotsurfer_job
spotsurfer_job.before_freeze(lambda: time.sleep(10**6))
folder = os.environ["SPOTSURFER_HINTS"]
for n in range(300):
    os.mkfifo(folder + "/freeze-9%06d" % n)
os.symlink("/dev/zero", folder + "/freeze-7")
os.symlink("/etc/passwd", folder + "/stage")
while True:
    time.sleep(0.05)
"""


def _spec(program: str, user: str | None = None) -> Spec:
    return Spec(JOB, ["/usr/bin/python3", "-c", program], user=user)


def _save(e: JobEngine, number: int, *, final: bool) -> None:
    try:
        e.save(request(number, final=final))
    except Exception:
        for log in sorted(BASE.glob("job/**/*.log")):
            print(log, log.read_text(errors="replace")[-3000:], sep="\n")
        raise
    assert e.note == ""


def help(user: str = "") -> None:
    """Called before each save, also by the machine that restored it; stage and wish are heard; all as the job's user."""
    spec = _spec(PROGRAM, user or None)
    e = ladder(spec)
    assert e.preflight() == []
    e.start(spec)
    hints = Hints(Path(e.scratch()))
    until(hints.wants_checkpoint)
    assert hints.told().stage == "first"
    hints.heard()
    assert not hints.wants_checkpoint()
    _save(e, 1, final=False)
    assert hints.told().stage == "called 1 times"
    _save(e, 2, final=True)
    assert hints.told().stage == "called 2 times", "kept until the machine is given back"


def help_elsewhere(user: str = "") -> None:
    spec = _spec(PROGRAM, user or None)
    e = ladder(spec)
    assert e.preflight() == []
    e.restore(newest(open_store("file:///run/store")), spec)
    hints = Hints(Path(e.scratch()))
    assert hints.told().stage == "called 2 times"
    _save(e, 3, final=False)
    until(lambda: hints.told().stage == "called 3 times")
    assert (BASE / "job/scratch/work/calls").read_text() == "3"
    e.kill()


def harm() -> None:
    """A callback without end, hundreds of pipes that nobody reads, links: the save goes on after its time and tells it."""
    spec = _spec(HARM)
    e = ladder(spec)
    assert e.preflight() == []
    e.start(spec)
    folder = BASE / "job/scratch/hints"
    until(lambda: (folder / "stage").is_symlink())
    began = time.monotonic()
    e.save(request(1, final=False))
    assert 9.0 < time.monotonic() - began < 25.0
    assert "did not end within 10 s and was not waited for" in e.note
    assert Hints(Path(e.scratch())).told().stage == ""
    assert e.status().state is W.RUNNING
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
