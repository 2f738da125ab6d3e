"""In which order memory is fetched: what was touched first after the last restore comes first, then the rest as it lies.

A process that goes on on another machine has the same addresses, so what is remembered is where the first faults were.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections.abc import Iterator

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.pager.images import Pagemap, PageRun
from spotsurfer_agent.pager.layout import Layout, in_order

WINDOW = 64 << 10  # bytes of a job's memory that are remembered as one
WINDOWS_MAX = 4096


class Order:
    """Of one restore. `touched` may be called from any thread."""

    def __init__(self, maps: dict[int, Pagemap], layout: Layout, learned: bytes | None) -> None:
        self._maps, self._layout = maps, layout
        self._before = _windows(learned)
        self._touched: dict[tuple[int, int], None] = {}
        self._lock = threading.Lock()

    def touched(self, pid: int, address: int) -> None:
        """Somebody waited for a page there."""
        with self._lock:
            if len(self._touched) < WINDOWS_MAX:
                self._touched.setdefault((pid, address // WINDOW))

    def first_chunks(self) -> list[int]:
        """What will be wanted at once, as far as it is known."""
        return list(in_order(self._of_window(pid, window) for pid, window in self._before))

    def all_chunks(self) -> Iterator[int]:
        """Everything, in the order in which it is to come."""
        rest = (
            self._layout.files[pages.file].chunks(r.at, r.at + r.pages)
            for pages in self._maps.values()
            for r in pages.runs
            if r.lazy
        )
        return in_order([self.first_chunks(), *rest])

    def learned(self) -> bytes:
        """For the next restore: what was waited for, then what had been known before."""
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
    """What an earlier pager wrote; anything else counts as nothing, for it is only a hint."""
    try:
        raw = json.loads(learned or b"{}")
        found = [(int(pid), int(window)) for pid, window in raw.get("windows", [])]
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return []
    return found[:WINDOWS_MAX]
