"""The XML of the S3 dialect: what goes out and the little that comes in."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

from spotsurfer_providers.local.objects import Entry

_HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class S3Error(Exception):
    """An answer other than success: HTTP status, S3's code, a sentence."""

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
    """A ListBucketResult document; echoes what was asked for."""
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

    No XML parser: the document comes from a box, and one tag without nesting is all that counts.
    """
    try:
        found = re.findall(r"<Key>([^<]*)</Key>", body.decode())
    except UnicodeDecodeError as e:
        raise S3Error(400, "MalformedXML", "the list of keys is not UTF-8") from e
    if not found:
        raise S3Error(400, "MalformedXML", "the list of keys is empty")
    return [unescape(k, {"&quot;": '"', "&apos;": "'"}) for k in found]


def upload_body(bucket: str, key: str, upload: str) -> bytes:
    """The answer to the beginning of an upload in parts."""
    inner = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
    return _HEAD + f'<InitiateMultipartUploadResult xmlns="{_NAMESPACE}">{inner}</InitiateMultipartUploadResult>'.encode()


def completed_body(bucket: str, key: str, etag: str) -> bytes:
    """The answer to the end of an upload in parts."""
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
    """How many entries a page may have. Raises S3Error."""
    text = query.get("max-keys", "1000")
    if not text.isdigit():
        raise S3Error(400, "InvalidArgument", "max-keys is a number")
    return min(1000, int(text))


def token(after: str) -> str:
    """A continuation token: the place in the key order."""
    return base64.urlsafe_b64encode(after.encode()).decode()


def from_token(text: str) -> str:
    """The place that a continuation token stands for. Raises S3Error."""
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as e:
        raise S3Error(400, "InvalidArgument", "not a continuation token of ours") from e


def _time(nanoseconds: int) -> str:
    at = datetime.datetime.fromtimestamp(nanoseconds / 1e9, tz=datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
