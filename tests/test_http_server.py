"""The servers of tests tell failures, and nothing of clients that hang up."""

from __future__ import annotations

import http.server
import socket
import struct
import threading

import httpx
import pytest
from support.http_server import HttpServer, running


class _Handler(http.server.BaseHTTPRequestHandler):
    ended = threading.Event()

    def do_GET(self) -> None:
        try:
            self._answer()
        finally:
            self.ended.set()

    def _answer(self) -> None:
        if self.path == "/wrong":
            raise ValueError("of the handler")
        while True:  # until the client is gone
            self.wfile.write(b"x" * 4096)


@pytest.fixture
def server() -> HttpServer:
    _Handler.ended.clear()
    return HttpServer(_Handler)


def test_a_client_that_hangs_up_is_not_told(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    with running(server), socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.recv(10)
        client.close()
        assert _Handler.ended.wait(10)
    assert "Traceback" not in capfd.readouterr().err


def test_a_failure_is_told(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    with running(server), pytest.raises(httpx.HTTPError):
        httpx.get(f"{server.url}/wrong", trust_env=False)
    assert "of the handler" in capfd.readouterr().err
