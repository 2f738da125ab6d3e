"""What a socket of another process is, asked of the socket itself (pidfd_getfd) and of the kernel's table of Unix sockets."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct

from spotsurfer_agent import linux, netns, sockdiag

# Families that CRIU saves; for the internet ones, the protocols.
FAMILIES = frozenset({socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK})
PROTOCOLS = frozenset({socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6, 136, 255, 0})
NAMES = {132: "SCTP", 262: "MPTCP", 33: "DCCP"}
SO_DOMAIN, SO_PROTOCOL = 39, 38
UDIAG_SHOW_PEER, UNIX_DIAG_PEER = 4, 2


def odd_kind(pid: int, fd: int) -> str | None:
    """The name of a family or protocol that can't be saved; None for a usual socket, or one that is gone."""
    with contextlib.suppress(OSError):
        with _borrowed(pid, fd) as s:
            family, protocol = s.getsockopt(socket.SOL_SOCKET, SO_DOMAIN), s.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL)
        if family not in FAMILIES:
            return next((f.name for f in socket.AddressFamily if f == family), str(family))
        if family in (socket.AF_INET, socket.AF_INET6) and protocol not in PROTOCOLS:
            return NAMES.get(protocol, f"protocol {protocol}")
    return None


def outside(pid: int, fd: int) -> str | None:
    """Address and port of the other end of a TCP connection that leaves the job; None for everything else."""
    with contextlib.suppress(OSError), _borrowed(pid, fd) as s:
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
            host, port = s.getpeername()[:2]
            address = ipaddress.ip_address(host.partition("%")[0])
            plain = getattr(address, "ipv4_mapped", None) or address
            if not _inside(plain):
                return f"{plain} port {port}"
    return None


def _inside(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_loopback or str(address) == netns.INSIDE


class _borrowed:
    """A duplicate of another process's socket, for the length of a block."""

    def __init__(self, pid: int, fd: int) -> None:
        process = os.pidfd_open(pid)
        try:
            self._socket = socket.socket(fileno=linux.pidfd_getfd(process, fd))
        finally:
            os.close(process)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def unix_name(pid: int, fd: int) -> str:
    """The name at either end of a connected Unix socket; an abstract one begins with @."""
    with contextlib.suppress(OSError), _borrowed(pid, fd) as s:
        for name in (s.getpeername(), s.getsockname()):
            text = name.decode(errors="replace").replace("\0", "@") if isinstance(name, bytes) else str(name)
            if text:
                return text
    return ""


def unix_peers(pid: int) -> dict[int, int]:
    """Connected Unix sockets of a process's network namespace: inode -> inode of the other end.

    A connection that waits for its server to accept it has no other end yet and is not among them.
    """
    peers: dict[int, int] = {}
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, UDIAG_SHOW_PEER, 0, 0)
    try:
        net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with sockdiag.opened(net) as s:
                for entry in sockdiag.entries(s, request):
                    _entry(entry, peers)
        finally:
            os.close(net)
    except OSError:
        return {}
    return {inode: peer for inode, peer in peers.items() if peer}


def _entry(message: bytes, peers: dict[int, int]) -> None:
    inode = struct.unpack_from("=I", message, 4)[0]
    at = 16  # family, type, state, pad, inode, two words of cookie
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == UNIX_DIAG_PEER:
            peers[inode] = struct.unpack_from("=I", message, at + 4)[0]
        at += max((length + 3) // 4 * 4, 4)
