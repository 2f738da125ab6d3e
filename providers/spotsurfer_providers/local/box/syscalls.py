"""System calls that Python 3.11 does not wrap: namespaces, mounts, the parent-death signal.

Every function raises OSError with the kernel's errno.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

_SYS_MOUNT_SETATTR = 442  # the same on every architecture, because it is younger than the unified table
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_ATTR_RDONLY = 1
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100
_PR_SET_PDEATHSIG = 1
_EXEC_SECONDS = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` (CLONE_NEW*) for fresh ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind `fd`; for a network namespace only the calling thread does."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    """mount(2)."""
    args = [None if x is None else os.fsencode(x) for x in (source, target, kind, data)]
    _check(_libc.mount(args[0], args[1], args[2], ctypes.c_ulong(flags), args[3]), f"mount {target}")


def detach(target: str) -> None:
    """Unmount `target` and all below it from this mount namespace, even while in use."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """Make the mount at `target` and all below it read-only in this mount namespace (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
    )
    _check(result, f"mount_setattr {target}")


def pivot_root(new_root: str) -> None:
    """Make a mount point the root of this mount namespace, and release the old root with all its mounts."""
    os.chdir(new_root)
    _check(_libc.syscall(ctypes.c_long(_SYS_PIVOT_ROOT[os.uname().machine]), b".", b"."), f"pivot_root {new_root}")
    detach(".")
    os.chdir("/")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send `signal_number` to this process when the thread that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0), "prctl")


def set_host_name(name: str) -> None:
    """Name this UTS namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), "sethostname")


@contextmanager
def children_in_new_namespaces(clock_offset_seconds: int = 0) -> Iterator[None]:
    """Processes started inside the block land in one fresh pid namespace, the first as its pid 1; the caller stays outside.

    With an offset their monotonic and boot clocks are that far ahead. No thread can be started inside the block, and with an
    offset none may run.
    """
    with _back_to("pid", CLONE_NEWPID):
        if clock_offset_seconds == 0:
            yield
            return
        with _back_to("time", CLONE_NEWTIME):
            offsets = f"monotonic {clock_offset_seconds} 0\nboottime {clock_offset_seconds} 0\n"
            Path("/proc/self/timens_offsets").write_text(offsets)
            yield


@contextmanager
def _back_to(name: str, kind: int) -> Iterator[None]:
    """A fresh namespace for children inside the block; afterwards they get the old one again."""
    own = os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(kind)
        try:
            yield
        finally:
            _enter_alone(own, kind)
    finally:
        os.close(own)


def _enter_alone(fd: int, kind: int) -> None:
    """`setns` once no process shares our memory: after Popen has returned, a child does so until the kernel ends its exec."""
    end = time.monotonic() + _EXEC_SECONDS
    while True:
        try:
            return setns(fd, kind)
        except OSError as e:
            if e.errno != errno.EUSERS or time.monotonic() > end:
                raise
        time.sleep(0.001)
