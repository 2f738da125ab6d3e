"""userfaultfd: serving page faults, and asynchronous write protection that tells which pages are written."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
from spotsurfer_wire.linux import procfs, syscalls

from spotsurfer_agent.linux import ptrace

# ---- Serving page faults: calls and messages, see userfaultfd(2) and ioctl_userfaultfd(2)

_UNREGISTER, _WAKE, _COPY, _ZEROPAGE = 0x8010AA01, 0x8010AA02, 0xC028AA03, 0xC020AA04
_MESSAGE = 32
_MESSAGES = 64
_libc = ctypes.CDLL(None, use_errno=True)


class Kind(IntEnum):
    """Kind of a message."""

    FAULT = 0x12
    FORK = 0x13
    REMAP = 0x14
    REMOVE = 0x15
    UNMAP = 0x16


@dataclass(frozen=True, slots=True)
class Message:
    """One event. FAULT: `a` is the address; FORK: the child's descriptor; REMAP: from, to, length; else start and end."""

    kind: Kind
    a: int
    b: int = 0
    c: int = 0


class _Copy(ctypes.Structure):
    _fields_ = (
        ("to", ctypes.c_uint64),
        ("source", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("done", ctypes.c_int64),
    )


class _Range(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("done", ctypes.c_int64),
    )


def available() -> bool:
    """Whether this kernel lets us serve faults."""
    try:
        os.close(syscalls.userfaultfd())
    except (OSError, KeyError):
        return False
    return True


def read_message(fd: int) -> list[Message]:
    """Waiting messages, oldest first; may be empty. `fd` does not block."""
    try:
        data = os.read(fd, _MESSAGE * _MESSAGES)
    except BlockingIOError:
        return []
    return [_message(data[at : at + _MESSAGE]) for at in range(0, len(data), _MESSAGE)]


def _message(data: bytes) -> Message:
    kind = Kind(data[0])
    if kind is Kind.FAULT:
        return Message(kind, int(struct.unpack_from("=Q", data, 16)[0]))
    if kind is Kind.FORK:
        return Message(kind, int(struct.unpack_from("=I", data, 8)[0]))
    return Message(kind, *struct.unpack_from("=QQQ", data, 8))


def copy(fd: int, to: int, source: int, length: int) -> tuple[int, int]:
    """Put bytes from our memory at an address of the job and wake who waits there: bytes that are there now, and errno.

    errno is 0 as long as anything was copied: ask again for the rest.
    """
    request = _Copy(to, source, length, 0, 0)
    if _libc.ioctl(fd, ctypes.c_ulong(_COPY), ctypes.byref(request)) == 0:
        return length, 0
    number = ctypes.get_errno()
    return (int(request.done), 0) if request.done > 0 else (0, number)


def zero(fd: int, start: int, length: int) -> int:
    """Put zeros; returns errno, 0 on success."""
    return _ranged(fd, _ZEROPAGE, start, length)


def wake(fd: int, start: int, length: int) -> None:
    """Wake the threads that wait there: the page is there already."""
    _ranged(fd, _WAKE, start, length)


def unregister(fd: int, start: int, length: int) -> int:
    """Stop serving these addresses: missing pages are zeros from now on. Returns errno, 0 on success."""
    return _ranged(fd, _UNREGISTER, start, length)


def _ranged(fd: int, call: int, start: int, length: int) -> int:
    request = _Range(start, length, 0, 0)
    return syscalls.ioctl(fd, call, ctypes.addressof(request))


# ---- Watching writes: which pages of a running process are written from now on
#
# This uses asynchronous write protection (`userfaultfd(2)` with UFFD_FEATURE_WP_ASYNC) and PAGEMAP_SCAN of /proc/PID/pagemap
# (Documentation/admin-guide/mm/pagemap.rst), Linux 6.8.10 or newer. The first write to each page costs the job about a
# microsecond, and splits a huge page; huge pages are rebuilt afterwards. Unwatched areas (new, moved, shared or mapped from
# files) never count as unwritten.
#
# Devices write without a fault into pages that they got before the watch began. So a process that may have such pages
# (O_DIRECT, asynchronous I/O) is not watched.

AREA_BYTES_MIN = 1 << 20  # smaller ones are read as fast as they are asked about
_SYS_CLOSE, _SYS_USERFAULTFD = 3, 323  # x86-64
_USER_MODE_ONLY = 1  # the flag for unprivileged processes; protection without messages needs no more
_API, _FEATURES = 0xAA, 1 << 15 | 1 << 13  # WP_ASYNC, and WP_UNPOPULATED, which it needs
_UFFDIO_API, _UFFDIO_REGISTER, _UFFDIO_WRITEPROTECT, _WRITE_PROTECT = 0xC018AA3F, 0xC020AA00, 0xC018AA06, 2
_KERNEL_MIN = (6, 8, 10)  # earlier ones leave protection behind when the watch ends (CVE-2024-36881)
_KERNEL_CLEAN = (6, 12, 11)  # earlier ones do so if memory moves during the watch (CVE-2025-21696)
_PAGEMAP_SCAN, _ARM, _MUST_BE_WATCHED = 0xC0606610, 1, 2
_WATCHED, _WRITTEN, _PRESENT, _EMPTY, _HUGE = 1, 2, 8, 32, 64
_REGIONS = 1 << 14
_OWN = ("[stack", "[vdso]", "[vvar", "[vsyscall]", "[uprobes]")

Ranges = npt.NDArray[np.uint64]  # rows of start and end, in bytes


class Unwatchable(OSError):
    """Writes of this process can't be seen; a sentence."""


class _Scan(ctypes.Structure):
    """struct pm_scan_arg of linux/fs.h."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages"),
            *("category_inverted", "category_mask", "category_anyof_mask", "return_mask"),
        )
    )


@functools.cache
def can_watch_writes() -> bool:
    """Whether this kernel has it."""
    if os.uname().machine != "x86_64" or syscalls.kernel_version() < _KERNEL_MIN:
        return False
    try:
        fd = syscalls.userfaultfd(_USER_MODE_ONLY)
    except OSError:
        return False
    with contextlib.closing(os.fdopen(fd, "rb", buffering=0)):
        return _introduced(fd)


class WriteWatch:
    """Watches one process. Made while it runs; `arm` and `check` begin, `unwritten` reports, `close` ends the watch."""

    def __init__(self, pid: int, settle: Callable[[ptrace.Registers], object]) -> None:
        """`settle` is that of `ptrace.stopped`. Raises Unwatchable and OSError."""
        self._pid, self._fd = pid, -1
        self.check()
        self._huge: list[tuple[int, int]] = []
        self._pidfd = os.pidfd_open(pid)
        try:
            with ThreadPoolExecutor(1) as alone:  # when a tracer ends, the threads that it could not stop are let go
                self._fd = alone.submit(_descriptor_in, pid, self._pidfd, settle).result()
            if not _introduced(self._fd):
                raise Unwatchable(0, "this kernel can't watch writes without serving them")
            self.areas = [a for a in _areas(pid) if _registered(self._fd, *a)]
        except BaseException:
            self.close()
            raise

    def arm(self, area: tuple[int, int]) -> Ranges:
        """Note writes to the present, non-empty pages of an area from now on. Raises OSError.

        Read the pages only after `check`.
        """
        found = self._scan(area, _ARM, wanted=_WATCHED | _PRESENT | _EMPTY, absent=_EMPTY)
        huge = found[found[:, 2] & _HUGE != 0]
        self._huge += [(start, end - start) for start, end, _ in huge.tolist()]
        return found[:, :2]

    def check(self) -> None:
        """Raises Unwatchable if a device may write unseen into armed pages; a later I/O request can't."""
        _refuse_devices(self._pid)

    def unwritten(self, area: tuple[int, int]) -> Ranges:
        """Pages of an area that were not written since `arm`. The process stands still. Raises OSError."""
        return self._scan(area, _MUST_BE_WATCHED, wanted=_WATCHED | _PRESENT | _WRITTEN, absent=_WRITTEN)[:, :2]

    def close(self) -> None:
        """End the watch and rebuild huge pages. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        for start, length in self._huge:
            with contextlib.suppress(OSError):  # it has ended, or there is no memory for it
                syscalls.collapse(self._pidfd, start, length)
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._fd = self._pidfd = -1
        self._huge = []

    def _scan(self, area: tuple[int, int], flags: int, *, wanted: int, absent: int) -> Ranges:
        found, at, end = [], *area
        regions = np.empty((_REGIONS, 3), dtype=np.uint64)
        with Path(f"/proc/{self._pid}/pagemap").open("rb", buffering=0) as pagemap:  # of the memory that it has now
            while at < end:
                ask = _Scan(
                    size=ctypes.sizeof(_Scan), flags=flags, start=at, end=end, vec=regions.ctypes.data, vec_len=_REGIONS,
                    category_inverted=absent, category_mask=wanted, return_mask=_HUGE,
                )  # fmt: skip
                count = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, ask)
                found.append(regions[:count].copy())
                at = int(ask.walk_end)
        return np.concatenate(found) if found else np.empty((0, 3), dtype=np.uint64)


def _refuse_devices(pid: int) -> None:
    for m in procfs.mappings(procfs.text(pid, "maps")):
        if m.name.endswith("/[aio] (deleted)"):
            raise Unwatchable(0, f"process {pid} uses asynchronous I/O")
    if any(procfs.flags(pid, int(info.name)) & os.O_DIRECT for info in Path(f"/proc/{pid}/fdinfo").iterdir()):
        raise Unwatchable(0, f"process {pid} uses direct I/O")


def _descriptor_in(pid: int, pidfd: int, settle: Callable[[ptrace.Registers], object]) -> int:
    """A userfaultfd of the process's memory that only we hold. Raises OSError."""
    with ptrace.stopped(pid, settle) as there:
        number = there.call(_SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        try:
            return syscalls.pidfd_getfd(pidfd, number)
        finally:
            there.call(_SYS_CLOSE, number)  # CRIU can't save one


def _introduced(fd: int) -> bool:
    words = np.array([_API, _FEATURES, 0], dtype=np.uint64)
    return syscalls.ioctl(fd, _UFFDIO_API, words.ctypes.data) == 0 and int(words[1]) & _FEATURES == _FEATURES


def _registered(fd: int, start: int, end: int) -> bool:
    """Register an area and clear protection of an earlier watch, as such pages would not be armed."""
    words = np.array([start, end - start, _WRITE_PROTECT, 0], dtype=np.uint64)
    plain = np.array([start, end - start, 0], dtype=np.uint64)
    if syscalls.ioctl(fd, _UFFDIO_REGISTER, words.ctypes.data) != 0:
        return False
    return syscalls.kernel_version() >= _KERNEL_CLEAN or syscalls.ioctl(fd, _UFFDIO_WRITEPROTECT, plain.ctypes.data) == 0


def _areas(pid: int) -> Iterator[tuple[int, int]]:
    """Private memory without a file."""
    for m in procfs.mappings(procfs.text(pid, "maps")):
        private = m.mode[0] == "r" and m.mode[3] == "p" and not m.inode
        if private and m.end - m.start >= AREA_BYTES_MIN and not m.name.startswith(_OWN):
            yield m.start, m.end
