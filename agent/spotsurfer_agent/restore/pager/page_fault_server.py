"""The server of page faults: takes the descriptors that CRIU hands over and brings what the running processes touch.

On its socket CRIU sends, for each task, the pid as in the image (negative: a zombie, nothing follows) and one byte with the
descriptor; after all tasks, just before they go on, a mark. The server answers faults at once, and brings other pages only
after the mark.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux.buffers import PAGE

from spotsurfer_agent.criu.images import Pagemap, receive_descriptor, receive_exactly
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.restore.pager.feeder import Feeder, Wanted
from spotsurfer_agent.restore.pager.fetch_order import Order
from spotsurfer_agent.restore.pager.layout import Layout, Space, runs
from spotsurfer_agent.restore.pager.process_memory import Standing, Task
from spotsurfer_agent.restore.pager.workers import NOBODY, PROCESSES_MAX, Workers

log = logging.getLogger(__name__)

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
    is done with them. `hands` are the workers that then write what can be written.
    """

    def __init__(
        self,
        folder: Path,
        image: Image,
        feeder: Feeder,
        tell: Callable[[Told], None],
        still: Callable[[], Numbers] = dict,
        hands: Workers = NOBODY,
    ) -> None:
        self._image, self._feeder, self._tell, self._still, self._hands = image, feeder, tell, still, hands
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
            while not self.told.running or self._left() or self._hands.busy:
                for fd, _ in self._poll.poll(TICK_SECONDS):
                    if fd == control.fileno():
                        self._hear(control)
                    elif fd == self._feeder.quiet:
                        os.eventfd_read(fd)
                    elif fd in self._hands.busy:
                        self._heard(fd)
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
        self.told.missing_pages += self._hands.missing_bytes // PAGE
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

    # ------------------------------------------------------------ CRIU

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
            self._take(pid, fd)

    def _stand(self) -> None:
        numbers, given = self._still(), list[tuple[int, Standing]]()
        for task in [t for t in self._tasks.values() if t.pid in numbers]:
            try:
                if self._hands and len(given) < PROCESSES_MAX:
                    given.append((task.pid, task.hand_over(numbers[task.pid])))
                    written = given[-1][1].written_bytes
                else:
                    written = task.stand(numbers[task.pid])
                log.info("process %d stands still: %d MB are written", task.pid, written >> 20)
            except OSError as e:
                log.warning("memory of process %d comes by userfaultfd: %s", task.pid, e)
        self._hands.give(given)
        for _, standing in given:
            standing.close()  # they have their own descriptors
        for fd in self._hands.busy:
            self._poll.register(fd, select.EPOLLIN)

    def _heard(self, fd: int) -> None:
        self._hands.hear(fd)
        if fd not in self._hands.busy:
            self._poll.unregister(fd)

    def _take(self, pid: int, fd: int) -> None:
        pages = self._image.maps[pid]
        space = Space(runs(pages, self._image.layout.files[pages.file]))
        self._add(Task(pid, pages.file, (fd, space), self._add, self._faulted))

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
