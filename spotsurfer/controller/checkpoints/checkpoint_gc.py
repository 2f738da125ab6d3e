"""Looks after checkpoints in the background: marks proven ones, drops old ones, removes unneeded objects.

It does not run in the tick, because listing and reading manifests may take long. It handles one job at a time, under a lock of
that job, so that a copy being made of the job loses nothing. All its state lies in the store; after a crash it starts over.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Report
from spotsurfer_wire.store.port import CopyingStore, StoreError
from sqlalchemy import Engine

from spotsurfer.config.settings import RetentionSection
from spotsurfer.core.checkpoints.retention import RetentionRules
from spotsurfer.core.facts.attempt_view import WORKING
from spotsurfer.model.errors import StoreDamaged, StoreUnwritable
from spotsurfer.model.job import ENDED, OVER, Attempt, Job, Rewind
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import ledger_facts, observations, timeline, usage_history
from spotsurfer.store.garbage_collector import Asked, Collector, Step
from spotsurfer.store.head_logs import ENTRIES_AT_ONCE, HeadLogs

log = structlog.get_logger()
SWEEP_EVERY = 60  # looks: how often an unchanged job is searched for chunks that a failed save left behind


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """The store and keys that the garbage collection works with."""

    engine: Engine
    clock: Clock
    store: CopyingStore
    heads: HeadLogs
    keys_of: Callable[[str], Keys]  # of a lineage
    lead: Callable[[], None]

    def keys(self, job: Job) -> Keys:
        """The keys of a job's checkpoints."""
        return self.keys_of(job.lineage or job.id)

    def has(self, job: str, checkpoint: str) -> bool:
        """Whether the checkpoint's manifest is still there. Raises StoreUnwritable."""
        with store_errors_told(f"checkpoint {checkpoint} of {job} can't be looked for"):
            return self.store.get_range(object_keys.manifest_key(job, checkpoint), 0, 1) is not None


@dataclass(frozen=True, slots=True)
class _Look:
    """The facts about a job that decide whether it has anything to collect."""

    newest: int  # entry of its head log
    proven: int
    over: bool
    rewind: Rewind | None
    machines_gone: bool


class CheckpointGc:
    """`look` is one pass over all jobs; everything may be called from any thread."""

    def __init__(self, checkpoints: CheckpointStore, retention: RetentionSection) -> None:
        self._checkpoints, self.retention = checkpoints, retention
        self.collector = Collector(checkpoints.store, retention.wait, checkpoints.lead)
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._proven: set[tuple[str, str]] = set()
        self._settled: dict[str, tuple[_Look | None, int]] = {}  # job -> its state when all was clean, looks since
        self.stopping = threading.Event()

    def lock(self, job: str) -> threading.Lock:
        """A job's lock: while it is held, no object that a checkpoint of the job names is removed."""
        return self._locks[job]

    def look(self) -> None:
        """Mark and collect for every job; a failure of one job does not affect the others."""
        with self._checkpoints.engine.begin() as c:
            usage_history.thin(c, self._checkpoints.clock.now())
        with self._checkpoints.engine.connect() as c:
            jobs = [j for j in rows.with_objects(c) if not self._is_done_with(j)]
            attempts = rows.attempts(c, [j.id for j in jobs])
            reports = observations.last_reports(c, [j.id for j in jobs])
        for job in jobs:
            if self.stopping.is_set():
                return
            try:
                self._prove(job, attempts[job.id], reports)
                self._keep(job, attempts[job.id])
            except (StoreError, ProtocolError) as e:
                log.warning("keeper.trouble", job=job.id, error=str(e))

    # ---------------------------------------------------------------- proof

    def _prove(self, job: Job, attempts: Iterable[Attempt], reports: dict[tuple[str, int], Report]) -> None:
        for a in attempts:
            report = reports.get((job.id, a.number))
            if a.from_checkpoint is not None and report is not None and lives(a, report):
                self.prove(job, a.from_checkpoint, a.number, f"attempt {a.number} went on from it")

    def prove(self, job: Job, checkpoint: str, attempt: int | None, why: str) -> None:
        """Mark a checkpoint as proven for good, if it still has its manifest. Raises StoreError."""
        if (job.id, checkpoint) in self._proven:
            return
        key = object_keys.proven_key(job.id, checkpoint)
        if self._checkpoints.store.get_range(object_keys.manifest_key(job.id, checkpoint), 0, 1) is not None:
            mark = messages.Proof(attempt or 0, why, self._checkpoints.clock.now().isoformat())
            if self._checkpoints.store.create(key, json_codec.encode(mark)):
                moment = Moment(
                    self._checkpoints.clock.now(),
                    job.id,
                    attempt,
                    str(Kind.PROVEN),
                    f"checkpoint {checkpoint} is proven: {why}",
                    {"checkpoint": checkpoint},
                )
                with self._checkpoints.engine.begin() as c:
                    timeline.add(c, moment)
        self._proven.add((job.id, checkpoint))

    # ---------------------------------------------------------------- collection

    def asked(self, job: Job, sweep: bool = True) -> Asked:
        """The collector's instructions for a job now. Raises StoreError, ProtocolError."""
        log, over = self._checkpoints.heads.log(job.id), self._over(job)
        if over:
            log.refresh(ENTRIES_AT_ONCE)
            self._check_known(job, log)
        wanted = {job.rewind.checkpoint: "its user goes back to it"} if job.rewind is not None else {}
        keys = self._checkpoints.keys(job)
        return Asked(job.id, RetentionRules(self.retention.newest, over), keys, wanted, sweep, log)

    def _check_known(self, job: Job, log: HeadLog) -> None:
        """Protects a job that ended according to a database from a backup, but was reopened since and needs its checkpoints."""
        owner = log.newest.epoch if log.newest is not None else 0
        with self._checkpoints.engine.connect() as c:
            if owner and not rows.has_attempt(c, job.id, owner):
                raise ProtocolError(
                    f"the store knows attempt {owner} of {job.id}, and this database does not: it is from a backup, "
                    "so nothing of the job is removed"
                )

    def collect(self, job: Job) -> Step:
        """One step for one job, with a timeline event if something was removed. Raises StoreError, ProtocolError."""
        with self._locks[job.id]:
            step = self.collector.step(self.asked(job))
        if step.stored_bytes is not None:
            with self._checkpoints.engine.begin() as c:
                ledger_facts.set_stored(c, job.id, self._checkpoints.clock.now(), step.stored_bytes)
        self._say(job, step)
        return step

    def plan(self, job: Job) -> Step:
        """A dry run of the collection. Raises StoreError, ProtocolError."""
        with self._locks[job.id]:
            return self.collector.plan(self.asked(job))

    def _is_done_with(self, job: Job) -> bool:
        """The job ended, its machines are gone, and it was collected since: only time or its user changes it. No I/O."""
        settled, _ = self._settled.get(job.id, (None, 0))
        return job.state in ENDED and settled is not None and settled.machines_gone and self._over(job) == settled.over

    def _over(self, job: Job) -> bool:
        """Whether the job no longer needs its checkpoints."""
        ended_for = self._checkpoints.clock.now() - job.ended_at if job.ended_at is not None else timedelta(0)
        return job.state in ENDED and ended_for.total_seconds() >= self.retention.ended

    def _keep(self, job: Job, attempts: Iterable[Attempt]) -> None:
        newest = self._checkpoints.heads.log(job.id).newest
        marks = sum(1 for j, _ in self._proven if j == job.id)
        over, gone = self._over(job), all(a.state in OVER for a in attempts)
        looks_like = _Look(newest.number if newest else 0, marks, over, job.rewind, gone)
        settled, looks = self._settled.get(job.id, (None, 0))
        ended = job.state in ENDED
        if settled == looks_like and (ended or looks < SWEEP_EVERY):
            self._settled[job.id] = (settled, looks + 1)
            return
        step = self.collect(job)
        if over and not any(v.keep for v in step.verdicts):  # no checkpoint is left to go on from
            self._checkpoints.store.delete([object_keys.secrets_key(job.id)])
        if step.clean and not step.dropped:
            self._settled[job.id] = (looks_like, 0)

    def forget(self, job: str) -> None:
        """Look at the job again: something changed that the head log does not show."""
        self._settled.pop(job, None)

    def _say(self, job: Job, step: Step) -> None:
        if not step.dropped and not step.deleted:
            return
        log.info("keeper.collected", job=job.id, checkpoints=step.dropped, objects=step.deleted)
        if step.dropped:
            why = {v.id: v.why for v in step.verdicts}
            text = "; ".join(f"checkpoint {c} was dropped: {why[c]}" for c in step.dropped)
            with self._checkpoints.engine.begin() as c:
                timeline.add(c, Moment(self._checkpoints.clock.now(), job.id, None, str(Kind.DROPPED), text))


def lives(attempt: Attempt, report: Report) -> bool:
    """Whether the job went on under this attempt with all of its memory."""
    went_on = report.state in WORKING and not attempt.restore_failed
    return went_on and not report.arriving_bytes and report.restore_seconds is not None


@contextmanager
def store_errors_told(what: str) -> Iterator[None]:
    """Raises a store's failure inside the block as an error for users: StoreUnwritable, StoreDamaged."""
    try:
        yield
    except ProtocolError as e:
        raise StoreDamaged(f"{what}: {e}; `spotsurfer store check` shows the extent") from e
    except StoreError as e:
        raise StoreUnwritable(f"{what}: {e}; check store.url and its rights") from e
