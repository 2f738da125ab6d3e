"""A test Cloud Storage in memory: what obstore asks of the XML API, with its preconditions, uploads in parts, and rights.

Sources: "XML API overview", "Request preconditions", "PUT Object", "XML API multipart uploads" and "IAM permissions for XML
requests" of Cloud Storage's documentation. Each object has a generation, which only grows; `x-goog-if-generation-match: 0`
means that there must be none. Who may not remove an object may not replace it either, and is refused before any precondition.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import unquote
from xml.sax.saxutils import escape

from support.gce.cloud import PROJECT
from support.gce.errors import Refused
from support.gce.identity import Identity, Who

BUCKET = f"{PROJECT}-spotsurfer"
MATCH, COPY = "x-goog-if-generation-match", "x-goog-copy-source"
PAGE = 1000
PART_BYTES_MIN = 5 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `key` is empty for the bucket."""

    verb: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    who: Who | None  # None: anybody, as if the bucket were public


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Bucket:
    """Objects by key, with their generations; uploads under way by their id."""

    identity: Identity = field(default_factory=Identity)
    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    generations: Iterator[int] = field(default_factory=lambda: itertools.count(1_700_000_000_000_001))
    lock: threading.RLock = field(default_factory=threading.RLock)

    def answer(self, request: Request) -> Answer:
        """Of one request; trouble is an answer, too."""
        try:
            with self.lock:
                return self._answer(request)
        except Refused as e:
            return Answer(e.status, error(e.reason, str(e)))

    def _answer(self, r: Request) -> Answer:
        verb = "GET" if r.verb == "HEAD" else r.verb
        if not r.key:
            assert verb == "GET" and r.query["list-type"] == "2", f"of buckets only listings of version 2 are known: {r}"
            self._need(r, "storage.objects.list", "")
            return Answer(200, self._listing(r.query))
        return {
            "PUT": self._part if "uploadId" in r.query else self._put,
            "POST": self._whole if "uploadId" in r.query else self._begin,
            "DELETE": self._abort if "uploadId" in r.query else self._delete,
            "GET": self._get,
        }[verb](r)

    # ---- rights

    def _need(self, r: Request, permission: str, key: str) -> None:
        if not self._may(r, permission, key):
            raise Refused(403, "AccessDenied", f"Access denied: {permission} on {key or BUCKET}")

    def _may(self, r: Request, permission: str, key: str) -> bool:
        name = f"//storage.googleapis.com/projects/_/buckets/{BUCKET}{f'/objects/{key}' if key else ''}"
        kind = f"storage.googleapis.com/{'Object' if key else 'Bucket'}"
        return r.who is None or self.identity.may(r.who, permission, name, kind)

    # ---- objects

    def _put(self, r: Request) -> Answer:
        data = r.body
        if COPY in r.headers:
            source = unquote(r.headers[COPY]).lstrip("/").removeprefix(f"{BUCKET}/")
            self._need(r, "storage.objects.get", source)
            data = self._found(r, source)[0]
        made = self._write(r, r.key, data, r.headers.get(MATCH))
        if COPY not in r.headers:
            return Answer(200, b"", _named(data, made))
        body = f"<CopyObjectResult><LastModified>{STAMP}</LastModified><ETag>{_etag(data)}</ETag></CopyObjectResult>"
        return Answer(200, body.encode(), _named(data, made))

    def _write(self, r: Request, key: str, data: bytes, wanted: str | None) -> int:
        self._need(r, "storage.objects.create", key)
        if key in self.objects:
            self._need(r, "storage.objects.delete", key)
        if wanted is not None and int(wanted) != self.objects.get(key, (b"", 0))[1]:
            raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        self.objects[key] = data, next(self.generations)
        return self.objects[key][1]

    def _found(self, r: Request, key: str) -> tuple[bytes, int]:
        if key not in self.objects:
            if not self._may(r, "storage.objects.list", ""):
                raise Refused(403, "AccessDenied", "Access denied, or the object may not exist.")
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        return self.objects[key]

    def _get(self, r: Request) -> Answer:
        self._need(r, "storage.objects.get", r.key)
        data, generation = self._found(r, r.key)
        if (part := re.fullmatch(r"bytes=(\d+)-(\d*)", r.headers.get("range", ""))) is None:
            return Answer(200, data, _named(data, generation))
        first, last = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
        if first >= len(data):
            raise Refused(416, "InvalidRange", "The requested range cannot be satisfied.")
        where = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return Answer(206, data[first : last + 1], _named(data, generation) | where)

    def _delete(self, r: Request) -> Answer:
        self._need(r, "storage.objects.delete", r.key)
        self._found(r, r.key)
        del self.objects[r.key]
        return Answer(204)

    # ---- uploads in parts

    def _begin(self, r: Request) -> Answer:
        self._need(r, "storage.multipartUploads.create", r.key)
        number = f"upload-{next(self.generations)}"
        self.uploads[number] = r.key, {}
        body = f"<Bucket>{BUCKET}</Bucket><Key>{escape(r.key)}</Key><UploadId>{number}</UploadId>"
        return Answer(200, f"<InitiateMultipartUploadResult>{body}</InitiateMultipartUploadResult>".encode())

    def _part(self, r: Request) -> Answer:
        self._need(r, "storage.multipartUploads.create", r.key)
        self._upload(r)[int(r.query["partNumber"])] = r.body
        return Answer(200, b"", {"ETag": _etag(r.body)})

    def _whole(self, r: Request) -> Answer:
        self._need(r, "storage.multipartUploads.create", r.key)
        parts = self._upload(r)
        numbers = [int(n) for n in re.findall(rb"<PartNumber>(\d+)</PartNumber>", r.body)]
        if any(len(parts[n]) < PART_BYTES_MIN for n in numbers[:-1]):
            raise Refused(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum object size.")
        data = b"".join(parts[n] for n in numbers)
        made = self._write(r, r.key, data, r.headers.get(MATCH))
        del self.uploads[r.query["uploadId"]]
        body = f"<CompleteMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{escape(r.key)}</Key><ETag>{_etag(data)}</ETag>"
        return Answer(200, f"{body}</CompleteMultipartUploadResult>".encode(), _named(data, made))

    def _abort(self, r: Request) -> Answer:
        self._need(r, "storage.multipartUploads.abort", r.key)
        self._upload(r)
        del self.uploads[r.query["uploadId"]]
        return Answer(204)

    def _upload(self, r: Request) -> dict[int, bytes]:
        key, parts = self.uploads.get(r.query["uploadId"], ("", {}))
        if key != r.key:
            raise Refused(404, "NoSuchUpload", "The requested upload was not found.")
        return parts

    # ---- listings

    def _listing(self, query: Mapping[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        found: dict[str, str] = {}
        for key, (data, generation) in sorted(self.objects.items()):
            rest = key.removeprefix(prefix)
            if key.startswith(prefix) and key > after:
                if delimiter and delimiter in rest:
                    folder = prefix + rest.partition(delimiter)[0] + delimiter
                    found[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                else:
                    found[key] = (
                        f"<Contents><Key>{escape(key)}</Key><Generation>{generation}</Generation><Size>{len(data)}</Size>"
                        f"<LastModified>{STAMP}</LastModified><ETag>{_etag(data)}</ETag></Contents>"
                    )
        page = list(found.items())[:PAGE]
        more = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if len(found) > PAGE else ""
        inner = "".join(text for _, text in page)
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        return f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>{head}{more}{inner}</ListBucketResult>".encode()


STAMP = "2026-11-27T12:00:00.000Z"


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _named(data: bytes, generation: int) -> dict[str, str]:
    modified = formatdate(1_764_244_800, usegmt=True)
    return {"ETag": _etag(data), "x-goog-generation": str(generation), "Last-Modified": modified}


def error(code: str, message: str) -> bytes:
    """What goes back with a refusal."""
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
