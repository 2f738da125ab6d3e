"""Bytes into a pipe without a copy: the pipe refers to our memory, which is held until it was read.

A pipe has as many slots as it has pages of room, and every page of ours takes one. So what was lent before as many pages as
there are slots has been read: nothing older needs to be held.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time
from collections import deque

from spotsurfer_agent import linux
from spotsurfer_agent.addresses import address
from spotsurfer_agent.buffers import PAGE

COPIED_BELOW_BYTES = 64 << 10  # less than this is copied: a page of ours for a few bytes would fill the pipe
LOOK_SECONDS = 0.001


class Lender:
    """The writing end of one pipe, of a size in bytes. Only one thread may use it, and nobody may change what was written."""

    def __init__(self, pipe: int, size: int) -> None:
        self._pipe, self._slots = pipe, size // PAGE
        self._lent: deque[tuple[memoryview, int]] = deque()  # with the slots that it took
        self._taken = 0

    def write(self, view: memoryview) -> None:
        """All of it; waits for the reader. Raises OSError, and BrokenPipeError where nobody reads any more."""
        if len(view) < COPIED_BELOW_BYTES:
            while view:
                view = view[os.write(self._pipe, view) :]
            return
        start = address(view)
        slots = (start + len(view) + PAGE - 1) // PAGE - start // PAGE
        self._lent.append((view, slots))
        self._taken += slots
        at = 0
        while at < len(view):
            at += linux.vmsplice(self._pipe, start + at, len(view) - at)
        while self._taken - self._lent[0][1] >= self._slots:
            self._taken -= self._lent.popleft()[1]

    def settle(self) -> None:
        """Wait until all was read, or nobody reads any more: from then on the memory may change."""
        look = select.poll()
        look.register(self._pipe, 0)  # errors only
        while self._lent and _unread(self._pipe) and not look.poll(0):
            time.sleep(LOOK_SECONDS)
        self._lent.clear()


def _unread(pipe: int) -> int:
    return int(struct.unpack("=i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])
