"""The memory of one process: what of it is missing, and how workers write it while it stands still."""

from __future__ import annotations

import contextlib
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
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from spotsurfer_wire.chunks.budget import PAGER
from spotsurfer_wire.chunks.reader import BadChunk
from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.store.port import StoreError

from spotsurfer_agent.criu.images import Pagemap
from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.linux.processors import THREADS_EACH
from spotsurfer_agent.restore.pager import image_files
from spotsurfer_agent.restore.pager.feeder import Feeder, Layout, PagesFile, in_order
from spotsurfer_agent.restore.pager_process import BLAME_IMAGE, BLAME_STORE, PagerPlan

log = logging.getLogger(__name__)

# ---- Space: what of a process's memory must be brought, and what of it is there. Pure: addresses and page numbers, no memory.
#
# A *run* is a stretch of addresses whose original content is contiguous in a file of pages. The process goes on while its
# memory arrives: it moves runs, frees parts of them, and forks. Addresses outside of all runs are zeros.


@dataclass(slots=True, eq=False)
class Run:
    """`start` is an address, `at` a page number in the file, `done` has a byte for each page: 1 when it is there."""

    start: int
    at: int
    done: bytearray

    @property
    def end(self) -> int:
        """The first address behind the run."""
        return self.start + len(self.done) * PAGE


class Stretch(NamedTuple):
    """Pages first to last (exclusive) of a run, none of which is there."""

    run: Run
    first: int
    last: int


def _start(run: Run) -> int:
    return run.start


def _at(run: Run) -> int:
    return run.at


class Space:
    """The runs of one process. Not safe for several threads."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._by_address = sorted(runs, key=_start)
        self._by_place = sorted(self._by_address, key=_at)
        self.missing = sum(run.done.count(0) for run in self._by_address)  # pages

    def copy(self) -> Space:
        """A copy for a child that was just forked."""
        return Space(Run(run.start, run.at, bytearray(run.done)) for run in self._by_address)

    def find(self, address: int) -> tuple[Run, int] | None:
        """The run at an address and the page in it; None if the address is in no run."""
        i = bisect_right(self._by_address, address, key=_start) - 1
        if i < 0 or address >= self._by_address[i].end:
            return None
        run = self._by_address[i]
        return run, (address - run.start) // PAGE

    def gap(self, address: int, reach: int) -> tuple[int, int]:
        """Start and end of the zeros around an address, within its block of `reach` bytes."""
        lower = address - address % reach
        upper = lower + reach
        i = bisect_right(self._by_address, address, key=_start)
        if i:
            lower = max(lower, self._by_address[i - 1].end)
        if i < len(self._by_address):
            upper = min(upper, self._by_address[i].start)
        return lower, upper

    def stretches(self, first: int, last: int) -> Iterator[Stretch]:
        """Missing parts of the file's pages `first` to `last`. Between two of them the space may be marked, but not changed."""
        i = max(bisect_right(self._by_place, first, key=_at) - 1, 0)
        while i < len(self._by_place) and self._by_place[i].at < last:
            run = self._by_place[i]
            yield from _missing(run, max(first - run.at, 0), min(last - run.at, len(run.done)))
            i += 1

    def left(self) -> Iterator[Stretch]:
        """Everything that is missing."""
        for run in self._by_place:
            yield from _missing(run, 0, len(run.done))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First address of each run, and the one behind it."""
        return ((run.start, run.end) for run in self._by_address)

    def mark(self, run: Run, first: int, last: int) -> None:
        """These pages are there now."""
        self.missing -= run.done.count(0, first, last)
        run.done[first:last] = b"\1" * (last - first)

    def drop(self, start: int, end: int) -> None:
        """The process freed these addresses: they hold zeros, or nothing."""
        for run in self._cut(start, end):
            self.missing -= run.done.count(0)

    def move(self, source: int, to: int, length: int) -> None:
        """The process moved its memory."""
        moved = self._cut(source, source + length)
        self.drop(to, to + length)
        for run in moved:
            run.start += to - source
            self._add(run)

    def _cut(self, start: int, end: int) -> list[Run]:
        """Remove the range; runs across its edges are split."""
        i = bisect_right(self._by_address, start, key=_start) - 1
        i = i if i >= 0 and self._by_address[i].end > start else i + 1
        touched = self._by_address[i : bisect_left(self._by_address, end, lo=i, key=_start)] if end > start else []
        out = []
        for run in touched:
            self._forget(run)
            first, last = max(start - run.start, 0) // PAGE, (min(end, run.end) - run.start + PAGE - 1) // PAGE
            for lower, upper in ((0, first), (last, len(run.done))):
                if lower < upper:
                    self._add(_part(run, lower, upper))
            out.append(_part(run, first, last))
        return out

    def _add(self, run: Run) -> None:
        insort(self._by_address, run, key=_start)
        insort(self._by_place, run, key=_at)

    def _forget(self, run: Run) -> None:
        del self._by_address[bisect_left(self._by_address, run.start, key=_start)]
        del self._by_place[bisect_left(self._by_place, run.at, key=_at)]


def _part(run: Run, first: int, last: int) -> Run:
    return Run(run.start + first * PAGE, run.at + first, run.done[first:last])


def _missing(run: Run, first: int, last: int) -> Iterator[Stretch]:
    while first < last and (lower := run.done.find(0, first, last)) >= 0:
        upper = run.done.find(1, lower, last)
        first = upper if upper >= 0 else last
        yield Stretch(run, lower, first)


def runs(pages: Pagemap, file: PagesFile) -> Iterator[Run]:
    """The runs to bring for a process: its lazy pages without those that are zeros."""
    for r in pages.runs:
        if r.lazy:
            for first, last in file.covered(r.at, r.at + r.pages):
                yield Run(r.start + (first - r.at) * PAGE, first, bytearray(last - first))


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


def leave(name: str, body: Callable[[], None]) -> NoReturn:
    """Run a child's body and exit: it never returns into the parent's code, and flushes or closes nothing twice."""
    try:
        body()
    except BaseException as e:
        sys.stderr.write(f"{name}: {type(e).__name__}: {e}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


# ---- Workers: further processes that write memory into a job that stands still
#
# Threads of one interpreter wait for each other, however many processors the machine has. So a pager with several processors
# has workers, which it forks before it has a second thread. Each takes every n-th chunk and writes the parts that belong into
# writable stretches (`Standing`). Userfaultfd stays with the pager: a worker has no descriptor of it, and
# holds none open.

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
                syscalls.die_with_parent()
                if os.getppid() != me:
                    os._exit(0)
                leave("worker", partial(work, number, theirs))
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


def serve(plan: PagerPlan, image: Manifest, count: int, number: int, line: socket.socket) -> None:
    """The life of one of `count` workers: get ready, receive a part, write it, report."""
    limits = dataclasses.replace(PAGER, memory_bytes=PAGER.memory_bytes // (count + 1), puts=THREADS_EACH)

    def failed(e: Exception) -> NoReturn:
        _tell(line, {"error": str(e) or type(e).__name__, "blame": image_files.blame(e)})
        os._exit(1)

    try:
        content = image_files.content(plan, image, image_files.store_of_plan(plan), limits)
        maps, layout = content.bringable(content.maps())
        feeder = Feeder(layout, content.once, failed, patient=False)
        shares: list[Share] = []
        _, fds, _, _ = socket.recv_fds(line, 1, PROCESSES_MAX)
        if fds:  # else the pager needs no worker, or is gone
            with line.makefile() as lines:
                given: list[Given] = json.loads(lines.readline())
            shares = [Share(maps[n], layout, Standing(pid, fd, r)) for (n, pid, r), fd in zip(given, fds, strict=True)]
        for share in shares:
            feeder.tasks[share.file].append(share)
        feeder.start(THREADS_EACH)
        feeder.fetch_ahead(list(in_order(chunks for share in shares for chunks in share.chunks(layout)))[number::count])

        def missing() -> int:
            return sum(s.space.missing for s in shares) * PAGE

        whole = missing()
        while not feeder.idle:
            select.select([feeder.quiet], [], [], TELL_SECONDS)
            _tell(line, {"missing": max(missing() - whole + whole // count, 1)})
        _tell(line, {"missing": 0})
    except Exception as e:
        log.exception("a worker failed")
        failed(e)


def _tell(line: socket.socket, what: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        line.sendall(json.dumps(what).encode() + b"\n")


class Share:
    """One process as a feeder sees it, only with the stretches that are written."""

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

    def misses(self, first: int, last: int) -> bool:
        """As `Taker` says."""
        return next(self.space.stretches(first, last), None) is not None

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
