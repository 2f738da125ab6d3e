"""Copies a job's memory while it runs, so that the freeze is left with what was written meanwhile.

Before the freeze: watch the writes of each large process, and copy its private memory in the order of addresses. During it:
CRIU sends all pages, as always, and those of watched processes are passed over unread (CRIU moves references, which costs next
to nothing). Its map of pages says which ones belong to the image and in which order. A page is taken from the copy if the
kernel says that it was not written since; else it is read now, from the process that stands still. See `linux.userfaultfd` for
what is not watched.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.linux.addresses import address
from spotsurfer_wire.linux.buffers import PAGE, Buffer

from spotsurfer_agent.chunks.fingerprints import Numbers
from spotsurfer_agent.criu import images, interrupted_calls
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.linux.userfaultfd import Ranges, WriteWatch, can_watch_writes
from spotsurfer_agent.save.pages import Composed, PageFile, Pages
from spotsurfer_agent.save.stream import Sink

WORTH_BYTES = 16 << 20  # of a process; less is read as fast
BATCH_BYTES = 256 << 20  # each costs a look at all descriptors and mappings of the process
PIECE_BYTES = 1 << 20  # given up at once if memory vanishes while it is copied

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copied:
    """The work that was done before the freeze."""

    bytes: int = 0
    seconds: float = 0.0
    read_seconds: float = 0.0  # of these: for reading alone


@dataclass(slots=True)
class Area:
    """A piece of memory that is watched."""

    start: int
    end: int
    copied: npt.NDArray[np.bool_] = field(init=False)
    number: Numbers = field(init=False)  # of each copied page in the file of copies

    def __post_init__(self) -> None:
        self.copied = np.zeros((self.end - self.start) // PAGE, dtype=np.bool_)

    def numbered(self, first: int) -> int:
        """All is copied: count the pages from `first` on; the number of the next."""
        self.number = np.cumsum(self.copied) + (first - 1)
        return first + int(np.count_nonzero(self.copied))

    def good(self, unwritten: Ranges) -> npt.NDArray[np.bool_]:
        """Pages whose copy is what they hold."""
        edges = (unwritten.astype(np.int64) - self.start) // PAGE
        change = np.zeros(len(self.copied) + 1, dtype=np.int8)
        change[edges[:, 0]] += 1  # ranges neither touch nor overlap: no index comes twice
        change[edges[:, 1]] -= 1
        return self.copied & (np.cumsum(change[:-1], dtype=np.int8) > 0)


class Ahead:
    """One process's memory, copied ahead."""

    def __init__(self, pid: int, pages: Pages) -> None:
        """Raises OSError if its writes can't be watched."""
        self._pid, self._pages, self.number = pid, pages, procfs.number_inside(pid)
        self.map_name = f"pagemap-{self.number}.img"
        self._watch = WriteWatch(pid, partial(interrupted_calls.settle, pid))
        try:
            self._areas = [Area(*a) for a in self._watch.areas]
        except BaseException:  # there is no memory for them
            self._watch.close()
            raise
        self._file: PageFile | None = None
        self.read_seconds = 0.0  # spent on copying, without waiting for memory

    def copy(self) -> int:
        """While the job runs; bytes that were copied. Raises what the memory for them raises."""
        sink, self._file = self._pages.part(self.map_name)
        for area, ranges in self._armed():
            for start, end in ranges.tolist():
                self._copy(sink, area, start, end)
        sink.end()
        first = 0
        for area in self._areas:
            first = area.numbered(first)
        return first * PAGE

    def _armed(self) -> Iterator[tuple[Area, Ranges]]:
        """Areas whose writes are seen from then on, and what is to be copied of them."""
        batch: list[tuple[Area, Ranges]] = []
        waiting = 0
        for area in self._areas:
            with contextlib.suppress(OSError):  # it is gone, or the process has ended: nothing of it counts
                batch.append((area, self._watch.arm((area.start, area.end))))
                waiting += int(np.sum(batch[-1][1][:, 1] - batch[-1][1][:, 0]))
            if waiting >= BATCH_BYTES or area is self._areas[-1]:
                try:
                    self._watch.check()
                except OSError:  # devices may write into these
                    batch = []
                yield from batch
                batch, waiting = [], 0

    def _copy(self, sink: Sink, area: Area, start: int, end: int) -> None:
        while start < end:
            room, began = sink.room(), time.monotonic()
            piece = np.array([start, min(end - start, len(room))], dtype=np.uint64)
            try:
                count = syscalls.read_memory(self._pid, address(room), int(piece[1]), piece.ctypes.data, 1) // PAGE * PAGE
            except OSError:
                count = 0
            if not count:
                start += PIECE_BYTES
                continue
            sink.filled(count)
            self.read_seconds += time.monotonic() - began
            at = (start - area.start) // PAGE
            area.copied[at : at + count // PAGE] = True
            start += count

    def settle(self, folder: Path, passed: dict[str, int], pid: int) -> None:
        """The job stands still, CRIU's maps of pages lie in the folder: make the page file whole.

        `passed`: bytes of the page files that were passed over. `pid`: the process that has this number in the job now. If ours
        has ended, it is another one, and no copy counts. Raises StreamError, OSError, images.BadImage.
        """
        if pid != self._pid:
            self._pid, self._areas = pid, []
        found = images.pagemap((folder / self.map_name).read_bytes())
        if passed.get(found.file) != found.pages * PAGE:
            raise StreamError(0, f"CRIU sent {passed.get(found.file)} bytes of {found.file}, {found.pages * PAGE} expected")
        assert self._file is not None
        source = self._source(found)
        sink, late = self._pages.part(found.file, compared=False)
        self._read(sink, _addresses(found, np.flatnonzero(source < 0)))
        sink.end()
        self._pages.composed(Composed(found.file, self._file, late, source))

    def _source(self, found: images.Pagemap) -> Numbers:
        """Of each page of the file its number among the copies, or -1."""
        source = np.full(found.pages, -1, dtype=np.int64)
        for area in self._areas:
            try:
                good = area.good(self._watch.unwritten((area.start, area.end)))
            except OSError:  # part of it is another area by now
                continue
            for run in found.runs:
                begin, end = max(run.start, area.start), min(run.start + run.pages * PAGE, area.end)
                if begin < end:
                    at, first, last = run.at + (begin - run.start) // PAGE, *((x - area.start) // PAGE for x in (begin, end))
                    source[at : at + last - first] = np.where(good[first:last], area.number[first:last], -1)
        return source

    def _read(self, sink: Sink, addresses: npt.NDArray[np.uint64]) -> None:
        while len(addresses):
            room = sink.room()
            now, addresses = addresses[: len(room) // PAGE], addresses[len(room) // PAGE :]
            to = address(room)
            for pieces in _batches(_runs(now)):
                wanted, count = int(pieces[:, 1].sum()), 0
                with contextlib.suppress(OSError):
                    count = syscalls.read_memory(self._pid, to, wanted, pieces.ctypes.data, len(pieces))
                if count != wanted:
                    self._read_all(room[to - address(room) :], pieces)
                to += wanted
            sink.filled(len(now) * PAGE)

    def _read_all(self, room: Buffer, pieces: Ranges) -> None:
        """Also what the process itself may not read: guard pages that hold something."""
        memory, at = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC), 0
        try:
            for start, length in pieces.tolist():
                if os.preadv(memory, [memoryview(room)[at : at + length]], start) != length:
                    raise StreamError(0, f"memory of process {self._pid} could not be read")
                at += length
        finally:
            os.close(memory)

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._watch.close()


class Aheads:
    """All processes of a job that are worth it."""

    def __init__(self, pids: Iterable[int], pages: Pages) -> None:
        self._each: list[Ahead] = []
        if not can_watch_writes():
            return
        for pid in pids:
            try:
                if procfs.resident_bytes(pid) >= WORTH_BYTES:
                    self._each.append(Ahead(pid, pages))
            except OSError as e:  # the freeze is longer, and that is all
                log.info("memory of process %d is copied in the freeze: %s", pid, e)
            except BaseException:
                self.close()
                raise

    def copy(self) -> Copied:
        """While the job runs."""
        began = time.monotonic()
        copied = sum(each.copy() for each in self._each)
        return Copied(copied, time.monotonic() - began, sum(each.read_seconds for each in self._each))

    def has(self, map_name: str) -> bool:
        """Whether the page file that belongs to this map is to be passed over."""
        return any(each.map_name == map_name for each in self._each)

    def settle(self, folder: Path, passed: dict[str, int], pids: Mapping[int, int]) -> None:
        """The job stands still: make the page files whole. `pids` by their numbers in the job. Raises as each does."""
        for each in self._each:
            if (folder / each.map_name).exists():  # else it ended before the freeze
                each.settle(folder, passed, pids[each.number])

    def close(self) -> None:
        """Watch no more. Idempotent."""
        for each in self._each:
            each.close()


def _addresses(found: images.Pagemap, numbers: Numbers) -> npt.NDArray[np.uint64]:
    """The addresses of a file's pages in the process's memory."""
    at = np.array([r.at for r in found.runs], dtype=np.int64)
    start = np.array([r.start for r in found.runs], dtype=np.uint64)
    run = np.searchsorted(at, numbers, side="right") - 1
    return start[run] + (numbers - at[run]).astype(np.uint64) * np.uint64(PAGE)


def _runs(addresses: npt.NDArray[np.uint64]) -> Ranges:
    """Rows of address and length of pages that follow each other."""
    first = np.flatnonzero(np.append(True, addresses[1:] != addresses[:-1] + np.uint64(PAGE)))
    count = np.diff(np.append(first, len(addresses)))
    return np.stack([addresses[first], count.astype(np.uint64) * np.uint64(PAGE)], axis=1)


def _batches(runs: Ranges) -> Iterable[Ranges]:
    for at in range(0, len(runs), syscalls.READ_PIECES_MAX):
        yield np.ascontiguousarray(runs[at : at + syscalls.READ_PIECES_MAX])
