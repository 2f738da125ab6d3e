"""Scenes on a minibox of programs that save themselves, while the lease lapses, the store is silent, or the agent dies."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from functools import partial
from typing import NoReturn
from unittest import mock

from spotsurfer_agent.engines.app import AppSave
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.marks import Marks
from spotsurfer_agent.shim.client import ShimClient
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SelfSave, Spec
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError
from support.engine_kit import JOB, W, newest, output, refused, request, runs, stands_still, turns_pass, until
from support.ladder_scenes import goes_on, ladder

PROGRAM = """
import os, signal, sys, time
n = int(open("state").read()) if os.path.exists("state") else 0
def save(*_):
    open("state.new", "w").write(str(n)); os.rename("state.new", "state")
    if "exit" in sys.argv: os._exit(85)
signal.signal(signal.SIGUSR1, save)
while True: n += 1; print("turn", n, flush=True); time.sleep(0.02)
"""
TALKATIVE = """
import os, signal, time
print("turn 0"); time.sleep(1); print("turn 0")
def save(*_): time.sleep(0.5); open("done", "w"); print("turn 1")
signal.signal(signal.SIGUSR1, save)
while True: time.sleep(1)
"""
WRAPPED = f"/usr/bin/python3 -u -c '{PROGRAM.replace('SIGUSR1', 'SIGURG')}'"  # by a shell, which is told too and does not mind
AGAINST_CRIU = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)\n"
WAYS = {
    "file": SelfSave(signal="USR1", done_file="state", deadline_seconds=10),
    "exit": SelfSave(signal="USR1", done_exit=85, deadline_seconds=10),
}
SAVES = ((1, False), (2, True))
SLOW_SECONDS = 1.0
Point = tuple[type, str] | None


def spec(way: str, engine: str = "app") -> Spec:
    words = ["/usr/bin/python3", "-u", "-c", (AGAINST_CRIU if engine == "auto" else "") + PROGRAM, way]
    return Spec(JOB, words, engine=engine, app=WAYS[way])


def begun(what: Spec) -> JobEngine:
    e = ladder(what)
    e.start(what)
    turns_pass(e, 5)
    return e


def lease(way: str) -> None:
    """It lapses during a save that then fails: the job stays where it is until it may go on, and no sooner."""
    e = begun(spec(way))

    def lapses(_: Manifest) -> bool:
        e.hold()
        return False

    for number, final in SAVES:
        assert "not accepted" in refused("save", partial(e.save, request(number, final=final, commit=lapses)))
        assert e.status().held
        stands_still(e)
        e.release()
        goes_on(e, spec(way))
        runs(e)

    def lapses_and_comes_back(now: str) -> None:
        if now == "commit":
            e.hold()
            e.release()
            stands_still(e)

    e.save(request(3, final=True, progress=lapses_and_comes_back))
    assert e.status().state is W.ABSENT
    e.kill()


def in_doubt(way: str) -> None:
    """Nobody knows whether the entry exists: after a live save the job runs on, after a final one nothing of it ever does."""
    e = begun(spec(way))

    def lost(_: Manifest) -> bool:
        raise StoreError("the answer was lost")

    for number, final in SAVES:
        try:
            e.save(request(number, final=final, commit=lost))
        except StoreError:
            assert (e.status().state is W.ABSENT) == final
        if not final:
            goes_on(e, spec(way))
            runs(e)
    e.kill()


def agent_killed(way: str, engine: str, stage: str) -> None:
    """In the middle of a final save: the next agent lets the job go on, unless its final entry may exist."""
    dies(spec(way, engine), stage, (AppSave, "_sign") if stage == "told" else None)
    e = ladder(spec(way, engine))
    e.adopt()
    if stage == "commit":
        assert e.status().state is W.ABSENT
        return
    until(lambda: way != "exit" or e.status().saved_itself)  # also where it does so only now
    goes_on(e, spec(way, engine))
    runs(e)
    e.save(request(2, final=True))
    assert e.status().state is W.ABSENT
    assert b"turn" in output(e)
    e.kill()


def dies(what: Spec, stage: str, point: Point = None, *, final: bool = True) -> None:
    """An agent that does, at a stage of a save, or where it calls something."""
    child = os.fork()
    if child == 0:
        agent_that_dies(what, stage, point, final=final)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status


def counts(way: str) -> None:
    """What a program used and how long it stood still, if saving ends it too: until all is safe, or it is dead."""
    e = begun(spec(way))
    for number, final in SAVES:
        used = e.status().cpu_seconds + 0.02
        busy(e, used)
        facts = e.save(request(number, final=final, commit=slowly))
        assert (facts.frozen_seconds >= SLOW_SECONDS) == (final or way == "exit"), facts
        assert facts.frozen_seconds - facts.sending_seconds < SLOW_SECONDS, facts
        goes_on(e, spec(way))
        assert e.status().cpu_seconds >= used, (e.status().cpu_seconds, used)
        assert newest(open_store("file:///run/store")).cpu_seconds >= used
    e.kill()


def busy(e: JobEngine, seconds: float) -> None:
    until(lambda: e.status().cpu_seconds > seconds)


def slowly(_: Manifest) -> bool:
    time.sleep(SLOW_SECONDS)
    return True


def killed_as_it_ends(final: str) -> None:
    """That saving ended the program is not taken for the job's end, whenever the agent dies: here when all but that is gone."""
    dies(spec("exit"), "", (ShimClient, "forget"), final=final == "final")
    e = ladder(spec("exit"))
    e.adopt()
    if final != "final":
        assert e.status().saved_itself
        goes_on(e, spec("exit"))
        runs(e)
        assert e.status().cpu_seconds > 0
        e.kill()
    assert e.status().state is W.ABSENT, e.status()
    e.kill()


def killed_as_it_starts_again(when: str) -> None:
    """The agent dies when its exit status is gone and nothing runs yet, or when it runs and nobody has noted that."""
    dies(spec("exit"), "", {"before": (ShimClient, "_make_groups"), "after": (Marks, "forget")}[when], final=False)
    e = ladder(spec("exit"))
    assert e.adopt().saved_itself == (when == "before")
    assert (e.status().log or {})["out"] > 0
    goes_on(e, spec("exit"))
    runs(e)
    ends_untold(e)
    e.kill()


def early() -> None:
    """Told when it was started a moment ago and the signal would still kill it; and not told, for that failed."""
    slow = dataclasses.replace(
        spec("exit"), command=["/usr/bin/python3", "-u", "-c", "import time; time.sleep(1)" + PROGRAM, "exit"]
    )
    e = ladder(slow)
    e.start(slow)
    assert e.save(request(1, final=False)).kind == "live"
    goes_on(e, slow)
    turns_pass(e, 5)
    with mock.patch.object(AppSave, "_tell", side_effect=OSError("no such process")):
        assert "could not be told" in refused("save", lambda: e.save(request(2, final=False)))
    ends_untold(e)
    e.kill()
    said = SelfSave(signal="USR1", done_output="^turn", deadline_seconds=10)  # what it prints before it is told says nothing
    what = dataclasses.replace(slow, command=["/usr/bin/python3", "-u", "-c", TALKATIVE], app=said)
    e = ladder(what)
    e.start(what)
    e.save(request(3, final=False))
    assert "work/done" in {x.path for x in newest(open_store("file:///run/store")).scratch}
    e.kill()
    shell = dataclasses.replace(
        spec("file"), command=["sh", "-c", f"{WRAPPED}; exit 0"], app=SelfSave(signal="URG", done_file="state")
    )
    e = ladder(shell)
    e.start(shell)
    turns_pass(e, 5)
    assert e.save(request(4, final=False)).kind == "live"
    e.kill()


def ends_untold(e: JobEngine) -> None:
    """As if told to, by itself: that is its end."""
    os.kill(e.pids()[-1], signal.SIGUSR1)
    until(lambda: e.status().state is W.EXITED)
    assert not e.status().saved_itself


def late() -> None:
    """It ends by saving itself when nobody waits for that any more: that is no end of the job, whoever sees it."""
    what = dataclasses.replace(spec("exit"), app=dataclasses.replace(WAYS["exit"], deadline_seconds=0.1))
    e = begun(what)
    os.kill(e.pids()[-1], signal.SIGSTOP)
    assert "within 0.1 s" in refused("save", lambda: e.save(request(1, final=False)))
    assert not e.status().saved_itself
    os.kill(e.pids()[-1], signal.SIGCONT)
    until(lambda: e.status().state is W.EXITED)
    assert e.status().saved_itself
    e = ladder(what)
    assert e.adopt().saved_itself
    goes_on(e, what)
    runs(e)
    ends_untold(e)
    e.kill()


def agent_that_dies(what: Spec, stage: str, point: Point, *, final: bool) -> NoReturn:
    e = begun(what)

    def die(*_: object) -> object:
        if point == (AppSave, "_sign"):
            return lambda: os.kill(os.getpid(), signal.SIGKILL)  # the program is told by then
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    def heard(now: str) -> None:
        if now == stage:
            die()

    with mock.patch.object(*point, die) if point else contextlib.nullcontext():
        e.save(request(1, final=final, progress=heard))
        goes_on(e, what)
    os._exit(1)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
