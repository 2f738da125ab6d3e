"""The checkpoints of a job as the store shows them, the consistency check, and the sizes of stored objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spotsurfer_wire import json_codec, manifest, object_keys
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import Manifest, Stored
from spotsurfer_wire.messages import Head, HeadKind, Intent
from spotsurfer_wire.store.port import ObjectStore

from spotsurfer.core.checkpoints.retention import Known
from spotsurfer.store.head_logs import ENTRIES_AT_ONCE, summary

# ---- Survey: the manifests, marks, saves under way and head log of one job
#
# The order of reading matters: manifests first, intents second, the head last. A manifest that is seen had its intent before.
# So if the intent is gone, its save has ended, and the head that is read afterwards shows whether it counts. In any other order
# a checkpoint could be taken for a leftover just before it is committed.

MANIFEST, PROVEN, PROTECTED = "MANIFEST", "PROVEN", "PROTECTED"
INTENT_BYTES_MAX = 1 << 20  # a valid one has some hundred bytes


@dataclass(frozen=True, slots=True)
class Survey:
    """The findings about one job."""

    job: str
    marks: Mapping[str, frozenset[str]]  # checkpoint -> names of the objects in its folder
    sizes: Mapping[str, int]  # checkpoint -> bytes of its manifest
    intents: Mapping[str, Intent]
    entries: tuple[Head, ...]

    @property
    def newest(self) -> Head | None:
        """The newest head entry."""
        return self.entries[-1] if self.entries else None

    @property
    def manifests(self) -> list[str]:
        """Checkpoints that have one, by name."""
        return sorted(c for c, names in self.marks.items() if MANIFEST in names)

    @property
    def leftovers(self) -> list[str]:
        """Keys of marks without a manifest."""
        return [
            f"{object_keys.checkpoints_prefix(self.job)}{c}/{name}"
            for c, names in sorted(self.marks.items())
            if MANIFEST not in names
            for name in sorted(names)
        ]

    def under_way(self) -> dict[str, Intent]:
        """Saves that may still be committed: their attempt owns the job, and no checkpoint of that sequence or later counts."""
        head = self.newest
        over = head is not None and (head.done is not None or head.final)
        last = (-1, 0) if head is None else (head.epoch, sys.maxsize if over else head.sequence)
        return {c: i for c, i in self.intents.items() if parse(c) > last}

    def committed(self) -> list[str]:
        """Every checkpoint that the head log ever named, oldest commit first."""
        return list(dict.fromkeys(e.checkpoint for e in self.entries if e.kind is HeadKind.COMMIT and e.checkpoint))

    def known(self, wanted: Mapping[str, str]) -> list[Known]:
        """The input of retention, oldest commit first; `wanted`: checkpoint -> why something else needs it."""
        there, line = set(self.manifests), set(summary(self.entries).checkpoints)
        order = [c for c in self.committed() if c in there]
        under_way = self.under_way()
        bases = {i.base: "a save under way builds on it" for i in under_way.values() if i.base is not None}
        needed = {**bases, **dict.fromkeys(under_way, "its save is under way"), **wanted}
        return [
            Known(
                id=c,
                committed=c in order,
                counted=c in line,
                proven=PROVEN in self.marks[c],
                protected=PROTECTED in self.marks[c],
                needed=needed.get(c, ""),
            )
            for c in [*order, *sorted(there - set(order))]
        ]


def survey(store: ObjectStore, job: str, log: HeadLog | None = None) -> Survey:
    """Survey one job, with the newest entries of `log`, or of a new log. Raises StoreError, ProtocolError."""
    prefix = object_keys.checkpoints_prefix(job)
    marks: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for found in store.list(prefix):
        checkpoint, _, name = found.key.removeprefix(prefix).partition("/")
        marks.setdefault(checkpoint, set()).add(name)
        if name == MANIFEST:
            sizes[checkpoint] = found.size
    intents: dict[str, Intent] = {}
    for listed in store.list(object_keys.intents_prefix(job)):
        data = json_codec.read_bounded(store, listed.key, INTENT_BYTES_MAX)
        if data is not None:
            intents[listed.key.rpartition("/")[2]] = json_codec.decode(Intent, data)
    if log is None:
        log = HeadLog(store, job)
        log.refresh()
    else:
        log.refresh(ENTRIES_AT_ONCE)
    return Survey(job, {c: frozenset(n) for c, n in marks.items()}, sizes, intents, tuple(log.entries))


def parse(checkpoint: str) -> tuple[int, int]:
    """Epoch and sequence of a checkpoint's name. Raises ProtocolError."""
    epoch, _, sequence = checkpoint.partition("-")
    if not (epoch.isdecimal() and sequence.isdecimal()):
        raise ProtocolError(f"{checkpoint!r} is no checkpoint's name")
    return int(epoch), int(sequence)


# ---- Check: whether all objects that checkpoints need are there

OVERHEAD_BYTES = 64  # at most added by marks, nonce and tag to an incompressible chunk
Progress = Callable[[str, int, int], None]  # stage, done, of; raises to stop


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that a checkpoint needs is missing or wrong."""

    job: str
    checkpoint: str
    what: str


@dataclass(slots=True)
class Checked:
    """The scope and findings of a check."""

    jobs: int = 0
    checkpoints: int = 0
    objects: int = 0
    bytes: int = 0  # plain, of the chunks that were read
    damage: list[Damage] = field(default_factory=list)


def check(store: ObjectStore, job: str, keys: Keys, result: Checked, progress: Progress | None) -> None:
    """Add the damage of a job's checkpoints to `result`; with `progress` every byte is read. Raises StoreError."""
    found = survey(store, job)
    result.jobs += 1
    newest = found.newest
    if newest is not None and newest.done is None and newest.checkpoint and _is_gone(store, found, newest.checkpoint):
        result.damage.append(Damage(job, newest.checkpoint, "the job goes on from it, and its manifest is missing"))
    needed: dict[Stored, list[str]] = {}
    for checkpoint in found.manifests:
        image = _manifest(store, found, checkpoint, keys, result)
        for c in image.chunks if image is not None else ():
            needed.setdefault(c, []).append(checkpoint)
    sizes = stored_sizes(store, job)  # after the manifests: a save that ends meanwhile has its chunks there before its manifest
    result.objects += len(sizes)
    bad = {c: why for c in needed if (why := _misfit(c, sizes))}
    if progress is not None:
        bad |= _read(Reader(store, job, keys), [c for c in needed if c not in bad], result, partial(progress, job))
    # One entry per checkpoint and problem: chunks are shared, and a pack holds many.
    result.damage += dict.fromkeys(Damage(job, checkpoint, why) for c, why in bad.items() for checkpoint in needed[c])


def _is_gone(store: ObjectStore, found: Survey, checkpoint: str) -> bool:
    """Whether the manifest is really gone: the head, read after the list of manifests, may name one written in between."""
    return checkpoint not in found.manifests and store.get_range(object_keys.manifest_key(found.job, checkpoint), 0, 1) is None


def _manifest(store: ObjectStore, found: Survey, checkpoint: str, keys: Keys, result: Checked) -> Manifest | None:
    result.checkpoints += 1
    try:
        return manifest.decode(manifest.stored(store, found.job, checkpoint) or b"", keys, found.job, checkpoint)
    except ProtocolError as e:
        result.damage.append(Damage(found.job, checkpoint, str(e)))
        return None


def _misfit(c: Stored, sizes: Mapping[str, int]) -> str:
    name = c.pack or c.digest
    if name not in sizes:
        return f"{'pack' if c.pack else 'chunk'} {name} is missing"
    if c.pack and sizes[name] < c.at + c.length:
        return f"pack {name} is cut off: {sizes[name]} bytes, {c.at + c.length} are needed"
    if not c.pack and not 0 < sizes[name] <= c.size + OVERHEAD_BYTES:
        return f"chunk {name} has {sizes[name]} bytes in the store, {c.size} unpacked: that can't be"
    return ""


def _read(reader: Reader, chunks: Sequence[Stored], result: Checked, progress: Callable[[int, int], None]) -> dict[Stored, str]:
    bad = {}
    for n, c in enumerate(chunks):
        progress(n, len(chunks))
        try:
            result.bytes += len(reader.plain(c))
        except BadChunk as e:
            bad[c] = str(e)
    return bad


def stored_sizes(store: ObjectStore, job: str) -> dict[str, int]:
    """Name -> stored bytes of every chunk and pack of a job."""
    listed = [*store.list(object_keys.chunks_prefix(job)), *store.list(object_keys.packs_prefix(job))]
    return {x.key.rpartition("/")[2]: x.size for x in listed}


# ---- Room: the bytes that objects take in the store

KINDS = {
    "chunks": "chunks",
    "packs": "chunks",
    "checkpoints": "manifests",
    "log": "output",
    "out": "results",
    "partial": "results",
    "in": "inputs",
    "head": "heads",
}


@dataclass(slots=True)
class Room:
    """Bytes of one job, or of all, in the store. Plain bytes are uncompressed."""

    kinds: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    checkpoints: int = 0
    image_bytes: int = 0  # plain bytes of all checkpoints, each on its own
    unique_bytes: int = 0  # plain bytes of distinct chunks
    chunk_bytes: int = 0  # as stored

    @property
    def stored_bytes(self) -> int:
        """Everything."""
        return sum(self.kinds.values())

    def add(self, other: Room) -> None:
        """Sum up."""
        for kind, size in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + size
        self.objects += other.objects
        self.checkpoints += other.checkpoints
        self.image_bytes += other.image_bytes
        self.unique_bytes += other.unique_bytes
        self.chunk_bytes += other.chunk_bytes


def room(store: ObjectStore, job: str, keys: Keys) -> Room:
    """How much room a job takes. Raises StoreError; manifests that can't be read count with their own size only."""
    found, prefix = Room(), object_keys.job_prefix(job)
    for x in store.list(prefix):
        kind = KINDS.get(x.key.removeprefix(prefix).partition("/")[0], "other")
        found.kinds[kind] = found.kinds.get(kind, 0) + x.size
        found.objects += 1
    found.chunk_bytes = found.kinds.get("chunks", 0)
    unique: dict[str, int] = {}
    for checkpoint in survey(store, job).manifests:
        found.checkpoints += 1
        try:
            image = manifest.decode(manifest.stored(store, job, checkpoint) or b"", keys, job, checkpoint)
        except ProtocolError:
            continue
        found.image_bytes += image.image_bytes
        unique |= {c.digest: c.size for c in image.chunks}
    found.unique_bytes = sum(unique.values())
    return found
