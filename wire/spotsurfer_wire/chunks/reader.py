"""Reads chunks: fetched once, always verified, cached up to a bound, fetched ahead in a known order."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from spotsurfer_wire import object_keys
from spotsurfer_wire.chunks import codec
from spotsurfer_wire.chunks.budget import USUAL, Limits, Room
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.manifest import Extents, Stored
from spotsurfer_wire.store.port import ObjectStore, StoreError

# ---- A bounded cache: the least recently used bytes go first, and callers who want the same thing share one fetch

B = TypeVar("B", bound=Buffer)


class SharedCache(Generic[B]):
    """Safe to use from several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._used = limit_bytes, 0
        self._kept: OrderedDict[str, B] = OrderedDict()
        self._fetching: dict[str, Future[B]] = {}
        self._lock = threading.Lock()

    def get(self, name: str, fetch: Callable[[], B], keep: bool = True) -> B:
        """The cached bytes, else the result of `fetch`. A failure goes to all callers that waited for it and is not cached."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
            mine = Future[B]()
            shared = self._fetching.setdefault(name, mine)
        if shared is not mine:
            return shared.result()
        try:
            data = fetch()
        except BaseException as e:
            with self._lock:
                del self._fetching[name]
            mine.set_exception(e)
            raise
        with self._lock:
            del self._fetching[name]
            if keep:
                self._keep(name, data)
        mine.set_result(data)
        return data

    def has(self, name: str) -> bool:
        """Whether `get` would not wait for the store."""
        return name in self._kept

    def _keep(self, name: str, data: B) -> None:
        self._kept[name] = data
        self._used += len(data)
        while self._used > self._limit and self._kept:
            self._used -= len(self._kept.popitem(last=False)[1])


class BadChunk(Exception):
    """A chunk is missing, damaged or described in a way that can't be; the sentence names it."""


class Reader:
    """Reads chunks of one job. Safe to use from several threads; a context manager that ends fetching ahead."""

    def __init__(self, store: ObjectStore, job: str, keys: Keys, limits: Limits = USUAL) -> None:
        self._store, self._job, self._keys, self._limits = store, job, keys, limits
        self._plain = SharedCache[bytes](limits.kept_bytes)
        self._packs = SharedCache[bytes](limits.kept_bytes // 4)
        self._touched: set[str] = set()  # packs of which a part was read
        self._room = Room(limits.kept_bytes)
        self._asked: set[str] = set()  # digests: nobody needs these ahead any more
        self._waiting: dict[str, tuple[int, Future[bytes]]] = {}  # fetched ahead, not asked for yet, with bytes of the room
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def plain(self, chunk: Stored, keep: bool = True) -> bytes:
        """The verified bytes; callers must not change them. `keep`: somebody may want them again soon.

        Raises BadChunk (missing or damaged, the sentence says which) and StoreError.
        """
        return self._plain.get(chunk.digest, lambda: self._taken(chunk) or self._fetched(chunk), keep)

    def ahead(self, chunks: Iterable[Stored]) -> None:
        """Fetch these in the background, in this order, as far ahead of the caller as memory allows.

        A fetch that fails is repeated, and its failure raised, when the chunk is asked for.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._limits.puts, thread_name_prefix="ahead")
        threading.Thread(target=self._run_ahead, args=(list(chunks), self._threads), name="ahead", daemon=True).start()

    def write(self, table: Sequence[Stored], extents: Extents, fd: int) -> None:
        """All of a file's extents into their places. Raises BadChunk, StoreError and OSError."""
        data = b""
        last = -1
        for e in sorted(extents, key=lambda x: x.chunk):
            if e.chunk != last:
                data, last = self.plain(table[e.chunk], keep=False), e.chunk
            put(fd, memoryview(data)[e.skip : e.skip + e.length], e.offset)

    def close(self) -> None:
        """No more is fetched ahead."""
        self._room.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fetched(self, chunk: Stored) -> bytes:
        stored = self._stored(chunk)
        if stored is None:
            raise BadChunk(f"chunk {chunk.digest} is missing in the store")
        try:
            return codec.decode(stored, chunk, self._keys)
        except codec.Damaged as e:
            raise BadChunk(f"chunk {chunk.digest} is damaged: {e}") from e

    def _stored(self, chunk: Stored) -> Buffer | None:
        if not chunk.pack:
            return self._store.get(object_keys.chunk_key(self._job, chunk.digest))
        key = object_keys.pack_key(self._job, chunk.pack)
        with self._lock:
            alone = chunk.pack not in self._touched
            self._touched.add(chunk.pack)
        if alone:  # maybe the only chunk that is wanted of its pack; for a second one the whole pack is fetched
            with contextlib.suppress(StoreError):  # also the answer of some stores if the pack ends before
                return self._store.get_range(key, chunk.at, chunk.length)
        try:
            return memoryview(self._packs.get(chunk.pack, lambda: self._pack(key)))[chunk.at : chunk.at + chunk.length]
        except FileNotFoundError:
            return None

    def _pack(self, key: str) -> bytes:
        data = self._store.get(key)
        if data is None:
            raise FileNotFoundError(key)
        return data

    def _run_ahead(self, chunks: list[Stored], threads: ThreadPoolExecutor) -> None:
        for chunk in chunks:
            if not self._is_wanted(chunk):
                continue
            if not self._room.take(chunk.size):
                return
            with self._lock, contextlib.suppress(RuntimeError):  # closed meanwhile
                if self._is_wanted(chunk):
                    self._waiting[chunk.digest] = (chunk.size, threads.submit(self._fetched, chunk))
                    continue
            self._room.give(chunk.size)

    def _is_wanted(self, chunk: Stored) -> bool:
        return chunk.digest not in self._waiting and chunk.digest not in self._asked and not self._plain.has(chunk.digest)

    def _taken(self, chunk: Stored) -> bytes | None:
        """The bytes that were fetched ahead, which gives their room back; None if they were not, or if that failed."""
        with self._lock:
            self._asked.add(chunk.digest)
            size, future = self._waiting.pop(chunk.digest, (0, None))
        if future is None:
            return None
        self._room.give(size)
        try:
            return future.result()
        except (BadChunk, StoreError, CancelledError):
            return None


def put(fd: int, data: memoryview, at: int) -> None:
    """All of it into the file at this place. Raises OSError."""
    while data:
        n = os.pwrite(fd, data, at)
        data, at = data[n:], at + n
