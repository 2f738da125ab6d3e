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

from spotsurfer_agent import linux

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 1, 4, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
ESTABLISHED_AND_HALF_OPEN = 0xFFF & ~(1 << 10) & ~(1 << 7)  # every state but listening and closed
TCP_REPAIR, TCP_REPAIR_OFF = 19, 0
_HEAD, _ID = struct.Struct("=IHHII"), 48


def abort_outside(net: int, own_address: str) -> int:
    """Abort every TCP connection of the namespace behind `net` that leaves it; returns how many. Never raises.

    A kernel that can't (no INET_DIAG_DESTROY) leaves them to the first reset from outside.
    """
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.setns(net, linux.CLONE_NEWNET)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as s:
            s.settimeout(2.0)
            return sum(_abort(s, family, own_address) for family in (socket.AF_INET, socket.AF_INET6))
    except OSError:
        return 0
    finally:
        linux.setns(here, linux.CLONE_NEWNET)
        os.close(here)


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
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
            s.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF)


def _abort(s: socket.socket, family: int, own_address: str) -> int:
    ended = 0
    for identity in _connections(s, family):
        if not _stays_inside(family, identity, own_address):
            with contextlib.suppress(OSError):
                s.send(_message(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, family, 0, identity))
                s.recv(1 << 16)
                ended += 1
    return ended


def _connections(s: socket.socket, family: int) -> list[bytes]:
    s.send(_message(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, family, ESTABLISHED_AND_HALF_OPEN, bytes(_ID)))
    found: list[bytes] = []
    while True:
        data = s.recv(1 << 16)
        while len(data) >= _HEAD.size:
            length, kind, *_ = _HEAD.unpack_from(data)
            if kind in (NLMSG_DONE, NLMSG_ERROR):
                return found
            found.append(data[_HEAD.size + 4 : _HEAD.size + 4 + _ID])
            data = data[(length + 3) // 4 * 4 :]


def _message(kind: int, flags: int, family: int, states: int, identity: bytes) -> bytes:
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, states) + identity
    return _HEAD.pack(_HEAD.size + len(body), kind, flags, 1, 0) + body


def _stays_inside(family: int, identity: bytes, own_address: str) -> bool:
    remote = identity[20:24] if family == socket.AF_INET else identity[20:36]
    address = ipaddress.ip_address(remote)
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified or str(mapped) == own_address
