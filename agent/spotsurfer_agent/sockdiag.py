"""The kernel's own tables of the sockets of a network namespace. See sock_diag(7) and netlink(7)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

from spotsurfer_agent import linux

SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
_NETLINK_SOCK_DIAG = 4
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 1, 4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEAD = struct.Struct("=IHHII")
_ANSWER_BYTES = 1 << 17
_TIMEOUT_SECONDS = 2.0


def opened(net: int) -> socket.socket:
    """Somebody to ask about the namespace behind the descriptor `net`, from wherever he is used. Raises OSError."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.setns(net, linux.CLONE_NEWNET)
        try:
            s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        finally:
            linux.setns(here, linux.CLONE_NEWNET)
    finally:
        os.close(here)
    s.settimeout(_TIMEOUT_SECONDS)
    return s


def entries(s: socket.socket, request: bytes) -> Iterator[bytes]:
    """What the kernel has of the kind that is asked for; ends early where it refuses. Raises OSError."""
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
    """Abort a connection; a kernel that can't leaves it. Raises OSError."""
    s.send(_message(SOCK_DESTROY, _NLM_F_ACK, request))
    s.recv(_ANSWER_BYTES)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return _HEAD.pack(_HEAD.size + len(body), kind, _NLM_F_REQUEST | flags, 1, 0) + body
