"""Looks at other processes to name what blocks a save: how they belong together, and what their sockets are.

A socket is asked itself (pidfd_getfd), or the kernel's table of Unix sockets is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import termios
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spotsurfer_wire.linux import procfs, syscalls

from spotsurfer_agent.host import network
from spotsurfer_agent.linux import sockets

ASKED_AGAIN, PAUSE_SECONDS = 10, 0.02  # a process started by vfork calls exec within that time, as a rule
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


@dataclass(frozen=True, slots=True)
class Member:
    """One process, by its numbers inside the job; `pid` is the one that we see."""

    pid: int
    inside: int
    parent: int
    session: int


def members(pids: Iterable[int]) -> list[Member]:
    """All of these that exist, including those that ended and were not waited for."""
    found: list[tuple[int, int, int, int]] = []
    for pid in pids:
        with contextlib.suppress(OSError, KeyError, ValueError):
            status = procfs.status(pid)
            inside, session = (int(status[name].split()[-1]) for name in ("NSpid", "NSsid"))
            found.append((pid, inside, int(status["PPid"]), session))
    inside_of = {pid: inside for pid, inside, _, _ in found}
    return [Member(pid, inside, inside_of.get(parent, 0), session) for pid, inside, parent, session in found]


def lost_sessions(found: Iterable[Member]) -> list[Member]:
    """Those whose session CRIU can't make again; pure.

    A process gets its session from its parent when it is born. So there must be somebody above who leads it, or led it, and it
    was born before its parent had another one. For children of the first process CRIU makes helpers. That is the rule of
    `prepare_pstree_ids` in criu/pstree.c.
    """
    tree = {m.inside: m for m in found}
    root = next((m for m in tree.values() if m.parent not in tree), None)
    born: dict[int, int] = {}
    lost = []
    for m in tree.values():
        if m is root or root is None or m.session == m.inside or m.parent == root.inside:
            continue
        if tree[m.parent].session == m.session:
            continue
        above = list(_above(tree, m, root.inside))
        until = above.index(m.session) if m.session in above else len(above)
        if until == len(above) or any(born.setdefault(x, m.session) != m.session for x in above[:until]):
            lost.append(m)
    return lost


def _above(tree: dict[int, Member], m: Member, root: int) -> Iterator[int]:
    """The processes above one, as CRIU makes them: for a session leader that has ended, a helper with its number stands in."""
    at = m.parent
    while at in tree and at != root:
        yield at
        here = tree[at]
        helped = here.parent == root and here.session not in (here.inside, tree[root].session)
        if helped and here.session not in tree:
            yield here.session
        at = here.session if helped else here.parent
    yield root


# What two processes must not have in common, by its number for kcmp(2); the first match counts.
COMMON = {
    1: "its memory (clone with CLONE_VM)",
    3: "its working folder (clone with CLONE_FS)",
    4: "its signal handlers (clone with CLONE_SIGHAND)",
}


def common(pid: int, other: int) -> str:
    """What two processes have in common that can't be carried; "" = nothing."""
    for kind, what in COMMON.items():
        with contextlib.suppress(OSError):
            if syscalls.have_in_common(pid, other, kind):
                return what
    return ""


def waits_for_exec(parent: int, child: int) -> bool:
    """Whether a process stands still in vfork(2) until its child calls exec, and for more than a moment. Raises OSError."""
    for _ in range(ASKED_AGAIN):
        if not common(child, parent).startswith(COMMON[1]):
            return False
        if procfs.status(parent).get("State", "")[:1] != "D":
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def odd_kind(pid: int, fd: int) -> str | None:
    """The name of a family or protocol that can't be saved; None for a usual socket, or one that is gone."""
    with contextlib.suppress(OSError):
        with syscalls.borrowed_socket(pid, fd) as s:
            family, protocol = s.getsockopt(socket.SOL_SOCKET, SO_DOMAIN), s.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL)
            raw = s.type == socket.SOCK_RAW
        if family not in FAMILIES:
            return next((f.name for f in socket.AddressFamily if f == family), str(family))
        if family in (socket.AF_INET, socket.AF_INET6) and protocol not in PROTOCOLS and not raw:
            return NAMES.get(protocol, f"protocol {protocol}")
    return None


def corked(pid: int, fd: int) -> bool:
    """Whether a UDP socket holds back what was written to it until more comes (UDP_CORK, MSG_MORE)."""
    with contextlib.suppress(OSError), syscalls.borrowed_socket(pid, fd) as s:
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_DGRAM and s.proto in (0, socket.IPPROTO_UDP):
            unsent = bytearray(4)
            fcntl.ioctl(s, termios.TIOCOUTQ, unsent)
            return bool(s.getsockopt(socket.IPPROTO_UDP, UDP_CORK)) and any(unsent)
    return False


def outside(pid: int, fd: int) -> str | None:
    """Address and port of the other end of a TCP connection that leaves the job; None for everything else."""
    with contextlib.suppress(OSError), syscalls.borrowed_socket(pid, fd) as s:
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
            host, port = s.getpeername()[:2]
            address = ipaddress.ip_address(host.partition("%")[0])
            plain = getattr(address, "ipv4_mapped", None) or address
            if not _inside(plain):
                return f"{plain} port {port}"
    return None


def _inside(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_loopback or str(address) == network.INSIDE


def unix_name(pid: int, fd: int) -> str:
    """The name at either end of a Unix socket; an abstract one begins with @."""
    with contextlib.suppress(OSError), syscalls.borrowed_socket(pid, fd) as s:
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
    """The Unix sockets of a process's network namespace; none if the kernel does not list them.

    A connection that waits for its server to accept it has no other end yet.
    """
    found = UnixSockets({}, {}, {})
    show = UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0, 0)
    with contextlib.suppress(OSError), _diagnosis(pid) as s:
        for entry in sockets.diag_entries(s, request):
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
            found = sockets.tcp_table(s)
        listening = {c.here[1]: c.inode for c in found if c.state == sockets.LISTENING}
        waiting = (c for c in found if c.state == sockets.ESTABLISHED and not c.inode and not c.stays_inside(network.INSIDE))
        return [(listening.get(c.here[1], 0), "{} port {}".format(*c.there)) for c in waiting]
    return []


@contextlib.contextmanager
def _diagnosis(pid: int) -> Iterator[socket.socket]:
    net = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with sockets.open_diag(net) as s:
            yield s
    finally:
        os.close(net)
