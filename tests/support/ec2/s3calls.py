"""Which call an S3 request is: its operation, the right it needs, its bucket and key. By S3's list of operations and rights."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

# (method, on an object?, word in the query or "") -> (operation, right); the first that fits counts.
_TABLE: tuple[tuple[str, bool, str, str, str], ...] = (
    ("GET", True, "uploadId", "ListParts", "s3:ListMultipartUploadParts"),
    ("GET", True, "tagging", "GetObjectTagging", "s3:GetObjectTagging"),
    ("GET", True, "", "GetObject", "s3:GetObject"),
    ("HEAD", True, "", "HeadObject", "s3:GetObject"),
    ("PUT", True, "uploadId", "UploadPart", "s3:PutObject"),
    ("PUT", True, "tagging", "PutObjectTagging", "s3:PutObjectTagging"),
    ("PUT", True, "", "PutObject", "s3:PutObject"),
    ("POST", True, "uploads", "CreateMultipartUpload", "s3:PutObject"),
    ("POST", True, "uploadId", "CompleteMultipartUpload", "s3:PutObject"),
    ("DELETE", True, "uploadId", "AbortMultipartUpload", "s3:AbortMultipartUpload"),
    ("DELETE", True, "", "DeleteObject", "s3:DeleteObject"),
    ("POST", False, "delete", "DeleteObjects", "s3:DeleteObject"),
    ("GET", False, "uploads", "ListMultipartUploads", "s3:ListBucketMultipartUploads"),
    ("GET", False, "versions", "ListObjectVersions", "s3:ListBucketVersions"),
    ("GET", False, "location", "GetBucketLocation", "s3:GetBucketLocation"),
    ("GET", False, "list-type", "ListObjectsV2", "s3:ListBucket"),
    ("HEAD", False, "", "HeadBucket", "s3:ListBucket"),
)
IF_NONE_MATCH, IF_MATCH, COPIED = ASKED = ("if-none-match", "if-match", "x-amz-copy-source")
_CREATING = ("PutObject", "CopyObject", "CompleteMultipartUpload")
_PARTS = ("CreateMultipartUpload", "UploadPart", "UploadPartCopy")
# Words that ask for a part of a bucket's configuration: Get…, Put…, Delete… of it.
_CONFIGURATION = {
    "accelerate": "AccelerateConfiguration",
    "acl": "BucketAcl",
    "cors": "BucketCORS",
    "encryption": "EncryptionConfiguration",
    "lifecycle": "LifecycleConfiguration",
    "logging": "BucketLogging",
    "object-lock": "BucketObjectLockConfiguration",
    "ownershipControls": "BucketOwnershipControls",
    "policy": "BucketPolicy",
    "publicAccessBlock": "BucketPublicAccessBlock",
    "replication": "ReplicationConfiguration",
    "requestPayment": "BucketRequestPayment",
    "tagging": "BucketTagging",
    "versioning": "BucketVersioning",
    "website": "BucketWebsite",
}
_VERBS = {"GET": "Get", "PUT": "Put", "DELETE": "Put"}


@dataclass(frozen=True, slots=True)
class S3Call:
    """One call on a bucket or an object of it. `copied_from` is bucket/key of a copy's source."""

    operation: str
    right: str
    bucket: str
    key: str
    copied_from: str = ""
    prefix: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)  # condition keys of policies
    keys: tuple[str, ...] = ()  # of a call that names many objects

    @property
    def arns(self) -> list[str]:
        """What it touches."""
        if self.keys:
            return [f"arn:aws:s3:::{self.bucket}/{key}" for key in self.keys]
        return [f"arn:aws:s3:::{self.bucket}/{self.key}" if self.key else f"arn:aws:s3:::{self.bucket}" if self.bucket else "*"]


def s3_call(method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> S3Call:
    """What a request in path style asks for. `headers`: those of ASKED, "" where there is none."""
    bucket, _, key = path.lstrip("/").partition("/")
    operation, right = _name(method, bucket, key, query)
    copied_from, prefix = unquote(headers.get(COPIED, "")).lstrip("/"), query.get("prefix", "")
    if copied_from:
        operation = {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}.get(operation, operation)
    return S3Call(operation, right, bucket, key, copied_from, prefix, _conditions(operation, prefix, headers))


def _conditions(operation: str, prefix: str, headers: Mapping[str, str]) -> dict[str, str]:
    """By "Condition keys for Amazon S3" in the Service Authorization Reference.

    Parts of an upload, and what begins it, create no object and take no condition (User Guide, "Enforce conditional writes").
    """
    if operation.startswith("ListObjects"):
        return {"s3:prefix": prefix}
    if operation in _PARTS:
        return {"s3:ObjectCreationOperation": "false"}
    if operation not in _CREATING:
        return {}
    given = {f"s3:{name}": headers[name] for name in (IF_NONE_MATCH, IF_MATCH) if headers.get(name)}
    return given | {"s3:ObjectCreationOperation": "true"}


def deleted_keys(body: bytes) -> tuple[str, ...]:
    """The keys that DeleteObjects names."""
    return tuple(e.text or "" for e in ET.fromstring(body).iter() if e.tag.rpartition("}")[2] == "Key")


def _name(method: str, bucket: str, key: str, query: Mapping[str, str]) -> tuple[str, str]:
    if not bucket:
        return "ListBuckets", "s3:ListAllMyBuckets"
    for verb, on_object, word, operation, right in _TABLE:
        if verb == method and on_object == bool(key) and (not word or word in query) and not (_about(query) and not word):
            return operation, right
    if about := _about(query):
        name = _CONFIGURATION[about]
        return f"{_VERBS.get(method, method)}{name}", f"s3:{_VERBS.get(method, method)}{name}"
    plain = {"PUT": "CreateBucket", "DELETE": "DeleteBucket", "GET": "ListObjects"}.get(method, method)
    return plain, "s3:ListBucket" if method == "GET" else f"s3:{plain}"


def _about(query: Mapping[str, str]) -> str:
    return next((word for word in _CONFIGURATION if word in query), "")
