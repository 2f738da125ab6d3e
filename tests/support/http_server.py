"""HTTP servers in threads of a test, as stand-ins for services."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S", bound="HttpServer")


class HttpServer(http.server.ThreadingHTTPServer):
    """One on a free port of this host. A client that hangs up is nothing that a test wants to hear of.

    The usual words about it would come from a thread, maybe while another test runs; and a traceback that is printed there
    breaks an `ast.parse` elsewhere in the process (CPython 3.11, "AST constructor recursion depth mismatch").
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Only what is no broken connection is told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def running(server: S) -> Iterator[S]:
    """The server serves within the block."""
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
