"""What a socket of another process is, asked of the socket itself (pidfd_getfd) and of the kernel's table of Unix sockets."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass

from spotsurfer_agent import linux, netns, sockdiag, tcp

# Families that CRIU saves; for the internet ones, the protocols of sockets that are not raw.
FAMILIES = frozenset({socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET})
PROTOCOLS = frozenset({socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6, 136, 255, 0})
NAMES = {132: "SCTP", 262: "MPTCP", 33: "DCCP"}
# What to do about those that have an easy way out.
REMEDIES = {"MPTCP": "make it use plain TCP (Go programs: GODEBUG=multipathtcp=0)"}
UDP_CORK = 1  # of linux/udp.h
SO_DOMAIN, SO_PROTOCOL = 39, 38
# Of linux/unix_diag.h: what to show, and the numbers of what is shown.
UDIAG_SHOW_PEER, UDIAG_SHOW_ICONS, UDIAG_SHOW_RQLEN = 4, 8, 16
UNIX_DIAG_PEER, UNIX_DIAG_ICONS, UNIX_DIAG_RQLEN = 2, 3, 4


def odd_kind(pid: int, fd: int) -> str | None:
    """The name of a family or protocol that can't be saved; None for a usual socket, or one that is gone."""
    with contextlib.suppress(OSError):
        with linux.borrowed_socket(pid, fd) as s:
            family, protocol = s.getsockopt(socket.SOL_SOCKET, SO_DOMAIN), s.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL)
            raw = s.type == socket.SOCK_RAW
        if family not in FAMILIES:
            return next((f.name for f in socket.AddressFamily if f == family), str(family))
        if family in (socket.AF_INET, socket.AF_INET6) and protocol not in PROTOCOLS and not raw:
            return NAMES.get(protocol, f"protocol {protocol}")
    return None


def corked(pid: int, fd: int) -> bool:
    """Whether a UDP socket holds back what was written to it until more comes (UDP_CORK, MSG_MORE)."""
    with contextlib.suppress(OSError), linux.borrowed_socket(pid, fd) as s:
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_DGRAM and s.proto in (0, socket.IPPROTO_UDP):
            return bool(s.getsockopt(socket.IPPROTO_UDP, UDP_CORK)) and _unsent(s) > 0
    return False


def _unsent(s: socket.socket) -> int:
    told = bytearray(4)
    fcntl.ioctl(s, termios.TIOCOUTQ, told)
    return int.from_bytes(told, "little")


def outside(pid: int, fd: int) -> str | None:
    """Address and port of the other end of a TCP connection that leaves the job; None for everything else."""
    with contextlib.suppress(OSError), linux.borrowed_socket(pid, fd) as s:
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
            host, port = s.getpeername()[:2]
            address = ipaddress.ip_address(host.partition("%")[0])
            plain = getattr(address, "ipv4_mapped", None) or address
            if not _inside(plain):
                return f"{plain} port {port}"
    return None


def _inside(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_loopback or str(address) == netns.INSIDE


def unix_name(pid: int, fd: int) -> str:
    """The name at either end of a Unix socket; an abstract one begins with @."""
    with contextlib.suppress(OSError), linux.borrowed_socket(pid, fd) as s:
        for name in (_peer(s), s.getsockname()):
            text = name.decode(errors="replace").replace("\0", "@") if isinstance(name, bytes) else str(name)
            if text:
                return text
    return ""


def _peer(s: socket.socket) -> object:
    with contextlib.suppress(OSError):
        return s.getpeername()
    return ""  # it listens


@dataclass(frozen=True, slots=True)
class UnixSockets:
    """The Unix sockets of a network namespace, by inode."""

    peers: dict[int, int]  # of connected ones, the other end
    unaccepted: dict[int, list[int]]  # of listening ones, those that wait to be accepted; 0 = closed since
    unread: dict[int, int]  # bytes that were written and wait for their reader

    def lost(self, listening: int) -> int:
        """How many connections wait there of which CRIU can't carry what was written."""
        return sum(client == 0 or bool(self.unread.get(client)) for client in self.unaccepted.get(listening, ()))


def unix_sockets(pid: int) -> UnixSockets:
    """Those of a process's network namespace; none where the kernel does not tell.

    A connection that waits for its server to accept it has no other end yet.
    """
    found = UnixSockets({}, {}, {})
    show = UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN
    with contextlib.suppress(OSError):
        for entry in _asked(pid, struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0, 0)):
            inode = struct.unpack_from("=I", entry, 4)[0]
            for kind, words in _attributes(entry):
                if kind == UNIX_DIAG_PEER and words[0]:
                    found.peers[inode] = words[0]
                elif kind == UNIX_DIAG_ICONS:
                    found.unaccepted[inode] = list(words)
                elif kind == UNIX_DIAG_RQLEN and words[1]:
                    found.unread[inode] = words[1]
    return found


def _attributes(message: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = 16  # family, type, state, pad, inode, two words of cookie
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind in (UNIX_DIAG_PEER, UNIX_DIAG_ICONS, UNIX_DIAG_RQLEN):
            yield kind, struct.unpack_from(f"={(length - 4) // 4}I", message, at + 4)
        at += max((length + 3) // 4 * 4, 4)


def unaccepted(pid: int) -> list[tuple[int, str]]:
    """TCP connections from outside that wait to be accepted: inode of the socket that listens, and who waits."""
    with contextlib.suppress(OSError):
        with _diagnosis(pid) as s:
            found = tcp.table(s)
        listening = {c.here[1]: c.inode for c in found if c.state == tcp.LISTENING}
        waiting = (c for c in found if c.state == tcp.ESTABLISHED and not c.inode and not c.stays_inside(netns.INSIDE))
        return [(listening.get(c.here[1], 0), "{} port {}".format(*c.there)) for c in waiting]
    return []


@contextlib.contextmanager
def _diagnosis(pid: int) -> Iterator[socket.socket]:
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with sockdiag.opened(net) as s:
            yield s
    finally:
        os.close(net)


def _asked(pid: int, request: bytes) -> list[bytes]:
    with _diagnosis(pid) as s:
        return list(sockdiag.entries(s, request))
