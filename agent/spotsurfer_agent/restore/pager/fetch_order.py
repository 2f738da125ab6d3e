"""In which order memory is fetched: what was touched first after the last restore comes first, then the rest by position.

A process has the same addresses on another machine, so the order remembers the addresses of the first faults.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections.abc import Iterator

from spotsurfer_wire.linux.buffers import PAGE

from spotsurfer_agent.criu.images import Pagemap, PageRun
from spotsurfer_agent.restore.pager.layout import Layout, in_order

WINDOW = 64 << 10  # granularity, in bytes of a job's memory
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
                self._touched.setdefault((pid, address // WINDOW))

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
        first, out = window * WINDOW, list[int]()
        i = max(bisect_right(pages.runs, first, key=_start) - 1, 0)
        while i < len(pages.runs) and pages.runs[i].start < first + WINDOW:
            out += self._overlap(pages.file, pages.runs[i], first) if pages.runs[i].lazy else []
            i += 1
        return out

    def _overlap(self, file: str, r: PageRun, first: int) -> list[int]:
        lower, upper = max(r.start, first), min(r.start + r.pages * PAGE, first + WINDOW)
        if lower >= upper:
            return []
        at = r.at - r.start // PAGE
        return self._layout.files[file].chunks(at + lower // PAGE, at + upper // PAGE)


def _start(r: PageRun) -> int:
    return r.start


def _windows(learned: bytes | None) -> list[tuple[int, int]]:
    """The order that an earlier pager wrote. Anything else is ignored, because it is only a hint."""
    try:
        raw = json.loads(learned or b"{}")
        found = [(int(pid), int(window)) for pid, window in raw.get("windows", [])]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return []
    return found[:WINDOWS_MAX]
