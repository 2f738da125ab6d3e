"""The job's TCP connections: what CRIU can't or could not do about them.

After a move, loopback connections come back with the image and go on. The peer of any other one has not moved along and
speaks to an address that is no longer ours, so a reader would wait for ever: the kernel is asked to abort each, and the job
sees a plain error. The same holds for a connection within the job that nobody had accepted yet: the image has one end of it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from spotsurfer_agent import linux, procfs, sockdiag

ESTABLISHED, LISTENING = 1, 10  # of the kernel's net/tcp_states.h
ALL_BUT_CLOSED = 0xFFF & ~(1 << 7)
TCP_REPAIR, TCP_REPAIR_OFF = 19, 0
_STATE, _IDENTITY, _ID, _INODE = 1, 4, 48, 68  # offsets in and lengths of struct inet_diag_msg

End = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


@dataclass(frozen=True, slots=True)
class Connection:
    """A line of the kernel's table, of one end. `inode` is 0 as long as nobody has accepted it, or holds it any more."""

    family: int
    state: int
    identity: bytes  # struct inet_diag_sockid
    inode: int

    @property
    def here(self) -> End:
        """Its own address and port."""
        return self._end(0, 4)

    @property
    def there(self) -> End:
        """Those of the other end."""
        return self._end(2, 20)

    def _end(self, port: int, at: int) -> End:
        raw = self.identity[at : at + (4 if self.family == socket.AF_INET else 16)]
        address = ipaddress.ip_address(raw)
        return getattr(address, "ipv4_mapped", None) or address, struct.unpack_from("!H", self.identity, port)[0]

    def stays_inside(self, own_address: str) -> bool:
        """Whether the other end lies in the same namespace."""
        address, _ = self.there
        return address.is_loopback or address.is_unspecified or str(address) == own_address


def table(s: socket.socket) -> list[Connection]:
    """All TCP sockets of the namespace that `s` asks about, listening ones too. Raises OSError."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in sockdiag.entries(s, _request(family, ALL_BUT_CLOSED, bytes(_ID))):
            inode = struct.unpack_from("=I", entry, _INODE)[0]
            found.append(Connection(family, entry[_STATE], entry[_IDENTITY : _IDENTITY + _ID], inode))
    return found


def abort_severed(net: int, own_address: str) -> int:
    """Abort every TCP connection of the namespace behind `net` whose other end is not in it; returns how many. Never raises.

    A kernel that can't (no INET_DIAG_DESTROY) leaves them to the first reset from outside.
    """
    try:
        with sockdiag.opened(net) as s:
            found = [c for c in table(s) if c.state != LISTENING]  # all, before the first is aborted: one question at a time
            return sum(_abort(s, c) for c in severed(found, own_address))
    except OSError:
        return 0


def severed(found: Iterable[Connection], own_address: str) -> list[Connection]:
    """Of all connections of a namespace, those whose other end is elsewhere or nowhere.

    One that is being closed may have outlived its other end, and comes to its end by itself.
    """
    found = list(found)
    ends = {(c.here, c.there) for c in found}
    alone = (c for c in found if c.state == ESTABLISHED and (c.there, c.here) not in ends)
    outside = (c for c in found if not c.stays_inside(own_address))
    return list(dict.fromkeys([*outside, *alone]))


def leave_repair(pids: Iterable[int]) -> None:
    """Put the sockets of processes back to work that a dying CRIU left in repair mode. Never raises.

    A connection in repair mode sends nothing: the job would fail at its next write.
    """
    for pid in pids:
        for number, name in procfs.descriptors(pid):
            if name.startswith("socket:["):
                with contextlib.suppress(OSError), linux.borrowed_socket(pid, number) as s:
                    _leave_repair(s)


def _leave_repair(s: socket.socket) -> None:
    if (
        s.family in (socket.AF_INET, socket.AF_INET6)
        and s.type == socket.SOCK_STREAM
        and s.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR)
    ):
        s.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF)


def _abort(s: socket.socket, connection: Connection) -> bool:
    with contextlib.suppress(OSError):
        sockdiag.destroy(s, _request(connection.family, 0, connection.identity))
        return True
    return False


def _request(family: int, states: int, identity: bytes) -> bytes:
    return struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, states) + identity
