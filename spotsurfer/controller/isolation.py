"""Isolates failures: a job that the controller can't deal with is set aside, and the others go on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import structlog
from spotsurfer_wire.store.port import StoreError
from sqlalchemy.exc import SQLAlchemyError

from spotsurfer.model.errors import IllegalTransition, SpotsurferError
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.model.snapshot import JobSeen, Snapshot

log = structlog.get_logger()
# These errors concern the store, the database or the host: no job is to blame, and the next tick tries again.
NOBODYS = (SpotsurferError, StoreError, SQLAlchemyError, OSError, MemoryError)
T = TypeVar("T")


def isolated(step: Callable[[Snapshot], T], snapshot: Snapshot) -> T:
    """`step` of the snapshot, after setting aside each job for which it fails even alone. If it fails for a job that is set
    aside, the job is left out this time. Raises errors that are no job's fault.
    """
    try:
        return step(snapshot)
    except Exception as e:
        if _nobodys(e):
            raise
        checked = [_checked(step, snapshot, seen) for seen in snapshot.jobs]
        if all(after is before for after, before in zip(checked, snapshot.jobs, strict=True)):
            raise
        return step(replace(snapshot, jobs=[seen for seen in checked if seen is not None]))


def _checked(step: Callable[[Snapshot], object], snapshot: Snapshot, seen: JobSeen) -> JobSeen | None:
    """The job, set aside if needed, so that `step` works for it; None = it fails even so."""
    error = _error(step, snapshot, seen)
    if error is None:
        return seen
    aside = set_aside(seen, error)
    still = error if seen.trouble else _error(step, snapshot, aside)
    if still is None:
        return aside
    _tell(seen.job.id, f"it is left out, for it fails even set aside: {type(still).__name__}: {still}")
    return None


def _error(step: Callable[[Snapshot], object], snapshot: Snapshot, seen: JobSeen) -> Exception | None:
    try:
        step(replace(snapshot, jobs=[seen]))
    except Exception as e:
        if _nobodys(e):
            raise
        return e
    return None


def _nobodys(error: Exception) -> bool:
    """Whether the error is no job's fault. IllegalTransition is a bug that one job revealed: it counts against that job."""
    return isinstance(error, NOBODYS) and not isinstance(error, IllegalTransition)


class Aside:
    """Jobs for which an action failed. They stay set aside until their users order them to go on."""

    def __init__(self) -> None:
        self._failed: dict[JobId, tuple[Exception, datetime]] = {}

    def add(self, job: JobId | None, error: Exception, now: datetime) -> None:
        """Set aside the job of an action that failed."""
        if job is not None:
            self._failed.setdefault(job, (error, now))

    def of(self, jobs: Sequence[JobSeen]) -> list[JobSeen]:
        """All jobs, with the failed ones set aside. Forgets jobs that are tried again or are over."""
        resumed = {s.job.id: s.job.resumed_at for s in jobs}
        self._failed = {
            job: (error, at)
            for job, (error, at) in self._failed.items()
            if job in resumed and ((again := resumed[job]) is None or again <= at)
        }
        return [set_aside(s, self._failed[s.job.id][0]) if s.job.id in self._failed and not s.trouble else s for s in jobs]


def set_aside(seen: JobSeen, error: Exception) -> JobSeen:
    """The job with the reason, and with only those facts that limits count: its machines and its priority."""
    trouble, spec = f"{type(error).__name__}: {error}", seen.job.spec
    _tell(seen.job.id, trouble)
    bare = replace(seen.job, spec=JobSpec(spec.name, spec.command, priority=spec.priority))
    return JobSeen(bare, seen.attempts, seen.instances, trouble=trouble)


@functools.lru_cache(maxsize=1000)
def _tell(job: JobId, trouble: str) -> None:
    """Log the error once, with its traceback: the same error comes at each tick."""
    log.exception("job.set-aside", job=job, error=trouble)
