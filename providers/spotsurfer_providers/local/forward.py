"""A port of the cloud's side that leads to a Unix socket of the host: whatever else a box is to reach, as a registry.

Over the box's own link, so what cuts or slows that does so here, too.
"""

from __future__ import annotations

import contextlib
import socket
import threading

PIECE_BYTES = 1 << 18


class Forward:
    """Carries connections until the process ends; a server that is away is refused, as anywhere."""

    def __init__(self, listening: socket.socket, path: str) -> None:
        self._listening, self._path = listening, path

    def serve_forever(self, poll_interval: float = 0.0) -> None:  # noqa: ARG002 - as the servers of the standard library
        """Take connections."""
        while True:
            client, _ = self._listening.accept()
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self._path)
            except OSError:
                return
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
