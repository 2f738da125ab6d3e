"""The job's output, carried to the store as objects that are never rewritten with other bytes.

A piece is named by the offset of its first byte from the job's beginning; the pieces of one attempt follow each other without
gap or overlap. What is uploaded is known from the store itself, so an agent that was killed goes on where the last piece ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spotsurfer_agent import protocol
from spotsurfer_agent.store import ObjectStore, StoreError

PIECE_BYTES_MAX = 4 << 20
PIECES_MAX = 64  # in one push: a job that prints faster than the link must not keep a commit waiting
STREAMS = ("out", "err")
LATE_SECONDS, LOOK_SECONDS = 60.0, 0.02  # the last lines of a job may be on their way to its machine's disk

ReadLog = Callable[[str, int, int], bytes]  # stream, absolute offset, limit


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Whose output it is."""

    job: str
    attempt: int


class Logs:
    """Uploads output piece by piece. Safe to use from several threads: one uploads at a time."""

    def __init__(
        self,
        store: ObjectStore,
        read: ReadLog,
        place: LogPlace,
        piece_bytes_max: int = PIECE_BYTES_MAX,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._read, self._place, self._limit, self._wait = store, read, place, piece_bytes_max, wait
        self._lock = threading.Lock()
        self._positions: dict[str, int] | None = None  # None = to be found out, or nothing may be uploaded yet
        self._begun_at: dict[str, int] | None = None

    def begin(self, positions: Mapping[str, int]) -> None:
        """A start or restore: this attempt's output begins here."""
        with self._lock:
            self._positions = {s: positions.get(s, 0) for s in STREAMS}

    def resume(self, begun_at: Mapping[str, int]) -> None:
        """After a restart of the agent: go on behind the last piece in the store, as soon as the store says where that is."""
        with self._lock:
            self._positions, self._begun_at = None, dict(begun_at)

    def _known(self) -> dict[str, int] | None:
        if self._positions is None and self._begun_at is not None:
            self._positions = {s: self._end(s, self._begun_at.get(s, 0)) for s in STREAMS}
        return self._positions

    def _end(self, stream: str, begun_at: int) -> int:
        first = protocol.log_key(self._place.job, self._place.attempt, stream, 0)
        named = first.rpartition("-")[0] + "-"
        pieces = [x for x in self._store.list(first.rpartition("/")[0] + "/") if x.key.startswith(named)]
        return max((int(x.key[len(named) :]) + x.size for x in pieces), default=begun_at)

    def positions(self) -> dict[str, int]:
        """Bytes of each stream that are in the store, from the job's beginning."""
        return dict(self._positions or {})

    def push(self) -> bool:
        """Upload what is there now; False = there was nothing. Raises StoreError."""
        with self._lock:
            positions = self._known()
            return positions is not None and any([self._drain(positions, s, None) for s in STREAMS])

    def flush(self, until: Mapping[str, int]) -> None:
        """Upload everything up to these positions. Raises StoreError, also where the output stays shorter than promised."""
        with self._lock:
            positions = self._known()
            if positions is None:
                raise StoreError("the output's place in the store is not known yet")
            for stream, end in until.items():
                self._bring(positions, stream, end)

    def _bring(self, positions: dict[str, int], stream: str, end: int) -> None:
        for _ in range(int(LATE_SECONDS / LOOK_SECONDS)):
            self._drain(positions, stream, end)
            if positions.get(stream, 0) >= end:
                return
            self._wait(LOOK_SECONDS)
        raise StoreError(f"only {positions.get(stream, 0)} of {end} bytes of std{stream} are there")

    def _drain(self, positions: dict[str, int], stream: str, end: int | None) -> bool:
        pieces = 0
        while pieces < PIECES_MAX if end is None else positions.get(stream, 0) < end:
            at = positions.get(stream, 0)
            data = self._read(stream, at, self._limit)
            if not data:
                break
            self._store.put(protocol.log_key(self._place.job, self._place.attempt, stream, at), data)
            positions[stream] = at + len(data)
            pieces += 1
        return pieces > 0
