"""Uploads the job's output to the store while the job runs, in pieces that never change.

A piece is named by the bytes that it holds, counted from the job's beginning. New output goes up together with the small pieces
before it, as one piece, and those are removed then (`log_pieces`): so there are few pieces, however long the job prints. The
bytes come from the machine's disk. The store itself shows what is uploaded, so the successor of a killed agent goes on where
the last piece ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from spotsurfer_wire import log_pieces, object_keys
from spotsurfer_wire.log_pieces import Piece
from spotsurfer_wire.store.port import ObjectStore, StoreDenied, StoreError

LOG_SECONDS, FIRST_LOG_SECONDS = 3.0, 0.5  # a user who waits for the job to begin waits for its first line
PIECES_MAX = 64  # in one push: a job that prints faster than the link must not keep a commit waiting
STREAMS = (log_pieces.TIMES, "out", "err")  # a reader needs these rows to put the output in order, so they go first
DENIED_PUSHES = 256  # without the right to remove pieces merging only adds some: it is tried again after so many
LATE_SECONDS, LOOK_SECONDS = 60.0, 0.02  # the last lines of a job may be on their way to its machine's disk


class Logs:
    """Uploads output piece by piece. Safe to use from several threads: one uploads at a time."""

    def __init__(
        self,
        store: ObjectStore,
        read: Callable[[str, int, int], bytes],
        job: str,
        attempt: int,
        full_bytes: int = log_pieces.FULL_BYTES,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`read` gets a stream, an absolute offset and a limit."""
        self._store, self._read, self._job, self._attempt = store, read, job, attempt
        self._full, self._wait = full_bytes, wait
        self._lock = threading.Lock()
        # bytes of each stream in the store, from the job's beginning; None = to be found out, or nothing may be uploaded yet
        self._positions: dict[str, int] | None = None
        self._begun_at: dict[str, int] | None = None
        self._tails: dict[str, list[Piece]] = {s: [] for s in STREAMS}  # ours in the store, one behind the other
        self._needless: dict[str, list[Piece]] = {s: [] for s in STREAMS}  # may be there, but others hold their bytes
        self._denied = 0  # pushes until we merge again

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
            listed = self._store.list(object_keys.attempt_log_prefix(self._job, self._attempt))
            parsed = [found for x in listed if (found := log_pieces.parse_piece(x)) is not None]
            positions = {s: self._begun_at.get(s, 0) for s in STREAMS}
            for stream in STREAMS:
                pieces = [piece for _, name, piece in parsed if name == stream]
                chain = log_pieces.cover(pieces)
                self._tails[stream] = [Piece(s.start, s.end, s.key) for s in chain]
                self._needless[stream] = [p for p in pieces if p.key not in {s.key for s in chain}]
                positions[stream] = max((s.end for s in chain), default=positions[stream])
            self._positions = positions
        return self._positions

    def push(self) -> bool:
        """Upload what is there now; returns whether the job had printed anything. Raises StoreError."""
        with self._lock:
            positions = self._known()
            if positions is None:
                return False
            self._denied = max(0, self._denied - 1)
            grown = {s for s in STREAMS if self._drain(positions, s, None)}
            return bool(grown - {log_pieces.TIMES})

    def flush(self, until: Mapping[str, int]) -> None:
        """Upload everything up to these positions. Raises StoreError, also if the output stays shorter than promised."""
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
        name = stream if stream == log_pieces.TIMES else f"std{stream}"
        raise StoreError(f"only {positions.get(stream, 0)} of {end} bytes of {name} are there")

    def _drain(self, positions: dict[str, int], stream: str, end: int | None) -> bool:
        """Upload what is new; up to `end`, for a job that stands still meanwhile, without merging anything."""
        pieces, merges = 0, end is None and not self._denied
        while pieces < PIECES_MAX if end is None else positions.get(stream, 0) < end:
            at = positions.get(stream, 0)
            data = self._read(stream, at, self._full)
            if not data:
                break
            before = self._before(stream, at, len(data)) if merges else b""
            self._upload(stream, at - len(before), before + data)
            positions[stream] = at + len(data)
            pieces += 1
        if merges:
            self._remove(stream)
        return pieces > 0

    def _before(self, stream: str, at: int, size: int) -> bytes:
        """The content of the small pieces at the end, which goes up once more together with what is new."""
        start = log_pieces.merges_from(self._tails[stream], at, at + size, self._full)
        data = b""
        while len(data) < at - start:
            more = self._read(stream, start + len(data), at - start - len(data))
            if not more:
                return b""  # this machine's disk does not have it
            data += more
        return data

    def _upload(self, stream: str, start: int, data: bytes) -> None:
        tail, end = self._tails[stream], start + len(data)
        piece = Piece(start, end, object_keys.log_key(self._job, self._attempt, stream, start, end))
        needless = self._needless[stream]
        needless.append(piece)  # until we hear that it is there
        self._store.put(piece.key, data)
        self._needless[stream] = [p for p in needless if p.key != piece.key]
        while tail and tail[-1].start >= start:
            self._needless[stream].append(tail.pop())
        tail.append(piece)

    def _remove(self, stream: str) -> None:
        """Remove pieces that one other holds whole. So no bytes get lost, not even by a late request of an agent before us."""
        tail, needless = self._tails[stream], self._needless[stream]
        doomed = [p for p in needless if any(q.start <= p.start and p.end <= q.end and q.key != p.key for q in tail)]
        self._needless[stream] = doomed
        try:
            self._store.delete([p.key for p in doomed])
            self._needless[stream] = []
        except StoreDenied:
            self._needless[stream], self._denied = [], DENIED_PUSHES
        except StoreError:
            return  # the output is there, these are tried again
