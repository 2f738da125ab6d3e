"""Where the bytes of a page file go as they are read: all of them to reserved memory, or only what the base does not have.

A file with a base passes through windows: while the receiver fills one, a thread fingerprints the pages of another and compares
them with the base. A frozen job waits for the longer of the two, not for both.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.prints import Pairs, of_each, of_pages, pairs
from spotsurfer_agent.engines.fingerprints import NEW, Follower, Numbers
from spotsurfer_agent.engines.reserve import Span
from spotsurfer_agent.engines.stream import StreamError
from spotsurfer_agent.manifest import Stored

WINDOW_BYTES = 4 << 20  # compared with the base at once
WINDOWS = 2  # one fills while one is compared


@dataclass(slots=True)
class PageFile:
    """One file of memory pages: what is known of each page so far, by number."""

    name: str
    follower: Follower | None
    count: int = 0
    prints: list[bytes] = field(default_factory=list)
    where: list[Numbers] = field(default_factory=list)  # positions in the base, as they passed
    found: list[tuple[Numbers, Numbers]] = field(default_factory=list)  # numbers, and positions that were found later
    sent: list[tuple[Numbers, Future[Stored]]] = field(default_factory=list)  # numbers of the pages of a chunk, in its order


@dataclass(slots=True)
class Batch:
    """Gathered pages of one file on their way to chunks. `prints` is empty where they are yet to be made, in `slot`."""

    file: PageFile
    span: Span
    numbers: Numbers
    prints: bytes
    slot: int


class Gatherer(Protocol):
    """What sinks need of `pages.Pages`."""

    def take(self) -> Span:
        """Memory for new pages; may wait. Raises reserve.Closed."""
        ...

    def hand_over(self, batch: Batch) -> None:
        """These pages are complete."""
        ...


class Plain:
    """Straight into reserved memory; fingerprints are made later."""

    def __init__(self, pages: Gatherer, file: PageFile) -> None:
        self._pages, self._file = pages, file
        self._span: Span | None = None
        self._have = 0

    def room(self) -> memoryview:
        """Where the next bytes go; may wait. Raises reserve.Closed, and what went wrong before."""
        if self._span is None:
            self._span, self._have = self._pages.take(), 0
        return self._span.view[self._have :]

    def filled(self, count: int) -> None:
        """So many were put there."""
        self._have += count
        if self._span is not None and self._have == self._span.size:
            self._push()

    def _push(self) -> None:
        if self._span is None or not self._have:
            return
        if self._have % PAGE:
            raise StreamError(0, f"{self._file.name} ended in the middle of a page")
        count, f = self._have // PAGE, self._file
        numbers = np.arange(f.count, f.count + count)
        f.count += count
        f.prints.append(b"")
        self._pages.hand_over(Batch(f, self._span, numbers, b"", len(f.prints) - 1))
        self._span = None

    def end(self) -> None:
        """The file is complete. Raises StreamError where a page is not whole, and what went wrong."""
        self._push()

    def abort(self) -> None:
        """It never will be."""
        self._span = None


class Window:
    """A buffer that is used again and again. `filled`: bytes in it."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(WINDOW_BYTES))
        self.rows = np.frombuffer(self.view, dtype=np.uint8).reshape(-1, PAGE)
        self.filled = 0
        self._pages: list[memoryview] = []  # one by one; small files never need that

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits in."""
        return self.filled == len(self.view)

    def prints(self) -> bytes:
        """The fingerprints of the pages in it. Raises StreamError where one is not whole."""
        if not self.is_full:
            if self.filled % PAGE:
                raise StreamError(0, "a file of memory pages ended in the middle of a page")
            return of_pages(self.view[: self.filled])
        if not self._pages:
            self._pages = [self.view[at : at + PAGE] for at in range(0, len(self.view), PAGE)]
        return of_each(self._pages)


class Matching:
    """Past the base; only pages that are not at their place there are kept."""

    def __init__(self, pages: Gatherer, file: PageFile) -> None:
        assert file.follower is not None
        self._gathered = _Gathered(pages, file)
        self._file, self._follower = file, file.follower
        self._window: Window | None = Window()
        self._made = 1
        self._full = queue.SimpleQueue[Window | None]()  # None: no more will come
        self._free = queue.SimpleQueue[Window | None]()  # None: the thread failed
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def room(self) -> memoryview:
        """Where the next bytes go; may wait. Raises reserve.Closed, and what went wrong before."""
        if self._window is None:
            self._window = self._next()
        return self._window.view[self._window.filled :]

    def _next(self) -> Window:
        """A window that is free; waits for one. Raises what the comparing thread met."""
        if self._free.empty() and self._made < WINDOWS:
            self._made += 1
            return Window()
        window = self._free.get()
        if window is None:
            assert self._failure is not None
            raise self._failure
        return window

    def filled(self, count: int) -> None:
        """So many were put there."""
        window = self._window
        assert window is not None
        window.filled += count
        if window.is_full:
            self._window = None
            self._full.put(window)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="page windows", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        try:
            while (window := self._full.get()) is not None:
                self._compare(window)
                self._free.put(window)
        except BaseException as e:
            self._failure = e
            self._free.put(None)

    def _compare(self, window: Window) -> None:
        prints = window.prints()
        where = self._follower.match(prints)
        self._file.prints.append(prints)
        self._file.where.append(where.astype(np.int32))
        self._gathered.keep(window.rows, np.flatnonzero(where == NEW), prints)
        self._file.count += len(where)
        window.filled = 0

    def _stop(self) -> None:
        """What was handed to the thread is compared, or it failed."""
        if self._thread is not None:
            self._full.put(None)
            self._thread.join()

    def end(self) -> None:
        """The file is complete. Raises StreamError where a page is not whole, and what went wrong."""
        self._stop()
        if self._failure is not None:
            raise self._failure
        if self._window is not None and self._window.filled:
            self._compare(self._window)
        self._gathered.push()

    def abort(self) -> None:
        """It never will be."""
        self._stop()


class _Gathered:
    """Pages of one file that are new, side by side in reserved memory."""

    def __init__(self, pages: Gatherer, file: PageFile) -> None:
        self._pages, self._file = pages, file
        self._span: Span | None = None
        self._numbers: list[Numbers] = []
        self._prints: list[bytes] = []
        self._have = 0  # pages in the span

    def keep(self, rows: npt.NDArray[np.uint8], new: Numbers, prints: bytes) -> None:
        """Copy these pages of a window, which begins at the file's page `count`; may wait for memory. Raises reserve.Closed."""
        here = pairs(prints)
        while len(new):
            new = self._some(rows, new, here)

    def _some(self, rows: npt.NDArray[np.uint8], new: Numbers, here: Pairs) -> Numbers:
        """As many as fit; returns the rest."""
        if self._span is None:
            self._span, self._have = self._pages.take(), 0
        room = self._span.size // PAGE - self._have
        now, rest = new[:room], new[room:]
        target = np.frombuffer(self._span.view, dtype=np.uint8).reshape(-1, PAGE)
        np.take(rows, now, axis=0, out=target[self._have : self._have + len(now)], mode="clip")
        self._numbers.append(now + self._file.count)
        self._prints.append(here[now].tobytes())
        self._have += len(now)
        if len(now) == room:
            self.push()
        return rest

    def push(self) -> None:
        """Hand over what there is."""
        if self._span is None or not self._have:
            return
        batch = Batch(self._file, self._span, np.concatenate(self._numbers), b"".join(self._prints), -1)
        self._pages.hand_over(batch)
        self._span, self._numbers, self._prints = None, [], []
