"""The users' queries and commands about checkpoints and about the store as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.store.port import StoreError

from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointGc, CheckpointStore, trouble
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
        self, shop: CheckpointStore, keeper: CheckpointGc, forks: Forks, rehearsals: Rehearsals, errands: Operations
    ) -> None:
        self._shop, self._keeper, self._errands = shop, keeper, errands
        self._forks, self._rehearsals = forks, rehearsals
        self._works: dict[str, Callable[[Operation, Sequence[Job], bool, bool], dict[str, Any]]] = {
            "check": self._check,
            "stats": self._stats,
            "gc": self._gc,
        }

    # ---------------------------------------------------------------- checkpoints

    def checkpoints(self, job: str) -> Sequence[Checkpoint]:
        """The job's checkpoints, oldest commit first."""
        one = self._job(job)
        with _told(f"the checkpoints of {one.id} can't be listed"):
            found = survey(self._shop.store, one.id)
            asked = self._keeper.asked(one)
            known, head = found.known(asked.wanted), found.newest
            verdicts = {v.id: v for v in judge(known, asked.rules, head.checkpoint if head else None)}
            news = self._new_bytes(one.id)
            with self._shop.engine.connect() as c:
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
            data = manifest.stored(self._shop.store, job.id, v.id)
            image = manifest.decode(data or b"", self._shop.keys_of(job.lineage or job.id), job.id, v.id)
        except ProtocolError as e:
            return dataclasses.replace(plain, damage=str(e))
        return dataclasses.replace(plain, at=image.at, kind=image.kind, image_bytes=image.image_bytes, base=image.base)

    def _new_bytes(self, job: JobId) -> dict[str, int]:
        with self._shop.engine.connect() as c:
            moments = [m for _, m in timeline.read(c, job, 0) if m.kind == Kind.SAVED]
        return {str(m.data["checkpoint"]): int(m.data.get("new_bytes") or 0) for m in moments}

    def protect(self, job: str, checkpoint: str, wanted: bool) -> str:
        """Protect a checkpoint from the retention rules, or stop protecting it; returns its full name."""
        one = self._to_change(job)
        with _told(f"{checkpoint} of {one.id} can't be protected"), self._keeper.lock(one.id):
            found = survey(self._shop.store, one.id)
            name = chosen(checkpoint, found.entries)
            if name is None or name not in found.manifests:
                raise NotFound(f"job {one.id} has no checkpoint {checkpoint!r}; `spotsurfer checkpoints {one.id}` lists them")
            key = object_keys.protected_key(one.id, name)
            if wanted:
                self._shop.store.put(key, b"{}")
            else:
                self._shop.store.delete([key])
        self._keeper.forget(one.id)
        text = f"checkpoint {name} is {'protected' if wanted else 'no longer protected'}, by its user"
        with self._shop.engine.begin() as c:
            timeline.add(c, Moment(self._shop.clock.now(), one.id, None, str(Kind.WISH), text, {"checkpoint": name}))
        return name

    def has(self, job: str, checkpoint: str) -> bool:
        """Whether its manifest is still there."""
        with _told(f"checkpoint {checkpoint} of {job} can't be looked for"):
            return self._shop.store.get_range(object_keys.manifest_key(job, checkpoint), 0, 1) is not None

    # ---------------------------------------------------------------- long commands

    def fork(self, job: JobId, checkpoint: str | None, name: str | None) -> Progress:
        """Copy the job as of a checkpoint."""
        one = self._to_change(job)

        def work(errand: Operation) -> dict[str, Any]:
            made = self._forks.fork(Order(one.id, checkpoint, name), errand)
            assert made.parent is not None
            return {"job": made.id, "name": made.spec.name, "parent": one.id, "checkpoint": made.parent.checkpoint}

        return told(self._errands.start("fork", work))

    def rehearse(self, job: JobId) -> Progress:
        """Prove that the newest checkpoint can be restored on another machine."""
        one = self._to_change(job)
        return told(self._errands.start("rehearse", lambda e: self._rehearsals.rehearse(one.id, e)))

    def store_work(self, what: str, job: JobId | None, read: bool, dry_run: bool) -> Progress:
        """check, stats or gc."""
        if what not in self._works:
            raise NotFound(f"the store has no command {what!r}; there are {', '.join(self._works)}")
        found = self._to_change if what == "gc" and not dry_run else self._job
        some = [found(job)] if job is not None else self._jobs()
        return told(self._errands.start(what, lambda e: self._works[what](e, some, read, dry_run)))

    def progress(self, number: str, wait_seconds: float) -> Progress:
        """How far an operation is; raises its error."""
        errand = self._errands.look(number, wait_seconds)
        if errand.error is not None:
            raise errand.error
        return told(errand)

    def call_off(self, number: str) -> None:
        """Cancel an operation."""
        self._errands.call_off(number)

    def _check(self, errand: Operation, jobs: Sequence[Job], read: bool, _dry_run: bool) -> dict[str, Any]:
        result = checkpoint_inventory.Checked()
        for n, job in enumerate(jobs):
            errand.progress(job.id, n, len(jobs))
            with _told(f"{job.id} can't be checked"), self._keeper.lock(job.id):
                keys = self._shop.keys_of(job.lineage or job.id)
                checkpoint_inventory.check(self._shop.store, job.id, keys, result, errand.progress if read else None)
        return dataclasses.asdict(result)

    def _stats(self, errand: Operation, jobs: Sequence[Job], _read: bool, _dry_run: bool) -> dict[str, Any]:
        total, each = checkpoint_inventory.Room(), list[dict[str, Any]]()
        for n, job in enumerate(jobs):
            errand.progress(job.id, n, len(jobs))
            with _told(f"{job.id} can't be looked at"):
                found = checkpoint_inventory.room(self._shop.store, job.id, self._shop.keys_of(job.lineage or job.id))
            total.add(found)
            each.append({"job": job.id, **_figures(found)})
        return {"jobs": each, "total": _figures(total)}

    def _gc(self, errand: Operation, jobs: Sequence[Job], _read: bool, dry_run: bool) -> dict[str, Any]:
        steps = []
        for n, job in enumerate(jobs):
            errand.progress(job.id, n, len(jobs))
            with _told(f"{job.id} can't be collected"):
                step = self._keeper.plan(job) if dry_run else self._keeper.collect(job)
            steps.append({**dataclasses.asdict(step), "verdicts": [dataclasses.asdict(v) for v in step.verdicts]})
        return {"dry_run": dry_run, "jobs": steps}

    def _job(self, name: str) -> Job:
        with self._shop.engine.connect() as c:
            return rows.find_job(c, name)

    def _to_change(self, name: str) -> Job:
        with self._shop.engine.connect() as c:
            return rows.named_job(c, name)

    def _jobs(self) -> list[Job]:
        with self._shop.engine.connect() as c:
            return rows.all_jobs(c)


def told(errand: Operation) -> Progress:
    """The progress of an operation, as the API shows it."""
    return Progress(errand.id, errand.what, errand.done, errand.stage, errand.at, errand.of, errand.result)


def _figures(found: checkpoint_inventory.Room) -> dict[str, Any]:
    """Sizes and ratios: all checkpoints each on its own, their distinct chunks, and the bytes stored."""
    return {
        **dataclasses.asdict(found),
        "stored_bytes": found.stored_bytes,
        "dedup_ratio": found.image_bytes / found.unique_bytes if found.unique_bytes else None,
        "compression_ratio": found.unique_bytes / found.chunk_bytes if found.chunk_bytes else None,
    }


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (StoreError, ProtocolError) as e:
        raise trouble(e, what) from e
