"""Where inputs come from in tests: buckets that a gateway serves, and a web server with moods."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_providers.local.box.network import listening_socket
from spotsurfer_providers.local.object_gateway.folder_store import Objects
from spotsurfer_providers.local.object_gateway.server import Gateway, GatewayHandler, Scope


class Counting(GatewayHandler):
    """Notes which objects are sent."""

    def _get(self) -> None:
        server = self.server
        assert isinstance(server, Buckets)
        if self.key in server.denied:
            self._may(False)
        if self.command == "GET":
            server.sent.append((self.bucket, self.key))
        super()._get()


class Buckets(Gateway):
    """Every folder below `root` is a bucket. `sent` are the objects that were asked for, `denied` keys that are refused."""

    def __init__(self, root: Path, port: int = 0) -> None:
        folders = {p.name: Objects(p, "box") for p in root.iterdir() if p.is_dir()}
        super().__init__(listening_socket("127.0.0.1", port), Objects(root, "box"), Scope("j", 1), folders)
        self.RequestHandlerClass = Counting
        self.sent: list[tuple[str, str]] = []
        self.denied: set[str] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    @property
    def options(self) -> dict[str, dict[str, str]]:
        s3 = {"endpoint": self.endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
        key = '{"gcs_base_url": "%s", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
        gs = {"service_account_key": key % self.endpoint, "skip_signature": "true"}
        return {
            "s3://": {**s3, "virtual_hosted_style_request": "false", "allow_http": "true"},
            "gs://": {**gs, "allow_http": "true"},
        }


@contextmanager
def serving(server: Any) -> Iterator[Any]:
    """A server for the length of a block."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Mood:
    """How a file is served."""

    data: bytes
    tag: str = '"one"'
    status: int = 200
    ranges: bool = True
    breaks: list[int] = field(default_factory=list)  # of the next answers: cut off after so many bytes
    pause_seconds: float = 0.0


class Web(http.server.ThreadingHTTPServer):
    """Files by path, each with its mood."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.files: dict[str, Mood] = {}
        self.asked: list[str] = []
        self.begins: list[int] = []  # first bytes of what was asked for in parts

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}{path}"


class _Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.send_error(403)  # as an address that was signed for GET

    def do_GET(self) -> None:
        mood = self.server.files.get(self.path)
        self.server.asked.append(self.path)
        if mood is None or mood.status != 200:
            self.send_error(mood.status if mood else 404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if mood.ranges else None
        first, last = (int(found[1]), min(int(found[2]), len(mood.data) - 1)) if found else (0, len(mood.data) - 1)
        self.server.begins += [first] if found else []
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(mood.data)}")
        if mood.tag:
            self.send_header("ETag", mood.tag)
        body = mood.data[first : last + 1]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        time.sleep(mood.pause_seconds)
        if mood.breaks and len(body) > 1:
            self.wfile.write(body[: mood.breaks.pop(0)])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(body)
