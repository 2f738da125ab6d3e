"""Memory of a process that stands still until all of it is there: large stretches are written, which many can do side by side.

For each copy of userfaultfd's the kernel locks the whole address space; `process_vm_writev` does so for looking up pages alone.
A written page that was not there is made as for any write, a huge page where the process may have some. So only such blocks
of that size are written of which the image has every page: no memory comes that the job did not have. All else stays with
userfaultfd, and so does memory that the process itself could not write.
"""

from __future__ import annotations

import errno
import os
import signal
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from spotsurfer_agent import linux, procfs
from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.pager import uffd

HUGE_BYTES = 2 << 20
LEAST_BYTES = 8 * HUGE_BYTES  # of a stretch
STRETCHES_MAX = 4096  # each makes up to two mappings more for a while; a process may have 65,530
Range = tuple[int, int]  # first address and the one behind the last


class Standing:
    """One process, by its number here and a descriptor of it, and what is written there; the rest comes by userfaultfd."""

    def __init__(self, pid: int, process: int, ranges: Sequence[Range]) -> None:
        self.pid, self.process, self.ranges = pid, process, ranges
        self._starts = [a for a, _ in ranges]

    @classmethod
    def taken(cls, pid: int, fd: int, runs: Iterable[Range]) -> Standing:
        """What of these runs can be written: `fd`, its userfaultfd, does not serve it any more.

        Raises OSError where the process is gone, or its memory is not ours to write.
        """
        process = os.pidfd_open(pid)
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0):  # asks for the same right, and touches nothing
            maps = procfs.text(pid, "maps")
        wanted = large(whole_blocks(runs), writable(maps))
        return cls(pid, process, [(a, b) for a, b in wanted if uffd.unregister(fd, a, b - a) == 0])

    @property
    def written_bytes(self) -> int:
        """How much that is."""
        return sum(b - a for a, b in self.ranges)

    def copy(self, to: int, source: int, length: int) -> tuple[int, int] | None:
        """As `uffd.copy` has it; None where userfaultfd has to do it."""
        i = bisect_right(self._starts, to) - 1
        if i < 0 or to >= self.ranges[i][1]:
            return None
        try:
            signal.pidfd_send_signal(self.process, 0)  # the number is still its: nothing is ever written into a stranger
            done = linux.write_memory(self.pid, to, source, min(length, self.ranges[i][1] - to))
        except OSError as e:
            return 0, e.errno or errno.EIO
        return done - done % PAGE, 0

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self.process)


def writable(maps: str) -> Iterator[Range]:
    """Private memory that the process may write, of its `maps`; neighbours of the same kind are one."""
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
    """Blocks of a huge page's size of which every page lies in a run, neighbours put together."""
    begin = end = 0
    for lower, upper in [*sorted(runs), (1 << 64, 1 << 64)]:
        if lower > end:
            first, last = -(-begin // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
            if last > first:
                yield first, last
            begin = lower
        end = max(end, upper)


def large(ranges: Iterable[Range], within: Iterable[Range]) -> list[Range]:
    """What both have, whole blocks and long stretches alone, by address."""
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
