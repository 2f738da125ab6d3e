"""The HTTP server of a box's metadata service; each dialect has its own handler and content."""

from __future__ import annotations

import http.server
from typing import Any, Generic, TypeVar

M = TypeVar("M")


class MetadataServer(http.server.ThreadingHTTPServer, Generic[M]):
    """Serves `metadata` on an already listening socket."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: Any, metadata: M, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.metadata = metadata
