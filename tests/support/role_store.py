"""A small S3 with a metadata service beside it: which token may touch which keys is data, so rights can end in the middle."""

from __future__ import annotations

import http.server
import json
import threading
from dataclasses import dataclass, field
from typing import Any

ROLE = "spotsurfer-instance"
ROLE_TOKEN = "token-of-the-role"
IMDS = "/latest/meta-data/iam/security-credentials/"


@dataclass
class RoleStore:
    """`rights`: token -> beginnings of keys (in the bucket) that it may touch. `answers`: token -> status and code instead."""

    rights: dict[str, tuple[str, ...]] = field(default_factory=lambda: {ROLE_TOKEN: ("runtime/", "access/")})
    objects: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    log: list[tuple[str, str, str]] = field(default_factory=list)  # method, key, token
    tokens_asked: int = 0
    role: bool = True  # the machine has one
    lists: bool = False  # the role may list, so what is absent reads as absent

    def __enter__(self) -> RoleStore:
        outer = self

        class Handler(_Handler):
            it = outer

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def options(self) -> dict[str, str]:
        """Without credentials, as user-data has them."""
        path = {"virtual_hosted_style_request": "false", "region": "us-east-1"}
        return {"endpoint": self.url, "allow_http": "true", **path}

    def check(self, method: str, path: str, headers: Any) -> None:
        """A test may look at each signed request; whatever it raises is answered with 500."""

    def asked(self, token: str) -> int:
        """Requests under a token."""
        return sum(1 for _, _, t in self.log if t == token)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    it: RoleStore

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/latest/api/token":
            self.it.tokens_asked += 1
            return self._answer(200, b"imds-token")
        return self._s3(body)

    def do_GET(self) -> None:
        if not self.path.startswith("/latest/"):
            return self._s3(None)
        if self.headers.get("X-aws-ec2-metadata-token") != "imds-token":
            return self._answer(401)
        if not self.it.role or not self.path.startswith(IMDS):
            return self._answer(404)
        if self.path == IMDS:
            return self._answer(200, ROLE.encode())
        key = {"AccessKeyId": "ASIAROLE", "SecretAccessKey": "s", "Token": ROLE_TOKEN, "Expiration": "2099-01-01T00:00:00Z"}
        said = {"Code": "Success", "LastUpdated": "2026-11-22T00:00:00Z", "Type": "AWS-HMAC", **key}
        return self._answer(200, json.dumps(said, indent=1).encode())

    def do_HEAD(self) -> None:
        self._s3(None)

    def _s3(self, body: bytes | None) -> None:
        it, key = self.it, self.path.partition("?")[0].removeprefix("/bucket/")
        token = self.headers.get("x-amz-security-token") or ""
        signed = (self.headers.get("Authorization") or "").startswith("AWS4-HMAC-SHA256 ")
        it.log.append((self.command, key, token))
        if token in it.rights:
            try:
                it.check(self.command, self.path, self.headers)
            except AssertionError as e:
                return self._refuse(500, f"WrongSignature {e}")
        if token in it.answers:
            return self._refuse(*it.answers[token])
        if not signed or not any(key.startswith(p) for p in it.rights.get(token, ())):
            return self._refuse(403, "AccessDenied")
        if body is not None:
            it.objects[key] = body
            return self._answer(200)
        if key in it.objects:
            return self._answer(200, it.objects[key])
        return self._refuse(*((403, "AccessDenied") if token == ROLE_TOKEN and not it.lists else (404, "NoSuchKey")))

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode())

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 05:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...
