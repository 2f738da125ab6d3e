"""UDP datagrams that one socket of a job had sent to another, and that nobody had received yet. CRIU leaves them out.

The agent peeks at them while the tree stands still, and sends them again before it runs elsewhere: from the socket that has
the sender's address, or from one of ours if the sender is gone. Datagrams from outside may be lost, as datagrams may.
Standard library only: shims use it.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import procfs, syscalls

from spotsurfer_agent.host import network, shim_protocol

NAME = "datagrams.json"  # of an image, and of a restore
BYTES_MAX = 1 << 20  # of all waiting datagrams
_PEEK_OFFSET = 42  # SO_PEEK_OFF of socket(7)
_LARGEST = 1 << 16
_TABLES = ("net/udp", "net/udp6")
_RECEIVING, _INODE = 4, 9  # columns of these tables
_OWN = ("127.", "::1", "::ffff:127.", network.INSIDE, f"::ffff:{network.INSIDE}")


def note(images: Path, pids: list[int]) -> None:
    """Note the waiting datagrams of these processes, which stand still, in an image. Never raises."""
    rows, left = [], BYTES_MAX
    waiting = _waiting(pids)
    for pid, number, inode in _sockets(pids) if waiting else ():
        if inode in waiting:
            waiting.discard(inode)
            with contextlib.suppress(OSError), syscalls.borrowed_socket(pid, number) as s:
                for data, source in _unread(s):
                    left -= len(data)
                    if left >= 0 and source[0].startswith(_OWN):
                        rows.append([procfs.number_inside(pid), number, source[:2], data.hex()])
    if rows:
        with contextlib.suppress(OSError):
            (images / NAME).write_text(json.dumps({"datagrams": rows}))


def _waiting(pids: Iterable[int]) -> set[int]:
    """Inodes of the sockets with waiting datagrams; all processes share a network."""
    for pid in pids:
        with contextlib.suppress(OSError):
            rows = [line.split() for name in _TABLES for line in procfs.lines(procfs.text(pid, name))[1:]]
            return {int(r[_INODE]) for r in rows if not r[_RECEIVING].endswith(":00000000")}
    return set()


def _sockets(pids: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    for pid in pids:
        for number, name in procfs.descriptors(pid):
            if name.startswith("socket:["):
                yield pid, number, int(name[8:-1])


def _unread(s: socket.socket) -> Iterator[tuple[bytes, Any]]:
    """The waiting datagrams with their senders; they stay in the socket. Raises OSError."""
    before = s.getsockopt(socket.SOL_SOCKET, _PEEK_OFFSET)
    s.setsockopt(socket.SOL_SOCKET, _PEEK_OFFSET, 0)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                yield s.recvfrom(_LARGEST, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    finally:
        s.setsockopt(socket.SOL_SOCKET, _PEEK_OFFSET, before)


def restored(folder: Path, pids: list[int], net: int) -> None:
    """Send them again, before the restored job's first instruction; `net` is a descriptor of its network. Never raises."""
    rows: Any = (shim_protocol.read_json(folder / NAME) or {}).get("datagrams", ())
    if not rows:
        return
    numbers: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            numbers[procfs.number_inside(pid)] = pid
    for inside, number, source, data in rows:
        with contextlib.suppress(OSError, KeyError, ValueError), syscalls.borrowed_socket(numbers[inside], number) as to:
            _send(pids, net, (source[0], source[1]), to, bytes.fromhex(data))


def _send(pids: list[int], net: int, source: tuple[str, int], to: socket.socket, data: bytes) -> None:
    host, port, *rest = to.getsockname()
    there = (source[0] if host in ("0.0.0.0", "::") else host, port, *rest)  # noqa: S104 -- nothing is bound
    for pid, number, _ in _sockets(pids):
        with contextlib.suppress(OSError), syscalls.borrowed_socket(pid, number) as s:
            if (s.family, s.type) == (to.family, to.type) and s.getsockname()[:2] == source:
                s.sendto(data, socket.MSG_DONTWAIT, there)
                return
    with _fresh(net, to.family) as s:
        s.bind(source)
        s.sendto(data, socket.MSG_DONTWAIT, there)


def _fresh(net: int, family: int) -> socket.socket:
    """A new socket of ours in the job's network. Raises OSError."""
    with syscalls.in_namespace(syscalls.CLONE_NEWNET, net):
        return socket.socket(family, socket.SOCK_DGRAM)
