"""The real application on real sockets, in a thread of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from support.fake_service import FakeService

from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door
from spotsurfer.web.server import Endpoint, serve, unix_socket


@contextlib.contextmanager
def api(service: FakeService, path: Path, tcp: tuple[socket.socket, str] | None = None) -> Iterator[None]:
    """Answers on the Unix socket `path`, and on `tcp` (socket, token) if given, until the block ends."""
    endpoints = [Endpoint(make_app(service), unix_socket(path))]
    if tcp is not None:
        endpoints.append(Endpoint(make_app(service, Door(tcp[1]), allow_on_end=False, allow_fetch=False), tcp[0]))
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(endpoints, stop, ready.set))
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
