"""Plain bytes to chunks in the store: hashed, left out where known, compressed, packed where small, many puts in flight.

Memory: what was handed in counts until the store has it (or until a smaller form of it was made); `add` waits while too much is
on its way. Nothing is durable before `close` returned; then all of it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from spotsurfer_agent import objectkeys
from spotsurfer_agent.buffers import Buffer
from spotsurfer_agent.chunks import codec
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.limits import Limits
from spotsurfer_agent.chunks.pace import Pace
from spotsurfer_agent.chunks.packer import PACKED_BELOW_BYTES, Pack
from spotsurfer_agent.chunks.room import Room
from spotsurfer_agent.chunks.table import Table
from spotsurfer_agent.manifest import Stored
from spotsurfer_agent.storeport import ObjectStore


class Cancelled(Exception):
    """The writer was given up before this was written."""


def nothing() -> None:
    """Nobody needs to know."""


@dataclass(slots=True, eq=False)
class _Piece:
    """One call of `add` on its way. `held`: bytes of the room that it takes now."""

    data: Buffer | None
    size: int
    done: Callable[[], None]
    held: int
    future: Future[Stored] = field(default_factory=Future)
    name: str = ""


class Writer:
    """Sends chunks of one job. `known` are chunks that the store holds for certain, by digest.

    `condemned`: names of chunks and packs that are about to be removed from it. What they hold is sent under another name, in a
    pack of its own making: the object that is there still would not be there for long.
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
        self._cpu = ThreadPoolExecutor(limits.threads, thread_name_prefix="chunks")
        self._puts = ThreadPoolExecutor(limits.puts, thread_name_prefix="puts")
        self._lock = threading.Lock()
        self._underway: dict[str, Future[Stored]] = {}  # by digest: written, or being written, by us
        self._pieces: set[_Piece] = set()
        self._pack = Pack[_Piece]()
        self._preparing, self._flushing = 0, False
        self._failure: BaseException | None = None
        self._table = Table()
        self.new_bytes = 0  # of stored forms that the store did not have
        self.sent_bytes = 0  # of all that was sent

    @property
    def table(self) -> Table:
        """The chunks that the manifest will list."""
        return self._table

    def index_of(self, chunk: Stored) -> int:
        """The number by which extents refer to this chunk; it joins the table where it is not in it."""
        return self._table.index_of(chunk)

    def add(self, data: Buffer, done: Callable[[], None] = nothing) -> Future[Stored]:
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
        self._cpu.submit(self._prepared, piece)
        return piece.future

    def flush(self) -> None:
        """Send the pack that is being filled as soon as what was handed in so far is in it, so that all futures come true."""
        self._seal(lambda: self._preparing == 0, flushing=True)

    def close(self) -> None:
        """Wait until all is in the store, durably. Raises the first failure: StoreError."""
        self._cpu.shutdown(wait=True)
        self._seal(lambda: True)
        self._puts.shutdown(wait=True)
        if self._failure is None:
            self._store.sync()
        self._end(self._failure or Cancelled("nothing more can be added"))
        if not isinstance(self._failure, Cancelled | None):
            raise self._failure

    def cancel(self) -> None:
        """Give up what is not written yet; returns when no thread uses any buffer."""
        self._fail(Cancelled("the save was given up"))
        self._cpu.shutdown(wait=True, cancel_futures=True)
        self._puts.shutdown(wait=True, cancel_futures=True)
        self._end(self._failure or Cancelled())

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()

    # ------------------------------------------------------------ in the threads

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
            self._pack_up(piece, stored)
        else:
            self._puts.submit(self._guarded, lambda p: self._put(p, stored), piece)

    def _pack_up(self, piece: _Piece, stored: Buffer) -> None:
        with self._lock:
            self._pack.add(piece, stored)
        self._seal(lambda: self._pack.is_full)

    def _seal(self, now: Callable[[], bool], *, flushing: bool = False) -> None:
        """Send the pack that is being filled, if it is time to; otherwise note that somebody waits for it."""
        with self._lock:
            self._flushing = self._flushing or flushing
            if not self._pack.members or not now():
                return
            pack, self._pack = self._pack, Pack()
            self._flushing = self._flushing and self._preparing > 0  # a pack that was merely full is not the last one
        self._puts.submit(self._put_pack, pack)

    def _put(self, piece: _Piece, stored: Buffer) -> None:
        self._send(objectkeys.chunk_key(self._job, piece.name), stored)
        self._finish(piece, Stored(piece.name, piece.size))

    def _put_pack(self, pack: Pack[_Piece]) -> None:
        result: BaseException | None = None
        try:
            if self._failure is not None:
                raise self._failure
            data = pack.data()
            while (name := codec.digest(data, self.keys)) in self._condemned:
                data += b"\0"  # members are found by where they are: more behind them changes the name alone
            self._send(objectkeys.pack_key(self._job, name), data)
            for piece, at, length in pack.members:
                self._finish(piece, Stored(piece.name, piece.size, name, at, length))
        except BaseException as e:
            result = e
            self._fail(e)
        if result is not None:
            for piece, _, _ in pack.members:
                self._finish(piece, result)

    def _send(self, key: str, stored: Buffer) -> None:
        with self._pace.put(len(stored)):
            fresh = self._store.create_later(key, stored)
        with self._lock:
            self.sent_bytes += len(stored)
            self.new_bytes += len(stored) if fresh else 0

    # ------------------------------------------------------------ accounts

    def _release(self, piece: _Piece, still: int) -> None:
        """The handed-in buffer is free; `still` bytes of another form of it are not."""
        if piece.data is not None:
            piece.data = None
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
        """What no thread came to is over."""
        self._room.close()
        with self._lock:
            left = list(self._pieces)
            self._underway.clear()  # a future keeps its callbacks, which hold us: a cycle
        for piece in left:
            self._finish(piece, why)
