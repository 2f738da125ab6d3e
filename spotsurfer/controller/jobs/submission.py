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
from pathlib import Path, PurePosixPath
from typing import IO

from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.messages import Fetch, SelfSave, Share, Spec, Step
from spotsurfer_wire.sealed_objects import Secrets
from spotsurfer_wire.store.port import FileStore, StoreError, StoreFull
from sqlalchemy import Engine

from spotsurfer.controller.jobs.batches import of_task, resolved, rows_of
from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.machines.store_credentials import inputs_of
from spotsurfer.core.scheduling import placement
from spotsurfer.core.scheduling.placement import barred, fits, too_little
from spotsurfer.jobspec.validate import unstorable
from spotsurfer.model.errors import Conflict, DiskFull, InputMissing, Invalid, JobFileError, NotFound, StoreUnwritable
from spotsurfer.model.job import JOB_ID, Job, JobId, JobSpec, JobState
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import Limits
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment, NewJob
from spotsurfer.state import dependencies, timeline
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
    _settling: threading.Lock = field(default_factory=threading.Lock)  # a job is submitted or discarded, by the first call
    _discarded: deque[JobId] = field(default_factory=lambda: deque(maxlen=DISCARDED_MAX))

    def new_job_id(self, name: str) -> JobId:
        """A readable unused id: the name and six random characters."""
        word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:32].strip("-") or "job"
        return JobId(f"{word}-{secrets.token_hex(3)}")

    def upload(self, job: JobId, path: str, data: Iterator[bytes], size: int) -> None:
        """Store one input."""
        key = object_keys.input_key(self._check_id(job), _inside(path))
        if self._exists(job):
            raise Conflict(f"job {job} was submitted already: its inputs can't change")
        with self._spooled(path, data, size) as spool:
            try:
                self.store.put_file(key, Path(spool.name))
            except StoreError as e:
                raise _store_trouble(e) from e

    @contextmanager
    def _spooled(self, path: str, data: Iterator[bytes], size: int) -> Iterator[IO[bytes]]:
        """The upload in a local file: an input may exceed memory, and an incomplete one must never reach the store."""
        try:
            self.spool_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.spool_dir) as spool:
                came = sum(spool.write(piece) for piece in data)
                spool.flush()
                if came != size:
                    raise InputMissing(f"input {path!r} changed while it was read: {size} bytes announced, {came} came")
                yield spool
        except OSError as e:
            raise DiskFull(f"{self.spool_dir}: the upload can't be kept ({e.strerror}); free some space") from e

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
                raise _store_trouble(e) from e

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
            jobs[JobId(self._check_id(id))] = replace(one, id=id, spec=spec)
        for id, one in {_alike(one.spec): (id, one) for id, one in jobs.items()}.values():
            self._check_size(one.spec)
            self._check_inputs(id, one.spec)
        bags = [self.vault.sealed(id, one.spec, dict(one.secrets)) for id, one in jobs.items()]
        with self._settling:
            return self._submit(jobs, bags, owner, within)

    def _submit(
        self, jobs: Mapping[JobId, NewJob], bags: Sequence[bytes | None], owner: str, within: str | None
    ) -> list[list[Job]]:
        if (gone := next((id for id in jobs if id in self._discarded), None)) is not None:
            raise Conflict(f"job {gone} was given up while it was submitted: submit it again")
        with self.engine.connect() as connection:
            conditions = resolved(connection, jobs, within)
        try:
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(self._store_one, jobs, jobs.values(), bags))
        except StoreError as e:
            raise _store_trouble(e) from e
        now = self.clock.now()
        with self.engine.begin() as connection:
            made = [rows.add_jobs(connection, rows_of(id, one.spec, now, owner)) for id, one in jobs.items()]
            waits = [(job, of_task(some, job.task)) for added, some in zip(made, conditions, strict=True) for job in added]
            dependencies.add(connection, waits)
            told = [Moment(now, job.id, None, str(Kind.SUBMITTED), _said(job.spec)) for job, _ in waits]
            timeline.add_many(connection, told)
        return made

    def _store_one(self, id: JobId, new: NewJob, bag: bytes | None) -> None:
        self._lock_away(id, bag)
        self._write(id, new.spec, new.modes)

    def _lock_away(self, job: JobId, bag: bytes | None) -> None:
        """Write the sealed secrets to the store, before the specification that names them."""
        key = object_keys.secrets_key(job)
        if bag is None or self.store.create(key, bag):
            return
        there = self.store.get(key)  # of an earlier try with a lost answer, or of another submitter
        if there is None or not self.vault.holds(job, there, bag):
            raise Conflict(f"job {job} was submitted already with other secrets")

    def _write(self, job: JobId, spec: JobSpec, modes: Mapping[str, int]) -> None:
        prefix = object_keys.input_key(job, "")
        there = {x.key.removeprefix(prefix): x.size for x in self.store.list(prefix)} if modes else {}
        missing = sorted(set(modes) - set(there))
        if missing:
            raise InputMissing(f"input {missing[0]!r} was not uploaded; submit again")
        wire = Spec(
            job=job,
            command=list(spec.command),
            folder=spec.folder,
            inputs={p: there[p] for p in sorted(modes)},
            input_modes=dict(modes),
            fetches=[Fetch(f.source, f.to, f.sha256, f.version, f.options) for f in spec.fetches],
            shares=[Share(m.name, m.type, m.source, m.target, m.options, m.read_only) for m in spec.mounts],
            outputs=list(spec.outputs),
            outputs_optional=spec.outputs_optional,
            environment=spec.environment,
            user=spec.user,
            checkpoint_interval_seconds=spec.checkpoint_interval_seconds or self.interval_seconds,
            engine=spec.engine,
            app=_self_save(spec),
            tcp=spec.tcp,
            cpu=spec.cpu,
            before_freeze=list(spec.before_freeze),
            after_restore=list(spec.after_restore),
            hook_seconds=spec.hook_seconds,
            image=spec.image,
            devices=list(spec.devices),
            gpus=placement.asked(spec),
            entry_point=None if spec.entry_point is None else list(spec.entry_point),
            steps=[Step(s.name, list(s.command), s.protect, s.always) for s in spec.steps],
            ports=[p.port for p in spec.ports],
            secrets={name: secret["as"] for name, secret in spec.secrets.items()},
        )
        if not self.store.create(object_keys.spec_key(job), json_codec.encode(wire)):
            raise Conflict(f"job {job} exists already")

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
        with self.engine.connect() as connection:
            try:
                rows.load_job(connection, job)
            except NotFound:
                return False
        return True


def _self_save(spec: JobSpec) -> SelfSave | None:
    if not spec.saves_itself:
        return None
    return SelfSave(
        signal=spec.app_signal,
        command=list(spec.app_command),
        file=spec.app_file,
        deadline_seconds=spec.app_deadline_seconds,
        done_file=spec.app_done_file,
        done_output=spec.app_done_output,
        done_exit=spec.app_done_exit,
        restart_command=list(spec.app_restart_command),
    )


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


def _store_trouble(e: StoreError) -> DiskFull | StoreUnwritable:
    if isinstance(e, StoreFull):
        return DiskFull(f"the store is full: {e}; free some space")
    return StoreUnwritable(f"the store can't be written or read: {e}; check store.url and its rights")
