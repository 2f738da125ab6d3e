"""Samples what the job uses, once a second, in the agent's loop: it reads open files of the kernel and never waits."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from spotsurfer_agent import clock
from spotsurfer_agent.usage.gather import Gathering, GpuSample
from spotsurfer_agent.usage.meters import Meters
from spotsurfer_agent.usage.window import Usage

EVERY_SECONDS = 1.0
EARLY_SECONDS = 0.1  # a look that comes so much too early is the second's own


class Sampler:
    """Of one job. `groups` is the file in which its control groups are named once they are made."""

    def __init__(
        self,
        groups: Path,
        now: Callable[[], float] = clock.monotonic,
        proc: Path = Path("/proc"),
        gpus: Callable[[], Sequence[GpuSample]] = tuple,
    ) -> None:
        self._groups, self._now, self._proc, self._gpus = groups, now, proc, gpus
        self._meters: Meters | None = None
        self._gathering, self._lock = Gathering(), threading.Lock()  # reports are written by another thread
        self._next_at = float("-inf")

    def look(self, arriving_bytes: int | None = None) -> None:
        """The job runs: take a sample if one is due. `arriving_bytes`: of its memory, still being brought here."""
        now = self._now()
        if now < self._next_at - EARLY_SECONDS:
            return
        self._next_at = now + EVERY_SECONDS
        meters = self._meters = self._meters or self._found()
        if meters is None or (sample := meters.sample()) is None:
            self.rest()
            return
        totals = meters.totals() if self._gathering.due(now) else None
        with self._lock:
            self._gathering.add(now, sample, totals, self._gpus(), arriving_bytes)

    def rest(self) -> None:
        """Nothing of the job runs: its groups may be removed. Idempotent."""
        if self._meters is not None:
            self._meters.close()
            self._meters = None

    @property
    def resident_bytes(self) -> float | None:
        """What the job has in memory that only swapping or an end gives back, at the newest look; None = not known."""
        with self._lock:
            return self._gathering.resident_bytes

    def told(self) -> Usage | None:
        """For a report; None before there is anything."""
        now = self._now()
        with self._lock:
            rows = self._gathering.rows(now)
        return Usage(now, rows) if rows else None

    def _found(self) -> Meters | None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            folders = json.loads(self._groups.read_text())
            return Meters({str(k): str(v) for k, v in folders.items()}, self._proc)
        return None
