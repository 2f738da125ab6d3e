"""A test Cloud Storage with one bucket in memory: what obstore asks of the XML API, with its preconditions.

Source: "XML API overview", "Request preconditions" and "PUT Object" of Cloud Storage's documentation. Each object has a
generation, which only grows; `x-goog-if-generation-match: 0` means that there must be none.
"""

from __future__ import annotations

import hashlib
import http.server
import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from support.http_server import HttpServer, running

BUCKET = "spotsurfer-tests"
MATCH = "x-goog-if-generation-match"
PAGE = 1000


@dataclass
class Bucket:
    """Objects by key, with their generations."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1_700_000_000_000_001))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: str, data: bytes, wanted: str | None) -> int | None:
        """The new generation, or None: another one is there than the one that is wanted."""
        with self.lock:
            if wanted is not None and int(wanted) != self.objects.get(key, (b"", 0))[1]:
                return None
            self.objects[key] = data, next(self.generations)
            return self.objects[key][1]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bucket: Bucket

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    @property
    def key(self) -> str:
        """Of the object; empty for the bucket."""
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        made = self.bucket.put(self.key, data, self.headers.get(MATCH))
        if made is None:
            self._reply(412, _error("PreconditionFailed", "At least one of the pre-conditions you specified did not hold."))
        else:
            self._reply(200, b"", _named(data, made))

    def do_GET(self) -> None:
        if self.key:
            self._object()
        else:
            query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}
            self._reply(200, self._listing(query))

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        with self.bucket.lock:
            gone = self.bucket.objects.pop(self.key, None)
        self._reply(204 if gone else 404, b"" if gone else _error("NoSuchKey", "The specified key does not exist."))

    def _object(self) -> None:
        found = self.bucket.objects.get(self.key)
        if found is None:
            self._reply(404, _error("NoSuchKey", "The specified key does not exist."))
            return
        data, generation = found
        if (part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) is None:
            self._reply(200, data, _named(data, generation))
            return
        first, last = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
        if first >= len(data):
            self._reply(416, _error("InvalidRange", "The requested range cannot be satisfied."))
        else:
            where = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
            self._reply(206, data[first : last + 1], _named(data, generation) | where)

    def _listing(self, query: Mapping[str, str]) -> bytes:
        assert query["list-type"] == "2", "of listings only version 2 is known"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        found: dict[str, str] = {}
        for key, (data, generation) in sorted(self.bucket.objects.items()):
            rest = key.removeprefix(prefix)
            if key.startswith(prefix) and key > after:
                if delimiter and delimiter in rest:
                    folder = prefix + rest.partition(delimiter)[0] + delimiter
                    found[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                else:
                    found[key] = (
                        f"<Contents><Key>{escape(key)}</Key><Generation>{generation}</Generation><Size>{len(data)}</Size>"
                        f"<LastModified>2026-11-27T12:00:00.000Z</LastModified><ETag>{_etag(data)}</ETag></Contents>"
                    )
        page = list(found.items())[:PAGE]
        more = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if len(found) > PAGE else ""
        inner = "".join(text for _, text in page)
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        return f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>{head}{more}{inner}</ListBucketResult>".encode()

    def _reply(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Last-Modified": formatdate(1_764_244_800, usegmt=True), **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _named(data: bytes, generation: int) -> dict[str, str]:
    return {"ETag": _etag(data), "x-goog-generation": str(generation)}


def _error(code: str, message: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


@contextmanager
def serve() -> Iterator[dict[str, str]]:
    """Options with which obstore reaches an empty bucket, at `gs://BUCKET/…`."""
    handler = type("Handler", (_Handler,), {"bucket": Bucket()})
    with running(HttpServer(handler)) as server:
        account = {
            "gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": "",
        }  # fmt: skip
        yield {"service_account_key": json.dumps(account), "allow_http": "true"}
