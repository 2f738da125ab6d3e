"""Rehearsals: restore the newest checkpoint on a spare machine while the job runs on, to prove that it works.

A rehearsal is a copy of the job with a short life: its machine is cut off from every network, it publishes nothing, its cost
counts as its parent's, and it is removed once it was seen alive. It proves its parent's checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog
from spotsurfer_wire import object_keys
from spotsurfer_wire.messages import AgentConfig, Report
from spotsurfer_wire.store.port import StoreError

from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointGc, CheckpointStore, lives
from spotsurfer.controller.checkpoints.forks import Forks, Order
from spotsurfer.controller.checkpoints.operations import Operation
from spotsurfer.core.attempt_rules import UNUSABLE
from spotsurfer.model.errors import Conflict, RehearsalFailed
from spotsurfer.model.job import ENDED, OVER, Attempt, Job, JobId, JobState, rehearses
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline
from spotsurfer.store.job_output import printed_bytes

log = structlog.get_logger()
LIVES_SECONDS = 5.0  # how long it is watched
LOOK_SECONDS = 0.3
REPORT_SECONDS = 2.0  # longest interval between its agent's reports, which are watched for signs of life
LIMIT_SECONDS = 1800.0  # for launch, restore and the rest; its machine ends itself soon after
LIFE_SECONDS = 2400.0  # then the machine powers itself off in any case


@dataclass(slots=True)
class _Seen:
    """How far the rehearsal came."""

    granted_at: float = 0.0
    alive_at: float = 0.0
    first: Report | None = None
    last: Report | None = None
    printed_before: int = 0
    printed: int = 0


class Rehearsals:
    """Runs them; `cancel` ends a job."""

    def __init__(
        self, checkpoints: CheckpointStore, forks: Forks, collection: CheckpointGc, cancel: Callable[[str], Job]
    ) -> None:
        self._checkpoints, self._forks, self._collection, self._cancel = checkpoints, forks, collection, cancel
        self._under_way: set[JobId] = set()
        self._left: set[JobId] | None = None  # rehearsals not over or not removed from the store; None = not looked yet

    def rehearse(self, job: str, operation: Operation) -> dict[str, Any]:
        """Run one and return its figures. Raises RehearsalFailed, NotFound, CalledOff."""
        began = time.monotonic()
        operation.progress("copying")
        with self._checkpoints.engine.connect() as c:
            parent = rows.named_job(c, job)
        if parent.parent is not None and parent.parent.rehearsal:
            raise Conflict(f"{parent.id} is a rehearsal itself")
        child = self._forks.fork(Order(parent.id, rehearsal=True), operation)
        self._under_way.add(child.id)
        if self._left is not None:
            self._left.add(child.id)
        assert child.parent is not None
        checkpoint, seen = child.parent.checkpoint, _Seen()
        try:
            self._watch(child, seen, operation, began + LIMIT_SECONDS)
        except RehearsalFailed as e:
            self._say(parent, f"the rehearsal of checkpoint {checkpoint} failed: {e}", False)
            raise
        finally:
            self._end(child)
        self._collection.prove(parent, checkpoint, None, "a rehearsal of it lived")
        self._collection.forget(parent.id)
        result = self._result(parent, child, checkpoint, seen, began)
        self._say(parent, f"checkpoint {checkpoint} came to life elsewhere within {result['alive_seconds']:.1f} s", True)
        return result

    def tidy(self) -> None:
        """End rehearsals that are no longer watched, and remove finished ones from the store."""
        with self._checkpoints.engine.connect() as c:
            if self._left is None:
                self._left = {j.id for j in rows.all_jobs(c) if rehearses(j)}
            found = [rows.load_job(c, j) for j in sorted(self._left)]
            attempts = rows.attempts(c, sorted(self._left))
        for child in found:
            if child.state not in ENDED and child.id not in self._under_way:
                self._end(child)
            if child.state in ENDED and all(a.state in OVER for a in attempts[child.id]):
                try:
                    store = self._checkpoints.store
                    store.delete([x.key for x in store.list(object_keys.job_prefix(child.id))])
                except StoreError as e:
                    log.warning("keeper.trouble", job=child.id, error=str(e))
                    continue
                self._left.discard(child.id)

    def _watch(self, child: Job, seen: _Seen, operation: Operation, until: float) -> None:
        while True:
            job, attempt, report = self._look(child)
            if attempt is not None and attempt.granted_at is not None and not seen.granted_at:
                seen.granted_at = time.monotonic()
            stage = "waiting for a machine" if not seen.granted_at else "restoring"
            operation.progress("watching" if seen.alive_at else stage)
            why = _failed(job, attempt, report)
            if why:
                raise RehearsalFailed(f"{why.rstrip('.')}.")
            if attempt is not None and report is not None and lives(attempt, report) and self._moved(child, seen, report):
                return
            if time.monotonic() > until:
                raise RehearsalFailed(f"it was not seen alive within {LIMIT_SECONDS:.0f} s: {job.reason or operation.stage}.")
            time.sleep(LOOK_SECONDS)

    def _moved(self, child: Job, seen: _Seen, report: Report) -> bool:
        """Whether it was watched long enough. A program that only sleeps is alive, too: then only its processes show that."""
        now = time.monotonic()
        with suppress(StoreError):
            seen.printed = printed_bytes(self._checkpoints.store.list(object_keys.log_prefix(child.id)))
        if not seen.alive_at:
            seen.alive_at, seen.first, seen.printed_before = now, report, seen.printed
        seen.last = report
        return now - seen.alive_at >= LIVES_SECONDS and seen.first is not None and report.sequence > seen.first.sequence

    def _look(self, child: Job) -> tuple[Job, Attempt | None, Report | None]:
        with self._checkpoints.engine.connect() as c:
            job = rows.load_job(c, child.id)
            attempts = rows.attempts(c, [child.id])[child.id]
            reports = observations.last_reports(c, [child.id])
        newest = next((a for a in reversed(attempts) if a.granted_at is not None), attempts[-1] if attempts else None)
        return job, newest, reports.get((child.id, newest.number)) if newest is not None else None

    def _end(self, child: Job) -> None:
        self._under_way.discard(child.id)
        with suppress(Conflict):  # it ended by itself
            self._cancel(child.id)

    def _result(self, parent: Job, child: Job, checkpoint: str, seen: _Seen, began: float) -> dict[str, Any]:
        first, last = seen.first, seen.last
        assert first is not None
        assert last is not None
        return {
            "job": parent.id,
            "rehearsal": child.id,
            "checkpoint": checkpoint,
            "machine_seconds": seen.granted_at - began,
            "restore_seconds": first.restore_seconds,
            "alive_seconds": seen.alive_at - began,
            "watched_seconds": time.monotonic() - seen.alive_at,
            "cpu_seconds": last.cpu_seconds - first.cpu_seconds,
            "printed_bytes": seen.printed - seen.printed_before,
            "memory_bytes": last.memory_bytes,
            "brought_back": last.brought_back,
        }

    def _say(self, parent: Job, text: str, good: bool) -> None:
        moment = Moment(self._checkpoints.clock.now(), parent.id, None, str(Kind.REHEARSED), text, {"alive": good})
        with self._checkpoints.engine.begin() as c:
            timeline.add(c, moment)


def _failed(job: Job, attempt: Attempt | None, report: Report | None) -> str:
    """Why it can no longer come to life, or empty."""
    if attempt is not None and attempt.restore_failed:
        return attempt.reason or "the restore failed"
    if report is not None and report.error_kind in ("lost", *UNUSABLE):  # nothing that another machine would avoid
        return report.error
    if attempt is not None and attempt.granted_at is not None and attempt.reason:
        return f"its machine was lost ({attempt.reason}): rehearse again"
    if job.state is JobState.HELD:
        return job.reason
    return "" if job.state not in ENDED else f"it ended by itself ({job.state})"


def of_job(config: AgentConfig, job: Job) -> AgentConfig:
    """The agent configuration for this job: a copy has its origin's keys, a rehearsal a short life without network."""
    config = replace(config, lineage=job.lineage)
    if not rehearses(job):
        return config
    often = min(config.report_seconds, REPORT_SECONDS)
    return replace(config, walled=True, life_seconds=LIFE_SECONDS, report_seconds=often)
