"""Forks: copies of a job that go on from a checkpoint on their own. The store makes the copy; no byte passes through here.

A copy owns all its objects (chunks are hard links in a local store, copied by the service in a cloud), so that the end of one
job does not touch the other. It shares its origin's *lineage*: the keys that name and seal the chunks. The row is written last:
before it the job does not exist, and the next start removes the leftovers of a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from spotsurfer_wire import head_log, json_codec, manifest, object_keys, sealed_objects
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Head, Spec
from spotsurfer_wire.store.port import StoreError

from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointGc, CheckpointStore, store_errors_told
from spotsurfer.controller.checkpoints.operations import Operation
from spotsurfer.jobspec.validate import NAME_EXPECTED
from spotsurfer.model.errors import NotFound, UsageError
from spotsurfer.model.job import NAME, Job, JobId, JobState, Parent
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import journal, timeline
from spotsurfer.store.garbage_collector import objects_of
from spotsurfer.store.head_logs import chosen
from spotsurfer.store.job_output import chain, segments

THREADS = 8
OUTPUT_TRIES = 3
FIRST = object_keys.checkpoint_id(0, 1)  # of a copy: older than any that an attempt makes


@dataclass(frozen=True, slots=True)
class Order:
    """The copy to make. `checkpoint` None = the newest; a rehearsal takes no inputs and publishes nothing."""

    job: str
    checkpoint: str | None = None
    name: str | None = None
    rehearsal: bool = False


class Forks:
    """Makes copies."""

    def __init__(
        self, checkpoints: CheckpointStore, collection: CheckpointGc, new_id: Callable[[str], JobId], poke: Callable[[], None]
    ) -> None:
        self._checkpoints, self._collection, self._new_id, self._poke = checkpoints, collection, new_id, poke
        self._store = checkpoints.store

    def fork(self, order: Order, operation: Operation) -> Job:
        """A new job that will go on from the checkpoint. UsageError, NotFound, StoreUnwritable, StoreDamaged, CalledOff."""
        if order.name is not None and not NAME.fullmatch(order.name):
            raise UsageError(f"the name is {order.name!r}, expected {NAME_EXPECTED}")
        with self._checkpoints.engine.connect() as c:
            parent = rows.named_job(c, order.job)
        log = HeadLog(self._store, parent.id)
        child = self._new_id(order.name or parent.spec.name)
        with self._collection.lock(parent.id), self._checkpoints.engine.begin() as c:
            entry = journal.begin(c, f"fork/{parent.id}/{child}", self._checkpoints.clock.now())
        try:
            with store_errors_told(f"{parent.id} can't be copied"), self._collection.lock(parent.id):
                log.refresh()
                made = self._copy(parent, child, _wanted(parent, order, log.entries), log.entries, order, operation)
        except BaseException:
            self._remove(child)
            raise
        finally:
            with self._checkpoints.engine.begin() as c:
                journal.finish(c, entry, "done", self._checkpoints.clock.now())
        self._poke()
        return made

    def again(self) -> None:
        """At start-up: remove the leftovers of copies that never became jobs because of a crash."""
        with self._checkpoints.engine.connect() as c:
            left = [(n, a.split("/")[2]) for n, a in journal.unfinished(c) if a.startswith("fork/")]
            known = {j.id for j in rows.all_jobs(c)}
        for number, child in left:
            if child not in known and not self._began(child):
                self._remove(child)
            with self._checkpoints.engine.begin() as c:
                journal.finish(c, number, "left by a crash", self._checkpoints.clock.now())

    def _began(self, child: str) -> bool:
        """Whether a machine had the copy, or may have had it: then it is a job that this database, from a backup, lost."""
        log = HeadLog(self._store, child)
        try:
            log.refresh()
        except (StoreError, ProtocolError):
            return True
        return log.newest is not None and log.newest.epoch > 0

    def _remove(self, child: str) -> None:
        try:
            self._store.delete([x.key for x in self._store.list(object_keys.job_prefix(child))])
        except StoreError:
            return  # it is not a job, so the leftovers do no harm

    def _copy(
        self, parent: Job, child: JobId, checkpoint: str, entries: Sequence[Head], order: Order, operation: Operation
    ) -> Job:
        keys = self._checkpoints.keys(parent)
        keys = replace(keys, encrypts=keys.encrypts or parent.spec.must_encrypt)
        data = manifest.stored(self._store, parent.id, checkpoint)
        if data is None:
            raise NotFound(f"checkpoint {checkpoint} of {parent.id} was removed; `spotsurfer checkpoints` lists what there is")
        image = manifest.decode(data, keys, parent.id, checkpoint)
        self._objects(parent.id, child, image, operation)
        for key in (object_keys.image_key, object_keys.inputs_key):  # the names of image and inputs mean the same for the copy
            if self._store.get(key(parent.id)) is not None:
                self._store.copy(key(parent.id), key(child))
        if not order.rehearsal:
            prefix = object_keys.input_key(parent.array or parent.id, "")
            for x in self._store.list(prefix):
                self._store.copy(x.key, object_keys.input_key(child, x.key.removeprefix(prefix)))
            self._output(parent.id, child, image, entries)
        mine = replace(image, id=FIRST, job=child, epoch=0, sequence=1, base=None, lineage=parent.lineage or parent.id)
        self._store.create(object_keys.manifest_key(child, FIRST), manifest.encode(mine, keys))
        place = head_log.Place(1, f"fork-{child}", self._checkpoints.clock.now().isoformat())
        first = head_log.forked(place, FIRST, mine.cpu_seconds)
        self._store.create(object_keys.head_key(child, 1), json_codec.encode(first))
        if found := sealed_objects.fetch_secrets(self._store, keys, parent.id):  # a sealed object opens for one job only
            self._store.create(object_keys.secrets_key(child), sealed_objects.seal_secrets(found, keys, child))
        self._spec(parent.id, child, order)
        return self._row(parent, child, checkpoint, order)

    def _objects(self, parent: str, child: str, image: Manifest, operation: Operation) -> None:
        packs = {c.pack for c in image.chunks if c.pack}
        names = sorted(objects_of(image))
        pairs = [
            (object_keys.pack_key(parent, n), object_keys.pack_key(child, n))
            if n in packs
            else (object_keys.chunk_key(parent, n), object_keys.chunk_key(child, n))
            for n in names
        ]
        with ThreadPoolExecutor(THREADS) as pool:
            for n, _ in enumerate(pool.map(lambda p: self._store.copy(*p), pairs)):
                operation.progress("copying", n + 1, len(pairs))

    def _output(self, parent: str, child: str, image: Manifest, entries: Sequence[Head]) -> None:
        """Copy the output that the job had printed by then, as that of an attempt 0.

        The parent's agent merges pieces meanwhile: if a piece is gone that was just listed, another one has its bytes.
        """
        for tries_left in reversed(range(OUTPUT_TRIES)):
            try:
                self._printed(parent, child, image, chain(entries, image.epoch))
                break
            except StoreError:
                if not tries_left:
                    raise

    def _printed(self, parent: str, child: str, image: Manifest, attempts: Sequence[int]) -> None:
        pieces = {x.key: x for x in self._store.list(object_keys.log_prefix(parent))}
        for stream, length in image.log.items():
            for s in segments(pieces.values(), stream, attempts):
                end = min(s.end, length)
                if s.start >= end:
                    continue
                key = object_keys.log_key(child, 0, stream, s.start, end)
                if s.skip == 0 and pieces[s.key].size == end - s.start:
                    self._store.copy(s.key, key)
                    continue
                data = self._store.get_range(s.key, s.skip, end - s.start)
                if data is None:
                    raise StoreError(f"{s.key} is gone")
                self._store.create(key, data)

    def _spec(self, parent: str, child: str, order: Order) -> None:
        data = self._store.get(object_keys.spec_key(parent))
        if data is None:
            raise ProtocolError(f"{parent} has no specification in the store")
        spec = replace(json_codec.decode(Spec, data), job=child, array="", task=None)
        if order.rehearsal:
            spec = replace(spec, outputs=[], checkpoint_interval_seconds=None, rehearses=parent)
        self._store.create(object_keys.spec_key(child), json_codec.encode(spec))

    def _row(self, parent: Job, child: JobId, checkpoint: str, order: Order) -> Job:
        now = self._checkpoints.clock.now()
        name = order.name or (f"{parent.spec.name}-rehearsal" if order.rehearsal else parent.spec.name)
        spec = replace(parent.spec, name=name)
        if order.rehearsal:
            spec = replace(spec, on_end=(), outputs=(), retries=0)
        origin = Parent(parent.id, checkpoint, order.rehearsal)
        row = Job(child, spec, JobState.QUEUED, 1, now, parent=origin, owner=parent.owner, lineage=parent.lineage or parent.id)
        what = "rehearsal" if order.rehearsal else "copy"
        with self._checkpoints.engine.begin() as c:
            row = rows.add_job(c, row)
            text = f"{spec.name}: a {what} of {parent.id} from checkpoint {checkpoint}"
            timeline.add(c, Moment(now, child, None, str(Kind.SUBMITTED), text))
            data: dict[str, str | int | float | bool | None] = {"job": child, "checkpoint": checkpoint}
            goes_on = f"a {what}, {child}, goes on from checkpoint {checkpoint}"
            timeline.add(c, Moment(now, parent.id, None, str(Kind.FORKED), goes_on, data))
        return row


def _wanted(parent: Job, order: Order, entries: Sequence[Head]) -> str:
    newest = entries[-1].checkpoint if entries else None
    found = newest if order.checkpoint is None else chosen(order.checkpoint, entries)
    if found is None:
        what = f"no checkpoint {order.checkpoint!r}" if order.checkpoint else "no checkpoint yet"
        raise NotFound(f"job {parent.id} has {what}; `spotsurfer checkpoints {parent.id}` lists them")
    return found
