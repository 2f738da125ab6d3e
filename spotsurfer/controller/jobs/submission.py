"""Submission of jobs: uploads first, then the specification, then the row. An incomplete submission is no job."""

from __future__ import annotations

import re
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from spotsurfer_wire import messages, object_keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.sealed_objects import Secrets
from spotsurfer_wire.store.port import FileStore, StoreError, StoreFull
from sqlalchemy import Engine

from spotsurfer.controller.jobs.batches import check_ids, limited, numbered, of_task, resolved, rows_of
from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.jobs.specifications import Specifications
from spotsurfer.controller.jobs.writers import refuse_twice
from spotsurfer.controller.machines.store_credentials import inputs_of
from spotsurfer.core.scheduling import placement
from spotsurfer.core.scheduling.placement import barred, fits, too_little
from spotsurfer.jobspec.validate import unstorable
from spotsurfer.model.errors import Conflict, DiskFull, InputMissing, Invalid, JobFileError, NotFound, StoreUnwritable
from spotsurfer.model.job import JOB_ID, Job, JobId, JobSpec, JobState, SharedMount
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import Limits
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment, NewJob
from spotsurfer.state import dependencies, many_tasks, timeline
from spotsurfer.state import jobs as rows

GIB = 1 << 30
WRITERS = 16  # specifications of a batch that are written at a time
NO_SECRETS: Secrets = {}
DISCARDED_MAX = 1000  # remembered at most; ids are random and used once, so older ones don't matter
NO_LIMITS = Limits()


@dataclass
class Submission:
    """Uploads and submits. `addresses` are those of the store, as this host and as machines see it: no input lies there."""

    engine: Engine
    clock: Clock
    store: FileStore
    spool_dir: Path  # for uploads under way
    vault: Vault
    check_rights: Callable[[str, Sequence[str]], None]  # the provider's check of inputs
    offers: Callable[[], tuple[Offer, ...]]
    interval_seconds: float
    addresses: tuple[OwnStore, ...] = ()
    limits: Limits = NO_LIMITS
    kill_wait_seconds: float = 30.0
    check_licences: Callable[[JobSpec], None] = lambda _: None
    shared: tuple[str, ...] = ()  # file systems that submit hosts and machines have in common
    _settling: threading.Lock = field(default_factory=threading.Lock)  # a job is submitted or discarded, by the first call
    _discarded: deque[JobId] = field(default_factory=lambda: deque(maxlen=DISCARDED_MAX))

    def __post_init__(self) -> None:
        self.specifications = Specifications(self.store, self.vault, self.interval_seconds, self.kill_wait_seconds)

    def new_job_id(self, name: str) -> JobId:
        """A readable unused id: the name and six random characters."""
        word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32].strip("-") or "job"
        return JobId(f"{word}-{secrets.token_hex(3)}")

    def upload(self, job: JobId, path: str, data: Iterator[bytes], size: int) -> None:
        """Store one input."""
        key = object_keys.input_key(self._check_id(job), _inside(path))
        if self._exists(job):
            raise Conflict(f"job {job} was submitted already: its inputs can't change")
        with spooled(self.spool_dir, f"input {path!r}", data, size) as spool:
            try:
                self.store.put_file(key, Path(spool.name))
            except StoreError as e:
                raise store_trouble(e) from e

    def discard(self, job: JobId) -> None:
        """Remove the uploads of a job that was never submitted, and never will be. Raises Conflict if it was submitted."""
        prefix = object_keys.job_prefix(self._check_id(job))
        with self._settling:
            if self._exists(job):
                raise Conflict(f"job {job} was submitted already: cancel it instead")
            self._discarded.append(job)
            try:
                self.store.delete(x.key for x in self.store.list(prefix))
            except StoreError as e:
                raise store_trouble(e) from e

    def submit(
        self,
        job: JobId,
        spec: JobSpec,
        modes: Mapping[str, int],
        secrets: Secrets = NO_SECRETS,
        owner: str = "",
        within: str | None = None,
    ) -> Job:
        """Make the job; a job that names no user runs unprivileged. Of an array: its first task."""
        self._check_id(job)
        return self.submit_many([NewJob(spec, job, modes, secrets)], owner, within)[0][0]

    def submit_many(self, new: Sequence[NewJob], owner: str = "", within: str | None = None) -> list[list[Job]]:
        """Make all the jobs or none; for each its row, or those of its tasks. `within`: they wait for those of this owner."""
        jobs = {id: one for one in new for id in [one.id or self.new_job_id(one.spec.name)]}
        if len(jobs) < len(new):
            raise Conflict("two of the jobs that are submitted together have the same id")
        for id, one in jobs.items():
            spec = one.spec if one.spec.user is not None else replace(one.spec, user=messages.UNPRIVILEGED)
            spec = self._on_share(limited(spec, self.limits.time_limit))
            jobs[JobId(self._check_id(id))] = replace(one, id=id, spec=spec)
        for id, one in {_alike(one.spec): (id, one) for id, one in jobs.items()}.values():
            self._check_size(one.spec)
            self.check_licences(one.spec)
            self._check_inputs(id, one.spec)
            self._check_home(one.spec, owner)
        bags = [self.vault.sealed(id, one.spec, dict(one.secrets)) for id, one in jobs.items()]
        with self._settling:
            return self._submit(jobs, bags, owner, within)

    def _submit(
        self, jobs: Mapping[JobId, NewJob], bags: Sequence[bytes | None], owner: str, within: str | None
    ) -> list[list[Job]]:
        if (gone := next((id for id in jobs if id in self._discarded), None)) is not None:
            raise Conflict(f"job {gone} was given up while it was submitted: submit it again")
        with self.engine.connect() as connection:
            check_ids(connection, jobs)
            conditions = resolved(connection, jobs, within)
            refuse_twice(connection, owner, [one.spec for one in jobs.values()])
        with self.engine.begin() as connection:
            first = rows.next_numbers(connection, len(jobs))
            jobs = {id: numbered(one, first + n) for n, (id, one) in enumerate(jobs.items())}
        try:
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(partial(self._store_one, owner), jobs, jobs.values(), bags))
        except StoreError as e:
            raise store_trouble(e) from e
        now = self.clock.now()
        with self.engine.begin() as connection:
            made = rows.add_submissions(connection, [rows_of(id, one.spec, now, owner, one) for id, one in jobs.items()])
            waits = [(job, of_task(some, job.task)) for added, some in zip(made, conditions, strict=True) for job in added]
            dependencies.add(connection, waits)
            told = [Moment(now, job.id, None, str(Kind.SUBMITTED), _said(job.spec)) for job, _ in waits]
            timeline.add_many(connection, told)
            for id in [id for id, one in jobs.items() if one.held and one.spec.array]:
                many_tasks.hold(connection, rows.Selection(array=id), now)
        return made

    def _store_one(self, owner: str, id: JobId, new: NewJob, bag: bytes | None) -> None:
        self.specifications.lock_away(id, bag)
        self.specifications.write(id, new.spec, new.modes, owner)

    def _check_inputs(self, job: JobId, spec: JobSpec) -> None:
        for fetch in spec.fetches:
            if any(store.holds(fetch.source) for store in self.addresses):
                raise JobFileError(
                    f"inputs has {fetch.source!r}, which lies in the store of spotsurfer, or means everything of its bucket: "
                    "what other jobs keep there is no input; copy it to another folder or bucket (`spotsurfer outputs` "
                    "fetches results), and name the folder"
                )
        try:
            self.check_rights(job, inputs_of(Job(job, spec, JobState.QUEUED, 1, self.clock.now())))
        except Invalid as e:
            raise JobFileError(str(e)) from e

    def _on_share(self, spec: JobSpec) -> JobSpec:
        """With the shared file system that its folder lies on, if the operator named one there."""
        at = next((p for p in self.shared if PurePosixPath(spec.home).is_relative_to(p)), "")
        if not at or any(m.target == at for m in spec.mounts):
            return spec
        mount = SharedMount(f"shared-{len(spec.mounts)}", "bind", at, at, read_only=False)
        return replace(spec, mounts=(*spec.mounts, mount))

    def _check_home(self, spec: JobSpec, owner: str) -> None:
        """Raises InputMissing if the tree of its folder was not sent."""
        key = object_keys.home_file_key(object_keys.home_scope(owner, spec.home), spec.home_tree) if spec.home_tree else ""
        try:
            if key and self.store.get_range(key, 0, 1) is None:
                raise InputMissing(f"the list of the folder {spec.home} was not sent; submit again")
        except StoreError as e:
            raise store_trouble(e) from e

    def _check_size(self, spec: JobSpec) -> None:
        offers = self.offers()
        probe = Job(JobId("probe"), spec, JobState.QUEUED, 1, self.clock.now())
        large = [o for o in offers if fits(probe, o)]
        if not offers or any(barred(probe, o, self.limits) is None for o in large):
            return
        if large:
            best = min(large, key=lambda o: o.price_usd_micros_per_hour)
            raise JobFileError(
                f"no machine that is large enough may be bought for it; {best.market} {best.pool}: "
                f"{barred(probe, best, self.limits)}"
            )
        cpus = max(o.cpus for o in offers)
        most, asked = (max(o.memory_bytes for o in offers) / GIB, spec.memory_bytes / GIB)
        if placement.asked(spec) and (
            rooms := [o for o in offers if o.cpus >= spec.cpus and o.memory_bytes >= spec.memory_bytes]
        ):
            had = sorted({f"{o.pool.instance_type}: {o.gpus.count} {o.gpus.chip}" for o in offers if o.gpus.count})
            raise JobFileError(
                f"no machine has its GPUs: {too_little(probe, max(rooms, key=lambda o: o.gpus.count))}; "
                + (f"GPUs are in {', '.join(had[:5])}" if had else "none of the machine types that may be bought has any")
            )
        raise JobFileError(
            f"no machine has {spec.cpus} processors and {asked:.1f} GiB in market {spec.market}: "
            f"the largest has {cpus} processors, the one with most memory {most:.0f} GiB; ask for less in [resources]"
        )

    def _check_id(self, job: str) -> str:
        if not JOB_ID.fullmatch(job):
            raise NotFound(f"{job!r} is no job id")
        return job

    def _exists(self, job: JobId) -> bool:
        """As a job or as an array."""
        with self.engine.connect() as connection:
            return rows.is_there(connection, job)


@contextmanager
def spooled(folder: Path, what: str, data: Iterator[bytes], size: int) -> Iterator[IO[bytes]]:
    """The upload in a local file: an input may exceed memory, and an incomplete one must never reach the store."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as spool:
            came = sum(spool.write(piece) for piece in data)
            spool.flush()
            if came != size:
                raise InputMissing(f"{what} changed while it was read: {size} bytes announced, {came} came")
            yield spool
    except OSError as e:
        raise DiskFull(f"{folder}: the upload can't be kept ({e.strerror}); free some space") from e


def _alike(spec: JobSpec) -> str:
    """Jobs of a batch that are alike in this are checked once."""
    return repr(replace(spec, name="", command=(), environment={}, tags={}, outputs=(), array="", after=(), steps=()))


def _said(spec: JobSpec) -> str:
    return f"{spec.name}: {' '.join(spec.command)}{_told(spec)}"


def _told(spec: JobSpec) -> str:
    """A sentence for users about the secrets that the job holds."""
    if not spec.secrets:
        return ""
    how = "are encrypted" if spec.must_encrypt else "need not be encrypted, as its user wished"
    return f"; it is given {', '.join(sorted(spec.secrets))}: checkpoints hold them in the job's memory and {how}"


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path or str(PurePosixPath(*parts)) != path:
        raise JobFileError(f"input path {path!r} must be relative and stay inside the job's folder")
    if why := unstorable(path):
        raise JobFileError(f"input path {path!r} {why}: rename the file")
    return path


def store_trouble(e: StoreError) -> DiskFull | StoreUnwritable:
    """What is said of a store that failed."""
    if isinstance(e, StoreFull):
        return DiskFull(f"the store is full: {e}; free some space")
    return StoreUnwritable(f"the store can't be written or read: {e}; check store.url and its rights")
