"""What the store surely holds of this job: chunks by digest, pages by fingerprint, of the checkpoint that a save builds on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer_agent import coding, manifest, objectkeys
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.engines.fingerprints import Index
from spotsurfer_agent.manifest import Manifest, Stored
from spotsurfer_agent.storeport import ObjectStore, StoreError

log = logging.getLogger(__name__)

FOLDER, SUFFIX = "pages", ".prints"


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint to build on. Without an index pages are compared by the chunks that they fall into."""

    known: dict[str, Stored] = field(default_factory=dict)  # by digest
    index: Index | None = None


NOTHING = Base()


class Bases:
    """Remembers one checkpoint of a job; its fingerprints also on this machine's disk, for an agent that is started anew."""

    def __init__(self, folder: Path, store: ObjectStore, job: str, keys: Keys) -> None:
        self._folder, self._store, self._job, self._keys = folder / FOLDER, store, job, keys
        self._held: dict[str, Base] = {}
        self.new_share: float | None = None  # of the pages of the last save that had a base; None = not measured

    def of(self, checkpoint: str | None) -> Base:
        """The base with this name; one without content where there is none or it can't be read: then all is offered again."""
        if checkpoint is None:
            return NOTHING
        if checkpoint not in self._held:
            with contextlib.suppress(StoreError, coding.ProtocolError):
                data = self._store.get(objectkeys.manifest_key(self._job, checkpoint))
                if data is not None:
                    image = manifest.decode(data, self._keys, self._job, checkpoint)
                    self._held = {checkpoint: Base(_by_digest(image), Index.load(self.path(checkpoint), image))}
        return self._held.get(checkpoint, NOTHING)

    def is_now(self, image: Manifest, prints: Iterable[tuple[str, bytes]]) -> None:
        """This checkpoint was committed; `prints` are the fingerprints of its page files."""
        index = Index(image)
        for name, found in prints:
            index.fill(name, found)
        self.learned(image, index)

    def learned(self, image: Manifest, index: Index | None) -> None:
        """This checkpoint was committed, or brought back: then with None, as its fingerprints were put at `path`."""
        self._held = {image.id: Base(_by_digest(image), index)} if index is not None else {}
        try:
            self._folder.mkdir(exist_ok=True)
            if index is not None:
                index.save(self.path(image.id))
        except OSError as e:
            log.warning("the fingerprints of checkpoint %s can't be kept: %s", image.id, e)
        for old in self._folder.glob("*"):
            if old != self.path(image.id):
                old.unlink(missing_ok=True)

    def forget(self) -> None:
        """The job is another one now, or gone."""
        self._held, self.new_share = {}, None
        for old in self._folder.glob("*"):
            old.unlink(missing_ok=True)

    def path(self, checkpoint: str) -> Path:
        """Where the fingerprints of a checkpoint are kept."""
        return self._folder / (checkpoint + SUFFIX)


def _by_digest(image: Manifest) -> dict[str, Stored]:
    return {c.digest: c for c in image.chunks}
