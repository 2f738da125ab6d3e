"""The head log of one job: read as it grows, append by create-if-absent. Shared by agent and controller."""

from __future__ import annotations

import threading
from enum import StrEnum

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Head
from spotsurfer_wire.store.port import ObjectStore, StoreError

HEAD_BYTES_MAX = 32 << 20  # the entry that ends a job names its outputs: room for more than 100,000


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
