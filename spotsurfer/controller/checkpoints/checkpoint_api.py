"""The users' queries and commands about checkpoints and about the store as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.json_codec import ProtocolError

from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointGc, CheckpointStore, store_errors_told
from spotsurfer.controller.checkpoints.forks import Forks, Order
from spotsurfer.controller.checkpoints.operations import Operation, Operations
from spotsurfer.controller.checkpoints.rehearsal import Rehearsals
from spotsurfer.core.checkpoints.retention import Verdict, judge
from spotsurfer.core.facts.ownership import tried_in_vain
from spotsurfer.model.errors import NotFound
from spotsurfer.model.job import Job, JobId
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Checkpoint, Moment, Progress
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.store import checkpoint_inventory
from spotsurfer.store.checkpoint_inventory import PROTECTED, PROVEN, Survey, survey
from spotsurfer.store.head_logs import chosen


class CheckpointApi:
    """Queries and commands; may be called from several threads."""

    def __init__(
        self,
        checkpoints: CheckpointStore,
        collection: CheckpointGc,
        forks: Forks,
        rehearsals: Rehearsals,
        operations: Operations,
    ) -> None:
        self._checkpoints, self._collection, self._operations = checkpoints, collection, operations
        self._forks, self._rehearsals = forks, rehearsals
        self._works: dict[str, Callable[[Operation, Sequence[Job], bool, bool], dict[str, Any]]] = {
            "check": self._check,
            "stats": self._stats,
            "gc": self._gc,
        }

    def checkpoints(self, job: str) -> Sequence[Checkpoint]:
        """The job's checkpoints, oldest commit first."""
        one = self._job(job)
        with store_errors_told(f"the checkpoints of {one.id} can't be listed"):
            found = survey(self._checkpoints.store, one.id)
            asked = self._collection.asked(one)
            known, head = found.known(asked.wanted), found.newest
            verdicts = {v.id: v for v in judge(known, asked.rules, head.checkpoint if head else None)}
            news = self._new_bytes(one.id)
            with self._checkpoints.engine.connect() as c:
                attempts = rows.attempts(c, [one.id]).get(one.id, [])
            made = [self._one(one, found, verdicts[k.id], k.counted, news) for k in known]
            return [dataclasses.replace(m, failed=tried_in_vain(attempts, m.id)) for m in made]

    def _one(self, job: Job, found: Survey, v: Verdict, counted: bool, news: Mapping[str, int]) -> Checkpoint:
        marks = found.marks[v.id]
        plain = Checkpoint(
            id=v.id,
            at="",
            kind="",
            image_bytes=None,
            new_bytes=news.get(v.id),
            base=None,
            proven=PROVEN in marks,
            protected=PROTECTED in marks,
            counted=counted,
            keep=v.keep,
            why=v.why,
        )
        try:
            data = manifest.stored(self._checkpoints.store, job.id, v.id)
            image = manifest.decode(data or b"", self._checkpoints.keys(job), job.id, v.id)
        except ProtocolError as e:
            return dataclasses.replace(plain, damage=str(e))
        return dataclasses.replace(plain, at=image.at, kind=image.kind, image_bytes=image.image_bytes, base=image.base)

    def _new_bytes(self, job: JobId) -> dict[str, int]:
        with self._checkpoints.engine.connect() as c:
            moments = [m for _, m in timeline.read(c, job, 0) if m.kind == Kind.SAVED]
        return {str(m.data["checkpoint"]): int(m.data.get("new_bytes") or 0) for m in moments}

    def protect(self, job: str, checkpoint: str, wanted: bool) -> str:
        """Protect a checkpoint from the retention rules, or stop protecting it; returns its full name."""
        one = self._to_change(job)
        with store_errors_told(f"{checkpoint} of {one.id} can't be protected"), self._collection.lock(one.id):
            found = survey(self._checkpoints.store, one.id)
            name = chosen(checkpoint, found.entries)
            if name is None or name not in found.manifests:
                raise NotFound(f"job {one.id} has no checkpoint {checkpoint!r}; `spotsurfer checkpoints {one.id}` lists them")
            key = object_keys.protected_key(one.id, name)
            if wanted:
                self._checkpoints.store.put(key, b"{}")
            else:
                self._checkpoints.store.delete([key])
        self._collection.forget(one.id)
        text = f"checkpoint {name} is {'protected' if wanted else 'no longer protected'}, by its user"
        with self._checkpoints.engine.begin() as c:
            timeline.add(c, Moment(self._checkpoints.clock.now(), one.id, None, str(Kind.WISH), text, {"checkpoint": name}))
        return name

    def fork(self, job: JobId, checkpoint: str | None, name: str | None) -> Progress:
        """Copy the job as of a checkpoint."""
        one = self._to_change(job)

        def work(operation: Operation) -> dict[str, Any]:
            made = self._forks.fork(Order(one.id, checkpoint, name), operation)
            assert made.parent is not None
            return {"job": made.id, "name": made.spec.name, "parent": one.id, "checkpoint": made.parent.checkpoint}

        return progress_of(self._operations.start("fork", work))

    def rehearse(self, job: JobId) -> Progress:
        """Prove that the newest checkpoint can be restored on another machine."""
        one = self._to_change(job)
        return progress_of(self._operations.start("rehearse", lambda e: self._rehearsals.rehearse(one.id, e)))

    def store_work(self, what: str, job: JobId | None, read: bool, dry_run: bool) -> Progress:
        """check, stats or gc."""
        if what not in self._works:
            raise NotFound(f"the store has no command {what!r}; there are {', '.join(self._works)}")
        found = self._to_change if what == "gc" and not dry_run else self._job
        some = [found(job)] if job is not None else self._jobs()
        return progress_of(self._operations.start(what, lambda e: self._works[what](e, some, read, dry_run)))

    def progress(self, number: str, wait_seconds: float) -> Progress:
        """How far an operation is; raises its error."""
        operation = self._operations.look(number, wait_seconds)
        if operation.error is not None:
            raise operation.error
        return progress_of(operation)

    def call_off(self, number: str) -> None:
        """Cancel an operation."""
        self._operations.call_off(number)

    def _check(self, operation: Operation, jobs: Sequence[Job], read: bool, _dry_run: bool) -> dict[str, Any]:
        result = checkpoint_inventory.Checked()
        for n, job in enumerate(jobs):
            operation.progress(job.id, n, len(jobs))
            with store_errors_told(f"{job.id} can't be checked"), self._collection.lock(job.id):
                keys = self._checkpoints.keys(job)
                checkpoint_inventory.check(self._checkpoints.store, job.id, keys, result, operation.progress if read else None)
        return dataclasses.asdict(result)

    def _stats(self, operation: Operation, jobs: Sequence[Job], _read: bool, _dry_run: bool) -> dict[str, Any]:
        total, each = checkpoint_inventory.Room(), list[dict[str, Any]]()
        for n, job in enumerate(jobs):
            operation.progress(job.id, n, len(jobs))
            with store_errors_told(f"{job.id} can't be looked at"):
                found = checkpoint_inventory.room(self._checkpoints.store, job.id, self._checkpoints.keys(job))
            total.add(found)
            each.append({"job": job.id, **_figures(found)})
        return {"jobs": each, "total": _figures(total)}

    def _gc(self, operation: Operation, jobs: Sequence[Job], _read: bool, dry_run: bool) -> dict[str, Any]:
        steps = []
        for n, job in enumerate(jobs):
            operation.progress(job.id, n, len(jobs))
            with store_errors_told(f"{job.id} can't be collected"):
                step = self._collection.plan(job) if dry_run else self._collection.collect(job)
            steps.append({**dataclasses.asdict(step), "verdicts": [dataclasses.asdict(v) for v in step.verdicts]})
        return {"dry_run": dry_run, "jobs": steps}

    def _job(self, name: str) -> Job:
        with self._checkpoints.engine.connect() as c:
            return rows.find_job(c, name)

    def _to_change(self, name: str) -> Job:
        with self._checkpoints.engine.connect() as c:
            return rows.named_job(c, name)

    def _jobs(self) -> list[Job]:
        with self._checkpoints.engine.connect() as c:
            return rows.all_jobs(c)


def progress_of(operation: Operation) -> Progress:
    """The progress of an operation, as the API shows it."""
    return Progress(operation.id, operation.what, operation.done, operation.stage, operation.at, operation.of, operation.result)


def _figures(found: checkpoint_inventory.Room) -> dict[str, Any]:
    """Sizes and ratios: all checkpoints each on its own, their distinct chunks, and the bytes stored."""
    return {
        **dataclasses.asdict(found),
        "stored_bytes": found.stored_bytes,
        "dedup_ratio": found.image_bytes / found.unique_bytes if found.unique_bytes else None,
        "compression_ratio": found.unique_bytes / found.chunk_bytes if found.chunk_bytes else None,
    }
