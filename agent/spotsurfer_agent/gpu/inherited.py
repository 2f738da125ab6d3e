"""What a child inherited of its parent's GPU by fork: dead weight, taken from it before a dump.

A forked child can't use CUDA: every call of the driver ends with an error. But it holds the parent's descriptors and mappings
of the devices, and CRIU refuses those. So the child is led through a few system calls: `/dev/null` takes the place of each
descriptor, inaccessible memory that of each mapping. The parent's GPU memory is out by then, so a child that is forked later
inherits nothing.

No child of the programs in docs/gpu.md missed them on an H100 (driver 580.159.04): workers of PyTorch's DataLoader, also
persistent ones, and Inductor's compilers went on, and the results were identical.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotsurfer_wire.linux.buffers import PAGE

from spotsurfer_agent.gpu.process_discovery import Holding
from spotsurfer_agent.linux import ptrace

NULL = b"/dev/null\0"
# Numbers of system calls on x86-64.
OPENAT, DUP3, CLOSE, FCNTL, MMAP, MUNMAP = 257, 292, 3, 72, 9, 11
PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0, 0x10, 0x4000  # Python's mmap does not name them
AT_FDCWD, NONE = (1 << 64) - 100, (1 << 64) - 1
AT_ONCE = 8  # children

Settle = Callable[[int, ptrace.Registers], object]  # of a process: see `ptrace.stopped`


def take(children: Mapping[int, Holding], settle: Settle) -> None:
    """Take from each child what it holds. One that has ended is no error. Raises OSError; what was taken stays taken."""

    def one(pid: int) -> None:
        try:
            _take(pid, children[pid], settle)
        except OSError:
            if Path(f"/proc/{pid}").exists():
                raise

    if children:
        # Threads that end: a child that could not be let go is let go by the end of its tracer.
        with ThreadPoolExecutor(min(len(children), AT_ONCE)) as tracers:
            list(tracers.map(one, children))


def _take(pid: int, held: Holding, settle: Settle) -> None:
    with ptrace.stopped(pid, lambda registers: settle(pid, registers)) as child:
        if held.descriptors:
            _put_null(pid, child, list(held.descriptors))
        for m in held.mappings:
            how = mmap.MAP_PRIVATE | MAP_FIXED | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            child.call(MMAP, m.start, m.end - m.start, PROT_NONE, how, NONE, 0)


def _put_null(pid: int, child: ptrace.Caller, numbers: Sequence[int]) -> None:
    """The child needs the path in its own memory, so it gets a page for a moment."""
    page = child.call(MMAP, 0, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, NONE, 0)
    try:
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(page)
            memory.write(NULL)
        null = child.call(OPENAT, AT_FDCWD, page, os.O_RDWR | os.O_CLOEXEC, 0)
        try:
            for number in numbers:
                closes = child.call(FCNTL, number, fcntl.F_GETFD, 0) & fcntl.FD_CLOEXEC
                child.call(DUP3, null, number, os.O_CLOEXEC if closes else 0)
        finally:
            child.call(CLOSE, null)
    finally:
        child.call(MUNMAP, page, PAGE)
