"""One process whose memory arrives: its descriptor, its space, and the rules by which the two stay true to each other.

The kernel tells what the process does to its memory by messages, and refuses to put pages (EAGAIN) from the moment it begins to
do so until the message was read. So whoever puts pages holds the lock from looking up an address to noting that it is done, and
messages are read, and acted on in their order, under the same lock. A child has what its parent had when the message was read.
Several may put at once, each other pages; who reads is alone.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.pager import uffd
from spotsurfer_agent.pager.space import Run, Space
from spotsurfer_agent.pager.standing import Standing
from spotsurfer_agent.pager.turns import Turns
from spotsurfer_agent.pager.uffd import Kind

ZEROS_BYTES = 256 << 10  # so much is filled with zeros at once
_PAUSE_SECONDS = 0.0005
_TRIES = 40  # for what should pass by itself: memory short, a mapping in transition


class Unplaceable(Exception):
    """The kernel does not take a page that the process needs; a sentence."""


class Task:
    """One process. `born` is told of children; `faulted` of pages of the file that somebody waits for."""

    def __init__(
        self,
        pid: int,
        file: str,
        where: tuple[int, Space],
        born: Callable[[Task], None],
        faulted: Callable[[Task, int, int], None],
        *,
        forked: bool = False,
    ) -> None:
        self.pid, self.file = pid, file  # as in the image
        self.fd, self.space = where
        self._born, self._faulted, self._forked = born, faulted, forked
        self._turns, self._noting = Turns(), threading.Lock()
        self._standing: Standing | None = None
        self.over = False
        self._closed = False
        os.set_blocking(self.fd, False)

    @property
    def missing(self) -> int:
        """Pages that are not there yet."""
        return 0 if self.over else self.space.missing

    def listen(self) -> None:
        """Act on all messages that wait. Raises Unplaceable."""
        with self._turns.alone():
            self._read()

    def stand(self, pid: int) -> int:
        """It stands still until all its memory is there; `pid`: its number here. So many bytes are written. Raises OSError."""
        with self._turns.alone():
            self._standing = Standing.taken(pid, self.fd, self.space.ranges())
            return self._standing.written_bytes

    def hand_over(self, pid: int) -> Standing:
        """As `stand`, but what can be written is missing here no longer: it is for whoever gets this, and closes it."""
        with self._turns.alone():
            standing = Standing.taken(pid, self.fd, self.space.ranges())
            for start, end in standing.ranges:
                self.space.drop(start, end)
            return standing

    def put(self, first: int, last: int, source: int) -> None:
        """Bring pages `first` to `last` of the file; the first lies at address `source` of ours. Raises Unplaceable."""
        tries = 0
        while not self._put_now(first, last, source):
            tries += 1
            time.sleep(_PAUSE_SECONDS * min(tries, 20))

    def close(self) -> None:
        """Stop serving: what is not there is zeros from now on. Idempotent."""
        with self._turns.alone():
            self.over = True
            if not self._closed:
                self._closed = True
                os.close(self.fd)
                if self._standing is not None:
                    self._standing.close()

    # ------------------------------------------------------------ pages

    def _put_now(self, first: int, last: int, source: int) -> bool:
        """False: the process is in the middle of something that it has not told yet."""
        while not self.over:
            with self._turns.together():
                done = self._put_all(first, last, source)
            if done:
                break
            with self._turns.alone():
                if not self._read():
                    return False
        if self.over:
            self.close()
        return True

    def _put_all(self, first: int, last: int, source: int) -> bool:
        """False where a message has to be read before more can be put."""
        for run, lower, upper in self.space.stretches(first, last):
            if self.over:
                break  # maybe its descriptor was closed while we waited for our turn, and the number is another's by now
            if not self._put_some(run, lower, upper, source + (run.at + lower - first) * PAGE):
                return False
        return True

    def _put_some(self, run: Run, first: int, last: int, source: int) -> bool:
        at, tries = first, 0
        want = last - first
        while at < last:
            want = min(want, last - at)
            done, error = self._copy(run.start + at * PAGE, source + (at - first) * PAGE, want * PAGE)
            if done:
                self._mark(run, at, at + done // PAGE)
                at += done // PAGE
            elif error == errno.EAGAIN:
                return False
            elif error == errno.ESRCH:
                self.over = True  # the process is gone, or became another program
                return True  # others may still hold the descriptor: it is closed when nobody does
            elif error == errno.EEXIST:
                self._is_there(run, at)
                at += 1
            elif want > 1 and error in (errno.ENOENT, errno.EINVAL):
                want = (want + 1) // 2  # it reaches across two mappings
                continue
            else:
                tries += 1
                if self._gone(run, at, error, tries):
                    at += 1
            want = last - at if done or error == errno.EEXIST else want
        return True

    def _copy(self, to: int, source: int, length: int) -> tuple[int, int]:
        written = self._standing.copy(to, source, length) if self._standing is not None else None
        return uffd.copy(self.fd, to, source, length) if written is None else written

    def _mark(self, run: Run, first: int, last: int) -> None:
        with self._noting:
            self.space.mark(run, first, last)

    def _is_there(self, run: Run, page: int) -> None:
        self._mark(run, page, page + 1)
        uffd.wake(self.fd, run.start + page * PAGE, PAGE)

    def _gone(self, run: Run, page: int, error: int, tries: int) -> bool:
        """A page that can't be put. True: it is not needed. Raises Unplaceable."""
        if error == errno.ENOENT and self._forked:
            self._mark(run, page, page + 1)  # the parent had asked that children don't get this mapping
            return True
        if tries > _TRIES or error not in (errno.ENOMEM, errno.ENOENT):
            raise Unplaceable(
                f"memory of process {self.pid} can't be put at {run.start + page * PAGE:#x}: {os.strerror(error)}"
            )
        time.sleep(_PAUSE_SECONDS * tries)
        return False

    # ------------------------------------------------------------ messages

    def _read(self) -> bool:
        """Read until there is nothing more; faults last, for their answer depends on all else. True if there was anything."""
        faults: list[int] = []
        found = False
        while not self.over:
            messages = uffd.read(self.fd)
            if not messages and not faults:
                return found
            found = True
            for m in messages:
                if m.kind is Kind.FAULT:
                    faults.append(m.a & ~(PAGE - 1))
                else:
                    self._happened(m)
            if not messages:
                faults = [address for address in faults if not self._answer(address)]
                time.sleep(_PAUSE_SECONDS if faults else 0)
        return found

    def _happened(self, m: uffd.Message) -> None:
        if m.kind is Kind.FORK:
            child = Task(self.pid, self.file, (m.a, self.space.copy()), self._born, self._faulted, forked=True)
            self._born(child)
        elif m.kind is Kind.REMAP:
            self.space.move(m.a, m.b, m.c)
        else:
            self.space.drop(m.a, m.b)

    def _answer(self, address: int) -> bool:
        """Zeros at once, pages of the file as soon as they are here. False: come again, after reading."""
        found = self.space.find(address)
        if found is None:
            return self._zero(address)
        run, page = found
        if run.done[page]:
            uffd.wake(self.fd, address, PAGE)
        else:
            self._faulted(self, run.at + page, address)
        return True

    def _zero(self, address: int) -> bool:
        lower, upper = self.space.gap(address, ZEROS_BYTES)
        error = uffd.zero(self.fd, lower, upper - lower)
        if error in (errno.ENOENT, errno.EINVAL, errno.EEXIST, errno.EAGAIN):
            error = uffd.zero(self.fd, address, PAGE)
        if error == errno.EAGAIN:
            return False
        if error == errno.EEXIST:
            uffd.wake(self.fd, address, PAGE)
        return True
