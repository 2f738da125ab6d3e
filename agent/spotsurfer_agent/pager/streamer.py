"""The image server of `criu restore --stream`: CRIU asks for files by name and gets each through a pipe of its own."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from spotsurfer_agent import shimwire

log = logging.getLogger(__name__)

SOCKET = "streamer-serve.sock"
ADDRESS_BYTES_MAX = 107  # of a Unix socket; CRIU uses the whole path
PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031
_NAME_BYTES_MAX = 4096
_TEXT = 0x0A  # the only field of a request: the file's name
_YES, _NO = b"\x08\x01", b"\x08\x00"


class StreamError(OSError):
    """CRIU can't be served; a sentence."""


class Streamer:
    """Serves one restore. `content` gives the bytes of a file piece by piece, or None for a file that is not in the image.

    `ended` is called when CRIU has all that it wants, with what went wrong, if anything did.
    """

    def __init__(
        self,
        folder: Path,
        content: Callable[[str], Iterator[memoryview] | None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        path = folder / SOCKET
        if len(os.fsencode(path)) > ADDRESS_BYTES_MAX:
            raise StreamError(0, f"the path {path} is too long for a socket: choose a shorter base folder")
        self._content, self._ended = content, ended
        self._failure: Exception | None = None
        self._listener = shimwire.listen(path)
        self._listener.setblocking(True)
        self._senders: list[threading.Thread] = []

    def start(self) -> None:
        """Wait for CRIU beside the caller."""
        self._thread = threading.Thread(target=self._run, name="image server", daemon=True)
        self._thread.start()

    def failure(self, seconds: float) -> Exception | None:
        """What went wrong, once CRIU is gone; waits so long for the rest of its files."""
        self._thread.join(seconds)
        return self._failure

    def _run(self) -> None:
        try:
            control, _ = self._listener.accept()
            with control:
                while (name := _name(control)) is not None:
                    self._serve(control, name)
            for sender in self._senders:
                sender.join()
        except Exception as e:
            self._failure = self._failure or e
        self._ended(self._failure)

    def _serve(self, control: socket.socket, name: str) -> None:
        pieces = self._content(name)
        reply = _NO if pieces is None else _YES
        control.sendall(struct.pack("=I", len(reply)) + reply)
        if pieces is None:
            return
        _, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not fds:
            raise StreamError(0, f"CRIU asked for {name} without a pipe")
        sender = threading.Thread(target=self._send, args=(name, fds[0], pieces), name=f"image {name}", daemon=True)
        sender.start()
        self._senders.append(sender)

    def _send(self, name: str, fd: int, pieces: Iterator[memoryview]) -> None:
        try:
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, _SET_PIPE_SIZE, PIPE_BYTES)
            for view in pieces:
                rest = view
                while rest:
                    rest = rest[os.write(fd, rest) :]
        except BrokenPipeError:
            pass  # CRIU wants no more of it
        except Exception as e:
            log.warning("image file %s: %s", name, e)
            self._failure = self._failure or e
            self._ended(self._failure)  # before CRIU hangs up because of it: this is the reason, and not that
        finally:
            os.close(fd)


def _name(control: socket.socket) -> str | None:
    """The file that CRIU asks for; None at the end of the conversation. Raises StreamError."""
    head = exactly(control, 4)
    if head is None:
        return None
    (length,) = struct.unpack("=I", head)
    body = exactly(control, length) if 2 <= length <= _NAME_BYTES_MAX else None
    if body is None or body[0] != _TEXT or body[1] != length - 2 or body[1] > 127:
        raise StreamError(0, "CRIU asks for an image file in a way that this version does not know")
    return body[2:].decode()


def exactly(s: socket.socket, count: int) -> bytes | None:
    """So many bytes, or None when the other side is gone."""
    data = b""
    while len(data) < count:
        piece = s.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return data
