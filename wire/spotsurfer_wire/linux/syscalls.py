"""The few system calls that Python 3.11 does not wrap, and the kernel's version.

Every function raises OSError with the call's errno. Standard library only: shims use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SIGNATURE = Path("/proc/version_signature")  # "Ubuntu 6.8.0-51.52-generic 6.8.12"


@functools.cache
def kernel_version() -> tuple[int, ...]:
    """The mainline version. Ubuntu's own release does not contain it, but `/proc/version_signature` does."""
    release = os.uname().release
    with contextlib.suppress(OSError):
        release = SIGNATURE.read_text().split()[-1]
    return tuple(int(x) for x in re.findall(r"\d+", release)[:3])


CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_OF_THREADS = {CLONE_NEWNET: "net", CLONE_NEWUTS: "uts"}  # which each thread may change for itself

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
_MNT_DETACH = 2

_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_SECCOMP = 22
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SYS_CAPGET = {"x86_64": 125, "aarch64": 90}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_VERSION = 0x20080522  # the third: two rows of effective, permitted, inheritable
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR = 442  # the same in every architecture's table, as the next two
_MOUNT_ATTR_RDONLY = 1
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_EXEC_SECONDS = 10.0
_SYS_PIDFD_GETFD = 438
_SYS_PROCESS_MADVISE = 440
_MADV_COLLAPSE = 25
_SYS_IOPRIO = {"x86_64": (251, 252), "aarch64": (30, 31)}  # to set, to get
_IOPRIO_WHO_PROCESS = 1
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}
_SYS_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_IO_URING_SETUP = 425  # the same number in every architecture's table
_SECCOMP_ALLOW = 0x7FFF0000
_SECCOMP_ERRNO = 0x00050000
_ENOSYS = 38

# Loaded once at import: the loader must not run again in a forked child or after the runtime's folder was replaced.
_libc = ctypes.CDLL(None, use_errno=True)
_vmsplice = _libc.vmsplice
_vmsplice.restype = ctypes.c_ssize_t
_process_vm_readv = _libc.process_vm_readv
_process_vm_readv.restype = ctypes.c_ssize_t
_process_vm_writev = _libc.process_vm_writev
_process_vm_writev.restype = ctypes.c_ssize_t
READ_PIECES_MAX = 1024  # UIO_MAXIOV


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Enter the namespace behind a descriptor; for a network namespace only the calling thread does."""
    _checked(_libc.setns(fd, flags), "setns")


@contextlib.contextmanager
def in_namespace(kind: int, fd: int | None = None) -> Iterator[None]:
    """Inside the block the thread is in the network or UTS namespace behind `fd`, or in a new one (None). Raises OSError."""
    here = os.open(f"/proc/thread-self/ns/{_OF_THREADS[kind]}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fd is None:
            unshare(kind)
        else:
            setns(fd, kind)
        try:
            yield
        finally:
            setns(here, kind)
    finally:
        os.close(here)


@contextlib.contextmanager
def children_in_new_namespaces(clock_offset_seconds: int = 0) -> Iterator[None]:
    """Processes started inside the block land in one fresh pid namespace, the first as its pid 1; the caller stays outside.

    With an offset their monotonic and boot clocks are that far ahead. No thread can be started inside the block, and with an
    offset none may run.
    """
    with _other_for_children("pid", CLONE_NEWPID, lambda: unshare(CLONE_NEWPID)):
        if clock_offset_seconds == 0:
            yield
            return
        with _other_for_children("time", CLONE_NEWTIME, lambda: unshare(CLONE_NEWTIME)):
            offsets = f"monotonic {clock_offset_seconds} 0\nboottime {clock_offset_seconds} 0\n"
            Path("/proc/self/timens_offsets").write_text(offsets)
            yield


@contextlib.contextmanager
def children_in_pid_namespace(pid: int) -> Iterator[None]:
    """Processes started inside the block land in the pid namespace of this process. Raises OSError."""
    fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _other_for_children("pid", CLONE_NEWPID, lambda: setns(fd, CLONE_NEWPID)):
            yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _other_for_children(name: str, kind: int, leave: Callable[[], None]) -> Iterator[None]:
    """Another namespace for children inside the block, which `leave` sees to; afterwards they get the old one again."""
    own = os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        leave()
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


def setdomainname(name: str) -> None:
    """setdomainname(2)."""
    raw = name.encode()
    _checked(_libc.setdomainname(raw, ctypes.c_size_t(len(raw))), "setdomainname")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    args = [os.fsencode(x) or None for x in (source, target, fstype)]
    _checked(_libc.mount(*args, ctypes.c_ulong(flags), data.encode() or None), f"mount {source or fstype} on {target}")


def umount(target: str) -> None:
    """Unmount `target` and all below it from this mount namespace, even while in use."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"umount {target}")


def bind(source: str, target: str, flags: int = 0) -> None:
    """Bind-mount one folder or file, without what is mounted below it; `flags` (MS_RDONLY …) come on top of its source's."""
    mount(source, target, flags=MS_BIND)
    if flags:
        keep = os.statvfs(target).f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("", target, flags=MS_REMOUNT | MS_BIND | flags | keep)


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
    _checked(result, f"mount_setattr {target}")


def private_mounts() -> None:
    """Enter a mount namespace of our own without propagation."""
    unshare(CLONE_NEWNS)
    mount("", "/", flags=MS_REC | MS_PRIVATE)


def pivot_root(new_root: str) -> None:
    """Make a mount point the root of this mount namespace and let the old root go."""
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    os.chdir(new_root)
    _checked(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    umount(".")
    os.chdir("/")


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")


def become_subreaper() -> None:
    """Orphans below this process become its children, so that it gets their exit statuses."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def leave_no_core() -> None:
    """Prevent core files of this process, which holds keys and secrets. Programs that it starts are not affected."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def syncfs(fd: int) -> None:
    """Write back one file system."""
    _checked(_libc.syncfs(fd), "syncfs")


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def vmsplice(fd: int, address: int, length: int) -> int:
    """Lend memory to a pipe instead of copying it; returns the bytes taken. It must not change until it was read."""
    vector = _Iovec(address, length)
    taken = int(_vmsplice(ctypes.c_int(fd), ctypes.byref(vector), ctypes.c_size_t(1), ctypes.c_uint(0)))
    if taken < 0:
        _checked(taken, "vmsplice")
    return taken


def pidfd_getfd(pidfd: int, number: int) -> int:
    """A duplicate of another process's descriptor."""
    fd = int(_libc.syscall(ctypes.c_long(_SYS_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(number), ctypes.c_uint(0)))
    if fd < 0:
        _checked(fd, "pidfd_getfd")
    return fd


@contextlib.contextmanager
def borrowed_socket(pid: int, number: int) -> Iterator[socket.socket]:
    """A duplicate of another process's socket, for the length of a block. Raises OSError; ENOTSOCK for anything else.

    Any other file is closed at once: a pipe's reader would wait as long as we could write to it.
    """
    process = os.pidfd_open(pid)
    try:
        fd = pidfd_getfd(process, number)
    finally:
        os.close(process)
    try:
        found = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    with found:
        yield found


def io_priority(thread: int) -> int:
    """I/O class and priority of a thread as in ioprio_set(2); 0 = none of its own."""
    number = _SYS_IOPRIO[os.uname().machine][1]
    found = int(_libc.syscall(ctypes.c_long(number), ctypes.c_int(_IOPRIO_WHO_PROCESS), ctypes.c_int(thread)))
    if found < 0:
        _checked(found, "ioprio_get")
    return found


def set_io_priority(thread: int, priority: int) -> None:
    """Set a thread's I/O class and priority, as `io_priority` returns them."""
    number = _SYS_IOPRIO[os.uname().machine][0]
    arguments = (ctypes.c_int(_IOPRIO_WHO_PROCESS), ctypes.c_int(thread), ctypes.c_int(priority))
    _checked(_libc.syscall(ctypes.c_long(number), *arguments), "ioprio_set")


def have_in_common(pid: int, other: int, kind: int) -> bool:
    """Whether two processes share the resource that a type of kcmp(2) names. Raises OSError."""
    number = _SYS_KCMP[os.uname().machine]
    order = int(
        _libc.syscall(ctypes.c_long(number), *map(ctypes.c_int, (pid, other, kind)), ctypes.c_ulong(0), ctypes.c_ulong(0))
    )
    if order < 0:
        _checked(order, "kcmp")
    return order == 0


MQUEUE, HUGETLB = 0x19800202, 0x958458F6  # statfs(2)


def file_system(path: str) -> int:
    """The kernel's number for the type of a file's file system. Raises OSError."""
    told = ctypes.create_string_buffer(256)
    _checked(_libc.statfs(os.fsencode(path), told), "statfs")
    return int.from_bytes(told.raw[:4], "little")


def userfaultfd(flags: int = 0) -> int:
    """A descriptor for faults of our own memory; it does not block."""
    number = _SYS_USERFAULTFD[os.uname().machine]
    fd = int(_libc.syscall(ctypes.c_long(number), ctypes.c_int(os.O_CLOEXEC | os.O_NONBLOCK | flags)))
    if fd < 0:
        _checked(fd, "userfaultfd")
    return fd


def ioctl(fd: int, request: int, address: int) -> int:
    """ioctl(2) with a structure at an address of ours; returns errno, 0 on success."""
    if _libc.ioctl(ctypes.c_int(fd), ctypes.c_ulong(request), ctypes.c_void_p(address)) == 0:
        return 0
    return ctypes.get_errno() or errno.EIO


def read_memory(pid: int, into: int, length: int, pieces: int, count: int) -> int:
    """Copy memory of a process to an address of ours, at most `length` bytes; returns how many.

    `pieces` is the address of `count` pairs of address and length, at most READ_PIECES_MAX, as in struct iovec.
    """
    local = _Iovec(into, length)
    vectors = (ctypes.byref(local), ctypes.c_ulong(1), ctypes.c_void_p(pieces), ctypes.c_ulong(count))
    done = int(_process_vm_readv(ctypes.c_int(pid), *vectors, ctypes.c_ulong(0)))
    if done < 0:
        _checked(done, "process_vm_readv")
    return done


def write_memory(pid: int, to: int, source: int, length: int) -> int:
    """Copy `length` bytes to a writable address of a process; returns how many were copied."""
    local, remote = _Iovec(source, length), _Iovec(to, length)
    vectors = (ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1))
    done = int(_process_vm_writev(ctypes.c_int(pid), *vectors, ctypes.c_ulong(0)))
    if done < 0:
        _checked(done, "process_vm_writev")
    return done


def collapse(pidfd: int, start: int, length: int) -> None:
    """Rebuild huge pages in a process's memory. See MADV_COLLAPSE of madvise(2), Linux 6.1."""
    vector = _Iovec(start, length)
    arguments = (ctypes.c_int(pidfd), ctypes.byref(vector), ctypes.c_ulong(1), ctypes.c_int(_MADV_COLLAPSE), ctypes.c_uint(0))
    if _libc.syscall(ctypes.c_long(_SYS_PROCESS_MADVISE), *arguments) < 0:
        _checked(-1, "process_madvise")


def no_new_privileges() -> None:
    """Programs that start from now on gain no rights by a setuid bit or by file capabilities."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def bound_capabilities(kept: int) -> None:
    """Programs that start from now on have only the capabilities in `kept`, a bit for each; this includes root's.

    The capabilities of the calling process stay as they are. Needs CAP_SETPCAP.
    """
    number = 0
    while (held := _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:
        if held and not kept >> number & 1:
            _checked(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "capability bounding set")
        number += 1
    machine, who, rows = os.uname().machine, (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
    _checked(_libc.syscall(ctypes.c_long(_SYS_CAPGET[machine]), who, rows), "capget")
    rows[2] = rows[5] = 0  # inheritable capabilities count beside the bounding set
    _checked(_libc.syscall(ctypes.c_long(_SYS_CAPSET[machine]), who, rows), "capset")


def refuse_io_uring() -> None:
    """Answer io_uring_setup with ENOSYS in this process and its children, because a ring can't be saved; programs fall back.

    Needs root, or `no_new_privileges` before.
    """
    code = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 0, 1, _IO_URING_SETUP),
        (0x06, 0, 0, _SECCOMP_ERRNO | _ENOSYS),
        (0x06, 0, 0, _SECCOMP_ALLOW),
    ]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text)))
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(program)), 0, 0), "seccomp")
