"""The S3 dialect: XML, request bodies, multipart uploads."""

from __future__ import annotations

import base64
import binascii
import datetime
import io
import os
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

from spotsurfer_providers.local.object_gateway.folder_store import Entry, Objects

# ---- XML: answers, and the few documents that requests contain.

_HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class S3Error(Exception):
    """An unsuccessful answer: HTTP status, S3's code, a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing: objects and folded prefixes in key order, and where the next page begins (None = the end)."""

    entries: Sequence[Entry]
    prefixes: Sequence[str]
    after: str | None


def error_body(e: S3Error, resource: str) -> bytes:
    """An Error document."""
    inner = f"<Code>{e.code}</Code><Message>{escape(e.message)}</Message><Resource>{escape(resource)}</Resource>"
    return _HEAD + f"<Error>{inner}<RequestId>local</RequestId></Error>".encode()


def listing_body(page: Page, query: Mapping[str, str], bucket: str) -> bytes:
    """A ListBucketResult document; echoes the request."""
    url_encoded = query.get("encoding-type") == "url"

    def text(value: str) -> str:
        return quote(value, safe="/") if url_encoded else escape(value)

    parts = [f"<Name>{bucket}</Name>", f"<Prefix>{text(query.get('prefix', ''))}</Prefix>"]
    parts += [f"<KeyCount>{len(page.entries) + len(page.prefixes)}</KeyCount>"]
    parts += [f"<MaxKeys>{max_keys(query)}</MaxKeys>"]
    parts += [f"<IsTruncated>{'true' if page.after is not None else 'false'}</IsTruncated>"]
    parts += ["<EncodingType>url</EncodingType>"] if url_encoded else []
    for name, tag in (("delimiter", "Delimiter"), ("start-after", "StartAfter")):
        parts += [f"<{tag}>{text(query[name])}</{tag}>"] if name in query else []
    if "continuation-token" in query:
        parts.append(f"<ContinuationToken>{escape(query['continuation-token'])}</ContinuationToken>")
    if page.after is not None:
        parts.append(f"<NextContinuationToken>{token(page.after)}</NextContinuationToken>")
    parts += [
        f"<Contents><Key>{text(e.key)}</Key><LastModified>{_time(e.modified_ns)}</LastModified>"
        f"<ETag>&quot;{e.etag}&quot;</ETag><Size>{e.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for e in page.entries
    ]
    parts += [f"<CommonPrefixes><Prefix>{text(p)}</Prefix></CommonPrefixes>" for p in page.prefixes]
    return _HEAD + f'<ListBucketResult xmlns="{_NAMESPACE}">{"".join(parts)}</ListBucketResult>'.encode()


def delete_body(deleted: Sequence[str], refused: Sequence[tuple[str, S3Error]]) -> bytes:
    """A DeleteResult document."""
    parts = [f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in deleted]
    parts += [
        f"<Error><Key>{escape(k)}</Key><Code>{e.code}</Code><Message>{escape(e.message)}</Message></Error>" for k, e in refused
    ]
    return _HEAD + f'<DeleteResult xmlns="{_NAMESPACE}">{"".join(parts)}</DeleteResult>'.encode()


def keys_to_delete(body: bytes) -> list[str]:
    """The keys of a Delete document. Raises S3Error.

    Uses no XML parser: the document comes from a box, and only one tag without nesting matters.
    """
    try:
        found = re.findall(r"<Key>([^<]*)</Key>", body.decode())
    except UnicodeDecodeError as e:
        raise S3Error(400, "MalformedXML", "the list of keys is not UTF-8") from e
    if not found:
        raise S3Error(400, "MalformedXML", "the list of keys is empty")
    return [unescape(k, {"&quot;": '"', "&apos;": "'"}) for k in found]


def upload_body(bucket: str, key: str, upload: str) -> bytes:
    """The answer to the beginning of a multipart upload."""
    inner = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
    return _HEAD + f'<InitiateMultipartUploadResult xmlns="{_NAMESPACE}">{inner}</InitiateMultipartUploadResult>'.encode()


def completed_body(bucket: str, key: str, etag: str) -> bytes:
    """The answer to the end of a multipart upload."""
    inner = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><ETag>&quot;{etag}&quot;</ETag>"
    return _HEAD + f'<CompleteMultipartUploadResult xmlns="{_NAMESPACE}">{inner}</CompleteMultipartUploadResult>'.encode()


def parts_of(body: bytes) -> list[tuple[int, str]]:
    """Numbers and tags in a CompleteMultipartUpload document. Raises S3Error."""
    found = []
    for part in re.findall(r"<Part>(.*?)</Part>", body.decode(errors="replace"), re.DOTALL):
        number = re.search(r"<PartNumber>\s*(\d{1,5})\s*</PartNumber>", part)
        tag = re.search(r"<ETag>\s*(?:&quot;|&#34;|\")?([0-9a-f]+)(?:&quot;|&#34;|\")?\s*</ETag>", part)
        if number is None or tag is None:
            raise S3Error(400, "MalformedXML", "a part has no number or no tag")
        found.append((int(number[1]), tag[1]))
    return found


def max_keys(query: Mapping[str, str]) -> int:
    """The maximum number of entries of a page. Raises S3Error."""
    text = query.get("max-keys", "1000")
    if not text.isdigit():
        raise S3Error(400, "InvalidArgument", "max-keys is a number")
    return min(1000, int(text))


def token(after: str) -> str:
    """A continuation token: the place in the key order."""
    return base64.urlsafe_b64encode(after.encode()).decode()


def from_token(text: str) -> str:
    """The place of a continuation token. Raises S3Error."""
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as e:
        raise S3Error(400, "InvalidArgument", "not a continuation token of ours") from e


def _time(nanoseconds: int) -> str:
    at = datetime.datetime.fromtimestamp(nanoseconds / 1e9, tz=datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- Request bodies as S3 clients send them: plain, in HTTP chunks, in aws-chunked frames, or one within the other.

Headers = Message
BLOCK_BYTES = 1 << 20
_LINE_BYTES_MAX = 8192


class _Limited(io.RawIOBase):
    """The next `left` bytes of a connection."""

    def __init__(self, source: io.BufferedIOBase, left: int) -> None:
        self._source = source
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        want = min(len(buffer), self._left)
        if want == 0:
            return 0
        data = self._source.read(want)
        if not data:
            raise S3Error(400, "IncompleteBody", "the connection ended before the body did")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def pour(self, file: BinaryIO, block: memoryview) -> int:
        """Write all that is left to a file by way of this block; how much it was.

        Only one thread at a time copies between Python's own buffers. Here the kernel does the copies.
        """
        whole, have = self._left, 0
        while self._left:
            count = self._source.readinto1(block[have : have + self._left])
            if not count:
                raise S3Error(400, "IncompleteBody", "the connection ended before the body did")
            self._left -= count
            have += count
            if have == len(block) or not self._left:
                file.write(block[:have])
                have = 0
        return whole


class _Framed(_Limited):
    """`hex[;extensions] CRLF bytes CRLF …  0 CRLF trailers CRLF`: HTTP's chunks and aws-chunked are the same grammar."""

    def __init__(self, source: io.BufferedIOBase) -> None:
        super().__init__(source, 0)
        self._first = True
        self._ended = False

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._left == 0 and not self._ended:
            self._next_frame()
        return super().readinto(buffer)

    def _next_frame(self) -> None:
        if not self._first:
            self._line()  # the end of line after the bytes
        self._first = False
        size = self._line().partition(b";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError as e:
            raise S3Error(400, "InvalidRequest", "the body is not framed as its headers say") from e
        if self._left == 0:
            self._ended = True
            while self._line().strip():
                pass  # trailers: checksums, which TCP has already covered

    def _line(self) -> bytes:
        line = self._source.readline(_LINE_BYTES_MAX)
        if not line and not self._ended:
            raise S3Error(400, "IncompleteBody", "the connection ended before the body did")
        return line


def body(connection: io.BufferedIOBase, headers: Headers) -> io.BufferedReader[Any]:
    """The plain bytes of a request's body. Raises S3Error, also while it is read."""
    length = headers.get("Content-Length", "0")
    if "chunked" in headers.get("Transfer-Encoding", "").lower():
        source: _Limited = _Framed(connection)
    elif length.isdigit():
        source = _Limited(connection, int(length))
    else:
        raise S3Error(400, "InvalidArgument", "Content-Length is not a number")
    raw = io.BufferedReader(source, BLOCK_BYTES)
    encoded = "aws-chunked" in headers.get("Content-Encoding", "")
    if encoded or headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return io.BufferedReader(_Framed(raw), BLOCK_BYTES)
    return raw


def receive(source: io.BufferedReader[Any], file: BinaryIO, block: memoryview) -> int:
    """Write a whole body, of which nothing was read, to a file; `block` is memory for that. Its length. Raises as `body`."""
    if type(source.raw) is _Limited:
        return source.raw.pour(file, block)
    got = 0
    while count := source.readinto(block):
        file.write(block[:count])
        got += count
    return got


def declared_length(headers: Headers) -> int | None:
    """The announced length of the plain body, if any."""
    text = headers.get("x-amz-decoded-content-length")
    return int(text) if text is not None and text.isdigit() else None


# ---- Multipart uploads, as clients send large files. Their state lives as long as the box's supervisor.

PARTS_MAX = 10_000


@dataclass
class _Upload:
    key: str
    parts: dict[int, tuple[Path, str]] = field(default_factory=dict)  # number -> staged file, tag


class Uploads:
    """The uploads in progress."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._open: dict[str, _Upload] = {}
        self._lock = threading.Lock()

    def begin(self, key: str) -> str:
        """The id of a new upload."""
        name = secrets.token_hex(16)
        with self._lock:
            self._open[name] = _Upload(key)
        return name

    def add(self, name: str, key: str, number: int, staged: Path, file: BinaryIO) -> str:
        """Keep a staged file as a part, in place of one with the same number; its tag. Raises S3Error."""
        if not 1 <= number <= PARTS_MAX:
            raise S3Error(400, "InvalidArgument", f"parts are numbered from 1 to {PARTS_MAX}")
        file.close()
        tag = secrets.token_hex(16)
        with self._lock:
            old = self._find(name, key).parts.get(number)
            self._open[name].parts[number] = (staged, tag)
        if old is not None:
            old[0].unlink(missing_ok=True)
        return tag

    def complete(self, name: str, key: str, wanted: Sequence[tuple[int, str]], *, only_if_absent: bool) -> Entry:
        """Make the parts one object. Raises S3Error, Exists or OSError; the upload then stays."""
        with self._lock:
            upload = self._find(name, key)
        have = [upload.parts.get(number) for number, _ in wanted]
        if not wanted or [p and p[1] for p in have] != [tag for _, tag in wanted] or sorted(wanted) != list(wanted):
            raise S3Error(400, "InvalidPart", "parts are missing, of another upload, or out of order")
        staged, file = self._objects.stage()
        try:
            for part in have:
                assert part is not None
                _append(file, part[0])
            entry = self._objects.commit(staged, file, key, only_if_absent=only_if_absent)
        finally:
            self._objects.drop(staged, file)
        self.abort(name, key)
        return entry

    def abort(self, name: str, key: str) -> None:
        """Forget an upload and its parts. Raises S3Error."""
        with self._lock:
            upload = self._find(name, key)
            del self._open[name]
        for staged, _ in upload.parts.values():
            staged.unlink(missing_ok=True)

    def _find(self, name: str, key: str) -> _Upload:
        upload = self._open.get(name)
        if upload is None or upload.key != key:
            raise S3Error(404, "NoSuchUpload", "there is no such upload of this object")
        return upload


def _append(file: BinaryIO, part: Path) -> None:
    """Copy within the kernel, with shared blocks if the file system can."""
    with part.open("rb") as source:
        left = os.fstat(source.fileno()).st_size
        while left > 0:
            left -= os.copy_file_range(source.fileno(), file.fileno(), left)
