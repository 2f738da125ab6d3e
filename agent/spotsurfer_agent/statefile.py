"""The little that must outlive the agent's process: a small file in the base folder, replaced as a whole.

It need not outlive the machine: after a power cut the job is gone too. So it is not fsynced.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_agent import coding
from spotsurfer_agent.table import State

log = logging.getLogger(__name__)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next agent process on this machine has to know."""

    job: str
    attempt: int
    boot: str = ""  # of the kernel: monotonic times mean nothing after another boot
    report_sequence: int = 0
    save_sequence: int = 0  # of the last save that was tried: its name is never used again
    began: bool = False  # the job ran here
    cpu_before: float = 0.0  # of the attempts before this one
    log_begin: dict[str, int] = field(default_factory=dict)  # where this attempt's output begins
    steps: list[dict[str, Any]] = field(default_factory=list)  # of the job that began, as `steps.StepRun` has them, newest last
    between_steps: bool = False  # the newest one is noted and not started yet
    cpu_steps: float = 0.0  # of steps that ended under this attempt
    cpu_told: float = 0.0  # of this attempt, in all, as far as it was told: what it used does not grow less
    partial: int = 0  # the newest request for outputs that was dealt with
    partial_error: str = ""
    drain_failed: int = 0
    near_miss: dict[str, Any] | None = None  # the last one, as `protocol.NearMiss`
    saves: int = 0
    last_save: dict[str, Any] | None = None  # as `protocol.SaveFacts`
    frozen_seconds: float = 0.0
    samples: list[list[float | None]] = field(default_factory=list)  # saves as `fit.Sample` has them, newest last
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

    def recall(self, now: float) -> State:
        """Where a new agent process begins."""
        m = self.memory
        freeze_at = now if m.freeze_at is None else m.freeze_at
        return State(since=now, drain_failed=m.drain_failed, save_tried=m.save_sequence, freeze_at=freeze_at)

    def keep(self, state: State) -> None:
        """What the next process needs of a state to `recall` it."""
        self.update(drain_failed=state.drain_failed, freeze_at=state.freeze_at if self.memory.began else None)

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
        found = coding.known(Memory, raw)
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
