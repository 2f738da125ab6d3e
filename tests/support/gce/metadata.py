"""Google's metadata server for one VM, as far as agents ask: values below `instance/`, and waiting for changes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.http_server import HttpServer, running

ROOT = "/computeMetadata/v1/instance"
FLAVOR = "Metadata-Flavor"


class MetadataServer(HttpServer):
    """`status` and `instead`: what is answered in place of the truth."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(_Handler)
        self.values = {"preempted": "FALSE", "maintenanceEvent": "NONE", **values}
        self.version, self.news = 1, threading.Condition()
        self.status = 200
        self.instead: str | None = None

    def change(self, values: Mapping[str, Any]) -> None:
        """New values; whoever waits is answered."""
        with self.news:
            self.values.update(values)
            self.version += 1
            self.news.notify_all()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: MetadataServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        if self.headers.get(FLAVOR) != "Google" or "X-Forwarded-For" in self.headers:
            self._reply(403, "")
            return
        if query.get("wait_for_change") == "true":
            with self.server.news:
                self.server.news.wait_for(
                    lambda: str(self.server.version) != query.get("last_etag"), float(query.get("timeout_sec", 3600))
                )
        name = url.path.removeprefix(ROOT).strip("/")
        if not url.path.startswith(ROOT) or (name and name not in self.server.values):
            self._reply(404, "")
        elif name:
            self._reply(200, str(self.server.values[name]), "application/text")
        else:
            told = json.dumps(self.server.values) if self.server.instead is None else self.server.instead
            self._reply(self.server.status, told, "application/json")

    def _reply(self, status: int, text: str, kind: str = "text/html") -> None:
        self.send_response(status)
        self.send_header(FLAVOR, "Google")
        self.send_header("Content-Type", kind)
        self.send_header("ETag", str(self.server.version))
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def serve(values: Mapping[str, Any]) -> Iterator[MetadataServer]:
    """A server with these values of the VM."""
    with running(MetadataServer(values)) as server:
        yield server
