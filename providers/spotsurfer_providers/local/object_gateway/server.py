"""The object gateway: the store's folder as S3 for one box, limited to the rights of its attempt."""

from __future__ import annotations

import errno
import functools
import hmac
import http.server
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.object_keys import KeyRights

from spotsurfer_providers.local.object_gateway import s3_protocol
from spotsurfer_providers.local.object_gateway.folder_store import Entry, Exists, Objects
from spotsurfer_providers.local.object_gateway.s3_protocol import BLOCK_BYTES, Page, S3Error, Uploads, body, declared_length

# ---- Scope: the rights of one attempt in the store, as a bucket policy would define them on a real cloud.

KEY_BYTES_MAX = 1024
PART_BYTES_MAX = 200  # leaves room for the suffix of unfinished files


@dataclass(frozen=True, slots=True)
class Scope:
    """Job and attempt of a box. Everything not allowed here is refused."""

    job: str
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.job}"

    def may_read(self, key: str) -> bool:
        """Its job, the runtime, and its own report: a restarted agent continues from it."""
        return key.startswith(object_keys.runtime_prefix()) or self._rights.may_read(key)

    def may_list(self, prefix: str) -> bool:
        """Only within one of the readable folders."""
        return prefix.startswith((object_keys.runtime_prefix(), object_keys.job_prefix(self.job)))

    def may_create(self, key: str) -> bool:
        """Write an absent object."""
        return self._rights.may_create(key)

    def may_replace(self, key: str) -> bool:
        """Write an object, absent or not."""
        return self._rights.may_overwrite(key)

    def may_delete(self, key: str) -> bool:
        """Delete an object."""
        return self._rights.may_remove(key)

    @property
    def _rights(self) -> KeyRights:
        return object_keys.rights_of_attempt(self.job, self.attempt)


@dataclass(frozen=True, slots=True)
class Keeping:
    """A machine that is kept: it reads the orders for its slots, and nothing of a job."""

    machine: str

    def __str__(self) -> str:
        return "the machine itself"

    def may_read(self, key: str) -> bool:
        """Its orders and the runtime."""
        return key.startswith((object_keys.runtime_prefix(), object_keys.orders_prefix(self.machine)))

    def may_list(self, prefix: str) -> bool:  # noqa: ARG002
        """Nothing."""
        return False

    may_create = may_replace = may_delete = may_list


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a box that is kept. Each carries a code that only the controller and this gateway can make."""

    secret: bytes
    machine: str

    def make(self, job: str = "", attempt: int = 0) -> str:
        """The key of an attempt, by default that of the box itself."""
        name = f"{job}.{attempt}"
        return f"{name}.{hmac.digest(self.secret, f'{self.machine}/{name}'.encode(), 'sha256').hex()}"

    def scope_of(self, key: str) -> Scope | Keeping:
        """What may be done with a key. Raises S3Error if it is none of this box."""
        job, _, attempt = key.rpartition(".")[0].rpartition(".")
        if not attempt.isdigit() or not hmac.compare_digest(key.encode(), self.make(job, int(attempt)).encode()):
            raise S3Error(403, "InvalidAccessKeyId", "that key is none of this box")
        return Scope(job, int(attempt)) if job else Keeping(self.machine)


@dataclass(frozen=True, slots=True)
class Reader:
    """A box that reads a foreign bucket."""

    def __str__(self) -> str:
        return "who only reads this bucket"

    def may_read(self, key: str) -> bool:  # noqa: ARG002 -- as Scope
        """Everything."""
        return True

    def may_list(self, prefix: str) -> bool:  # noqa: ARG002
        """Everything."""
        return True

    def may_create(self, key: str) -> bool:  # noqa: ARG002
        """Nothing."""
        return False

    def may_replace(self, key: str) -> bool:  # noqa: ARG002
        """Nothing."""
        return False

    def may_delete(self, key: str) -> bool:  # noqa: ARG002
        """Nothing."""
        return False


def key_problem(key: str) -> str | None:
    """The reason why this can't be a key here, or None: keys become file names below one folder."""
    if not key.isprintable():
        return "a key has no control characters"
    if len(key.encode(errors="surrogateescape")) > KEY_BYTES_MAX:
        return f"a key has at most {KEY_BYTES_MAX} bytes"
    return next((p for part in key.split("/") if (p := _part_problem(part))), None)


def _part_problem(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "a key has no empty part, no . and no .."
    if len(part.encode(errors="surrogateescape")) > PART_BYTES_MAX:
        return f"a part of a key has at most {PART_BYTES_MAX} bytes"
    if part.startswith(".staged"):
        return "names beginning with .staged are taken"
    _, mark, tail = part.rpartition("#")
    if mark and tail.isdigit():
        return "a part of a key does not end in # and digits: local stores hide such files"
    return None


# ---- Gateway
# It speaks the path-style requests of obstore and boto3: one bucket, and others that are read-only. It does not check
# signatures: only the box at the other end of the link can reach it, and the scope, fixed when the box is made, decides. Jobs
# that share a box have keys, which decide instead. Writes need no If-Match.

BUCKET = "store"
_IN_THE_WAY = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG}
LASTING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, *_IN_THE_WAY})  # a retry would change nothing
_LAST = "\U0010ffff"  # sorts after every other character
_LIST_BODY_BYTES_MAX = 2 << 20
_DRAIN_BYTES_MAX = 64 << 20
_OBJECT_QUERIES: dict[str, set[frozenset[str]]] = {
    "GET": {frozenset()},
    "HEAD": {frozenset()},
    "PUT": {frozenset(), frozenset({"partNumber", "uploadId"})},
    "POST": {frozenset({"uploads"}), frozenset({"uploadId"})},
    "DELETE": {frozenset(), frozenset({"uploadId"})},
}
_IGNORED_QUERY = re.compile(r"x-amz-.*|x-id|AWSAccessKeyId|Signature|Expires", re.IGNORECASE)
_LIST_QUERY = frozenset(
    {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys", "encoding-type", "fetch-owner"}
)


class Gateway(http.server.ThreadingHTTPServer):
    """Serves `objects` on an already listening socket, within `scope`, or as far as a key of the box allows; `buckets` are
    others, by name, read-only."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listening: Any, objects: Objects, scope: Scope | Keys, buckets: Mapping[str, Objects] | None = None
    ) -> None:
        super().__init__(listening.getsockname(), GatewayHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.objects, self.uploads = objects, Uploads(objects)
        self._homes: dict[str, str] = {}  # by job: the scope of the folder that it works in
        self.buckets: dict[str, tuple[Objects, Scope | Keys | Reader]] = {n: (o, Reader()) for n, o in (buckets or {}).items()}
        self.buckets[BUCKET] = (objects, scope)

    def reads_home(self, scope: object, key: str) -> bool:
        """Whether the key is of what jobs of the same folder were sent; the job's specification names that."""
        job = getattr(scope, "job", "")
        if not job or not key.startswith(object_keys.homes_prefix()):
            return False
        if job not in self._homes and (found := self.objects.open(object_keys.spec_key(job))) is not None:
            with found[1] as file:
                self._homes[job] = json_codec.decode(Spec, file.read()).home_scope
        home = self._homes.get(job, "")
        return bool(home) and object_keys.rights_of_attempt(job, 1, home).may_read(key)


class GatewayHandler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Gateway  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 600  # of an idle connection, seconds
    disable_nagle_algorithm = True
    server_version = "spotsurfer"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the log of a box is for its errors."""

    def do_GET(self) -> None:
        """Object or listing."""
        self._answer({True: self._get, False: self._get_bucket})

    def do_HEAD(self) -> None:
        """Object or bucket."""
        self._answer({True: self._get, False: lambda: self._reply(200)})

    def do_PUT(self) -> None:
        """Object, or a part of one."""
        self._answer({True: self._put, False: _not_implemented})

    def do_POST(self) -> None:
        """Deletion of several objects; beginning or end of a multipart upload."""
        self._answer({True: self._post, False: self._delete_many})

    def do_DELETE(self) -> None:
        """Object."""
        self._answer({True: self._delete, False: _not_implemented})

    # ------------------------------------------------------------ one request

    def _answer(self, of: dict[bool, Callable[[], None]]) -> None:
        self._body: io.BufferedReader[Any] | None = None
        try:
            self._parse()
            of[bool(self.key)]()
        except S3Error as e:
            self._refuse(e)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except OSError as e:
            self._refuse(_of_disk(e))

    def _parse(self) -> None:
        parts = urlsplit(self.path)
        try:
            path = unquote(parts.path, errors="strict")
            pairs = parse_qsl(parts.query, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError as e:
            raise S3Error(400, "InvalidURI", "the address is not UTF-8") from e
        bucket, _, self.key = path.removeprefix("/").partition("/")
        self.query = {k: v for k, v in pairs if not _IGNORED_QUERY.fullmatch(k)}
        if bucket not in self.server.buckets:
            raise S3Error(404, "NoSuchBucket", f"the buckets here are {', '.join(sorted(self.server.buckets))}")
        self.bucket, (self.objects, scope) = bucket, self.server.buckets[bucket]
        self.scope = scope.scope_of(self._access_key(dict(pairs))) if isinstance(scope, Keys) else scope
        if self.key and frozenset(self.query) not in _OBJECT_QUERIES[self.command]:
            raise S3Error(501, "NotImplemented", f"no {', '.join(self.query) or self.command} here")
        if self.key and (problem := key_problem(self.key)):
            raise S3Error(400, "InvalidArgument", problem)

    def _access_key(self, query: Mapping[str, str]) -> str:
        """The key of a signed request or address; "" = it has none."""
        said = re.search(r"Credential=([^/,]+)/", self.headers.get("Authorization", ""))
        return said[1] if said else query.get("X-Amz-Credential", "").partition("/")[0]

    def _may(self, allowed: bool) -> None:
        if not allowed:
            raise S3Error(403, "AccessDenied", f"{self.scope} may not do this")

    # ------------------------------------------------------------ objects

    def _get(self) -> None:
        self._may(self.scope.may_read(self.key) or self.server.reads_home(self.scope, self.key))
        found = self.objects.open(self.key)
        if found is None:
            raise S3Error(404, "NoSuchKey", "there is no such object")
        entry, file = found
        with file:
            if not self._wanted(entry):
                self._reply(304, entry=entry)
                return
            first, count, status = _range(self.headers.get("Range"), entry.size)
            extra = {"Content-Range": f"bytes {first}-{first + count - 1}/{entry.size}"} if status == 206 else {}
            self._reply(status, entry=entry, length=count, extra=extra)
            if self.command == "GET" and count:
                self.wfile.flush()
                if self.connection.sendfile(file, first, count) != count:
                    self.close_connection = True

    def _wanted(self, entry: Entry) -> bool:
        match, none_match = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        if match is not None and match not in ("*", f'"{entry.etag}"'):
            raise S3Error(412, "PreconditionFailed", "the object was rewritten")
        return none_match not in ("*", f'"{entry.etag}"')

    def _put(self) -> None:
        only_if_absent = self._may_write()
        staged, file = self.objects.stage()
        try:
            self._receive(file)
            etag = self._keep(staged, file, only_if_absent)
        except BaseException:
            self.objects.drop(staged, file)
            raise
        self._reply(200, extra={"ETag": f'"{etag}"'})

    def _keep(self, staged: Path, file: BinaryIO, only_if_absent: bool) -> str:
        """Make staged bytes an object or a part of one; the tag."""
        if "uploadId" in self.query:
            number = self.query["partNumber"]
            if not (number.isascii() and number.isdigit()):
                raise S3Error(400, "InvalidArgument", "partNumber is a number")
            return self.server.uploads.add(self.query["uploadId"], self.key, int(number), staged, file)
        try:
            return self.objects.commit(staged, file, self.key, only_if_absent=only_if_absent).etag
        except Exists as e:
            raise _exists() from e

    def _may_write(self) -> bool:
        """Refuses forbidden writes; returns whether only an absent object may be written."""
        condition = self.headers.get("If-None-Match")
        if condition not in (None, "*") or "If-Match" in self.headers or "x-amz-copy-source" in self.headers:
            raise S3Error(501, "NotImplemented", "of conditions only If-None-Match: * is known, and nothing is copied")
        scope = self.scope
        self._may(scope.may_create(self.key) if condition else scope.may_replace(self.key))
        return condition is not None

    def _post(self) -> None:
        """Begin or complete a multipart upload."""
        only_if_absent = self._may_write()
        if "uploads" in self.query:
            name = self.server.uploads.begin(self.key)
            self._reply(200, s3_protocol.upload_body(self.bucket, self.key, name))
            return
        parts = s3_protocol.parts_of(self._source().read(_LIST_BODY_BYTES_MAX))
        try:
            entry = self.server.uploads.complete(self.query["uploadId"], self.key, parts, only_if_absent=only_if_absent)
        except Exists as e:
            raise _exists() from e
        self._reply(200, s3_protocol.completed_body(self.bucket, self.key, entry.etag))

    def _receive(self, file: BinaryIO) -> None:
        got = s3_protocol.receive(self._source(), file, self._block)
        said = declared_length(self.headers)
        if said is not None and said != got:
            raise S3Error(400, "IncompleteBody", f"{said} bytes were announced, {got} came")

    @functools.cached_property
    def _block(self) -> memoryview:
        """Memory for bodies; a connection that only reads has none."""
        return memoryview(bytearray(BLOCK_BYTES))

    def _source(self) -> io.BufferedReader[Any]:
        if self._body is None:
            self._body = body(self.rfile, self.headers)
        return self._body

    def _delete(self) -> None:
        if "uploadId" in self.query:
            self._may(self.scope.may_create(self.key))
            self.server.uploads.abort(self.query["uploadId"], self.key)
        else:
            self._may(self.scope.may_delete(self.key))
            self.objects.delete(self.key)
        self._reply(204)

    # ------------------------------------------------------------ the bucket

    def _get_bucket(self) -> None:
        if self.query.get("list-type") != "2" or not _LIST_QUERY.issuperset(self.query):
            raise S3Error(501, "NotImplemented", "of a bucket only ListObjectsV2 is known")
        prefix = self.query.get("prefix", "")
        self._may(self.scope.may_list(prefix))
        if prefix.rstrip("/") and (problem := key_problem(prefix.rstrip("/"))):
            raise S3Error(400, "InvalidArgument", problem)
        after = self.query.get("start-after", "")
        if "continuation-token" in self.query:
            after = s3_protocol.from_token(self.query["continuation-token"])
        page = list_page(self.objects, prefix, self.query.get("delimiter", ""), after, s3_protocol.max_keys(self.query))
        self._reply(200, s3_protocol.listing_body(page, self.query, self.bucket))

    def _delete_many(self) -> None:
        if set(self.query) != {"delete"}:
            raise S3Error(501, "NotImplemented", "of a bucket only several objects can be deleted")
        data = self._source().read(_LIST_BODY_BYTES_MAX)
        deleted, refused = [], []
        for key in s3_protocol.keys_to_delete(data):
            if key_problem(key) or not self.scope.may_delete(key):
                refused.append((key, S3Error(403, "AccessDenied", "may not be deleted")))
                continue
            self.objects.delete(key)
            deleted.append(key)
        self._reply(200, s3_protocol.delete_body(deleted, refused))

    # ------------------------------------------------------------ replies

    def _refuse(self, e: S3Error) -> None:
        """Answer with an error; reads the rest of the body, or the client would never see the answer."""
        try:
            left = _DRAIN_BYTES_MAX
            while left > 0 and (block := self._source().read(BLOCK_BYTES)):
                left -= len(block)
        except (S3Error, OSError):
            self.close_connection = True
        else:
            self.close_connection = self.close_connection or left <= 0
        self._reply(e.status, s3_protocol.error_body(e, self.path))

    def _reply(
        self,
        status: int,
        content: bytes = b"",
        *,
        entry: Entry | None = None,
        length: int | None = None,
        extra: dict[str, str] | None = None,
    ) -> None:
        headers = dict(extra or {})
        if content:
            headers["Content-Type"] = "application/xml"
        if entry is not None:
            headers["ETag"] = f'"{entry.etag}"'
            headers["Last-Modified"] = formatdate(entry.modified_ns / 1e9, usegmt=True)
            headers["Accept-Ranges"] = "bytes"
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            headers["Content-Length"] = str(len(content) if length is None else length)
        if self.close_connection:
            headers["Connection"] = "close"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def list_page(objects: Objects, prefix: str, delimiter: str, after: str, limit: int) -> Page:
    """At most `limit` keys and folded prefixes greater than `after`."""
    entries: list[Entry] = []
    prefixes: list[str] = []
    walk = objects.walk(prefix, after)
    while (entry := next(walk, None)) is not None:
        if len(entries) + len(prefixes) >= limit:
            return Page(entries, prefixes, after if limit else None)
        head, mark, _ = entry.key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if mark:
            prefixes.append(prefix + head + mark)
            after = prefixes[-1] + _LAST
            walk = objects.walk(prefix, after)  # past all folded keys
        else:
            entries.append(entry)
            after = entry.key
    return Page(entries, prefixes, None)


def _range(header: str | None, size: int) -> tuple[int, int, int]:
    """First byte, count and HTTP status of a Range header; ignores one that it does not understand, as the RFC demands."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if match is None or match.groups() == ("", ""):
        return 0, size, 200
    first_text, last_text = match.groups()
    if first_text:
        first, last = int(first_text), min(int(last_text or size), size - 1)
    else:
        first, last = max(0, size - int(last_text)), size - 1
    if first >= size or last < first:
        raise S3Error(416, "InvalidRange", "the object has no such bytes")
    return first, last - first + 1, 206


def _of_disk(e: OSError) -> S3Error:
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return S3Error(507, "InsufficientStorage", f"No space left on device: {e.strerror}")
    if e.errno in LASTING:
        return S3Error(403, "AccessDenied", str(e))
    return S3Error(500, "InternalError", str(e))


def _exists() -> S3Error:
    return S3Error(412, "PreconditionFailed", "there is an object of this key already")


def _not_implemented() -> None:
    raise S3Error(501, "NotImplemented", "this is not known here")
