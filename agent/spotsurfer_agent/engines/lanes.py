"""Copies one pipe's bytes on several processors: a pipe alone is copied by one reader at a time, whoever asks.

The references that CRIU's pipe holds are moved on to pipes of our own, which costs next to nothing, and each of those has a
thread that copies. Nothing counts as read before it was copied: see `stream` on why that matters.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from spotsurfer_agent import imagewire

COUNT = 2  # more than memory takes at once is of no use
PIECE_BYTES = 4 << 20  # at once: the other lane is to get some, too
WORTH_BYTES = 4 << 20  # for less room than this, one reader is as fast


class Lane:
    """A pipe and the thread that copies what is in it."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        self.size = imagewire.widen(self._in)
        self._change = threading.Condition()
        self._room: memoryview | None = None
        self._failure: OSError | None = None
        self._over = False
        self._thread = threading.Thread(target=self._work, name="image lane", daemon=True)
        self._thread.start()

    def take(self, fd: int, room: memoryview) -> int | None:
        """Move what is in a pipe here and begin to copy it into the room. Bytes; 0 at its end; None where nothing is yet.

        Waits until what it took before was copied. Raises OSError.
        """
        self.settled()
        try:
            count = os.splice(
                fd, self._in, min(len(room), self.size, PIECE_BYTES), flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
            )
        except BlockingIOError:
            return None
        if count:
            with self._change:
                self._room = room[:count]
                self._change.notify_all()
        return count

    def settled(self) -> None:
        """Wait until everything was copied. Raises OSError."""
        with self._change:
            while self._room is not None and self._failure is None:
                self._change.wait()
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Ends the thread, when what was taken is copied."""
        with self._change:
            self._over = True
            self._change.notify_all()
        self._thread.join()
        for fd in (self._out, self._in):
            os.close(fd)

    def _work(self) -> None:
        while (room := self._next()) is not None:
            try:
                while room:
                    room = room[os.readv(self._out, [room]) :]
            except OSError as e:
                self._failure = e
            with self._change:
                self._room = None
                self._change.notify_all()

    def _next(self) -> memoryview | None:
        with self._change:
            while self._room is None and not self._over:
                self._change.wait()
            return self._room


class Lanes:
    """Several of them, taken in turn."""

    def __init__(self) -> None:
        self._lanes = [Lane() for _ in range(COUNT)]
        self._turn = 0

    def fill(self, fd: int, room: memoryview, wait: Callable[[], None]) -> int:
        """Fill the room from a pipe; less than that only at the pipe's end. `wait` is called where nothing is there yet.

        Raises OSError, and what `wait` raises.
        """
        rest = room
        while rest and (count := self._lanes[self._turn].take(fd, rest)) != 0:
            if count is None:
                wait()
                continue
            self._turn = (self._turn + 1) % len(self._lanes)
            rest = rest[count:]
        for lane in self._lanes:
            lane.settled()
        return len(room) - len(rest)

    def close(self) -> None:
        """End the threads."""
        for lane in self._lanes:
            lane.close()
