"""Further processes that write memory into a job that stands still.

The threads of one interpreter wait for each other however many processors there are. So a pager that has the processors has
hands, forked from it before it has a second thread. Each takes every n-th chunk and writes what belongs into stretches that
can be written (`standing.py`). Userfaultfd stays with the pager: a hand has no descriptor of it, and holds none open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from spotsurfer_agent import linux
from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.reader import BadChunk
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.pager import choice, sources
from spotsurfer_agent.pager.feeder import Feeder
from spotsurfer_agent.pager.holder import leave
from spotsurfer_agent.pager.images import Pagemap
from spotsurfer_agent.pager.layout import Layout, in_order, runs
from spotsurfer_agent.pager.plan import BLAME_IMAGE, BLAME_STORE, Plan
from spotsurfer_agent.pager.space import Space
from spotsurfer_agent.pager.standing import Range, Standing
from spotsurfer_agent.storeport import StoreError

log = logging.getLogger(__name__)
PROCESSES_MAX = 250  # descriptors in one message, see unix(7)
TELL_SECONDS = 0.2
WRITERS = "processes that write:"
GONE = "a process that wrote the job's memory died"
ADDRESSES = 1 << 64
FAILURES = {BLAME_IMAGE: BadChunk, BLAME_STORE: StoreError}  # that one of them can have; others it tells as its own
Given = tuple[int, int, list[Range]]  # a process by its number in the image and by its number here, and what is to be written


class HandFailed(Exception):
    """One of them could not do its part; a sentence."""


class Hands:
    """What the pager has of them. Made before it has a second thread."""

    def __init__(self, count: int, work: Callable[[int, socket.socket], None]) -> None:
        """`work` is what one of them does, given its number and its end of a line to us."""
        self._lines: dict[int, socket.socket] = {}
        self._missing: dict[int, int] = {}  # bytes, by line; of those that are not done
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
        """What they have not written yet."""
        return sum(self._missing.values())

    @property
    def busy(self) -> Sequence[int]:
        """Descriptors to listen to; empty where all of them are done."""
        return list(self._missing)

    def give(self, stand: Sequence[tuple[int, Standing]]) -> None:
        """Processes by their numbers in the image, PROCESSES_MAX at most. Raises as `hear`."""
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
        """One of them says something. Raises BadChunk, StoreError, HandFailed."""
        try:
            said = self._lines[fd].recv(1 << 16).decode().splitlines()
        except ConnectionResetError:
            said = []
        if not said:
            raise HandFailed(GONE)
        told: dict[str, Any] = json.loads(said[-1])
        if error := told.get("error"):
            raise FAILURES.get(told["blame"], HandFailed)(error)
        self._missing[fd] = int(told["missing"])
        if not self._missing[fd]:
            del self._missing[fd]

    def dismiss(self) -> None:
        """They are not needed (any more)."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


NOBODY = Hands(0, lambda *_: None)


def _live(parent: int, body: Callable[[], None]) -> None:
    """No longer than the pager."""
    linux.die_with_parent()
    if os.getppid() == parent:
        body()


# ------------------------------------------------------------ one of them


def serve(plan: Plan, image: Manifest, count: int, number: int, line: socket.socket) -> None:
    """The life of one of `count`: make ready, be told, write, tell."""
    small = dataclasses.replace(plan, memory_bytes=plan.memory_bytes // (count + 1), threads=choice.HAND_THREADS)

    def failed(e: Exception, _: object = None) -> NoReturn:
        _tell(line, {"error": str(e) or type(e).__name__, "blame": sources.blame(e)})
        os._exit(1)

    try:
        content = sources.content(small, image, sources.store(small))
        maps, layout = content.bringable(content.maps())
        feeder = Feeder(layout, content.once, failed, patient=False)
        shares = [Share(maps[n], layout, standing) for n, standing in _told(line)]
        for share in shares:
            feeder.tasks[share.file].append(share)
        feeder.start(choice.HAND_THREADS)
        feeder.fetch_ahead(list(in_order(chunks for share in shares for chunks in share.chunks(layout)))[number::count])
        _wait(feeder, shares, count, line)
    except Exception as e:
        log.exception("a hand failed")
        failed(e)


def _wait(feeder: Feeder, shares: Sequence[Share], count: int, line: socket.socket) -> None:
    """Until its part is there, which is told meanwhile."""

    def missing() -> int:
        return sum(s.space.missing for s in shares) * PAGE

    whole = missing()
    while not feeder.idle:
        select.select([feeder.quiet], [], [], TELL_SECONDS)
        _tell(line, {"missing": max(missing() - whole + whole // count, 1)})
    _tell(line, {"missing": 0})


def _told(line: socket.socket) -> list[tuple[int, Standing]]:
    """Processes by their numbers in the image; none where the pager needs nobody, or is gone."""
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
    """One process, as a feeder sees it: what is written of it, and nothing else."""

    over = False

    def __init__(self, pages: Pagemap, layout: Layout, standing: Standing) -> None:
        self.file, self._standing, self._noting = pages.file, standing, threading.Lock()
        self.space = Space(runs(pages, layout.files[pages.file]))
        at = 0
        for start, end in [*standing.ranges, (ADDRESSES, ADDRESSES)]:
            self.space.drop(at, start)
            at = end

    def chunks(self, layout: Layout) -> Iterator[list[int]]:
        """What holds it, in order."""
        for s in self.space.left():
            yield layout.files[self.file].chunks(s.run.at + s.first, s.run.at + s.last)

    def put(self, first: int, last: int, source: int) -> None:
        """Write pages `first` to `last` of the file; the first lies at address `source` of ours. Raises HandFailed."""
        for run, lower, upper in self.space.stretches(first, last):
            at = lower
            while at < upper:
                to, what = run.start + at * PAGE, source + (run.at + at - first) * PAGE
                done, error = self._standing.copy(to, what, (upper - at) * PAGE) or (0, errno.EFAULT)
                if not done:
                    raise HandFailed(f"memory of a process can't be written at {to:#x}: {os.strerror(error)}")
                with self._noting:
                    self.space.mark(run, at, at + done // PAGE)
                at += done // PAGE
