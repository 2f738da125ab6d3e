"""While a machine waits for its job it fetches the newest checkpoint, and follows each new one.

So when the job comes, its memory and files are on the disk already, and only what the final save found new is still in the
store. Nothing depends on it: what was not fetched in time is fetched by the restore.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spotsurfer_agent import manifest, objectkeys
from spotsurfer_agent.cachestore import Cache, CachedStore
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.engines.port import EngineError
from spotsurfer_agent.manifest import Manifest, Stored
from spotsurfer_agent.protocol import Head, Warm
from spotsurfer_agent.storeport import StoreError

log = logging.getLogger(__name__)

THREADS = 8  # fetches at once: one at a time waits more for answers than for bytes
COLD = Warm(None, 0, 0)


@dataclass
class Standby:
    """Fetches for one job. `look` is one go and may take long: it belongs into a thread of its own."""

    store: CachedStore
    job: str
    keys: Keys
    newest: Callable[[], Head | None]
    threads: int = THREADS
    prepare: Callable[[], None] = field(default=lambda: None)  # has what the job needs besides its checkpoint; may take long
    warm: Warm = field(default=COLD, init=False)  # as far as it is now
    _active: bool = field(default=False, init=False)
    _used: bool = field(default=False, init=False)  # something may lie in the cache
    _done: str | None = field(default=None, init=False)  # the checkpoint that there is nothing left to do for

    @property
    def _cache(self) -> Cache:
        return self.store.cache

    def resume(self) -> None:
        """The machine waits: looks do something."""
        self._active = self._used = True

    def stop(self) -> None:
        """The job comes, or never will: what is being fetched is the last."""
        self._active = False

    def clear(self) -> None:
        """The job has all it needs: give the disk back."""
        if self._used:
            self._active, self._used, self.warm, self._done = False, False, COLD, None
            self._cache.clear()

    def look(self) -> None:
        """Fetch what the newest checkpoint needs and is not here. Failures of the store end the look; the next goes on."""
        target = self._target()
        if not self._active or target is None or target == self._done:
            return
        try:
            self.prepare()
            self._fetch(target)
        except (StoreError, ProtocolError, EngineError) as e:
            log.warning("checkpoint %s can't be fetched ahead: %s", target, e)

    def _target(self) -> str | None:
        head = self.newest()
        return None if head is None or head.done is not None else head.checkpoint

    def _fetch(self, target: str) -> None:
        key = objectkeys.manifest_key(self.job, target)
        data = self.store.get(key)
        if data is None:
            raise StoreError(f"{key} is missing")
        image = manifest.decode(data, self.keys, self.job, target)
        needed = objects(image, self.job)
        self._cache.spared_bytes = sum(e.extents.bytes for e in image.scratch)  # they come beside it
        self._make_room(needed, key)
        self._cache.put(key, data)
        missing = [k for k in needed if not self._cache.has(k)]
        whole = sum(needed.values())
        self.warm = Warm(None, whole - sum(needed[k] for k in missing), whole)
        if self._fetch_all(target, missing, needed):
            self._done = target
            self.warm = Warm(target, self.warm.held_bytes, whole)

    def _make_room(self, needed: dict[str, int], key: str) -> None:
        """What older checkpoints alone needed goes when it is in the way."""
        missing = sum(size for k, size in needed.items() if not self._cache.has(k))
        if self._cache.held_bytes + missing > self._cache.bytes_max:
            self._cache.keep_only({key, *needed})

    def _fetch_all(self, target: str, missing: Sequence[str], needed: dict[str, int]) -> bool:
        """Whether there is nothing left to do: all is here, or as much as there is room for."""
        pool = ThreadPoolExecutor(self.threads, "warm")
        try:
            for key, going_on in zip(missing, pool.map(lambda k: self._fetch_one(target, k), missing), strict=True):
                if not going_on:
                    break
                self.warm = Warm(None, self.warm.held_bytes + needed[key], self.warm.needed_bytes)
        finally:
            pool.shutdown(cancel_futures=True)
        return self._active and self._target() == target

    def _fetch_one(self, target: str, key: str) -> bool:
        """Whether fetching goes on."""
        if not self._active or self._target() != target:
            return False
        data = self.store.behind.get(key)
        if data is None:
            raise StoreError(f"{key} is missing")
        return self._cache.put(key, data)


def objects(image: Manifest, job: str) -> dict[str, int]:
    """Keys of what a checkpoint consists of, in the order of its manifest, with the plain bytes that it needs of each."""
    found: dict[str, int] = {}
    for chunk in image.chunks:
        key = _key(chunk, job)
        found[key] = found.get(key, 0) + chunk.size
    return found


def _key(chunk: Stored, job: str) -> str:
    return objectkeys.pack_key(job, chunk.pack) if chunk.pack else objectkeys.chunk_key(job, chunk.digest)
