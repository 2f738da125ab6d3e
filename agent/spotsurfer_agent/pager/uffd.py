"""userfaultfd: the calls and messages that a server of page faults needs. See userfaultfd(2) and ioctl_userfaultfd(2)."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from enum import IntEnum

from spotsurfer_agent import linux

_UNREGISTER, _WAKE, _COPY, _ZEROPAGE = 0x8010AA01, 0x8010AA02, 0xC028AA03, 0xC020AA04
_MESSAGE = 32
_MESSAGES = 64
_libc = ctypes.CDLL(None, use_errno=True)


class Kind(IntEnum):
    """What a message says."""

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
        os.close(linux.userfaultfd())
    except (OSError, KeyError):
        return False
    return True


def read(fd: int) -> list[Message]:
    """Messages that wait, oldest first; empty when there is none. `fd` does not block."""
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
    """Put zeros; returns errno, 0 when all is well."""
    return _ranged(fd, _ZEROPAGE, start, length)


def wake(fd: int, start: int, length: int) -> None:
    """Let go who waits there: the page is there already."""
    _ranged(fd, _WAKE, start, length)


def unregister(fd: int, start: int, length: int) -> int:
    """Serve these addresses no longer: what is not there is zeros from now on. Returns errno, 0 when all is well."""
    return _ranged(fd, _UNREGISTER, start, length)


def _ranged(fd: int, call: int, start: int, length: int) -> int:
    request = _Range(start, length, 0, 0)
    return linux.ioctl(fd, call, ctypes.addressof(request))
