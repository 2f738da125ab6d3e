"""Google's Secret Manager and its token service, as far as reading goes, held to the published description of the API."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from support.gce import key_file
from support.http_server import HttpServer, running

TOKEN = "ya29.of-the-test"
_DOCUMENT = json.loads((files("googleapiclient.discovery_cache") / "documents" / "secretmanager.v1.json").read_text())
_VERSIONS = _DOCUMENT["resources"]["projects"]["resources"]["secrets"]["resources"]["versions"]
ACCESS = _VERSIONS["methods"]["access"]


class GcpSecrets(HttpServer):
    """`versions`: full names to values, or to a status that is answered instead. `asked`: names in order."""

    def __init__(self, versions: dict[str, bytes | int]) -> None:
        super().__init__(_Handler)
        self.versions, self.asked = versions, list[str]()

    def key_file(self, path: Path, project: str) -> Path:
        """A service account's key, whose tokens are fetched from here."""
        return key_file.write(path, f"test@{project}.example", project, self.url)


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})

    def do_GET(self) -> None:
        server = cast(GcpSecrets, self.server)
        found = re.fullmatch(ACCESS["path"].replace("{+name}", "(.+)"), self.path.removeprefix("/"))
        if ACCESS["httpMethod"] != "GET" or found is None:
            return self._error(404, "no such method")
        name = found[1]
        if re.fullmatch(ACCESS["parameters"]["name"]["pattern"], name) is None:
            return self._error(400, f"{name} does not match the pattern of the parameter")
        token = self.headers["Authorization"].removeprefix("Bearer ")
        if token != TOKEN and token.count(".") != 2:  # nor an assertion that an account signed itself
            return self._error(401, "no token")
        server.asked.append(name)
        value = server.versions.get(name, 404)
        if isinstance(value, int):
            return self._error(value, f"of {name}")
        body = {"name": name, "payload": {"data": base64.b64encode(value).decode()}}
        _check(body, ACCESS["response"]["$ref"])
        return self._answer(200, body)

    def _error(self, status: int, message: str) -> None:
        self._answer(status, {"error": {"code": status, "message": message}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _check(body: dict[str, Any], schema: str) -> None:
    """Every field is one of the schema's, of its type."""
    known = _DOCUMENT["schemas"][schema]["properties"]
    for name, value in body.items():
        if "$ref" in known[name]:
            _check(value, known[name]["$ref"])
        else:
            assert (known[name]["type"], type(value)) == ("string", str)


@contextmanager
def gcp_secrets(versions: dict[str, bytes | int]) -> Iterator[GcpSecrets]:
    """It answers until the block ends."""
    with running(GcpSecrets(versions)) as server:
        yield server
