"""The job's TCP connections: what CRIU can't or could not do about them.

After a move, loopback connections come back with the image and go on. The peer of any other one has not moved along and
speaks to an address that is no longer ours, so a reader would wait for ever: the kernel is asked to abort each, and the job
sees a plain error.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable

from spotsurfer_agent import linux, sockdiag

ESTABLISHED_AND_HALF_OPEN = 0xFFF & ~(1 << 10) & ~(1 << 7)  # every state but listening and closed
TCP_REPAIR, TCP_REPAIR_OFF = 19, 0
_ID = 48


def abort_outside(net: int, own_address: str) -> int:
    """Abort every TCP connection of the namespace behind `net` that leaves it; returns how many. Never raises.

    A kernel that can't (no INET_DIAG_DESTROY) leaves them to the first reset from outside.
    """
    try:
        with sockdiag.opened(net) as s:
            return sum(_abort(s, family, own_address) for family in (socket.AF_INET, socket.AF_INET6))
    except OSError:
        return 0


def leave_repair(pids: Iterable[int]) -> None:
    """Put the sockets of processes back to work that a dying CRIU left in repair mode. Never raises.

    A connection in repair mode sends nothing: the job would fail at its next write.
    """
    for pid in pids:
        with contextlib.suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 -- names are wanted
                    with contextlib.suppress(OSError):
                        _wake(process, int(name))
            finally:
                os.close(process)


def _wake(process: int, number: int) -> None:
    with socket.socket(fileno=linux.pidfd_getfd(process, number)) as s:
        if (
            s.family in (socket.AF_INET, socket.AF_INET6)
            and s.type == socket.SOCK_STREAM
            and s.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR)
        ):
            s.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF)


def _abort(s: socket.socket, family: int, own_address: str) -> int:
    ended = 0
    for identity in _connections(s, family):
        if not _stays_inside(family, identity, own_address):
            with contextlib.suppress(OSError):
                sockdiag.destroy(s, _request(family, 0, identity))
                ended += 1
    return ended


def _connections(s: socket.socket, family: int) -> list[bytes]:
    found = sockdiag.entries(s, _request(family, ESTABLISHED_AND_HALF_OPEN, bytes(_ID)))
    return [entry[4 : 4 + _ID] for entry in found]  # all, before the first is aborted: one question at a time


def _request(family: int, states: int, identity: bytes) -> bytes:
    return struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, states) + identity


def _stays_inside(family: int, identity: bytes, own_address: str) -> bool:
    remote = identity[20:24] if family == socket.AF_INET else identity[20:36]
    address = ipaddress.ip_address(remote)
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified or str(mapped) == own_address
