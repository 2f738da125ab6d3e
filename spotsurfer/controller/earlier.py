"""Earlier runs of the same named step: what they used, from the history that is kept anyway.

A run counts whose job had the same name and the same program, began at its beginning and succeeded. One that has ended does
not change any more: it is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from sqlalchemy import Engine

from spotsurfer.core.nextsize import LATEST
from spotsurfer.model.ids import JobId
from spotsurfer.model.job import Job
from spotsurfer.ports.service import UsageSeen
from spotsurfer.ports.size import Earlier
from spotsurfer.sim.usage import Usage
from spotsurfer.state import jobs as rows
from spotsurfer.state import market, usages

FRESH = timedelta(seconds=60)  # so long a list of runs is good
LISTS_MAX, RUNS_MAX = 200, 1000  # that are remembered
GUARDED = "criu"  # the rung on which jobs are frozen before their memory ends


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier run. `guarded`: it was frozen, and would have been moved, before its memory ended."""

    job: JobId
    ended_at: datetime
    course: Earlier
    peak_bytes: float
    guarded: bool


class EarlierRuns:
    """One a controller."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lists: dict[tuple[str, str], tuple[datetime, list[Job]]] = {}
        self._runs: dict[JobId, Past | None] = {}

    def of(self, job: Job, before: datetime, now: datetime) -> tuple[Past, ...]:
        """Those that had ended before, the latest last; at most as many as `next_bytes` looks at."""
        ended = (j for j in self._like(job, now) if j.id != job.id and j.ended_at is not None and j.ended_at <= before)
        return tuple(past for j in ended if (past := self._past(j)) is not None)

    def renew(self) -> None:
        """A run has ended: who asks next is told of it."""
        self._lists.clear()

    def _like(self, job: Job, now: datetime) -> list[Job]:
        key = (job.spec.name, _program(job))
        listed, found = self._lists.get(key, (None, []))
        if listed is None or now - listed >= FRESH:
            with self._engine.connect() as connection:
                named = rows.succeeded(connection, job.spec.name, LATEST)
            found = [j for j in reversed(named) if _program(j) == key[1] and j.parent is None]
            if len(self._lists) >= LISTS_MAX:
                self._lists.clear()
            self._lists[key] = (now, found)
        return found

    def _past(self, job: Job) -> Past | None:
        """What is known of it; None where no usage of it was kept."""
        if job.id not in self._runs:
            if len(self._runs) >= RUNS_MAX:
                self._runs.clear()
            self._runs[job.id] = self._read(job)
        return self._runs[job.id]

    def _read(self, job: Job) -> Past | None:
        with self._engine.connect() as connection:
            windows = usages.read(connection, job.id)
            said = market.rungs(connection, job.id)
        used = _whole(windows)
        if not used or job.ended_at is None:
            return None
        seconds, memory, cores = (np.array(column, dtype=np.float64) for column in zip(*used, strict=True))
        peak = max(u.window.resident_bytes for u in windows)  # also while memory was brought back: it is never more than it had
        return Past(job.id, job.ended_at, Usage(seconds, memory, cores).kept(), float(peak), GUARDED in said)


def _whole(windows: Sequence[UsageSeen]) -> list[tuple[float, float, float]]:
    """Seconds, bytes and cores of each window in which all of its memory was there."""
    some = (u.window for u in windows if u.window.arriving_bytes is None and u.window.seconds > 0)
    return [(w.seconds, w.resident_bytes, w.cpu_cores) for w in some]


def _program(job: Job) -> str:
    """What it runs, without what it is given."""
    words = job.spec.command or (job.spec.steps[0].command if job.spec.steps else ())
    return f"{job.spec.image} {words[0] if words else ''}"
