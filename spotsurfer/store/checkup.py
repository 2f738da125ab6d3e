"""Is everything there that checkpoints need, and how much room does what take?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spotsurfer_agent import manifest, objectkeys
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.reader import BadChunk, Reader
from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.manifest import Manifest, Stored
from spotsurfer_agent.storeport import ObjectStore

from spotsurfer.store.survey import Survey, survey

OVERHEAD_BYTES = 64  # what marks, nonce and tag add to a chunk that does not shrink, at most
Progress = Callable[[str, int, int], None]  # what, done, of; raises to stop


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that a checkpoint needs is not as it should be."""

    job: str
    checkpoint: str
    what: str


@dataclass(slots=True)
class Checked:
    """What a check looked at and found."""

    jobs: int = 0
    checkpoints: int = 0
    objects: int = 0
    bytes: int = 0  # plain, of the chunks that were read
    damage: list[Damage] = field(default_factory=list)


def check(store: ObjectStore, job: str, keys: Keys, result: Checked, progress: Progress | None) -> None:
    """Add what is wrong with a job's checkpoints to `result`; with `progress` every byte is read. Raises StoreError."""
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
    sizes = _sizes(store, job)  # after the manifests: a save that ends meanwhile has its chunks there before its manifest
    result.objects += len(sizes)
    bad = {c: why for c in needed if (why := _misfit(c, sizes))}
    if progress is not None:
        bad |= _read(Reader(store, job, keys), [c for c in needed if c not in bad], result, partial(progress, job))
    # Each checkpoint once for each thing: chunks are shared, and a pack holds many.
    result.damage += dict.fromkeys(Damage(job, checkpoint, why) for c, why in bad.items() for checkpoint in needed[c])


def _is_gone(store: ObjectStore, found: Survey, checkpoint: str) -> bool:
    """Asks again: the head is read after the list of manifests, so it may name one that was written in between."""
    return checkpoint not in found.manifests and store.get_range(objectkeys.manifest_key(found.job, checkpoint), 0, 1) is None


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


def _sizes(store: ObjectStore, job: str) -> dict[str, int]:
    listed = [*store.list(objectkeys.chunks_prefix(job)), *store.list(objectkeys.packs_prefix(job))]
    return {x.key.rpartition("/")[2]: x.size for x in listed}


# ---------------------------------------------------------------- room

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
    """Bytes of one job, or of all, in the store. Plain bytes are what its checkpoints would take each on its own."""

    kinds: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    checkpoints: int = 0
    image_bytes: int = 0  # of all checkpoints
    unique_bytes: int = 0  # plain bytes of different chunks
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
    found, prefix = Room(), objectkeys.job_prefix(job)
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
