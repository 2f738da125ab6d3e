"""How CRIU speaks of image files when it streams them, to who takes them and to who serves them.

On a socket it names a file (a length, then a message whose only field is the name), and the bytes go through a pipe that is
passed along. Source: criu/img-streamer.c and images/img-streamer.proto.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

ADDRESS_BYTES_MAX = 107  # of a Unix socket; CRIU uses the whole path
NAME_BYTES_MAX = 4096
PIPE_BYTES = 16 << 20
UNKNOWN = "CRIU speaks of an image file in a way that this version does not know"
_TEXT = 0x0A  # the only field of CRIU's message: the file's name


class StreamError(OSError):
    """The image can't be taken or served; a sentence."""


def address(folder: Path, name: str) -> Path:
    """Where a socket of this name goes; raises StreamError where the path is too long for one."""
    path = folder / name
    if len(os.fsencode(path)) > ADDRESS_BYTES_MAX:
        raise StreamError(0, f"the path {path} is too long for a socket: choose a shorter base folder")
    return path


def file_name(control: socket.socket) -> str | None:
    """The file that CRIU speaks of, or None at the end of the conversation. Raises StreamError."""
    head = exactly(control, 4)
    if head is None:
        return None
    (length,) = struct.unpack("=I", head)
    if not 2 <= length <= NAME_BYTES_MAX:
        raise StreamError(0, UNKNOWN)
    body = exactly(control, length)
    if body is None:
        return None
    if body[0] != _TEXT or body[1] != length - 2 or body[1] > 127:
        raise StreamError(0, UNKNOWN)
    return body[2:].decode()


def descriptor(control: socket.socket, what: str) -> int | None:
    """What CRIU passes along for this, with one byte; None when it is gone. Raises StreamError where the byte comes alone."""
    with contextlib.suppress(ConnectionResetError):
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if fds:
            return fds[0]
        if data:
            raise StreamError(0, f"CRIU passed nothing along for {what}")
    return None


def exactly(s: socket.socket, count: int) -> bytes | None:
    """So many bytes, or None when the other side is gone."""
    data = b""
    while len(data) < count:
        try:
            piece = s.recv(count - len(data))
        except ConnectionResetError:  # it is gone and never read what it was told last
            return None
        if not piece:
            return None
        data += piece
    return data


def widen(pipe: int) -> int:
    """The larger the pipe, the fewer turns: as large as we may make it. Its size then."""
    for size in (PIPE_BYTES, _largest_pipe()):
        with contextlib.suppress(OSError):
            return fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)


def _largest_pipe() -> int:
    try:
        return int(Path("/proc/sys/fs/pipe-max-size").read_text())
    except (OSError, ValueError):
        return 1 << 20
