"""Long tasks in virtual time: each runs in a thread of its own, but only while the world stands still for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

_here = threading.local()


class Dropped(BaseException):
    """What ran the task is dead; nothing may catch this."""


class Strand:
    """One task. `turn` lets it run until it waits again; `wait` is for the task."""

    def __init__(self, call: Callable[[], object], now: Callable[[], float]) -> None:
        self._call, self._now = call, now
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._due = float("-inf")
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.dropped = self.over = False

    def turn(self) -> None:
        """Let it go on if its time has come. Raises what the task raised."""
        if self.over or self._now() < self._due:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="strand", daemon=True)
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def drop(self) -> None:
        """Kill it where it stands."""
        self.dropped, self._due = True, float("-inf")
        self.over = self.over or self._thread is None
        self.turn()

    def _run(self) -> None:
        _here.strand = self
        self._go.acquire()
        try:
            self._call()
        except Dropped:
            pass
        except BaseException as e:  # for whoever lets it run
            self._error = e
        self.over = True
        self._back.release()

    def _wait(self, seconds: float) -> None:
        self._due = self._now() + seconds
        self._back.release()
        self._go.acquire()


def inside() -> bool:
    """Whether the caller is in a task that may wait."""
    return getattr(_here, "strand", None) is not None


def check() -> None:
    """Raises Dropped in a task that was dropped."""
    strand: Strand | None = getattr(_here, "strand", None)
    if strand is not None and strand.dropped:
        raise Dropped


def wait(seconds: float) -> None:
    """The task that calls this sleeps. Raises Dropped where that is its end."""
    check()
    strand: Strand = _here.strand
    strand._wait(seconds)
    check()
