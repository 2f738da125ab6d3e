"""`spotsurfer adopt`: a controller without its database takes over the jobs in its store.

The store holds everything that machines need: commands, inputs, head logs, checkpoints, output, results. It lacks what only the
controller needs: sizes, budgets, deadlines, priorities, retries, tags and hooks. So a job goes on by itself only if its
machine's agent has left a report; all others are held until a person allows them to cost something.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from obstore.exceptions import BaseError
from spotsurfer_wire import json_codec, manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Head, Spec, StoreInfo
from spotsurfer_wire.store.obstore import ObstoreStore
from spotsurfer_wire.store.port import StoreError
from sqlalchemy import Connection

from spotsurfer.common.units import counted, size
from spotsurfer.config.settings import Settings
from spotsurfer.model.errors import ConfigError, Conflict, NotFound, StoreDamaged, StoreOwned, StoreUnwritable
from spotsurfer.model.job import JOB_ID, InputFetch, Job, JobId, JobPort, JobSpec, JobState, JobStep, Parent, SharedMount, Wish
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Moment
from spotsurfer.recovery import restore
from spotsurfer.recovery.backup import refusals_told
from spotsurfer.state import db, timeline
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import become, lock_state, open_database
from spotsurfer.store import master_key
from spotsurfer.store.head_logs import summary, written_at
from spotsurfer.store.open_store import open_for

ROOM = 1.25  # memory of a machine per memory of the job's processes: the agent needs some, and they grow
JOBS = "jobs/"
Progress = Callable[[str, int, int], None]  # stage, jobs done, total


@dataclass(frozen=True, slots=True)
class Least:
    """Minimum resources of adopted jobs; nobody knows what they asked for at submission."""

    cpus: int = 1
    memory_bytes: int = 1 << 30


@dataclass(slots=True)
class Adopted:
    """The outcome."""

    family: str
    jobs: list[Job] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)  # job -> why it could not be read; it stays as it is


@refusals_told()
def adopt(settings: Settings, least: Least, now: datetime, progress: Progress) -> Adopted:
    """Give this configuration's database the family of the store, and record the jobs that it does not know.

    Raises ControllerRunning; ConfigError without the store's key or if it can't be read, StoreOwned with another key;
    NotFound if the store has no owner; Conflict if the database has jobs of another family; SpotsurferError for a damaged
    database; StoreUnwritable, StoreDamaged.
    """
    lock = lock_state(settings.controller.data_dir)
    try:
        restore.finish(settings)
        if not settings.key_path.exists():
            raise ConfigError(
                f"{settings.key_path} is not there: bring it back from a backup (`spotsurfer restore`) or from a copy. Without "
                "it no checkpoint can be read; docs/recovery.md says what is left then."
            )
        key = master_key.load(settings.key_path, settings.checkpoint.encrypt)
        try:
            try:
                store = open_for(settings)
            except (OSError, ValueError, BaseError) as e:
                raise ConfigError(f"store.url {settings.store_url!r} can't be used: {e}") from e
            family = _family(store, settings.store_url, key.fingerprint)
            database = settings.controller.data_dir / "state.db"
            without = "move that file, and those that begin with its name, elsewhere: what only it knew is lost then"
            found = db.look_read_only(database, f"Restore a backup; without one, {without}.")
            if found.jobs and found.family != family:
                raise Conflict(
                    f"{database} has {counted(found.jobs, 'job')} of the controller family {found.family}, and the store is "
                    f"that of {family}: use another data_dir, or the store of that family."
                )
            engine = open_database(database)
            with engine.begin() as connection:
                become(connection, family)
                adopted = take_up(connection, store, key.keys_of, least, now, progress)
            engine.dispose()
        except StoreError as e:
            raise StoreUnwritable(f"The store {settings.store_url} can't be read: {e}; check store.url and its rights.") from e
    finally:
        os.close(lock)
    return replace(adopted, family=family)


def _family(store: ObstoreStore, url: str, fingerprint: str) -> str:
    body = store.get(object_keys.store_key())
    if body is None:
        raise NotFound(f"The store {url} belongs to nobody: check store.url, or begin with `spotsurfer serve`.")
    try:
        info = json_codec.decode(StoreInfo, body)
    except ProtocolError as e:
        raise StoreDamaged(f"The store {url} does not say to whom it belongs: {e}.") from e
    if info.key not in ("", fingerprint):
        raise StoreOwned(
            f"The checkpoints in {url} were made with another key than this one: bring that key back from a backup."
        )
    return info.family


def take_up(
    connection: Connection, store: Any, keys_of: Callable[[str], Keys], least: Least, now: datetime, progress: Progress
) -> Adopted:
    """Record the jobs of the store that have no row. Raises StoreError."""
    ids = [JobId(name) for name in store.folders(JOBS) if JOB_ID.fullmatch(name)]
    reports = {x.key.removeprefix(object_keys.live_prefix()) for x in store.list(object_keys.live_prefix())}
    known, done = {j.id for j in rows.all_jobs(connection)}, Adopted("")
    for n, job in enumerate(ids):
        progress("reading jobs", n, len(ids))
        if job in known:
            continue
        try:
            row = _read(store, job, _Sources(ids, reports, keys_of, least, now))
        except ProtocolError as e:
            done.unread[job] = str(e)
            continue
        if row is not None:
            row = rows.add_job(connection, row)
            text = f"{row.spec.name}: adopted from the store; {' '.join(row.spec.command)}"
            timeline.add(connection, Moment(now, job, None, str(Kind.SUBMITTED), text))
            done.jobs.append(row)
    return done


@dataclass(frozen=True, slots=True)
class _Sources:
    ids: Sequence[JobId]
    reports: set[str]  # "<job>.<attempt>", of machines that existed when the controller was lost
    keys_of: Callable[[str], Keys]
    least: Least
    now: datetime


def _read(store: Any, job: JobId, sources: _Sources) -> Job | None:
    """The row of a job, as far as the store shows it; None for an incomplete submission."""
    data = store.get(object_keys.spec_key(job))
    if data is None:
        return None
    wire, log = json_codec.decode(Spec, data), HeadLog(store, job)
    if wire.array == job:
        return None  # tasks that began have a specification of their own; the others are lost
    log.refresh()
    image = _image(store, job, log.entries, sources)
    memory = max(sources.least.memory_bytes, int(image.memory_bytes * ROOM) if image is not None else 0)
    lineage = image.lineage if image is not None and image.lineage != job else ""
    spec = _spec(job, wire, sources.least.cpus, memory)
    began = written_at(log.entries[0], sources.now) if log.entries else sources.now
    row = Job(job, spec, JobState.QUEUED, 1, began, lineage=lineage, array=wire.array, task=wire.task)
    if wire.rehearses:
        # The operation that watched it is lost. It stays a walled-off rehearsal, and is removed at its end.
        reason = "the controller that watched this rehearsal is lost: rehearse again"
        return replace(row, parent=Parent(JobId(wire.rehearses), "", rehearsal=True), wish=Wish.CANCEL, reason=reason)
    return _standing(row, log.entries, image is not None, sources)


def _standing(job: Job, entries: Sequence[Head], readable: bool, sources: _Sources) -> Job:
    """The job's state. If a machine may still have it, the controller takes that machine over and looks for itself."""
    head, newest = summary(entries), entries[-1] if entries else None
    owner = object_keys.live_key(job.id, head.epoch).removeprefix(object_keys.live_prefix())
    if owner in sources.reports and not head.final:
        return job
    if newest is not None and head.done:
        state = JobState.CANCELLED if head.cancelled else JobState.SUCCEEDED if head.succeeded else JobState.FAILED
        reason = "cancelled" if head.cancelled else head.how_it_ended
        return replace(job, state=state, reason=reason, exit_code=head.exit_code, ended_at=written_at(newest, sources.now))
    if newest is not None and newest.checkpoint is not None and not readable:
        reason = "adopted from the store; its newest checkpoint can't be read with this store.key, or is gone: submit it anew"
        return replace(job, wish=Wish.HOLD, reason=reason)
    reason = (
        "adopted from the store, which does not say how large its machine must be: `resume` lets it go on, on one with at "
        f"least {job.spec.cpus} processors and {size(job.spec.memory_bytes)}"
    )
    return replace(job, wish=Wish.HOLD, reason=reason)


def _image(store: Any, job: JobId, entries: Sequence[Head], sources: _Sources) -> Manifest | None:
    """The newest checkpoint in the log, also of a job that was ordered to begin anew: it shows memory and lineage.

    A fork's first checkpoint was sealed with the keys of the original job, and nothing names that job. A fork's log begins with
    a checkpoint that no attempt made; any other job has keys of its own.
    """
    named = next((h.checkpoint for h in reversed(entries) if h.checkpoint is not None), None)
    data = store.get(object_keys.manifest_key(job, named)) if named is not None else None
    if data is None:
        return None
    for lineage in (job, *sources.ids) if entries[0].epoch == 0 else (job,):
        try:
            return manifest.decode(data, sources.keys_of(lineage), job, named)
        except ProtocolError:
            continue
    return None


def _spec(job: JobId, wire: Spec, cpus: int, memory_bytes: int) -> JobSpec:
    """The user's specification, as far as the machines had it."""
    app = wire.app
    saves_itself: dict[str, Any] = {}
    if app is not None:
        saves_itself = {
            "app_signal": app.signal,
            "app_command": tuple(app.command),
            "app_file": app.file,
            "app_deadline_seconds": app.deadline_seconds,
            "app_done_file": app.done_file,
            "app_done_output": app.done_output,
            "app_done_exit": app.done_exit,
            "app_restart_command": tuple(app.restart_command),
        }
    return JobSpec(
        name=job.rpartition("-")[0] or job,  # an id is the name and six characters
        command=tuple(wire.command),
        folder=wire.folder,
        inputs=tuple(wire.inputs),
        fetches=tuple(InputFetch(f.source, f.to, f.sha256, f.version, f.options) for f in wire.fetches),
        mounts=tuple(SharedMount(s.name, s.type, s.source, s.target, s.options, s.read_only) for s in wire.shares),
        outputs=tuple(wire.outputs),
        outputs_optional=wire.outputs_optional,
        cpus=cpus,
        memory_bytes=memory_bytes,
        gpus=wire.gpus,
        checkpoint_interval_seconds=wire.checkpoint_interval_seconds,
        environment=wire.environment,
        user=wire.user,
        engine=wire.engine,
        tcp=wire.tcp,
        cpu=wire.cpu,
        before_freeze=tuple(wire.before_freeze),
        after_restore=tuple(wire.after_restore),
        before_thaw=tuple(wire.before_thaw),
        hook_seconds=wire.hook_seconds,
        steps=tuple(JobStep(s.name, tuple(s.command), s.protect, s.always) for s in wire.steps),
        secrets={name: {"from": "store", "as": form} for name, form in wire.secrets.items()},
        image=wire.image,
        entry_point=None if wire.entry_point is None else tuple(wire.entry_point),
        devices=tuple(wire.devices),
        ports=tuple(JobPort(f"port-{port}", port) for port in wire.ports),
        home=wire.home,
        home_exclude=tuple(wire.home_exclude),
        home_tree=wire.home_tree,
        **saves_itself,
    )
