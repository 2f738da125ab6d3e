"""The kernel's tables of sockets (sock_diag), and the state of TCP connections."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spotsurfer_wire.linux import procfs, syscalls

# ---- sock_diag: the kernel's tables of the sockets of a network namespace, see sock_diag(7) and netlink(7)

SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
_NETLINK_SOCK_DIAG = 4
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 1, 4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEAD = struct.Struct("=IHHII")
_ANSWER_BYTES = 1 << 17
_TIMEOUT_SECONDS = 2.0


def open_diag(net: int) -> socket.socket:
    """A socket for queries about the namespace behind the descriptor `net`, usable from any namespace. Raises OSError."""
    with syscalls.in_namespace(syscalls.CLONE_NEWNET, net):
        s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    s.settimeout(_TIMEOUT_SECONDS)
    return s


def diag_entries(s: socket.socket, request: bytes) -> Iterator[bytes]:
    """The kernel's entries for a request; ends early if the kernel refuses. Raises OSError."""
    s.send(_message(SOCK_DIAG_BY_FAMILY, _NLM_F_DUMP, request))
    while True:
        data = s.recv(_ANSWER_BYTES)
        while len(data) >= _HEAD.size:
            length, kind, *_ = _HEAD.unpack_from(data)
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                return
            yield data[_HEAD.size : length]
            data = data[(length + 3) // 4 * 4 :]


def destroy(s: socket.socket, request: bytes) -> None:
    """Abort a connection; an unable kernel leaves it. Raises OSError."""
    s.send(_message(SOCK_DESTROY, _NLM_F_ACK, request))
    s.recv(_ANSWER_BYTES)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return _HEAD.pack(_HEAD.size + len(body), kind, _NLM_F_REQUEST | flags, 1, 0) + body


# ---- TCP connections that CRIU can't carry along
#
# After a move, loopback connections come back with the image and go on. The peer of any other connection has not moved along
# and sends to an address that is no longer ours, so a reader would wait for ever. So the kernel is asked to abort each such
# connection, and the job sees a plain error. The same holds for a connection within the job that nobody had accepted yet,
# because the image has only one end of it.

ESTABLISHED, LISTENING = 1, 10  # of the kernel's net/tcp_states.h
ALL_BUT_CLOSED = 0xFFF & ~(1 << 7)
TCP_REPAIR, TCP_REPAIR_OFF = 19, 0
_STATE, _IDENTITY, _ID, _INODE = 1, 4, 48, 68  # offsets in and lengths of struct inet_diag_msg

End = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


@dataclass(frozen=True, slots=True)
class Connection:
    """A line of the kernel's table, of one end. `inode` is 0 until it is accepted, and after it is closed."""

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
        """Address and port of the other end."""
        return self._end(2, 20)

    def _end(self, port: int, at: int) -> End:
        raw = self.identity[at : at + (4 if self.family == socket.AF_INET else 16)]
        address = ipaddress.ip_address(raw)
        return getattr(address, "ipv4_mapped", None) or address, struct.unpack_from("!H", self.identity, port)[0]

    def stays_inside(self, own_address: str) -> bool:
        """Whether the other end lies in the same namespace."""
        address, _ = self.there
        return address.is_loopback or address.is_unspecified or str(address) == own_address


def tcp_table(s: socket.socket) -> list[Connection]:
    """All TCP sockets of the namespace that `s` asks about, listening ones too. Raises OSError."""
    found = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in diag_entries(s, _request(family, ALL_BUT_CLOSED, bytes(_ID))):
            inode = struct.unpack_from("=I", entry, _INODE)[0]
            found.append(Connection(family, entry[_STATE], entry[_IDENTITY : _IDENTITY + _ID], inode))
    return found


def abort_severed(net: int, own_address: str) -> int:
    """Abort every TCP connection of the namespace behind `net` with its other end elsewhere; returns how many. Never raises.

    Without INET_DIAG_DESTROY in the kernel they last until the first reset from outside.
    """
    try:
        with open_diag(net) as s:
            found = [
                c for c in tcp_table(s) if c.state != LISTENING
            ]  # all, before the first is aborted: one question at a time
            return sum(_abort(s, c) for c in severed(found, own_address))
    except OSError:
        return 0


def severed(found: Iterable[Connection], own_address: str) -> list[Connection]:
    """The connections of a namespace with their other end elsewhere or nowhere.

    A closing connection may have outlived its other end; it is left out, because it ends by itself.
    """
    found = list(found)
    ends = {(c.here, c.there) for c in found}
    alone = (c for c in found if c.state == ESTABLISHED and (c.there, c.here) not in ends)
    outside = (c for c in found if not c.stays_inside(own_address))
    return list(dict.fromkeys([*outside, *alone]))


def leave_repair(pids: Iterable[int]) -> None:
    """End the repair mode that a dying CRIU left on sockets of these processes. Never raises.

    A connection in repair mode sends nothing, so the job would fail at its next write.
    """
    for pid in pids:
        for number, name in procfs.descriptors(pid):
            if name.startswith("socket:["):
                with contextlib.suppress(OSError), syscalls.borrowed_socket(pid, number) as s:
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
        destroy(s, _request(connection.family, 0, connection.identity))
        return True
    return False


def _request(family: int, states: int, identity: bytes) -> bytes:
    return struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, states) + identity
