"""The memory of one process as it arrives: written while it stands still, or page by page as it faults."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.linux.buffers import PAGE

from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.linux.userfaultfd import Kind
from spotsurfer_agent.restore.pager.layout import Run, Space

# ---- A lock that many may hold together, or one alone; waiting for it alone has priority, so that nobody waits for ever


class SharedLock:
    """One thread must not take it twice."""

    def __init__(self) -> None:
        self._change = threading.Condition(threading.Lock())
        self._together = self._wanting = 0
        self._alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Hold it together with others, while nobody holds it alone."""
        with self._change:
            while self._alone or self._wanting:
                self._change.wait()
            self._together += 1
        try:
            yield
        finally:
            with self._change:
                self._together -= 1
                if self._wanting and not self._together:
                    self._change.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it alone."""
        with self._change:
            self._wanting += 1
            while self._alone or self._together:
                self._change.wait()
            self._wanting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._change:
                self._alone = False
                self._change.notify_all()


# ---- Memory of a process that stands still until all of it is there: many threads write large stretches side by side
#
# For each copy through userfaultfd the kernel locks the whole address space; `process_vm_writev` locks it only to look up
# pages. A write to a missing page creates it as any write does, as a huge page if the process may have some. So only blocks
# of that size are written of which the image has every page: the job gets no memory that it did not have. All else stays with
# userfaultfd, and so does memory that the process itself could not write.

HUGE_BYTES = 2 << 20
LEAST_BYTES = 8 * HUGE_BYTES  # of a stretch
STRETCHES_MAX = 4096  # each makes up to two mappings more for a while; a process may have 65,530
Range = tuple[int, int]  # first address and the one behind the last


class Standing:
    """One process, by its number here and its descriptor, and the stretches to write; the rest comes by userfaultfd."""

    def __init__(self, pid: int, process: int, ranges: Sequence[Range]) -> None:
        self.pid, self.process, self.ranges = pid, process, ranges
        self._starts = [a for a, _ in ranges]

    @classmethod
    def taken(cls, pid: int, fd: int, runs: Iterable[Range]) -> Standing:
        """The parts of these runs that can be written: `fd`, its userfaultfd, does not serve them any more.

        Raises OSError if the process is gone, or its memory is not ours to write.
        """
        process = os.pidfd_open(pid)
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0):  # checks for the same right, and touches nothing
            maps = procfs.text(pid, "maps")
        wanted = large(whole_blocks(runs), writable(maps))
        return cls(pid, process, [(a, b) for a, b in wanted if userfaultfd.unregister(fd, a, b - a) == 0])

    @property
    def written_bytes(self) -> int:
        """Bytes of the stretches."""
        return sum(b - a for a, b in self.ranges)

    def copy(self, to: int, source: int, length: int) -> tuple[int, int] | None:
        """Like `userfaultfd.copy`; None if userfaultfd has to do it."""
        i = bisect_right(self._starts, to) - 1
        if i < 0 or to >= self.ranges[i][1]:
            return None
        try:
            signal.pidfd_send_signal(self.process, 0)  # the number is still this process's: never write into another one
            done = syscalls.write_memory(self.pid, to, source, min(length, self.ranges[i][1] - to))
        except OSError as e:
            return 0, e.errno or errno.EIO
        return done - done % PAGE, 0

    def close(self) -> None:
        """End the writing."""
        os.close(self.process)


def writable(maps: str) -> Iterator[Range]:
    """Private memory that the process may write, from its `maps`; neighbours of the same kind are joined."""
    begin = end = 0
    for m in procfs.mappings(maps):
        if not (m.mode[1] == "w" and m.mode[3] == "p"):
            continue
        if m.start != end:
            if end:
                yield begin, end
            begin = m.start
        end = m.end
    if end:
        yield begin, end


def whole_blocks(runs: Iterable[Range]) -> Iterator[Range]:
    """Blocks of a huge page's size with every page in a run; neighbours are joined."""
    begin = end = 0
    for lower, upper in [*sorted(runs), (1 << 64, 1 << 64)]:
        if lower > end:
            first, last = -(-begin // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
            if last > first:
                yield first, last
            begin = lower
        end = max(end, upper)


def large(ranges: Iterable[Range], within: Iterable[Range]) -> list[Range]:
    """The intersection of both, only whole blocks and long stretches, by address."""
    allowed = list(within)
    found, at = list[Range](), 0
    for lower, upper in ranges:
        while at < len(allowed) and allowed[at][1] <= lower:
            at += 1
        i = at
        while i < len(allowed) and allowed[i][0] < upper:
            first = -(-max(lower, allowed[i][0]) // HUGE_BYTES) * HUGE_BYTES
            last = min(upper, allowed[i][1]) // HUGE_BYTES * HUGE_BYTES
            if last - first >= LEAST_BYTES:
                found.append((first, last))
            i += 1
    return sorted(sorted(found, key=lambda r: r[0] - r[1])[:STRETCHES_MAX])


# ---- One process with memory arriving: its descriptor, its space, and the rules that keep the two consistent
#
# The kernel reports by messages what the process does to its memory. From the beginning of such a change until its message
# was read, it refuses to put pages (EAGAIN). So a thread that puts pages holds the lock from the look-up of an address until
# the page is marked. Messages are read, and acted on in their order, under the same lock. A child has what its parent had
# when the message was read. Several threads may put different pages at once; the reader of messages holds the lock alone.

ZEROS_BYTES = 256 << 10  # so much is filled with zeros at once
_PAUSE_SECONDS = 0.0005
_TRIES = 40  # for temporary failures: memory short, a mapping in transition


class Unplaceable(Exception):
    """The kernel does not accept a page that the process needs; a sentence."""


class Task:
    """One process. `born` gets its children; `faulted` gets pages of the file that a thread waits for."""

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
        self._turns, self._noting = SharedLock(), threading.Lock()
        self._standing: Standing | None = None
        self.over = False
        self._closed = False
        os.set_blocking(self.fd, False)

    @property
    def missing(self) -> int:
        """Pages that are not there yet."""
        return 0 if self.over else self.space.missing

    def listen(self) -> None:
        """Act on all waiting messages. Raises Unplaceable."""
        with self._turns.alone():
            self._read()

    def stand(self, pid: int) -> int:
        """It stands still until all its memory is there; `pid`: its number here. Returns the bytes to write. Raises OSError."""
        with self._turns.alone():
            self._standing = Standing.taken(pid, self.fd, self.space.ranges())
            return self._standing.written_bytes

    def hand_over(self, pid: int) -> Standing:
        """Like `stand`, but the caller gets the writable stretches, which no longer count as missing here, and closes them."""
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
        """Stop serving: missing pages are zeros from now on. Idempotent."""
        with self._turns.alone():
            self.over = True
            if not self._closed:
                self._closed = True
                os.close(self.fd)
                if self._standing is not None:
                    self._standing.close()

    # ------------------------------------------------------------ pages

    def _put_now(self, first: int, last: int, source: int) -> bool:
        """False: the process is in the middle of a change and its message is not there yet."""
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
        """False if a message must be read before more pages can be put."""
        for run, lower, upper in self.space.stretches(first, last):
            if self.over:
                break  # maybe its descriptor was closed while we waited, and the number is reused
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
                return True  # others may still hold the descriptor: it is closed after them
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
        return userfaultfd.copy(self.fd, to, source, length) if written is None else written

    def _mark(self, run: Run, first: int, last: int) -> None:
        with self._noting:
            self.space.mark(run, first, last)

    def _is_there(self, run: Run, page: int) -> None:
        self._mark(run, page, page + 1)
        userfaultfd.wake(self.fd, run.start + page * PAGE, PAGE)

    def _gone(self, run: Run, page: int, error: int, tries: int) -> bool:
        """Handle a page that can't be put. True: it is not needed. Raises Unplaceable."""
        if error == errno.ENOENT and self._forked:
            self._mark(run, page, page + 1)  # the parent had excluded this mapping from its children
            return True
        if tries > _TRIES or error not in (errno.ENOMEM, errno.ENOENT):
            raise Unplaceable(
                f"memory of process {self.pid} can't be put at {run.start + page * PAGE:#x}: {os.strerror(error)}"
            )
        time.sleep(_PAUSE_SECONDS * tries)
        return False

    # ------------------------------------------------------------ messages

    def _read(self) -> bool:
        """Read all messages; faults come last, because their answer depends on the others. True if there was any."""
        faults: list[int] = []
        found = False
        while not self.over:
            messages = userfaultfd.read_message(self.fd)
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

    def _happened(self, m: userfaultfd.Message) -> None:
        if m.kind is Kind.FORK:
            child = Task(self.pid, self.file, (m.a, self.space.copy()), self._born, self._faulted, forked=True)
            self._born(child)
        elif m.kind is Kind.REMAP:
            self.space.move(m.a, m.b, m.c)
        else:
            self.space.drop(m.a, m.b)

    def _answer(self, address: int) -> bool:
        """Answer a fault: zeros at once, pages of the file as soon as they are here. False: retry after reading."""
        found = self.space.find(address)
        if found is None:
            return self._zero(address)
        run, page = found
        if run.done[page]:
            userfaultfd.wake(self.fd, address, PAGE)
        else:
            self._faulted(self, run.at + page, address)
        return True

    def _zero(self, address: int) -> bool:
        lower, upper = self.space.gap(address, ZEROS_BYTES)
        error = userfaultfd.zero(self.fd, lower, upper - lower)
        if error in (errno.ENOENT, errno.EINVAL, errno.EEXIST, errno.EAGAIN):
            error = userfaultfd.zero(self.fd, address, PAGE)
        if error == errno.EAGAIN:
            return False
        if error == errno.EEXIST:
            userfaultfd.wake(self.fd, address, PAGE)
        return True
