"""The small file that outlives the agent process, and the record of the job's steps in it.

The file lies in the base folder and is replaced as a whole. It need not outlive the machine, because after a power cut the job
is gone too: so it is not fsynced.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_wire import clock, json_codec
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import MAIN, Spec, StepRun

from spotsurfer_agent.host import steps
from spotsurfer_agent.ports.engine import Status, WorkloadState

log = logging.getLogger(__name__)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Memory:
    """Values that the next agent process on this machine has to know."""

    job: str
    attempt: int
    boot: str = ""  # of the kernel: monotonic times mean nothing after another boot
    report_sequence: int = 0
    save_sequence: int = 0  # of the last save that was tried: its name is never used again
    began: bool = False  # the job ran here
    cpu_before: float = 0.0  # of the attempts before this one
    log_begin: dict[str, int] = field(default_factory=dict)  # where this attempt's output begins
    steps: list[dict[str, Any]] = field(default_factory=list)  # that began, as `messages.StepRun` has them, newest last
    between_steps: bool = False  # the newest one is noted and not started yet
    cpu_steps: float = 0.0  # of steps that ended under this attempt
    cpu_told: float = 0.0  # of this attempt in all, as reported: the reported value never falls
    partial: int = 0  # the newest request for outputs that was dealt with
    partial_error: str = ""
    drain_failed: int = 0
    ran_before: float = 0.0  # seconds for which the job had run when its checkpoint was made
    ran_here: float = 0.0  # … and so long it has run here, its freezes included
    warned: bool = False  # the signal before its time limit was sent
    time_up: float | None = None  # for how long it had run when it was told to end; None = it was not
    signal: int = 0  # number of the newest signal of its user that was sent
    near_miss: dict[str, Any] | None = None  # the last one, as `messages.NearMiss`
    saves: int = 0
    last_save: dict[str, Any] | None = None  # as `messages.SaveFacts`
    frozen_seconds: float = 0.0
    samples: list[list[float | None]] = field(default_factory=list)  # as `final_save_timing.Sample`, newest last
    restore_seconds: float | None = None
    head_at: float = float("-inf")  # monotonic: the lease goes on across processes
    report_at: float = float("-inf")
    freeze_at: float | None = None  # monotonic: of the job's newest save here, or of its start; None before that


class StateFile:
    """Memory on disk. `memory` is the newest; `update` writes it. Safe to use from several threads."""

    def __init__(self, path: Path, job: str, attempt: int) -> None:
        self._path = path
        fresh = Memory(job, attempt, boot=_boot_id())
        self.memory = _read(path, fresh)
        self._lock = threading.Lock()

    def update(self, **changes: Any) -> None:
        """Change some fields and write the file if anything is new. A full disk is logged: the job matters more."""
        with self._lock:
            memory = dataclasses.replace(self.memory, **changes)
            if memory == self.memory:
                return
            self.memory = memory
            try:
                self._write(memory)
            except OSError as e:
                log.warning("the agent's memory can't be written: %s", e)

    def _write(self, memory: Memory) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(memory)))
        new.replace(self._path)


def _read(path: Path, fresh: Memory) -> Memory:
    """What an earlier process of this attempt left; anything else (another attempt, damaged) counts as nothing."""
    try:
        raw = json.loads(path.read_text())
        found = json_codec.known(Memory, raw)
    except (OSError, ValueError, TypeError, AttributeError):
        return fresh
    if (found.job, found.attempt) != (fresh.job, fresh.attempt):
        return fresh
    if found.boot != fresh.boot:
        return dataclasses.replace(found, boot=fresh.boot, head_at=float("-inf"), report_at=float("-inf"), freeze_at=None)
    return found


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"pid-{os.getpid()}"  # no way to tell: as if each process were a boot


def runs_of(memory: Memory) -> list[StepRun]:
    """The steps that began, oldest first."""
    return [StepRun(**run) for run in memory.steps]


def used(memory: Memory, newest: float) -> float:
    """CPU seconds of this attempt, of which the processes that run now, or ran last, used `newest`."""
    return max(memory.cpu_told, memory.cpu_steps + (0.0 if memory.between_steps else newest))


class StepBook:
    """The runs of one job's steps, so that a next agent process goes on between two of them.

    A step is written down here before it is started.
    """

    def __init__(self, state: StateFile) -> None:
        self._state = state

    @property
    def runs(self) -> list[StepRun]:
        """The steps that began, oldest first; the last one is the newest."""
        return runs_of(self._state.memory)

    @property
    def cpu_before(self) -> float:
        """CPU time of the job before the processes that run now, seconds: other attempts, and steps that ended here."""
        return self._state.memory.cpu_before + self._state.memory.cpu_steps

    def first(self, spec: Spec) -> Spec:
        """The job begins with its first step: what is to be started."""
        run = steps.begun(spec, 0, {}, clock.utc_text())
        self._take(0.0, {}, [run])
        return steps.at(spec, 0)

    def taken_over(self, spec: Spec, image: Manifest) -> Spec:
        """The job goes on in the step that a checkpoint was made in: what is to be restored."""
        runs = image.steps or [steps.begun(spec, 0, {}, "")]
        self._take(image.cpu_seconds, dict(image.log), runs)
        return steps.at(spec, runs[-1].number, runs)

    def _take(self, cpu_before: float, log: dict[str, int], runs: list[StepRun]) -> None:
        steps = [dataclasses.asdict(run) for run in runs]
        self._state.update(cpu_before=cpu_before, cpu_steps=0.0, cpu_told=0.0, log_begin=log, steps=steps, between_steps=False)

    def keep_used(self, newest: float) -> None:
        """Keep what this attempt used before its end is reported: a later agent can't see it any more."""
        self._state.update(cpu_told=used(self._state.memory, newest))

    def due(self, spec: Spec | None, status: Status) -> int | None:
        """The step that is to be started now, because the one before it has ended, or because it ended as it saved itself."""
        runs = self.runs
        if spec is None or not runs:
            return None
        if status.saved_itself or self._noted(status):
            return runs[-1].number
        if status.state is not WorkloadState.EXITED:
            return None
        return steps.following(spec, [*runs[:-1], dataclasses.replace(runs[-1], exit_code=status.exit_code)])

    def _noted(self, status: Status) -> bool:
        """An agent wrote down the end of a step, and has not started the next: maybe it died then."""
        m = self._state.memory
        return m.between_steps and (status.state is WorkloadState.ABSENT or status.step < m.steps[-1]["number"])

    def turn(self, spec: Spec, status: Status) -> tuple[Spec, Mapping[str, int]]:
        """Write down how the step ended and which one follows; what is to be started, and how much output there is already."""
        number = self.due(spec, status)
        assert number is not None, "no step is due"
        if not self._noted(status):
            runs, here = self._closed(status), self._state.memory.cpu_steps + status.cpu_seconds
            runs.append(steps.begun(spec, number, runs[-1].log_end, clock.utc_text()))
            self._state.update(steps=[dataclasses.asdict(run) for run in runs], cpu_steps=here, between_steps=True)
        runs = self.runs
        return steps.at(spec, number, runs), runs[-1].log

    def seen(self, status: Status) -> None:
        """An agent that takes over sees the job: the one before may have died as soon as it had started the newest step."""
        if self.runs and status.state is not WorkloadState.ABSENT and status.step == self.runs[-1].number:
            self.started()

    def started(self) -> None:
        """The newest step runs."""
        self._state.update(between_steps=False)

    def close(self, status: Status) -> list[StepRun]:
        """The last step has ended: note it and return all runs."""
        runs = self._closed(status)
        self._state.update(steps=[dataclasses.asdict(run) for run in runs])
        return runs

    def _closed(self, status: Status) -> list[StepRun]:
        """All runs, the newest one ended as the workload did."""
        runs = self.runs or [StepRun(MAIN, 0)]  # the agent that started it knew of no steps
        spent = sum(run.cpu_seconds for run in runs[:-1])
        cpu = max(0.0, self.cpu_before + status.cpu_seconds - spent)
        return [*runs[:-1], steps.ended(runs[-1], status.exit_code, status.log or {}, cpu, clock.utc_text())]
