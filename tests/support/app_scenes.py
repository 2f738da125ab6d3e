"""Scenes on a minibox of programs that save themselves, while the lease lapses, the store is silent, or the agent dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from typing import NoReturn
from unittest import mock

from spotsurfer_agent.engines.keeper import Keeper
from spotsurfer_agent.engines.ladder import Ladder
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.protocol import SelfSave, Spec
from spotsurfer_agent.store import StoreError, open_store
from support.engine_kit import JOB, W, newest, output, refused, request, runs, stands_still, turns_pass, until
from support.ladder_scenes import ladder

PROGRAM = """
import os, signal, sys, time
n = int(open("state").read()) if os.path.exists("state") else 0
def save(*_):
    open("state.new", "w").write(str(n)); os.rename("state.new", "state")
    if "exit" in sys.argv: os._exit(85)
signal.signal(signal.SIGUSR1, save)
while True: n += 1; print("turn", n, flush=True); time.sleep(0.02)
"""
AGAINST_CRIU = "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)\n"
WAYS = {
    "file": SelfSave(signal="USR1", done_file="state", deadline_seconds=10),
    "exit": SelfSave(signal="USR1", done_exit=85, deadline_seconds=10),
}
SAVES = ((1, False), (2, True))
SLOW_SECONDS = 1.0


def spec(way: str, engine: str = "app") -> Spec:
    words = ["/usr/bin/python3", "-u", "-c", (AGAINST_CRIU if engine == "auto" else "") + PROGRAM, way]
    return Spec(JOB, words, engine=engine, app=WAYS[way])


def begun(what: Spec) -> Ladder:
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
            runs(e)
    e.kill()


def agent_killed(way: str, engine: str, stage: str) -> None:
    """In the middle of a final save: the next agent lets the job go on, unless its final entry may exist."""
    child = os.fork()
    if child == 0:
        agent_that_dies(spec(way, engine), stage)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    e = ladder(spec(way, engine))
    e.adopt()
    if stage == "commit":
        assert e.status().state is W.ABSENT
        return
    runs(e)
    e.save(request(2, final=True))
    assert e.status().state is W.ABSENT
    assert b"turn" in output(e)
    e.kill()


def counts(way: str) -> None:
    """What a program used and how long it stood still, if saving ends it too: until it is there again, or dead."""
    e = begun(spec(way))
    for number, final in SAVES:
        busy(e, 0.1 * number)
        used = e.status().cpu_seconds
        facts = e.save(request(number, final=final, commit=slowly))
        assert (facts.frozen_seconds >= SLOW_SECONDS) == (final or way == "exit"), facts
        assert e.status().cpu_seconds >= used, (e.status().cpu_seconds, used)
        assert newest(open_store("file:///run/store")).cpu_seconds >= used
    e.kill()


def busy(e: Ladder, seconds: float) -> None:
    until(lambda: e.status().cpu_seconds > seconds)


def slowly(_: Manifest) -> bool:
    time.sleep(SLOW_SECONDS)
    return True


def killed_as_it_ends(final: str) -> None:
    """That saving ended the program is not taken for the job's end, whenever the agent dies: here when all but that is gone."""
    child = os.fork()
    if child == 0:
        e = begun(spec("exit"))
        with mock.patch.object(Keeper, "forget", lambda _: os.kill(os.getpid(), signal.SIGKILL)):
            e.save(request(1, final=final == "final"))
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    e = ladder(spec("exit"))
    e.adopt()
    assert e.status().state is W.ABSENT, e.status()
    e.kill()


def agent_that_dies(what: Spec, stage: str) -> NoReturn:
    e = begun(what)

    def dies(now: str) -> None:
        if now == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    e.save(request(1, final=True, progress=dies))
    os._exit(1)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
