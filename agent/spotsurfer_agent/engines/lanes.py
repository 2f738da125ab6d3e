"""Copies one pipe's bytes on several processors: a pipe alone is copied by one reader at a time, whoever asks.

The references that CRIU's pipe holds are moved on to pipes of our own, a piece at a time, which costs next to nothing; each of
those has a thread that copies what is in it and then takes the next piece. Nothing counts as read before it was copied: see
`stream` on why that matters.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from spotsurfer_agent import imagewire

COUNT = 2  # more than memory takes at once is of no use
PIECE_BYTES = 1 << 20  # so small that the threads end a room together, so large that taking it costs nothing beside the copy
WORTH_BYTES = 4 << 20  # for less room than this, one reader is as fast


class Round:
    """One room that is filled from a pipe, by as many threads as come to it."""

    def __init__(self, fd: int, room: memoryview, wait: Callable[[], None]) -> None:
        self._fd, self.rest, self._wait = fd, room, wait
        self._lock = threading.Lock()  # held while one piece is taken, or waited for
        self._ended = False
        self.failure: BaseException | None = None

    def copy(self, lane: Lane) -> None:
        """Take pieces and copy them until there are no more; a failure is left in `failure`."""
        try:
            while room := self._take(lane):
                while room:
                    room = room[os.readv(lane.out, [room]) :]
        except BaseException as e:
            self.failure = self.failure or e

    def _take(self, lane: Lane) -> memoryview | None:
        """Move the next piece of the pipe to a lane; where it belongs, or None where nothing is left to do."""
        with self._lock:
            while self.rest and not self._ended and self.failure is None:
                try:
                    most = min(len(self.rest), lane.size)
                    count = os.splice(self._fd, lane.into, most, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)
                except BlockingIOError:
                    self._wait()
                    continue
                mine, self.rest, self._ended = self.rest[:count], self.rest[count:], not count
                return mine
            return None


class Lane:
    """A pipe for what one thread is about to copy: `size` bytes at most."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.size = imagewire.widen(self.into, PIECE_BYTES)

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self.out)
        os.close(self.into)


class Lanes:
    """Several of them; the thread that calls `fill` is one of those that copy."""

    def __init__(self) -> None:
        self._own, *others = [Lane() for _ in range(COUNT)]
        self._change = threading.Condition()
        self._round: Round | None = None
        self._busy, self._over = 0, False
        self._failure: BaseException | None = None
        self._helpers = [threading.Thread(target=self._help, args=(x,), name="image lane", daemon=True) for x in others]
        for helper in self._helpers:
            helper.start()

    def fill(self, fd: int, room: memoryview, wait: Callable[[], None]) -> int:
        """Fill the room from a pipe that does not block; less than that only at the pipe's end.

        `wait` is called, by any of the threads, where nothing is there yet. Raises OSError, and what `wait` raises; after that
        it can't be used any more.
        """
        if self._failure is not None:
            raise self._failure
        this = Round(fd, room, wait)
        with self._change:
            self._round = this
            self._change.notify_all()
        this.copy(self._own)
        with self._change:
            self._round = None
            self._change.wait_for(lambda: not self._busy)
        if this.failure is not None:
            self._failure = this.failure
            raise this.failure
        return len(room) - len(this.rest)

    def _help(self, lane: Lane) -> None:
        done: Round | None = None
        try:
            while (done := self._next(done)) is not None:
                done.copy(lane)
                with self._change:
                    self._busy -= 1
                    self._change.notify_all()
        finally:
            lane.close()

    def _next(self, done: Round | None) -> Round | None:
        with self._change:
            self._change.wait_for(lambda: self._over or self._round not in (None, done))
            if self._over:
                return None
            self._busy += 1
            return self._round

    def close(self) -> None:
        """End the threads."""
        with self._change:
            self._over = True
            self._change.notify_all()
        for helper in self._helpers:
            helper.join()
        self._own.close()
