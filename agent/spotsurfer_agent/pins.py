"""Keeps the controller's collector away from what a save under way relies on.

Collector and writer meet without a clock. The collector writes its list, waits, looks again at all manifests and only then
removes; the writer makes its manifest and only then reads the list. So either the collector's second look finds the manifest,
or the writer finds its chunk on the list and does not commit. The intent makes that last case rare: while one stands, no
list is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from spotsurfer_agent import clock, coding, objectkeys
from spotsurfer_agent.protocol import Condemned, Intent
from spotsurfer_agent.storeport import ObjectStore, StoreError


class Named(Protocol):
    """A chunk as manifests name it."""

    @property
    def digest(self) -> str:
        """Its name."""
        ...

    @property
    def pack(self) -> str:
        """The object that holds it; empty = one of its own."""
        ...


class CondemnedChunk(StoreError):
    """The collector is about to remove a chunk that the save relies on: it must not be committed, but made again."""


class Pins:
    """Intents of one job's saves, and the look at the collector's list."""

    def __init__(self, store: ObjectStore, job: str) -> None:
        self._store = store
        self._job = job

    def begin(self, checkpoint: str, base: str | None) -> frozenset[str]:
        """Say that a save begins, before its first chunk is offered or believed to be there; repeating it is harmless.

        Returns the names of chunks and packs that are about to be removed: the save must neither reuse them nor rely on
        finding them there. Raises StoreError.
        """
        intent = Intent(checkpoint, base, clock.utc_text())
        self._store.create(objectkeys.intent_key(self._job, checkpoint), coding.encode(intent))
        return self._condemned()

    def check(self, chunks: Iterable[Named]) -> None:
        """Call it when the manifest is in the store and its head entry is not. Raises CondemnedChunk, StoreError."""
        condemned = self._condemned()
        if condemned and (doomed := condemned.intersection(c.pack or c.digest for c in chunks)):
            raise CondemnedChunk(
                f"the collector is removing {len(doomed)} chunks that the checkpoint relies on: they are sent anew next time"
            )

    def end(self, checkpoint: str) -> None:
        """The save is committed, or will never be. Raises StoreError."""
        self._store.delete([objectkeys.intent_key(self._job, checkpoint)])

    def _condemned(self) -> frozenset[str]:
        data = self._store.get(objectkeys.condemned_key(self._job))
        return frozenset(coding.decode(Condemned, data).names) if data is not None else frozenset()
