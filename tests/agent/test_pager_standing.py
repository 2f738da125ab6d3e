"""Memory that is written into a process that stands still: which of it, and that it arrives."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.restore.pager import process_memory
from spotsurfer_agent.restore.pager.page_fault_server import Task
from spotsurfer_agent.restore.pager.process_memory import HUGE_BYTES, LEAST_BYTES, Run, Space, Standing
from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.linux.buffers import PAGE

H, L = HUGE_BYTES, LEAST_BYTES
API, REGISTER, MISSING = 0xC018AA3F, 0xC020AA00, 1  # linux/userfaultfd.h
MAPS = """\
00400000-00401000 r-xp 00000000 00:1a 1 /usr/bin/x
00600000-00601000 rw-p 00000000 00:1a 1 /usr/bin/x
00601000-00700000 rw-p 00000000 00:00 0 [heap]
00700000-00800000 r--p 00000000 00:00 0
00900000-00a00000 rw-s 00000000 00:01 5 /dev/zero (deleted)
00a00000-00b00000 ---p 00000000 00:00 0
00b00000-00c00000 rw-p 00000000 00:00 0
"""


def test_a_line_of_maps_is_read() -> None:
    first, *_, shared, _, bare = procfs.mappings(MAPS)
    assert first == (0x400000, 0x401000, "r-xp", 1, "/usr/bin/x")
    assert shared == (0x900000, 0xA00000, "rw-s", 5, "/dev/zero (deleted)")
    assert bare == (0xB00000, 0xC00000, "rw-p", 0, "")


def test_private_memory_that_may_be_written_is() -> None:
    assert list(process_memory.writable(MAPS)) == [(0x600000, 0x700000), (0xB00000, 0xC00000)]
    assert list(process_memory.writable("")) == []


@pytest.mark.parametrize(
    ("runs", "blocks"),
    [
        ([], []),
        ([(0, H)], [(0, H)]),
        ([(PAGE, H)], []),
        ([(PAGE, 3 * H - PAGE)], [(H, 2 * H)]),
        ([(H, H + PAGE), (H + PAGE, 2 * H)], [(H, 2 * H)]),  # two runs, one stretch of addresses
        ([(0, H), (H + PAGE, 3 * H)], [(0, H), (2 * H, 3 * H)]),  # a page of zeros between: its block is not whole
        ([(5 * H, 6 * H), (0, H)], [(0, H), (5 * H, 6 * H)]),
    ],
)
def test_only_blocks_that_the_image_has_whole(runs: list[tuple[int, int]], blocks: list[tuple[int, int]]) -> None:
    assert list(process_memory.whole_blocks(runs)) == blocks


def test_only_long_stretches_within_what_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_memory.large([(0, L)], [(0, L)]) == [(0, L)]
    assert process_memory.large([(0, L)], [(0, L - PAGE)]) == []
    assert process_memory.large([(0, 4 * L)], [(PAGE, L + H), (2 * L, 3 * L + PAGE)]) == [(H, L + H), (2 * L, 3 * L)]
    assert process_memory.large([(0, L), (2 * L, 4 * L)], [(0, 9 * L)]) == [(0, L), (2 * L, 4 * L)]
    monkeypatch.setattr(process_memory, "STRETCHES_MAX", 1)
    assert process_memory.large([(0, L), (2 * L, 4 * L)], [(0, 9 * L)]) == [(2 * L, 4 * L)], "the longest"


@pytest.fixture
def still() -> Iterator[tuple[int, int, int]]:
    """A child that stands still, the first address of 4 * L bytes that userfaultfd serves there, and its descriptor."""
    here, there = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        stand(here[1], there[0])
    start, fd = struct.unpack("=QI", os.read(here[0], 12))
    pidfd = os.pidfd_open(pid)
    mine = syscalls.pidfd_getfd(pidfd, fd)
    try:
        yield pid, start, mine
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for each in (*here, *there, pidfd):
            os.close(each)


def stand(tell: int, until: int) -> None:
    """The child: its second page is read-only, and so is a stretch of L bytes at 2 * L."""
    memory = mmap.mmap(-1, 5 * L, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -(-ctypes.addressof(ctypes.c_char.from_buffer(memory)) // H) * H
    fd = syscalls.userfaultfd()
    for call, words in ((API, (0xAA, 0, 0)), (REGISTER, (start, 4 * L, MISSING, 0))):
        buffer = (ctypes.c_uint64 * len(words))(*words)
        assert syscalls.ioctl(fd, call, ctypes.addressof(buffer)) == 0
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 2 * L), ctypes.c_size_t(L), 1)
    os.write(tell, struct.pack("=QI", start, fd))
    os.read(until, 1)
    os._exit(0)


def test_all_of_it_arrives_whichever_way(still: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid, start, fd = still
    pages = 4 * L // PAGE
    source = mmap.mmap(-1, 4 * L)
    for page in range(pages):
        source[page * PAGE : page * PAGE + 8] = struct.pack("=Q", page + 1)
    at = ctypes.addressof(ctypes.c_char.from_buffer(source))
    real, served = userfaultfd.copy, list[int]()
    monkeypatch.setattr(userfaultfd, "copy", lambda *a: (served.append(a[1] - start), real(*a))[1])
    task = Task(1, "pages-1.img", (fd, Space([Run(start, 0, bytearray(pages))])), lambda _: None, lambda *_: None)
    task.put(0, 3, at)  # before it stood still
    assert task.stand(pid) == 3 * L
    for first in range(3, pages, 100):
        last = min(first + 100, pages)
        task.put(first, last, at + first * PAGE)
    assert task.missing == 0
    task.close()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        got = os.pread(memory.fileno(), 4 * L, start)
    assert got == source[:]
    assert served[0] == 0
    assert served[1:] and all(2 * L <= x < 3 * L for x in served[1:]), "what it can't write came by userfaultfd"


def test_a_stranger_with_the_number_of_the_process_is_not_written(still: tuple[int, int, int]) -> None:
    _, start, fd = still
    gone = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    there = Standing.taken(gone, fd, [(start, start + 2 * L)])
    os.kill(gone, signal.SIGKILL)
    os.waitpid(gone, 0)
    mine = mmap.mmap(-1, PAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(mine))
    reused = Standing(os.getpid(), there.process, [(at, at + PAGE)])  # as the kernel may give the number out again
    assert reused.copy(at, at, PAGE) == (0, errno.ESRCH)
    there.close()


def test_a_process_that_is_gone_or_not_ours_is_not_written(still: tuple[int, int, int]) -> None:
    pid, start, fd = still
    there = Standing.taken(pid, fd, [(start, start + 2 * L)])
    assert there.copy(start - PAGE, 0, PAGE) is None
    source = mmap.mmap(-1, PAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(source))
    assert there.copy(start, at, PAGE) == (PAGE, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert there.copy(start, at, PAGE) == (0, errno.ESRCH)
    there.close()
    with pytest.raises(ProcessLookupError):
        Standing.taken(1 << 22, fd, [])
