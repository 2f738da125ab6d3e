"""The image server of `criu restore --stream`: CRIU asks for files by name and gets each through a pipe of its own."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from spotsurfer_agent import imagewire, shimwire
from spotsurfer_agent.pager.lender import Lender

log = logging.getLogger(__name__)

SOCKET = "streamer-serve.sock"
_YES, _NO = b"\x08\x01", b"\x08\x00"


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
        path = imagewire.address(folder, SOCKET)
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
            with self._listener:
                control, _ = self._listener.accept()
            with control:
                while (name := imagewire.file_name(control)) is not None and self._serve(control, name):
                    pass
            for sender in self._senders:
                sender.join()
        except Exception as e:
            self._failure = self._failure or e
        self._ended(self._failure)

    def _serve(self, control: socket.socket, name: str) -> bool:
        """One file; False when CRIU is gone."""
        pieces = self._content(name)
        reply = _NO if pieces is None else _YES
        try:
            control.sendall(struct.pack("=I", len(reply)) + reply)
        except (BrokenPipeError, ConnectionResetError):
            return False
        if pieces is None:
            return True
        pipe = imagewire.descriptor(control, name)
        if pipe is None:
            return False
        sender = threading.Thread(target=self._send, args=(name, pipe, pieces), name=f"image {name}", daemon=True)
        sender.start()
        self._senders.append(sender)
        return True

    def _send(self, name: str, fd: int, pieces: Iterator[memoryview]) -> None:
        try:
            lender = Lender(fd, imagewire.widen(fd))
            for view in pieces:
                lender.write(view)
            lender.settle()
        except BrokenPipeError:
            log.info("CRIU does not want the rest of %s", name)
        except Exception as e:
            log.warning("image file %s: %s", name, e)
            self._failure = self._failure or e
            self._ended(self._failure)  # before CRIU hangs up because of it: this is the reason, and not that
        finally:
            os.close(fd)
