"""The agent's end of the side-car: starts it when it is needed, and again when it has died."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotsurfer_agent.cuda.cards import About
from spotsurfer_agent.cuda.port import DriverUnfit
from spotsurfer_agent.cuda.states import OK, Call, State

LOCK, LOG = "cuda.lock", "cuda.log"


class SidecarGone(Exception):
    """It died before it answered: how its last call ended is not known, until states are asked for."""


class Sidecar:
    """One at a time for a folder. Calls may come from any thread; each waits for as long as the driver takes."""

    def __init__(self, argv: Sequence[str], folder: Path) -> None:
        """`argv` starts it; the path of its lock is appended."""
        self._argv, self._folder = list(argv), folder
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return self._process.pid if self._process is not None else None

    def about(self) -> About:
        """The driver and its GPUs. Raises DriverUnfit, SidecarGone."""
        return About.from_json(self._ask({"verb": "about"}))

    def states(self, pids: Sequence[int]) -> dict[int, State]:
        """Of those that have CUDA. Raises DriverUnfit, SidecarGone."""
        told = self._ask({"verb": "state", "pids": list(pids)})["results"]
        return {int(pid): State(state) for pid, (result, state) in told.items() if result == OK}

    def restore_threads(self, pids: Sequence[int]) -> dict[int, int]:
        """Of each process, the thread that works when its memory moves. Raises DriverUnfit, SidecarGone."""
        told = self._ask({"verb": "thread", "pids": list(pids)})["results"]
        return {int(pid): int(thread) for pid, (result, thread) in told.items() if result == OK}

    def call(self, call: Call, pids: Sequence[int], **more: Any) -> dict[int, str]:
        """One call for each process, all at once: their results. Raises DriverUnfit, SidecarGone."""
        told = self._ask({"verb": call.value, "pids": list(pids), **more})["results"]
        return {int(pid): str(result) for pid, (result, _) in told.items()}

    def close(self) -> None:
        """It may end when it has finished what it does."""
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
