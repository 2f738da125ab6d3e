"""Downloads inputs into the cache and the job's view: many at a time, large files in parts, each checked against its pin."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spotsurfer_wire.messages import Pinned

from spotsurfer_agent.prepare.inputs import sources
from spotsurfer_agent.prepare.inputs.cache import Cache, Partial, sha256_of
from spotsurfer_agent.prepare.inputs.sources import InputTrouble, Kind, Seen, Sources
from spotsurfer_agent.store.cache import free_bytes
from spotsurfer_agent.store.layers import Retry

THREADS = 16  # requests at once: a single one spends most time waiting for answers
PART_BYTES = 32 << 20  # of a large file, asked for at once
PATIENCE_SECONDS = 60.0  # a server may be silent for so long, repeatedly, as long as bytes come in between


@dataclass(frozen=True, slots=True)
class Want:
    """One file to fetch. `pinned` is the file at the job's first start; None = this is the first."""

    seen: Seen
    pinned: Pinned | None = None

    @property
    def name(self) -> str:
        """A name for this content before the fetch; a new one each time if nothing identifies the content."""
        told = self.digest or (self.seen.version and f"{self.seen.source}\0{self.seen.size}\0{self.seen.version}")
        return hashlib.sha256((told or os.urandom(16).hex()).encode()).hexdigest()

    @property
    def digest(self) -> str:
        """The required SHA-256; "" = not known yet."""
        return self.pinned.sha256 if self.pinned is not None else self.seen.fetch.sha256.lower()


@dataclass
class Fetching:
    """One fetch of many files. `halt` raises when it is not wanted any more; `moved` gets the number of received bytes."""

    cache: Cache
    sources: Sources
    view: Path
    patience: Retry
    halt: Callable[[], None]
    moved: Callable[[int], None]
    threads: int
    _ranges: dict[str, bool] = field(default_factory=dict, init=False)  # by source: whether it supports parts
    _over: threading.Event = field(default_factory=threading.Event, init=False)

    def all(self, wants: Sequence[Want]) -> list[Pinned]:
        """Put every file into its place in the view. Raises InputTrouble, Unreachable, and what `halt` raises."""
        missing = sum(w.seen.size for w in wants if not self._is_here(w))
        try:
            self.cache.make_room(missing)
            return self._together(wants)
        except OSError as e:
            raise sources.trouble_of_disk(e, missing, free_bytes(self.view)) from e

    def _is_here(self, w: Want) -> bool:
        digest = w.digest or self.cache.known(w.name)
        return bool(digest) and self.cache.held(digest)

    def _together(self, wants: Sequence[Want]) -> list[Pinned]:
        with ThreadPoolExecutor(self.threads, "inputs") as pool, ThreadPoolExecutor(self.threads, "parts") as parts:
            # First the files that no other process here fetches just now; the others are probably here afterwards.
            found = self._each(pool, parts, wants, wait=False)
            left = [at for at, done in enumerate(found) if done is None]
            for at, done in zip(left, self._each(pool, parts, [wants[at] for at in left], wait=True), strict=True):
                found[at] = done
            return [done for done in found if done is not None]  # who waits for the right to fetch gets it

    def _each(
        self, pool: ThreadPoolExecutor, parts: ThreadPoolExecutor, wants: Sequence[Want], *, wait: bool
    ) -> list[Pinned | None]:
        futures = [pool.submit(self._one, w, parts, wait=wait) for w in wants]
        done, _ = wait_for(futures, return_when=FIRST_EXCEPTION)
        if any(f.exception() is not None for f in done):
            self._over.set()
            for f in futures:
                f.cancel()
            raise _first(futures)
        return [f.result() for f in futures]

    def _look(self) -> None:
        if self._over.is_set():
            raise _GivenUp
        self.halt()

    def _one(self, w: Want, parts: ThreadPoolExecutor, *, wait: bool) -> Pinned | None:
        """The file in the view; None if another process fetches it just now."""
        self._look()
        if (found := self._linked(w)) is not None:
            return found
        partial = self.cache.begin(w.name, wait=wait)
        if partial is None:
            return None
        try:
            if (found := self._linked(w)) is not None:  # the process that held it before us has finished
                return found
            digest = self._fetched(w, partial, parts)
            self._verify(w, digest)
            self.cache.keep(partial, digest)
            self.cache.learn(w.name, digest)  # before the lock is released: the next holder checks this
        finally:
            partial.release()
        if not self.cache.link(digest, self.view / w.seen.path):
            raise InputTrouble(Kind.DISK, why="a file vanished from the cache just after it was fetched")
        return _pin(w, digest)

    def _linked(self, w: Want) -> Pinned | None:
        digest = w.digest or self.cache.known(w.name)
        return _pin(w, digest) if digest and self.cache.link(digest, self.view / w.seen.path) else None

    def _fetched(self, w: Want, partial: Partial, parts: ThreadPoolExecutor) -> str:
        size = w.seen.size
        if size <= PART_BYTES or not self._given_in_parts(w.seen):
            return self.patience.ask(lambda: self._streamed(w, partial))
        os.posix_fallocate(partial.fd, 0, size)
        spans = [(at, min(PART_BYTES, size - at)) for at in range(0, size, PART_BYTES)]
        jobs = [parts.submit(self._part, w.seen, partial, span) for span in spans]
        wait_for(jobs, return_when=FIRST_EXCEPTION)
        for job in jobs:
            job.cancel()
        wait_for(jobs)
        if any(not j.cancelled() and j.exception() is not None for j in jobs):
            raise _first(jobs)
        return sha256_of(partial.path, self._look)

    def _given_in_parts(self, seen: Seen) -> bool:
        if seen.source not in self._ranges:
            self._ranges[seen.source] = self.patience.ask(lambda: self.sources.has_ranges(seen))
        return self._ranges[seen.source]

    def _streamed(self, w: Want, partial: Partial) -> str:
        """Fetch from beginning to end, and compute the digest on the way."""
        digest, at = hashlib.sha256(), 0
        os.ftruncate(partial.fd, 0)
        if w.seen.size:
            for piece in self.sources.read(w.seen, 0, w.seen.size):
                self._look()
                digest.update(piece)
                at += os.pwrite(partial.fd, piece, at)
                self.moved(len(piece))
        if at != w.seen.size:
            raise InputTrouble(Kind.SHORT, source=w.seen.source, old=w.seen.size, new=at)
        return digest.hexdigest()

    def _part(self, seen: Seen, partial: Partial, span: tuple[int, int]) -> None:
        """Fetch a part. Received bytes stay: after a break the fetch goes on behind them, and the patience begins anew."""
        at, end = span[0], sum(span)
        while at < end:
            self._look()
            at = self.patience.ask(lambda: self._some(seen, partial, at, end))  # noqa: B023 -- called at once

    def _some(self, seen: Seen, partial: Partial, start: int, end: int) -> int:
        """Fetch as much as comes; returns the position of the break. Raises if nothing came."""
        at = start
        try:
            for piece in self.sources.read(seen, start, end - start):
                self._look()
                at += os.pwrite(partial.fd, piece, at)
                self.moved(len(piece))
        except sources.Unreachable:
            if at == start:
                raise
        if at == start:
            raise InputTrouble(Kind.SHORT, source=seen.source, old=seen.size, new=at)
        return at

    def _verify(self, w: Want, digest: str) -> None:
        if w.pinned is not None and digest != w.pinned.sha256:
            raise changed(w.pinned, replace(w.pinned, size=w.seen.size, version=w.seen.version, sha256=digest))
        if w.seen.fetch.sha256 and digest != w.seen.fetch.sha256.lower():
            raise InputTrouble(Kind.CHECKSUM, source=w.seen.source, old=w.seen.fetch.sha256.lower(), new=digest)


class _GivenUp(Exception):
    """Another file failed: this one is not wanted any more."""


def changed(then: Pinned, now: Pinned) -> InputTrouble:
    """An input differs from the one that the job started with; names the first difference of size, version, digest."""
    for what, old, new in (("its size", then.size, now.size), ("its sha256", then.sha256, now.sha256)):
        if old != new:
            if then.version != now.version:
                what, old, new = f"{what} (version)", f"{old} ({then.version})", f"{new} ({now.version})"
            return InputTrouble(Kind.CHANGED, source=then.source, what=what, old=old, new=new)
    return InputTrouble(Kind.CHANGED, source=then.source, what="its version", old=then.version, new=now.version)


def _first(futures: Sequence[Future[Any]]) -> BaseException:
    """The real failure, not those of files that were given up because of it."""
    wait_for(futures)
    errors = [e for f in futures if not f.cancelled() and (e := f.exception()) is not None]
    return next((e for e in errors if not isinstance(e, _GivenUp)), errors[0])


def _pin(w: Want, digest: str) -> Pinned:
    if w.pinned is not None:
        return w.pinned
    return Pinned(w.seen.path, w.seen.source, w.seen.size, w.seen.version, digest)
