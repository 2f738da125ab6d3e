"""Chunks to the store: hashed, deduplicated, compressed as the link allows, small ones packed, many puts in flight.

Memory: the bytes that were handed in count until the store has them, or until a smaller form of them is made. `add` waits
while too much is on its way. Nothing is durable before `close` returns; then everything is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

from spotsurfer_wire import object_keys
from spotsurfer_wire.chunks import codec
from spotsurfer_wire.chunks.budget import Limits, Room
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.manifest import Extents, Stored
from spotsurfer_wire.store.port import ObjectStore

# ---- Pace: how fast the store takes bytes, and so how much compression is worth it

ZSTD_BYTES_PER_SECOND = 250e6  # of one thread on data that hardly shrinks: a slower link is the bottleneck
SETTLED_SECONDS = 0.5  # of busy time before the measurement is believed


class Pace:
    """Measures while at least one put is in flight; with other settings than "auto" it only repeats the setting."""

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._now = limits, now
        self._lock = threading.Lock()
        self._flying, self._since = 0, 0.0
        self._busy_seconds, self._bytes = 0.0, 0

    @contextlib.contextmanager
    def put(self, size: int) -> Iterator[None]:
        """Context of one put of so many bytes; of a failed put only the time counts."""
        with self._lock:
            self._flying += 1
            if self._flying == 1:
                self._since = self._now()
        sent = 0
        try:
            yield
            sent = size
        finally:
            with self._lock:
                self._flying -= 1
                self._bytes += sent
                if self._flying == 0:
                    self._busy_seconds += self._now() - self._since

    @property
    def bytes_per_second(self) -> float | None:
        """The measured speed of the store; None while the measurement is too short."""
        with self._lock:
            busy = self._busy_seconds + (self._now() - self._since if self._flying else 0.0)
            return self._bytes / busy if busy >= SETTLED_SECONDS else None

    def how(self) -> str:
        """The compression to use for the next chunk."""
        if self._limits.compression != "auto":
            return self._limits.compression
        rate, full = self.bytes_per_second, self._flying >= self._limits.puts
        slow = rate is not None and full and rate < ZSTD_BYTES_PER_SECOND * self._limits.threads
        return "zstd" if slow else "lz4"


# ---- Packs: small chunks share one object, because a store needs as long for a kilobyte as for a megabyte

PACKED_BELOW_BYTES = 256 << 10  # of the stored form
PACK_BYTES = 4 << 20


class _Pack:
    """An object that is being filled."""

    def __init__(self) -> None:
        self.members: list[tuple[_Piece, int, int]] = []  # member, start, length
        self._parts: list[Buffer] = []
        self._bytes = 0

    def add(self, member: _Piece, stored: Buffer) -> None:
        """Put one more stored form in."""
        self.members.append((member, self._bytes, len(stored)))
        self._parts.append(stored)
        self._bytes += len(stored)

    @property
    def is_full(self) -> bool:
        """Whether it is time for the next one."""
        return self._bytes >= PACK_BYTES - PACKED_BELOW_BYTES

    def data(self) -> bytes:
        """The object."""
        return b"".join(self._parts)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file, independent of any table: extents, and the chunks that their numbers mean."""

    extents: Extents
    chunks: list[Stored]

    @classmethod
    def of(cls, extents: Extents, table: list[Stored]) -> Content:
        """The part of a table that these extents need."""
        used = extents.chunks()
        return cls(extents.moved({chunk: i for i, chunk in enumerate(used)}), [table[chunk] for chunk in used])


class Table:
    """Chunks in the order in which they were first named. Safe to use from several threads."""

    def __init__(self) -> None:
        self.rows: list[Stored] = []
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()

    def index_of(self, chunk: Stored) -> int:
        """The number by which extents refer to this chunk; a missing chunk is added to the table."""
        with self._lock:
            place = self._places.setdefault(chunk.digest, len(self.rows))
            if place == len(self.rows):
                self.rows.append(chunk)
            return place

    def extents_of(self, content: Content) -> Extents:
        """The extents of a content, with the numbers of this table."""
        return content.extents.moved([self.index_of(c) for c in content.chunks])


class Cancelled(Exception):
    """The writer was given up before this was written."""


class _Threads:
    """Threads that work off a queue, and end with it.

    `ThreadPoolExecutor.submit` takes a lock that all executors of a process share, and keeps it while it makes a future. At a
    thousand chunks a second the threads of a save spent three quarters of their time in the queue for that lock.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue = SimpleQueue[Callable[[], None] | None]()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def submit(self, work: Callable[[], None]) -> None:
        """Do it soon, in one of the threads. It must not raise."""
        self._queue.put(work)
        if len(self._threads) < self._count:
            with self._starting:
                number = len(self._threads)
                if number < self._count:
                    self._threads.append(threading.Thread(target=self._work, name=f"{self._name}_{number}", daemon=True))
                    self._threads[-1].start()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    def end(self, *, early: bool = False) -> None:
        """Return when no thread is left. `early`: what has not begun is not done any more."""
        with contextlib.suppress(Empty):
            while early:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads, self._count = [], 0


@dataclass(slots=True, eq=False)
class _Piece:
    """One call of `add` on its way. `held`: bytes of the room that it takes now."""

    data: Buffer | None
    size: int
    done: Callable[[], None] | None
    held: int
    future: Future[Stored] = field(default_factory=Future)
    name: str = ""


class Writer:
    """Sends chunks of one job. `known` are chunks that the store holds for certain, by digest.

    `condemned`: names of chunks and packs that are about to be removed from the store. Their bytes are sent again under another
    name, in a new pack, because the old object will not last.
    """

    def __init__(
        self,
        store: ObjectStore,
        job: str,
        keys: Keys,
        limits: Limits,
        known: Mapping[str, Stored],
        condemned: frozenset[str] = frozenset(),
    ) -> None:
        self._store, self._job, self.keys, self._known, self._condemned = store, job, keys, known, condemned
        self._room, self._pace = Room(limits.room_bytes), Pace(limits)
        self._cpu = _Threads(limits.threads, "chunks")
        self._puts = _Threads(limits.puts, "puts")
        self._lock = threading.Lock()
        self._underway: dict[str, Future[Stored]] = {}  # by digest: written, or being written, by us
        self._pieces: set[_Piece] = set()
        self._pack = _Pack()
        self._preparing, self._flushing = 0, False
        self._failure: BaseException | None = None
        self.table = Table()  # the chunks that the manifest will list
        self.new_bytes = 0  # of stored forms that the store did not have
        self.sent_bytes = 0  # of all that was sent

    def index_of(self, chunk: Stored) -> int:
        """The number by which extents refer to this chunk; a missing chunk is added to the table."""
        return self.table.index_of(chunk)

    def add(self, data: Buffer, done: Callable[[], None] | None = None) -> Future[Stored]:
        """Hand in one chunk's plain bytes; waits while too much is on its way.

        `done` is called, in any thread, once `data` is not needed any more. The result of a small chunk may come only with
        `flush` or `close`.
        Raises the first failure of anything handed in before: StoreError.
        """
        size = len(data)
        if not self._room.take(size):
            raise self._failure or Cancelled("nothing more can be added")
        piece = _Piece(data, size, done, size)
        with self._lock:
            self._pieces.add(piece)
            self._preparing += 1
        self._cpu.submit(partial(self._prepared, piece))
        return piece.future

    def flush(self) -> None:
        """Send the open pack as soon as it holds everything that was handed in so far, so that all futures resolve."""
        self._seal(lambda: self._preparing == 0, flushing=True)

    def close(self) -> None:
        """Wait until everything is durable in the store. Raises the first failure: StoreError."""
        self._cpu.end()
        self._seal(lambda: True)
        self._puts.end()
        if self._failure is None:
            self._store.sync()
        self._end(self._failure or Cancelled("nothing more can be added"))
        if not isinstance(self._failure, Cancelled | None):
            raise self._failure

    def cancel(self) -> None:
        """Give up what is not written yet; returns when no thread uses any buffer."""
        self._fail(Cancelled("the save was given up"))
        self._cpu.end(early=True)
        self._puts.end(early=True)
        self._end(self._failure or Cancelled())

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()

    def _guarded(self, work: Callable[[_Piece], None], piece: _Piece) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            work(piece)
        except BaseException as e:
            self._fail(e)
            self._finish(piece, e)

    def _prepared(self, piece: _Piece) -> None:
        self._guarded(self._prepare, piece)
        with self._lock:
            self._preparing -= 1
        self._seal(lambda: self._flushing and self._preparing == 0)

    def _prepare(self, piece: _Piece) -> None:
        data = piece.data
        assert data is not None
        piece.name = name = codec.digest(data, self.keys)
        if (known := self._known.get(name)) is not None:
            self._finish(piece, known)
            return
        with self._lock:
            same = self._underway.setdefault(name, piece.future)
        if same is not piece.future:
            self._release(piece, 0)
            same.add_done_callback(lambda f: self._finish(piece, f.exception() or f.result()))
            return
        stored = codec.encode(data, name, self.keys, self._pace.how())
        packed = len(stored) < PACKED_BELOW_BYTES or name in self._condemned
        if packed:
            stored = bytes(stored)
        if stored is not data:
            self._release(piece, len(stored))
        if packed:
            with self._lock:
                self._pack.add(piece, stored)
            self._seal(lambda: self._pack.is_full)
        else:
            self._puts.submit(partial(self._guarded, partial(self._put, stored), piece))

    def _seal(self, now: Callable[[], bool], *, flushing: bool = False) -> None:
        """Send the open pack if it is time; otherwise note that somebody waits for it."""
        with self._lock:
            self._flushing = self._flushing or flushing
            if not self._pack.members or not now():
                return
            pack, self._pack = self._pack, _Pack()
            self._flushing = self._flushing and self._preparing > 0  # a pack that was merely full is not the last one
        self._puts.submit(partial(self._put_pack, pack))

    def _put(self, stored: Buffer, piece: _Piece) -> None:
        self._send(object_keys.chunk_key(self._job, piece.name), stored)
        self._finish(piece, Stored(piece.name, piece.size))

    def _put_pack(self, pack: _Pack) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            data = pack.data()
            while (name := codec.digest(data, self.keys)) in self._condemned:
                data += b"\0"  # members are found by position: a byte behind them changes only the name
            self._send(object_keys.pack_key(self._job, name), data)
            for piece, at, length in pack.members:
                self._finish(piece, Stored(piece.name, piece.size, name, at, length))
        except BaseException as e:
            self._fail(e)
            for piece, _, _ in pack.members:
                self._finish(piece, e)

    def _send(self, key: str, stored: Buffer) -> None:
        with self._pace.put(len(stored)):
            fresh = self._store.create_later(key, stored)
        with self._lock:
            self.sent_bytes += len(stored)
            self.new_bytes += len(stored) if fresh else 0

    def _release(self, piece: _Piece, still: int) -> None:
        """The handed-in buffer is free; `still` bytes of another form of it are not."""
        if piece.data is not None:
            piece.data = None
            if piece.done is not None:
                piece.done()
        back, piece.held = piece.held - still, still
        if back:
            self._room.give(back)

    def _finish(self, piece: _Piece, result: Stored | BaseException) -> None:
        with self._lock:
            if piece not in self._pieces:
                return
            self._pieces.remove(piece)
        self._release(piece, 0)
        if isinstance(result, Stored):
            piece.future.set_result(result)
        else:
            piece.future.set_exception(result)

    def _fail(self, e: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or e
        self._room.close()

    def _end(self, why: BaseException) -> None:
        """Cancel the work that no thread has begun."""
        self._room.close()
        with self._lock:
            left = list(self._pieces)
            self._underway.clear()  # a future keeps its callbacks, which hold us: a cycle
        for piece in left:
            self._finish(piece, why)
