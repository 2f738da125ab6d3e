"""The head log of one job: its entries, each kind made here; read as it grows, append by create-if-absent.

Agent and controller share it. The controller knows an entry's number, nonce and time when it decides. The agent makes an entry
from the newest one before it, and its mailbox sets these three when it writes it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Done, Head, HeadKind
from spotsurfer_wire.store.port import ObjectStore, StoreError

HEAD_BYTES_MAX = 32 << 20  # the entry that ends a job names its outputs: room for more than 100,000


# ---- Entries of the controller


class Place(NamedTuple):
    """Where an entry stands: its number, the nonce by which its writer knows it again, and the time for people."""

    number: int
    nonce: str
    at: str


def granted(place: Place, epoch: int, checkpoint: str | None, sequence: int, saved: Head | None) -> Head:
    """Attempt `epoch` owns the job now, and starts from `checkpoint` (None = from the beginning), which `saved` committed."""
    cpu_seconds, ran_seconds = (saved.cpu_seconds, saved.ran_seconds) if saved is not None else (0.0, 0.0)
    end = (False, None, cpu_seconds, place.nonce, place.at, ran_seconds)
    return Head(place.number, HeadKind.GRANT, epoch, checkpoint, sequence, *end)


def forked(place: Place, checkpoint: str, cpu_seconds: float) -> Head:
    """The first entry of a copy: it has one checkpoint and no owner yet."""
    return Head(place.number, HeadKind.COMMIT, 0, checkpoint, 1, False, None, cpu_seconds, place.nonce, place.at)


def closed(place: Place, newest: Head | None, ended_by: str = "") -> Head:
    """The controller closes the log of a job that has no owner any more: it was cancelled, or `ended_by` ended it."""
    done = Done(None, "ended" if ended_by else "cancelled", ended_by=ended_by)
    if newest is None:
        return Head(place.number, HeadKind.DONE, 0, None, 0, False, done, 0.0, place.nonce, place.at)
    return dataclasses.replace(newest, kind=HeadKind.DONE, final=False, done=done, **place._asdict())


def commit_of(entries: Iterable[Head], checkpoint: str | None) -> Head | None:
    """The entry that made a checkpoint; None = none did. Later entries name it, too, after more work."""
    made = (e for e in entries if e.kind is HeadKind.COMMIT and e.checkpoint == checkpoint)
    return next((e for e in made if checkpoint is not None), None)


# ---- Entries of an agent


def committed(base: Head, checkpoint: str, epoch: int, sequence: int, used: tuple[float, float], final: bool) -> Head:
    """A checkpoint is the job's newest; `used`: seconds of CPU, and of running. `final`: nothing of this attempt runs after."""
    sequence, (cpu_seconds, ran_seconds) = max(base.sequence, sequence), used
    return Head(0, HeadKind.COMMIT, epoch, checkpoint, sequence, final, None, cpu_seconds, "", "", ran_seconds)


def renewed(base: Head) -> Head:
    """Changes nothing, but earlier decisions can't land any more."""
    return dataclasses.replace(base, kind=HeadKind.RENEW)


def unsaved(base: Head) -> Head:
    """This attempt is over, and nothing was saved."""
    used = (base.cpu_seconds, "", "", base.ran_seconds)
    return Head(0, HeadKind.COMMIT, base.epoch, base.checkpoint, base.sequence, True, None, *used)


def ended(base: Head, done: Done, cpu_seconds: float) -> Head:
    """The job has ended."""
    return Head(0, HeadKind.DONE, base.epoch, base.checkpoint, base.sequence, base.final, done, cpu_seconds, "", "")


class Appended(StrEnum):
    """What became of an entry."""

    OURS = "ours"  # it is in the log, by this call or an earlier one whose answer was lost
    LOST = "lost"  # somebody else's entry has that number: read again


class Unfinished(StoreError):
    """The log has more entries than were to be read at once: those read are kept, and the next call reads on."""


class HeadLog:
    """Entries 1, 2, 3 … without gaps: number n+1 can only be created by a writer that saw n.

    Several threads may refresh at once (a controller's tick and its web requests do).
    """

    def __init__(self, store: ObjectStore, job: str) -> None:
        self._store = store
        self._job = job
        self.entries: list[Head] = []
        self._learning = threading.Lock()  # never held during a request to the store: an outage must not stop mere readers

    @property
    def newest(self) -> Head | None:
        """The newest entry read so far."""
        return self.entries[-1] if self.entries else None

    def refresh(self, most: int | None = None) -> Head | None:
        """Read what was added; the newest entry or None for an empty log. It returns only when there is no newer one.

        `most`: at most so many entries at once, for callers that must go on soon whatever the log's writer does; None = all.
        Raises StoreError (Unfinished if there may be more), and ProtocolError for an entry that this version can't read.
        """
        end = None if most is None else len(self.entries) + most
        if not self.entries:
            self._read_all(end)
        while (data := self._read(self._key(number := len(self.entries) + 1))) is not None:
            if end is not None and number > end:
                raise Unfinished(f"the head log of {self._job} has more than {number - 1} entries: it is read on soon")
            self._learn(_decoded(number, data))
        return self.newest

    def append(self, head: Head) -> Appended:
        """Create entry `head.number`. Repeating it after an unknown outcome (StoreError) is safe: the nonce tells."""
        data = json_codec.encode(head)
        if self._store.create(self._key(head.number), data):
            self._learn(head)
            return Appended.OURS
        there = self._read(self._key(head.number))
        if there is not None and json_codec.decode(Head, there).nonce == head.nonce:
            self._learn(head)
            return Appended.OURS
        return Appended.LOST

    def _learn(self, head: Head) -> None:
        """Entries never change, so it does not matter which of two threads brings one; but it must be added only once."""
        with self._learning:
            if head.number == len(self.entries) + 1:
                self.entries.append(head)

    def _read(self, key: str) -> bytes | None:
        return json_codec.read_bounded(self._store, key, HEAD_BYTES_MAX)

    def _read_all(self, end: int | None) -> None:
        """One listing instead of a request for each entry of a long log. Raises ProtocolError if its beginning is gone."""
        there = self._store.list(object_keys.head_prefix(self._job))
        for listed in there[:end]:
            number = len(self.entries) + 1
            data = self._read(listed.key) if listed.key == self._key(number) else None
            if data is not None:
                self._learn(_decoded(number, data))
        if there and not self.entries and self._read(self._key(1)) is None:
            raise ProtocolError(f"the head log of {self._job} has {there[0].key} and lost what came before")

    def _key(self, number: int) -> str:
        return object_keys.head_key(self._job, number)


def _decoded(number: int, data: bytes) -> Head:
    head = json_codec.decode(Head, data)
    if head.number != number:
        raise ProtocolError(f"head entry {number} says that it is entry {head.number}")
    return head
