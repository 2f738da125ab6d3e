"""The process that speaks with the driver: one JSON object a line on its standard input, an answer each on its output.

It is a process of its own so that a driver that crashes does not take the agent along, and it lives long because attaching to
the driver takes seconds. Nothing here ends a call of the driver: it ignores being asked to end, and when the agent is gone it
finishes what it does. There is one at a time: the next one waits for the lock of the one before.

A request is {"verb": "about"} or {"verb": v, "pids": [...]} with v "state", "thread", "lock" (and "timeout_ms"), "checkpoint",
"restore" (and "pairs") or "unlock". The calls for all its processes are made at once: the processes may wait for each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from spotsurfer_agent.cuda.port import Driver, DriverUnfit
from spotsurfer_agent.cuda.states import OK, Call

Request = dict[str, Any]
Answer = dict[str, Any]


def main(make: Callable[[], Driver], lock: Path) -> int:
    """Serve until the agent closes our standard input. `make` raises DriverUnfit, which is then all there is to say."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the driver prints is no answer
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            driver = make()
        except DriverUnfit as e:
            _say(answers, {"unfit": str(e)})
            return 0
        _say(answers, {"ready": True})
        with contextlib.suppress(BrokenPipeError):
            serve(driver, sys.stdin, answers)
    return 0


def serve(driver: Driver, requests: Iterable[str], answers: TextIO) -> None:
    """One request after the other."""
    for line in requests:
        _say(answers, answer(driver, json.loads(line)))


def answer(driver: Driver, request: Request) -> Answer:
    """Do what one request asks for."""
    verb = str(request["verb"])
    if verb == "about":
        return dataclasses.asdict(driver.about())
    one, pids = _doer(driver, verb, request), [int(p) for p in request["pids"]]
    if not pids:
        return {"results": {}}
    with ThreadPoolExecutor(len(pids)) as threads:
        return {"results": dict(zip(map(str, pids), threads.map(one, pids), strict=True))}


def _doer(driver: Driver, verb: str, request: Request) -> Callable[[int], tuple[str, str]]:
    """What is done with each process: it returns the result's name and, where it was asked for, a state."""
    pairs = [(str(a), str(b)) for a, b in request.get("pairs", [])]
    calls: dict[str, Callable[[int], str]] = {
        Call.LOCK: lambda pid: driver.lock(pid, int(request["timeout_ms"])),
        Call.CHECKPOINT: driver.checkpoint,
        Call.RESTORE: lambda pid: driver.restore(pid, pairs),
        Call.UNLOCK: driver.unlock,
    }
    if verb == "state":
        return lambda pid: _state(driver, pid)
    if verb == "thread":
        return driver.restore_thread
    call = calls[verb]
    return lambda pid: (call(pid), "")


def _state(driver: Driver, pid: int) -> tuple[str, str]:
    result, state = driver.state(pid)
    return result, state.value if result == OK and state is not None else ""


def _say(answers: TextIO, what: Answer) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()
