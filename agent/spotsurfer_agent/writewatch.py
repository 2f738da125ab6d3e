"""Which pages of a running process are written from now on: asynchronous write protection, and a look at the page tables.

`userfaultfd(2)` with UFFD_FEATURE_WP_ASYNC and PAGEMAP_SCAN of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst),
Linux 6.8.10 or newer. The first write to each page costs the job about a microsecond, and splits a huge page; those are put
together again afterwards. What is not watched
(areas that are new, moved, shared or mapped from files) never counts as unwritten.

Devices write without a fault into pages that were handed to them before the watch began: a process that may have such
pages (O_DIRECT, asynchronous I/O) is not watched.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spotsurfer_agent import kernelversion, linux, procfs, ptrace, waits

AREA_BYTES_MIN = 1 << 20  # smaller ones are read as fast as they are asked about
_SYS_CLOSE, _SYS_USERFAULTFD = 3, 323  # x86-64
_USER_MODE_ONLY = 1  # what a process without rights may make; protection without messages needs no more
_API, _FEATURES = 0xAA, 1 << 15 | 1 << 13  # WP_ASYNC, and WP_UNPOPULATED, which it needs
_UFFDIO_API, _UFFDIO_REGISTER, _UFFDIO_WRITEPROTECT, _WRITE_PROTECT = 0xC018AA3F, 0xC020AA00, 0xC018AA06, 2
_KERNEL_MIN = (6, 8, 10)  # earlier ones leave protection behind where the watch ends (CVE-2024-36881)
_KERNEL_CLEAN = (6, 12, 11)  # earlier ones do where memory moves while it is watched (CVE-2025-21696)
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
def available() -> bool:
    """Whether this kernel has it."""
    if os.uname().machine != "x86_64" or kernelversion.version() < _KERNEL_MIN:
        return False
    try:
        fd = linux.userfaultfd(_USER_MODE_ONLY)
    except OSError:
        return False
    with contextlib.closing(os.fdopen(fd, "rb", buffering=0)):
        return _introduced(fd)


class WriteWatch:
    """One process. Made while it runs; `arm` and `check` begin, `unwritten` tells, `close` ends it."""

    def __init__(self, pid: int) -> None:
        """Raises Unwatchable and OSError."""
        self._pid, self._fd = pid, -1
        self.check()
        self._huge: list[tuple[int, int]] = []
        self._pidfd = os.pidfd_open(pid)
        try:
            with ThreadPoolExecutor(1) as alone:  # a tracer that ends lets go of whom it could not stop
                self._fd = alone.submit(_descriptor_in, pid, self._pidfd).result()
            if not _introduced(self._fd):
                raise Unwatchable(0, "this kernel can't watch writes without serving them")
            self.areas = [a for a in _areas(pid) if _registered(self._fd, *a)]
        except BaseException:
            self.close()
            raise

    def arm(self, area: tuple[int, int]) -> Ranges:
        """From now on writes to the pages of an area are noted: those that are there and not empty. Raises OSError.

        What they hold may be read once `check` was called.
        """
        found = self._scan(area, _ARM, wanted=_WATCHED | _PRESENT | _EMPTY, absent=_EMPTY)
        huge = found[found[:, 2] & _HUGE != 0]
        self._huge += [(start, end - start) for start, end, _ in huge.tolist()]
        return found[:, :2]

    def check(self) -> None:
        """Raises Unwatchable where a device may write unseen into pages that were armed; one that begins later can't."""
        _refuse_devices(self._pid)

    def unwritten(self, area: tuple[int, int]) -> Ranges:
        """Pages of an area that were not written since. The process stands still. Raises OSError."""
        return self._scan(area, _MUST_BE_WATCHED, wanted=_WATCHED | _PRESENT | _WRITTEN, absent=_WRITTEN)[:, :2]

    def close(self) -> None:
        """Watch no more; huge pages are made whole again. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        for start, length in self._huge:
            with contextlib.suppress(OSError):  # it has ended, or there is no memory for it
                linux.collapse(self._pidfd, start, length)
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


def _descriptor_in(pid: int, pidfd: int) -> int:
    """A userfaultfd of the process's memory, held by us alone. Raises OSError."""
    with ptrace.stopped(pid, partial(waits.settle, pid)) as there:
        number = there.call(_SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        try:
            return linux.pidfd_getfd(pidfd, number)
        finally:
            there.call(_SYS_CLOSE, number)  # CRIU can't save one


def _introduced(fd: int) -> bool:
    words = np.array([_API, _FEATURES, 0], dtype=np.uint64)
    return linux.ioctl(fd, _UFFDIO_API, words.ctypes.data) == 0 and int(words[1]) & _FEATURES == _FEATURES


def _registered(fd: int, start: int, end: int) -> bool:
    """And none of its pages counts as protected yet: some may, of an earlier watch, and would not be armed."""
    words = np.array([start, end - start, _WRITE_PROTECT, 0], dtype=np.uint64)
    plain = np.array([start, end - start, 0], dtype=np.uint64)
    if linux.ioctl(fd, _UFFDIO_REGISTER, words.ctypes.data) != 0:
        return False
    return kernelversion.version() >= _KERNEL_CLEAN or linux.ioctl(fd, _UFFDIO_WRITEPROTECT, plain.ctypes.data) == 0


def _areas(pid: int) -> Iterator[tuple[int, int]]:
    """Private memory that is no file's."""
    for m in procfs.mappings(procfs.text(pid, "maps")):
        private = m.mode[0] == "r" and m.mode[3] == "p" and not m.inode
        if private and m.end - m.start >= AREA_BYTES_MIN and not m.name.startswith(_OWN):
            yield m.start, m.end
