"""Further processes of a pager: workers that write memory, and holders that kill the job if the pager dies."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from spotsurfer_wire.chunks.reader import BadChunk
from spotsurfer_wire.linux import syscalls
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Extents, Manifest
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.criu.images import Pagemap
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.restore.pager import image_files
from spotsurfer_agent.restore.pager.feeder import Feeder
from spotsurfer_agent.restore.pager.layout import Layout, Space, in_order, is_aligned, runs
from spotsurfer_agent.restore.pager.process_memory import Range, Standing
from spotsurfer_agent.restore.pager.protocol import BLAME_IMAGE, BLAME_STORE, Loss, PagerPlan

# ---- Holders: a dead pager must kill the job, because when the last copy of a userfaultfd closes, missing pages read as zeros
#
# Two holders share the pager's table of descriptors (clone with CLONE_FILES), so they hold every descriptor as soon as the
# pager opens it. If the pager dies before it reported completion, a holder records the loss, kills the job, and only then
# exits. The holders also watch each other: if one dies, the other makes a new twin. Both have a single thread, so that they
# can fork at any time, unlike the pager.

_CLONE_FILES = 0x400
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SENTENCE = "the process that brought the job's memory died: the job was killed before it could see a wrong page"
# PyDLL keeps the interpreter's lock, so that the child's only thread owns it.
_libc = ctypes.PyDLL(None, use_errno=True)


class Holders:
    """What the pager has of them. Made before it has a second thread."""

    def __init__(self, plan: PagerPlan) -> None:
        self._over_read, self._over = os.pipe()  # readable: the pager is done
        me = os.getpid()
        if _clone() == 0:
            leave("holder", lambda: _Holder(plan, me, self._over_read).run())

    def dismiss(self) -> None:
        """All memory is there, or the job never ran: the holders go with the pager."""
        os.write(self._over, b"x")


class _Holder:
    def __init__(self, plan: PagerPlan, pager: int, over: int) -> None:
        self._plan, self._pager, self._over = plan, os.pidfd_open(pager), over
        self._server = pager

    def run(self) -> None:
        """Run until the pager is gone."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        twin = self._twin()
        while True:
            watched = select.poll()
            for fd in (self._pager, twin):
                watched.register(fd, select.POLLIN)
            gone = [fd for fd, _ in watched.poll()]
            if self._pager in gone:
                break
            os.close(twin)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            twin = self._twin()
        if not select.select([self._over], [], [], 0)[0]:
            lose(self._plan, Loss(_SENTENCE))

    def _twin(self) -> int:
        """Make a second holder and return a descriptor of it. In the second one this is a descriptor of the first."""
        me = os.getpid()
        child = _clone()
        return os.pidfd_open(me if child == 0 else child)


def lose(plan: PagerPlan, loss: Loss) -> None:
    """Record the loss and kill the job; returns when no process of it runs."""
    while True:
        with contextlib.suppress(OSError):
            loss.write(Path(plan.folder))
            break
        time.sleep(0.1)  # a full disk: meanwhile the job waits at its missing pages
    group = JobCgroup(plan.cgroup)
    while not group.kill():
        time.sleep(0.1)


def _clone() -> int:
    """Like fork, but with one table of descriptors for both. 0 in the child."""
    number = _SYS_CLONE[os.uname().machine]
    zero = ctypes.c_ulong(0)
    pid = int(_libc.syscall(ctypes.c_long(number), ctypes.c_ulong(_CLONE_FILES | signal.SIGCHLD), zero, zero, zero, zero))
    if pid < 0:
        raise OSError(ctypes.get_errno(), f"clone: {os.strerror(ctypes.get_errno())}")
    return pid


def leave(name: str, body: Callable[[], None]) -> NoReturn:
    """Run a child's body and exit: it never returns into the parent's code, and flushes or closes nothing twice."""
    try:
        body()
    except BaseException as e:
        sys.stderr.write(f"{name}: {type(e).__name__}: {e}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


# ---- The choice: does it help if the pager brings memory itself, behind the running job or before it runs?

SMALL_BYTES = 16 << 20  # a smaller memory is there before anybody notices
SHARE = 0.5  # of the pages must be able to come later
MEMORY_SHARE = 0.9  # of the free memory may be taken by processes that lost their sharing
CHUNK_BITS = 32  # every chunk is shorter than 2**32 bytes
HAND_THREADS = 4  # of one process; more of them wait for each other
HANDS_MAX = 8
HANDS_BYTES_MIN = 4 << 30  # a smaller memory arrives soon enough
COPIES_SHARE = 1 / 16  # of a job's memory may be duplicated if the only gain is time


@dataclass(frozen=True, slots=True)
class Machine:
    """Relevant facts of the machine."""

    faults: bool  # whether page faults can be served at all
    free_bytes: int


def plain_because(maps: Mapping[int, Pagemap], files: Mapping[str, Extents], machine: Machine, *, at_once: bool = True) -> str:
    """Why CRIU should bring all memory; empty if the pager does it, with all processors.

    `maps`: the pages of each process; `files`: the content of the files of pages; `at_once`: the job runs meanwhile, which is
    worth a copy of all shared memory. If the job waits, only a little may be copied, but some: programs that were started
    alike hold equal pages without sharing them, and CRIU brings all memory with one processor.
    """
    lazy = sum(m.lazy_pages for m in maps.values()) * PAGE
    everything = _pages(files.values()) * PAGE
    if not machine.faults:
        return "this kernel does not let us serve page faults"
    if lazy < SMALL_BYTES:
        return "there is little memory"
    if lazy < SHARE * everything:
        return "most memory is shared or belongs to files"
    if not all(is_aligned(files[m.file]) for m in maps.values() if m.file in files):
        return "pages of the image are cut in pieces"
    copies = _copied_bytes([files[m.file] for m in maps.values() if m.file in files])
    if copies and lazy > MEMORY_SHARE * machine.free_bytes:
        return "its processes share memory, and there is too little for a copy each"
    if copies > COPIES_SHARE * lazy and not at_once:
        return "its processes share memory, and go on to do so"
    return ""


def worker_count(processors: int, image_bytes: int) -> int:
    """How many workers write memory into a job that stands still (`bench.gpu.bring` measures their benefit)."""
    few = processors < 2 * HAND_THREADS or image_bytes < HANDS_BYTES_MIN
    return 0 if few else min(processors // HAND_THREADS, HANDS_MAX)


def _pages(files: Iterable[Extents]) -> int:
    """Pages with data."""
    return sum(e.bytes for e in files) // PAGE


def _copied_bytes(held: Sequence[Extents]) -> int:
    """Bytes that exist more than once without sharing: equal pages of processes after a fork."""
    return sum(_distinct(e) for e in held) - _distinct(*held) if len(held) > 1 else 0


def _distinct(*held: Extents) -> int:
    """Bytes of the chunks that these refer to; each counts once."""
    rows = np.concatenate([e.table[:, [2, 3, 1]] for e in held]).astype(np.int64)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    begins = (rows[:, 0] << CHUNK_BITS) + rows[:, 1]
    ends = begins + rows[:, 2]
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))
    return int(np.maximum(ends - np.maximum(begins, before), 0).sum())


# ---- Workers: further processes that write memory into a job that stands still
#
# Threads of one interpreter wait for each other, however many processors the machine has. So a pager with several processors
# has workers, which it forks before it has a second thread. Each takes every n-th chunk and writes the parts that belong into
# writable stretches (`process_memory.Standing`). Userfaultfd stays with the pager: a worker has no descriptor of it, and
# holds none open.

log = logging.getLogger(__name__)
PROCESSES_MAX = 250  # descriptors in one message, see unix(7)
TELL_SECONDS = 0.2
WRITERS = "processes that write:"
GONE = "a process that wrote the job's memory died"
ADDRESSES = 1 << 64
FAILURES = {BLAME_IMAGE: BadChunk, BLAME_STORE: StoreError}  # that a worker may report; others become WorkerFailed
Given = tuple[int, int, list[Range]]  # a process by its number in the image and by its number here, and what is to be written


class WorkerFailed(Exception):
    """A worker could not do its part; a sentence."""


class Workers:
    """What the pager has of them. Made before it has a second thread."""

    def __init__(self, count: int, work: Callable[[int, socket.socket], None]) -> None:
        """`work` is the body of a worker; it gets its number and its end of a line to the pager."""
        self._lines: dict[int, socket.socket] = {}
        self._missing: dict[int, int] = {}  # bytes by line, of the workers that are not done
        self.pids: list[int] = []
        me = os.getpid()
        for number in range(count):
            ours, theirs = socket.socketpair()
            self.pids.append(os.fork())
            if not self.pids[-1]:
                for line in (ours, *self._lines.values()):
                    line.close()
                leave("hand", partial(_live, me, partial(work, number, theirs)))
            theirs.close()
            self._lines[ours.fileno()] = ours
        if self.pids:
            log.info("%s %s", WRITERS, self.pids)

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def missing_bytes(self) -> int:
        """Bytes that the workers have not written yet."""
        return sum(self._missing.values())

    @property
    def busy(self) -> Sequence[int]:
        """Descriptors to listen to; empty if all workers are done."""
        return list(self._missing)

    def give(self, stand: Sequence[tuple[int, Standing]]) -> None:
        """Give the processes to the workers, by their numbers in the image, PROCESSES_MAX at most. Raises like `hear`."""
        given: list[Given] = [(number, s.pid, list(s.ranges)) for number, s in stand]
        total = sum(s.written_bytes for _, s in stand)
        for fd, line in self._lines.items() if given else ():
            try:
                socket.send_fds(line, [b"\n"], [s.process for _, s in stand])
                line.sendall(json.dumps(given).encode() + b"\n")
            except BrokenPipeError:
                self.hear(fd)
            self._missing[fd] = max(total // len(self._lines), 1)
        if not given:
            self.dismiss()

    def hear(self, fd: int) -> None:
        """Read a worker's message. Raises BadChunk, StoreError, WorkerFailed."""
        try:
            said = self._lines[fd].recv(1 << 16).decode().splitlines()
        except ConnectionResetError:
            said = []
        if not said:
            raise WorkerFailed(GONE)
        told: dict[str, Any] = json.loads(said[-1])
        if error := told.get("error"):
            raise FAILURES.get(told["blame"], WorkerFailed)(error)
        self._missing[fd] = int(told["missing"])
        if not self._missing[fd]:
            del self._missing[fd]

    def dismiss(self) -> None:
        """The workers are not needed (any more)."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


NOBODY = Workers(0, lambda *_: None)


def _live(parent: int, body: Callable[[], None]) -> None:
    """Run a worker, no longer than the pager lives."""
    syscalls.die_with_parent()
    if os.getppid() == parent:
        body()


# ---- A worker


def serve(plan: PagerPlan, image: Manifest, count: int, number: int, line: socket.socket) -> None:
    """The life of one of `count` workers: get ready, receive a part, write it, report."""
    small = dataclasses.replace(plan, memory_bytes=plan.memory_bytes // (count + 1), threads=HAND_THREADS)

    def failed(e: Exception, _: object = None) -> NoReturn:
        _tell(line, {"error": str(e) or type(e).__name__, "blame": image_files.blame(e)})
        os._exit(1)

    try:
        content = image_files.content(small, image, image_files.store_of_plan(small))
        maps, layout = content.bringable(content.maps())
        feeder = Feeder(layout, content.once, failed, patient=False)
        shares = [Share(maps[n], layout, standing) for n, standing in _told(line)]
        for share in shares:
            feeder.tasks[share.file].append(share)
        feeder.start(HAND_THREADS)
        feeder.fetch_ahead(list(in_order(chunks for share in shares for chunks in share.chunks(layout)))[number::count])
        _wait(feeder, shares, count, line)
    except Exception as e:
        log.exception("a hand failed")
        failed(e)


def _wait(feeder: Feeder, shares: Sequence[Share], count: int, line: socket.socket) -> None:
    """Wait until its part is there; reports progress meanwhile."""

    def missing() -> int:
        return sum(s.space.missing for s in shares) * PAGE

    whole = missing()
    while not feeder.idle:
        select.select([feeder.quiet], [], [], TELL_SECONDS)
        _tell(line, {"missing": max(missing() - whole + whole // count, 1)})
    _tell(line, {"missing": 0})


def _told(line: socket.socket) -> list[tuple[int, Standing]]:
    """The received processes by their numbers in the image; none if the pager needs no worker, or is gone."""
    _, fds, _, _ = socket.recv_fds(line, 1, PROCESSES_MAX)
    if not fds:
        return []
    with line.makefile() as lines:
        given: list[Given] = json.loads(lines.readline())
    return [(number, Standing(pid, fd, ranges)) for (number, pid, ranges), fd in zip(given, fds, strict=True)]


def _tell(line: socket.socket, what: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        line.sendall(json.dumps(what).encode() + b"\n")


class Share:
    """One process as a feeder sees it, only with the stretches that are written."""

    over = False

    def __init__(self, pages: Pagemap, layout: Layout, standing: Standing) -> None:
        self.file, self._standing, self._noting = pages.file, standing, threading.Lock()
        self.space = Space(runs(pages, layout.files[pages.file]))
        at = 0
        for start, end in [*standing.ranges, (ADDRESSES, ADDRESSES)]:
            self.space.drop(at, start)
            at = end

    def chunks(self, layout: Layout) -> Iterator[list[int]]:
        """The chunks that hold it, in order."""
        for s in self.space.left():
            yield layout.files[self.file].chunks(s.run.at + s.first, s.run.at + s.last)

    def put(self, first: int, last: int, source: int) -> None:
        """Write pages `first` to `last` of the file; the first lies at address `source` of ours. Raises WorkerFailed."""
        for run, lower, upper in self.space.stretches(first, last):
            at = lower
            while at < upper:
                to, what = run.start + at * PAGE, source + (run.at + at - first) * PAGE
                done, error = self._standing.copy(to, what, (upper - at) * PAGE) or (0, errno.EFAULT)
                if not done:
                    raise WorkerFailed(f"memory of a process can't be written at {to:#x}: {os.strerror(error)}")
                with self._noting:
                    self.space.mark(run, at, at + done // PAGE)
                at += done // PAGE
