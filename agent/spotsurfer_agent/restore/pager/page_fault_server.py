"""The server of page faults: takes the descriptors that CRIU hands over and brings what the running processes touch.

On its socket CRIU sends, for each task, the pid as in the image (negative: a zombie, nothing follows) and one byte with the
descriptor; after all tasks, just before they go on, a mark. The server answers faults at once, and brings other pages only
after the mark.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux.buffers import PAGE

from spotsurfer_agent.criu.images import Pagemap, receive_descriptor, receive_exactly
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.linux.userfaultfd import Kind
from spotsurfer_agent.restore.pager.feeder import Feeder, Layout, Order, Wanted
from spotsurfer_agent.restore.pager.process_memory import NOBODY, PROCESSES_MAX, Run, Space, Standing, Workers, runs

log = logging.getLogger(__name__)

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

    def misses(self, first: int, last: int) -> bool:
        """As `Taker` says."""
        return not self.over and next(self.space.stretches(first, last), None) is not None

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
            what = run.start + at * PAGE, source + (at - first) * PAGE, want * PAGE
            written = self._standing.copy(*what) if self._standing is not None else None
            done, error = userfaultfd.copy(self.fd, *what) if written is None else written
            if done:
                self._mark(run, at, at + done // PAGE)
                at += done // PAGE
            elif error == errno.EAGAIN:
                return False
            elif error == errno.ESRCH:
                self.over = True  # the process is gone, or became another program
                return True  # others may still hold the descriptor: it is closed after them
            elif error == errno.EEXIST:
                self._mark(run, at, at + 1)
                userfaultfd.wake(self.fd, run.start + at * PAGE, PAGE)
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

    def _mark(self, run: Run, first: int, last: int) -> None:
        with self._noting:
            self.space.mark(run, first, last)

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


SOCKET = "lazy-pages.socket"
_RESTORED = 0x52535446
TICK_SECONDS = 0.2
Numbers = Mapping[int, int]


class LazyError(Exception):
    """CRIU broke the protocol; a sentence."""


class CriuGone(Exception):
    """CRIU ended before the job ran; its log has the cause."""


@dataclass(frozen=True, slots=True)
class Image:
    """The memory to bring: the pages of each process, their places, and their order."""

    maps: dict[int, Pagemap]
    layout: Layout
    order: Order


@dataclass(slots=True)
class Told:
    """The server's progress, for observers."""

    running: bool = False
    faults: int = 0
    missing_pages: int = 0


class Server:
    """Serves one tree of processes. `tell` is called now and then from its loop.

    `still`: the processes that stand still until all memory is there, by their numbers in the image and here; called once CRIU
    is done with them. `workers` then write what can be written.
    """

    def __init__(
        self,
        folder: Path,
        image: Image,
        feeder: Feeder,
        tell: Callable[[Told], None],
        still: Callable[[], Numbers] = dict,
        workers: Workers = NOBODY,
    ) -> None:
        self._image, self._feeder, self._tell, self._still, self._workers = image, feeder, tell, still, workers
        self._listener = shim_protocol.listen(folder / SOCKET)
        self._listener.setblocking(True)
        self._poll = select.epoll()
        self._tasks: dict[int, Task] = {}  # by descriptor
        self._changing = threading.Lock()  # feeders learn of children, too
        self.told = Told(missing_pages=sum(m.lazy_pages for m in image.maps.values()))

    def run(self) -> None:
        """Until all memory is there. Raises CriuGone, LazyError, StreamError and Unplaceable."""
        control, _ = self._listener.accept()
        with control:
            for each in (control.fileno(), self._feeder.quiet):
                self._poll.register(each, select.EPOLLIN)
            told_at = 0.0
            while not self.told.running or self._left() or self._workers.busy:
                for fd, _ in self._poll.poll(TICK_SECONDS):
                    if fd == control.fileno():
                        self._hear(control)
                    elif fd == self._feeder.quiet:
                        os.eventfd_read(fd)
                    elif fd in self._workers.busy:
                        self._workers.hear(fd)
                        if fd not in self._workers.busy:
                            self._poll.unregister(fd)
                    elif (task := self._tasks.get(fd)) is not None:
                        task.listen()
                if time.monotonic() - told_at > TICK_SECONDS:
                    told_at = time.monotonic()
                    self._tell(self.told)
        self._feeder.stop()

    def _left(self) -> bool:
        """Whether anything is missing; complete tasks are let go."""
        self.told.missing_pages = 0
        for fd, task in list(self._tasks.items()):
            if not task.missing:
                task.listen()  # a child that was just forked
            if not task.missing:
                self._let_go(fd, task)
            self.told.missing_pages += task.missing
        self.told.missing_pages += self._workers.missing_bytes // PAGE
        if self._tasks and self._feeder.idle:
            self._again()
        return bool(self._tasks)

    def _let_go(self, fd: int, task: Task) -> None:
        """Let a task go. Its process number may be reused by a new child, which stays."""
        with self._changing:
            if self._tasks.get(fd) is task:
                del self._tasks[fd]
        task.close()

    def _again(self) -> None:
        """Fetch again what is still missing: a child was forked while its parent's page was on the way."""
        files = self._image.layout.files
        left = [(files[t.file], s) for t in self._tasks.values() for s in t.space.left()]
        lists = [file.chunks(s.run.at + s.first, s.run.at + s.last) for file, s in left]
        self._feeder.fetch_ahead([c for chunks in lists for c in chunks])

    def _hear(self, control: socket.socket) -> None:
        data = receive_exactly(control, 4)
        if data is None:
            raise CriuGone
        (pid,) = struct.unpack("=i", data)
        if pid == _RESTORED:
            self._poll.unregister(control.fileno())
            self.told.running = True
            log.info("only memory is missing; %d processes, %d faults so far", len(self._tasks), self.told.faults)
            self._stand()
            self._feeder.fetch_ahead(self._image.order.all_chunks())
        elif pid > 0:
            fd = receive_descriptor(control, f"process {pid}")
            if fd is None:
                raise CriuGone
            if pid not in self._image.maps:
                raise LazyError(f"CRIU restores a process {pid} that the image does not have")
            pages = self._image.maps[pid]
            space = Space(runs(pages, self._image.layout.files[pages.file]))
            self._add(Task(pid, pages.file, (fd, space), self._add, self._faulted))

    def _stand(self) -> None:
        numbers, given = self._still(), list[tuple[int, Standing]]()
        for task in [t for t in self._tasks.values() if t.pid in numbers]:
            try:
                if self._workers and len(given) < PROCESSES_MAX:
                    given.append((task.pid, task.hand_over(numbers[task.pid])))
                    written = given[-1][1].written_bytes
                else:
                    written = task.stand(numbers[task.pid])
                log.info("process %d stands still: %d MB are written", task.pid, written >> 20)
            except OSError as e:
                log.warning("memory of process %d comes by userfaultfd: %s", task.pid, e)
        self._workers.give(given)
        for _, standing in given:
            standing.close()  # they have their own descriptors
        for fd in self._workers.busy:
            self._poll.register(fd, select.EPOLLIN)

    def _add(self, task: Task) -> None:
        """Add a process or a child. For a child the caller holds the parent's lock, so that it misses no page."""
        with self._changing:
            self._feeder.tasks[task.file].append(task)
            self._tasks[task.fd] = task
            self._poll.register(task.fd, select.EPOLLIN)

    def _faulted(self, task: Task, page: int, address: int) -> None:
        self.told.faults += 1
        self._image.order.touched(task.pid, address)
        chunk = self._image.layout.files[task.file].chunk_of(page)
        assert chunk is not None, "a space has only pages that lie in chunks"
        self._feeder.want(Wanted(chunk, task.file, page))
