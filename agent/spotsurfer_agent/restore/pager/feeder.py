"""Feeds a restore with chunks, several fetches at once: first the pages that the job waits for, then all others."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from spotsurfer_wire.linux.addresses import address
from spotsurfer_wire.linux.buffers import PAGE, Buffer
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.restore.pager.layout import Layout, Space, Use

log = logging.getLogger(__name__)

WINDOW = 16  # pages around a wanted one that are put first
BEHIND = 2  # fetches ahead that go on while the job waits
WAIT_SECONDS = 0.008  # a longer wait means a distant store, not a busy disk or processor: more fetches at once hide that
WAIT_SHARE = 0.2  # weight of the newest fetch in the average wait
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


class Taker(Protocol):
    """Puts pages where they belong, from several threads at once."""

    space: Space
    over: bool  # it needs no more pages

    def put(self, first: int, last: int, source: int) -> None:
        """Pages `first` to `last` of its file; the first lies at address `source` of ours. Raises what can't be mended."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A chunk that the job waits for, and the touched page of a file."""

    chunk: int
    file: str
    page: int


class Feeder:
    """Brings chunks to the tasks. `failed` is called, from any thread, with a failure that can't be mended."""

    def __init__(
        self,
        layout: Layout,
        fetch: Callable[[int], Buffer],
        failed: Callable[[Exception, list[Use]], None],
        *,
        patient: bool = True,
    ) -> None:
        """`patient`: a job runs, and waits for as long as the store fails; otherwise its restore fails."""
        self._layout, self._fetch, self._failed, self._patient = layout, fetch, failed, patient
        self.tasks: dict[str, list[Taker]] = {name: [] for name in layout.files}  # by file; only ever grow
        self._turn = threading.Condition()
        self._wanted: deque[Wanted] = deque()
        self._ahead: Iterator[int] = iter(())
        self._flying: set[int] = set()
        self._urgent = 0  # of the fetches in flight
        self._threads, self._threads_max, self._waiting = 0, 0, 0.0  # seconds, the average wait of a fetch
        self._open = self._ended = False
        self.trouble = ""  # why nothing comes just now
        self.quiet = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable when the feeder became idle

    def start(self, threads: int) -> None:
        """Begin to serve what is wanted; nothing is fetched ahead yet.

        One thread for each processor, because more would only take turns. If fetches wait for the store, up to `threads` start,
        but never more: they take turns at the lock of the one address space (`bench.gpu.bring`: 4.3 GB/s by 8, 3.1 by 16).
        """
        self._threads_max = threads
        for _ in range(min(threads, len(os.sched_getaffinity(0)))):
            self._add()

    @property
    def threads(self) -> int:
        """Number of started threads."""
        return self._threads

    def _add(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="feeder", daemon=True).start()

    def want(self, wanted: Wanted) -> None:
        """The job waits for this. A chunk already in flight may serve it too, which is known when it has landed."""
        with self._turn:
            self._wanted.append(wanted)
            self._turn.notify()

    def fetch_ahead(self, chunks: Iterable[int]) -> None:
        """From now on bring all of these, in this order, whenever the job does not wait."""
        with self._turn:
            self._ahead, self._open = iter(chunks), True
            self._turn.notify_all()

    @property
    def idle(self) -> bool:
        """Nothing is in flight or wanted, and all fetches ahead are done."""
        with self._turn:
            return self._is_idle()

    def _is_idle(self) -> bool:
        return not self._open and not self._flying and not self._wanted

    def _tell_idle(self) -> None:
        if self._is_idle():
            os.eventfd_write(self.quiet, 1)

    def stop(self) -> None:
        """No further fetch begins."""
        with self._turn:
            self._ended = True
            self._turn.notify_all()

    # ------------------------------------------------------------ a worker

    def _work(self) -> None:
        while (job := self._next()) is not None:
            chunk, wanted = job
            uses = self._layout.uses(chunk)
            try:
                data = self._watched(chunk)
                self._bring(uses, data, wanted)
            except Exception as e:
                if self._ended:  # all memory is there: chunks still on their way are not needed
                    return
                log.exception("chunk %d can't be brought", chunk)
                self._failed(e, uses)
                return
            finally:
                self._landed(chunk, wanted)

    def _next(self) -> tuple[int, Wanted | None] | None:
        with self._turn:
            while not self._ended:
                wanted = next((w for w in self._wanted if w.chunk not in self._flying), None)
                if wanted is not None:
                    self._wanted.remove(wanted)
                    self._flying.add(wanted.chunk)
                    self._urgent += 1
                    return wanted.chunk, wanted
                if self._open and (not self._urgent or len(self._flying) - self._urgent < BEHIND):
                    chunk = self._next_ahead()
                    if chunk is not None:
                        self._flying.add(chunk)
                        return chunk, None
                self._turn.wait()
        return None

    def _next_ahead(self) -> int | None:
        for chunk in self._ahead:
            if chunk not in self._flying and self._is_needed(chunk):
                return chunk
        self._open = False
        self._tell_idle()
        return None

    def _is_needed(self, chunk: int) -> bool:
        return any(self._is_missing(use.file, use.page, use.page + use.pages) for use in self._layout.uses(chunk))

    def _is_missing(self, file: str, first: int, last: int) -> bool:
        """Whether it is missing, by a cheap check without locks: a page that is marked too late costs one fetch."""
        tasks = [t for t in list(self.tasks[file]) if not t.over]
        return any(next(t.space.stretches(first, last), None) is not None for t in tasks)

    def _landed(self, chunk: int, wanted: Wanted | None) -> None:
        """A chunk has landed. A request that came after its file was served still wants it."""
        with self._turn:
            self._flying.discard(chunk)
            self._wanted = deque(w for w in self._wanted if w.chunk != chunk or self._is_missing(w.file, w.page, w.page + 1))
            self._urgent -= wanted is not None
            self._tell_idle()
            self._turn.notify_all()

    def _watched(self, chunk: int) -> Buffer:
        began, worked = time.monotonic(), time.thread_time()
        data = self._fetched(chunk)
        waited = time.monotonic() - began - (time.thread_time() - worked)
        with self._turn:
            self._waiting += WAIT_SHARE * (waited - self._waiting)
            if self._waiting > WAIT_SECONDS and self._threads < self._threads_max:
                self._add()
        return data

    def _fetched(self, chunk: int) -> Buffer:
        """Fetch a chunk, and wait while the store fails: the agent decides if this machine still owns the job."""
        tries = 0
        while True:
            try:
                data = self._fetch(chunk)
            except StoreError as e:
                if self._ended or not self._patient:
                    raise
                self.trouble = str(e)
                time.sleep(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
                tries += 1
            else:
                self.trouble = ""
                return data

    def _bring(self, uses: list[Use], data: Buffer, wanted: Wanted | None) -> None:
        base = address(data)
        if wanted is not None:
            for use in uses:
                if use.file == wanted.file and use.page <= wanted.page < use.page + use.pages:
                    first = max(use.page, wanted.page - wanted.page % WINDOW)
                    last = min(use.page + use.pages, wanted.page - wanted.page % WINDOW + WINDOW)
                    self._put(use, first, last, base)
        for use in uses:
            self._put(use, use.page, use.page + use.pages, base)

    def _put(self, use: Use, first: int, last: int, base: int) -> None:
        for task in self.tasks[use.file]:  # a child that is forked meanwhile is appended, and so gets its part too
            task.put(first, last, base + use.skip + (first - use.page) * PAGE)
