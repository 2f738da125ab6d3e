"""An agent's saves at the store, call by call, without processes: for tests of whatever works beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spotsurfer_agent.control.tasks import CondemnedChunk, Pins
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.head_log import Appended, HeadLog
from spotsurfer_wire.manifest import Entry, Extent, Extents, Manifest, Stored, decode, encode
from spotsurfer_wire.messages import Head, HeadKind
from spotsurfer_wire.store.port import ObjectStore

JOB = "job"
KEYS = Keys.derive(b"", JOB)


def named(content: str) -> Stored:
    """A chunk whose name is its content, padded to a digest."""
    return Stored(content.encode().hex().rjust(64, "0"), 8)


def a_manifest(checkpoint: str, contents: Sequence[str], job: str = JOB, **changes: object) -> Manifest:
    table = [named(c) for c in contents]
    extents = Extents.of(Extent(8 * i, 8, i, 0) for i in range(len(table)))
    epoch, _, sequence = checkpoint.partition("-")
    values: dict[str, object] = {
        "id": checkpoint,
        "job": job,
        "epoch": int(epoch),
        "sequence": int(sequence),
        "kind": "live",
        "engine": "criu",
        "facts": {},
        "image": [Entry("pages-1.img", "file", size=8 * len(table), extents=extents)],
        "scratch": [],
        "log": {},
        "init_pipes": {},
        "cpu_seconds": 1.0,
        "frozen_seconds": 0.1,
        "image_bytes": 8 * len(table),
        "at": "2026-01-01T00:00:00Z",
        "chunks": table,
        **changes,
    }
    return Manifest(**values)  # type: ignore[arg-type]


def a_head(number: int, kind: HeadKind, epoch: int, checkpoint: str | None, sequence: int, **changes: object) -> Head:
    values: dict[str, object] = {"final": False, "done": None, "cpu_seconds": 0.0, "nonce": f"n{number}-{epoch}", "at": ""}
    return Head(number, kind, epoch, checkpoint, sequence, **{**values, **changes})  # type: ignore[arg-type]


@dataclass
class Writer:
    """One attempt's agent. `save` yields before each call of the store that could be its last."""

    store: ObjectStore
    epoch: int = 1
    sequence: int = 0
    job: str = JOB
    refused: int = 0
    log: HeadLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = HeadLog(self.store, self.job)

    def grant(self, checkpoint: str | None = None) -> None:
        """Own the job, as the controller would have it."""
        self.log.refresh()
        newest = self.log.newest
        number, sequence = (newest.number, newest.sequence) if newest else (0, 0)
        self.log.append(a_head(number + 1, HeadKind.GRANT, self.epoch, checkpoint, sequence))

    def known(self) -> set[str]:
        """Names that the base proves to be in the store."""
        self.log.refresh()
        base = self.log.newest.checkpoint if self.log.newest else None
        data = self.store.get(object_keys.manifest_key(self.job, base)) if base else None
        return {c.digest for c in decode(data, KEYS, self.job).chunks} if data is not None else set()

    def save(self, contents: Sequence[str], known: set[str]) -> Iterator[None]:
        """One checkpoint; afterwards it is committed, refused, or was never finished."""
        newest = self.log.newest
        assert newest is not None
        self.sequence = max(self.sequence, newest.sequence) + 1
        name = object_keys.checkpoint_id(self.epoch, self.sequence)
        pins = Pins(self.store, self.job)
        yield
        self.store.create(
            object_keys.intent_key(self.job, name), json_codec.encode(messages.Intent(name, newest.checkpoint, ""))
        )
        yield
        avoid = pins.begin(name, newest.checkpoint)
        for chunk in map(named, contents):
            if chunk.digest in known and chunk.digest not in avoid:
                continue
            yield
            self.store.create(object_keys.chunk_key(self.job, chunk.digest), b"stored")
        yield
        image = a_manifest(name, contents, self.job)
        self.store.create(object_keys.manifest_key(self.job, name), encode(image, KEYS))
        yield
        yield from self._commit(pins, image)
        pins.end(name)

    def _commit(self, pins: Pins, image: Manifest) -> Iterator[None]:
        try:
            pins.check(image.chunks)
        except CondemnedChunk:
            self.refused += 1
            return
        yield
        newest = self.log.newest
        assert newest is not None
        entry = a_head(newest.number + 1, HeadKind.COMMIT, self.epoch, image.id, image.sequence)
        if self.log.append(entry) is Appended.LOST:
            self.refused += 1
        yield

    def save_all(self, contents: Sequence[str]) -> str:
        """A whole save, undisturbed; the checkpoint's name."""
        for _ in self.save(contents, self.known()):
            pass
        return object_keys.checkpoint_id(self.epoch, self.sequence)
