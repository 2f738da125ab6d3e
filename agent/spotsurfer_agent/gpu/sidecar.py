"""The side-car process that speaks with the GPU driver, and the agent's end of it.

It is a process of its own so that a crash of the driver does not take the agent along. It lives long because attaching to
the driver takes seconds. Nothing here ends a call of the driver: the side-car ignores SIGTERM, and when the agent is gone
it finishes its work. Only one exists at a time: the next one waits for the lock of the one before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from spotsurfer_wire.gpu_facts import About

from spotsurfer_agent.gpu.driver_port import OK, Call, Driver, DriverUnfit, State

# ---- The agent's end: starts the side-car when it is needed, and again after its death

LOCK, LOG = "cuda.lock", "cuda.log"


class SidecarGone(Exception):
    """The side-car died before it answered. The result of its last call is unknown until the states are queried."""


class Sidecar:
    """The one side-car of a folder. Calls may come from any thread; each waits as long as the driver takes."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        """`argv` starts it; the path of its lock is appended."""
        self._argv, self._folder = list(argv), folder
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Number of the process, if one runs."""
        return self._process.pid if self._process is not None else None

    def about(self) -> About:
        """The driver and its GPUs. Raises DriverUnfit, SidecarGone."""
        return About.from_json(self._ask({"verb": "about"}))

    def states(self, pids: Sequence[int]) -> dict[int, State]:
        """States of the processes that have CUDA. Raises DriverUnfit, SidecarGone."""
        told = self._ask({"verb": "state", "pids": list(pids)})["results"]
        return {int(pid): State(state) for pid, (result, state) in told.items() if result == OK}

    def restore_threads(self, pids: Sequence[int]) -> dict[int, int]:
        """The restore thread of each process, which works when its memory moves. Raises DriverUnfit, SidecarGone."""
        told = self._ask({"verb": "thread", "pids": list(pids)})["results"]
        return {int(pid): int(thread) for pid, (result, thread) in told.items() if result == OK}

    def call(self, call: Call, pids: Sequence[int], **more: Any) -> dict[int, str]:
        """One call for each process, all at once: their results. Raises DriverUnfit, SidecarGone."""
        told = self._ask({"verb": call.value, "pids": list(pids), **more})["results"]
        return {int(pid): str(result) for pid, (result, _) in told.items()}

    def close(self) -> None:
        """Let the side-car end when it has finished its work."""
        with self._turn:
            self._drop()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._turn:
            process = self._started()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            except OSError:
                self._drop()
                raise SidecarGone("the GPU side-car died") from None
            return self._answer(process)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._drop()
        with (self._folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [*self._argv, str(self._folder / LOCK)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd="/", start_new_session=True, text=True,
            )  # fmt: skip
        told = self._answer(self._process)
        if "unfit" in told:
            self._drop()
            raise DriverUnfit(str(told["unfit"]))
        return self._process

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.endswith("\n"):
            self._drop()
            raise SidecarGone(f"the GPU side-car died: see {self._folder}/{LOG}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        if process.poll() is None:
            threading.Thread(target=process.wait, name="side-car", daemon=True).start()  # it ends when it is done


# ---- The process: one JSON object a line on its standard input, one answer each on its output
#
# A request is {"verb": "about"} or {"verb": v, "pids": [...]} with v "state", "thread", "lock" (and "timeout_ms"),
# "checkpoint", "restore" (and "pairs") or "unlock". The calls for all processes of a request run at once, because the
# processes may wait for each other.

Request = dict[str, Any]
Answer = dict[str, Any]


def main(make: Callable[[], Driver], lock: Path) -> int:
    """Serve until the agent closes our standard input. DriverUnfit of `make` is reported and ends it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the driver's prints must not become answers
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
    """Serve one request after the other."""
    for line in requests:
        _say(answers, answer(driver, json.loads(line)))


def answer(driver: Driver, request: Request) -> Answer:
    """Execute one request."""
    verb = str(request["verb"])
    if verb == "about":
        return dataclasses.asdict(driver.about())
    pairs = [(str(a), str(b)) for a, b in request.get("pairs", [])]

    def state(pid: int) -> tuple[str, str]:
        result, state = driver.state(pid)
        return result, state.value if result == OK and state is not None else ""

    # The result's name for each process, and what else was asked for.
    verbs: dict[str, Callable[[int], tuple[str, str]]] = {
        "state": state,
        "thread": driver.restore_thread,
        Call.LOCK: lambda pid: (driver.lock(pid, int(request["timeout_ms"])), ""),
        Call.CHECKPOINT: lambda pid: (driver.checkpoint(pid), ""),
        Call.RESTORE: lambda pid: (driver.restore(pid, pairs), ""),
        Call.UNLOCK: lambda pid: (driver.unlock(pid), ""),
    }
    one, pids = verbs[verb], [int(p) for p in request["pids"]]
    if not pids:
        return {"results": {}}
    with ThreadPoolExecutor(len(pids)) as threads:
        return {"results": dict(zip(map(str, pids), threads.map(one, pids), strict=True))}


def _say(answers: TextIO, what: Answer) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()
