"""The metadata server of one VM, as boxes have it, on this host; it can fail as a test wants it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spotsurfer_providers.local.box.metadata_google import Metadata, MetadataHandler
from spotsurfer_providers.local.box.metadata_server import MetadataServer
from spotsurfer_providers.local.box.network import listening_socket


class FaultyServer(MetadataServer[Metadata]):
    """`instead`: status and text that are answered in place of the truth."""

    instead: tuple[int, str] | None = None

    def __init__(self, values: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> None:
        super().__init__(listening_socket("127.0.0.1", 0), Metadata(dict(values), dict(texts or {})), _Handler)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"


class _Handler(MetadataHandler):
    def _reply(self, status: int, text: str, kind: str = "text/html", tag: int = 0) -> None:
        faulty = self.server
        assert isinstance(faulty, FaultyServer)
        super()._reply(*(faulty.instead or (status, text)), kind, tag)


@contextmanager
def serve(values: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> Iterator[FaultyServer]:
    """A server with these values of the VM."""
    server = FaultyServer(values, texts)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
