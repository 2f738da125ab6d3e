"""Feeds a restore with chunks: which chunk holds which page, in which order they are fetched, and several fetches at once.

First come the pages that the job waits for, then what was touched first after the last restore, then the rest by position.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from spotsurfer_wire.linux.addresses import address
from spotsurfer_wire.linux.buffers import PAGE, Buffer
from spotsurfer_wire.manifest import Extents
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.criu.images import Pagemap, PageRun
from spotsurfer_agent.store.layers import Retry

log = logging.getLogger(__name__)

# ---- Layout: which chunk holds which page of an image, and which pages consist of a chunk


class Use(NamedTuple):
    """Pages `page` to `page + pages` of a file are the bytes from `skip` on of a chunk."""

    file: str
    page: int
    pages: int
    skip: int


def is_aligned(extents: Extents) -> bool:
    """Whether each page lies wholly in one chunk, page-aligned, so that pages can be brought one by one."""
    rows = extents.table
    return not len(rows) or not (rows[:, [0, 1, 3]] % PAGE).any()


class PagesFile:
    """One file of pages; extents are aligned."""

    def __init__(self, name: str, extents: Extents) -> None:
        rows = extents.table.astype(np.int64)
        self.name = name
        self._first: npt.NDArray[np.int64] = rows[:, 0] // PAGE
        self._last: npt.NDArray[np.int64] = (rows[:, 0] + rows[:, 1]) // PAGE
        self._chunk: npt.NDArray[np.int64] = rows[:, 2]
        self._skip: npt.NDArray[np.int64] = rows[:, 3]

    def chunk_of(self, page: int) -> int | None:
        """The chunk of a page; None for zeros."""
        i = int(np.searchsorted(self._first, page, side="right")) - 1
        return int(self._chunk[i]) if i >= 0 and page < self._last[i] else None

    def chunks(self, first: int, last: int) -> list[int]:
        """Chunks of the pages from `first` to `last`, in order; repeated neighbours count once."""
        lower = int(np.searchsorted(self._last, first, side="right"))
        upper = int(np.searchsorted(self._first, last, side="left"))
        found = self._chunk[lower:upper]
        return [int(c) for c in found[np.concatenate(([True], found[1:] != found[:-1]))]] if len(found) else []

    def covered(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The longest parts of pages `first` to `last` that are not zeros."""
        lower = int(np.searchsorted(self._last, first, side="right"))
        upper = int(np.searchsorted(self._first, last, side="left"))
        starts, ends = self._first[lower:upper], self._last[lower:upper]
        if not len(starts):
            return
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        edges = [0, *(int(b) for b in breaks), len(starts)]
        for i, j in itertools.pairwise(edges):
            yield max(int(starts[i]), first), min(int(ends[j - 1]), last)

    def uses(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Chunk numbers, with rows of page, count and skip."""
        return self._chunk, np.stack((self._first, self._last - self._first, self._skip), axis=1)


class Layout:
    """All files of pages that are brought page by page, and their chunks."""

    def __init__(self, files: Mapping[str, Extents]) -> None:
        self.files = {name: PagesFile(name, extents) for name, extents in files.items()}
        self._names = list(self.files)
        parts = [f.uses() for f in self.files.values()]
        owner = np.concatenate([np.full(len(c), i) for i, (c, _) in enumerate(parts)]) if parts else np.zeros(0, np.int64)
        chunk = np.concatenate([c for c, _ in parts]) if parts else np.zeros(0, np.int64)
        rows = np.concatenate([r for _, r in parts]) if parts else np.zeros((0, 3), np.int64)
        order = np.argsort(chunk, kind="stable")
        self._chunk, self._owner, self._rows = chunk[order], owner[order], rows[order]

    def uses(self, chunk: int) -> list[Use]:
        """The places of a chunk's bytes."""
        lower, upper = np.searchsorted(self._chunk, chunk, side="left"), np.searchsorted(self._chunk, chunk, side="right")
        rows = zip(self._owner[lower:upper].tolist(), self._rows[lower:upper].tolist(), strict=True)
        return [Use(self._names[owner], *row) for owner, row in rows]


def in_order(lists: Iterable[list[int]]) -> Iterator[int]:
    """The numbers of all lists, each once, in order."""
    seen: set[int] = set()
    for numbers in lists:
        for number in numbers:
            if number not in seen:
                seen.add(number)
                yield number


# ---- The order of fetching. A process has the same addresses on another machine, so it remembers those of the first faults

WINDOW_BYTES = 64 << 10  # of a job's memory: the granularity of the order
WINDOWS_MAX = 4096


class Order:
    """The order of one restore. `touched` may be called from any thread."""

    def __init__(self, maps: dict[int, Pagemap], layout: Layout, learned: bytes | None) -> None:
        self._maps, self._layout = maps, layout
        self._before = _windows(learned)
        self._touched: dict[tuple[int, int], None] = {}
        self._lock = threading.Lock()

    def touched(self, pid: int, address: int) -> None:
        """A thread of the job waited for a page there."""
        with self._lock:
            if len(self._touched) < WINDOWS_MAX:
                self._touched.setdefault((pid, address // WINDOW_BYTES))

    def first_chunks(self) -> list[int]:
        """The chunks that will be wanted at once, as far as known."""
        return list(in_order(self._of_window(pid, window) for pid, window in self._before))

    def all_chunks(self) -> Iterator[int]:
        """All chunks, in the order of fetching."""
        rest = (
            self._layout.files[pages.file].chunks(r.at, r.at + r.pages)
            for pages in self._maps.values()
            for r in pages.runs
            if r.lazy
        )
        return in_order([self.first_chunks(), *rest])

    def learned(self) -> bytes:
        """For the next restore: the memory that was waited for, then the earlier order."""
        with self._lock:
            windows = list(dict.fromkeys([*self._touched, *self._before]))[:WINDOWS_MAX]
        return json.dumps({"windows": windows}).encode()

    def _of_window(self, pid: int, window: int) -> list[int]:
        pages = self._maps.get(pid)
        if pages is None:
            return []
        first, out = window * WINDOW_BYTES, list[int]()
        i = max(bisect_right(pages.runs, first, key=lambda r: r.start) - 1, 0)
        while i < len(pages.runs) and pages.runs[i].start < first + WINDOW_BYTES:
            out += self._overlap(pages.file, pages.runs[i], first) if pages.runs[i].lazy else []
            i += 1
        return out

    def _overlap(self, file: str, r: PageRun, first: int) -> list[int]:
        lower, upper = max(r.start, first), min(r.start + r.pages * PAGE, first + WINDOW_BYTES)
        if lower >= upper:
            return []
        at = r.at - r.start // PAGE
        return self._layout.files[file].chunks(at + lower // PAGE, at + upper // PAGE)


def _windows(learned: bytes | None) -> list[tuple[int, int]]:
    """The order that an earlier pager wrote. Anything else is ignored, because it is only a hint."""
    try:
        raw = json.loads(learned or b"{}")
        found = [(int(pid), int(window)) for pid, window in raw.get("windows", [])]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return []
    return found[:WINDOWS_MAX]


AROUND = 16  # pages around a wanted one that are put first
BEHIND = 2  # fetches ahead that go on while the job waits
WAIT_SECONDS = 0.008  # a longer wait means a distant store, not a busy disk or processor: more fetches at once hide that
WAIT_SHARE = 0.2  # weight of the newest fetch in the average wait
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


class Taker(Protocol):
    """Puts pages where they belong, from several threads at once."""

    def misses(self, first: int, last: int) -> bool:
        """Whether it needs one of pages `first` to `last` of its file. A cheap check without locks."""
        ...

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
        failed: Callable[[Exception], None],
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
                self._failed(e)
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
        """Whether one of these pages is missing; one that is marked too late costs one fetch."""
        return any(task.misses(first, last) for task in list(self.tasks[file]))

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
        data = Retry(math.inf, passes=self._passes, pauses=PAUSES_SECONDS).ask(lambda: self._fetch(chunk))
        self.trouble = ""
        return data

    def _passes(self, e: Exception) -> bool:
        if self._ended or not self._patient or not isinstance(e, StoreError):
            return False
        self.trouble = str(e)
        return True

    def _bring(self, uses: list[Use], data: Buffer, wanted: Wanted | None) -> None:
        base = address(data)
        if wanted is not None:
            for use in uses:
                if use.file == wanted.file and use.page <= wanted.page < use.page + use.pages:
                    first = max(use.page, wanted.page - wanted.page % AROUND)
                    last = min(use.page + use.pages, wanted.page - wanted.page % AROUND + AROUND)
                    self._put(use, first, last, base)
        for use in uses:
            self._put(use, use.page, use.page + use.pages, base)

    def _put(self, use: Use, first: int, last: int, base: int) -> None:
        for task in self.tasks[use.file]:  # a child that is forked meanwhile is appended, and so gets its part too
            task.put(first, last, base + use.skip + (first - use.page) * PAGE)
