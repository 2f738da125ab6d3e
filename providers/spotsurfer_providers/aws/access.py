"""What one attempt may touch of the store and its inputs, as a session policy. Pure.

A session has the rights that both the job role and this policy give. The store's bucket may be listed without a condition on
the prefix: S3 tells *absent* from *forbidden* only to who may list, and a GET carries no prefix to compare. So an attempt can
learn the names of other jobs' objects, and nothing of what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from urllib.parse import urlsplit

from spotsurfer_agent import protocol

from spotsurfer.model.errors import ConfigError

POLICY_CHARACTERS_MAX = 2048  # of STS AssumeRole, session policy
_WILD = ("*", "?", "[")


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Of s3://bucket/prefix; the prefix ends with a slash or is empty. Raises ConfigError for another kind of store."""
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "s3a") or not parts.netloc:
        raise ConfigError(f"store.url is {url!r}: machines of AWS need a store like s3://bucket/prefix")
    path = parts.path.strip("/")
    return parts.netloc, f"{path}/" if path else ""


def session_policy(url: str, partition: str, job: str, attempt: int, inputs: Sequence[str]) -> str:
    """The policy of one attempt, as JSON that STS takes.

    Inputs that would make it too long are summed up by what their addresses begin with: the job role bounds them anyway.
    """
    bucket, prefix = bucket_and_prefix(url)
    own = [f"{prefix}{protocol.job_prefix(job)}*", f"{prefix}{protocol.live_key(job, attempt)}"]
    read = [_input(x) for x in inputs if x.startswith(("s3://", "s3a://"))]
    text = _policy(partition, bucket, own, read)
    return text if len(text) <= POLICY_CHARACTERS_MAX else _policy(partition, bucket, own, _summed_up(read))


def _policy(partition: str, bucket: str, own: Iterable[str], read: Sequence[tuple[str, str]]) -> str:
    arn = f"arn:{partition}:s3:::"
    write = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    buckets = sorted({bucket, *(b for b, _ in read)})
    statements = [
        {"Effect": "Allow", "Action": write, "Resource": [f"{arn}{bucket}/{key}" for key in own]},
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": [f"{arn}{b}" for b in buckets]},
    ]
    if read:
        objects = sorted({f"{arn}{b}/{key}" for b, key in read})
        statements.append({"Effect": "Allow", "Action": ["s3:GetObject", "s3:GetObjectVersion"], "Resource": objects})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _input(address: str) -> tuple[str, str]:
    """Bucket and pattern of an input: a folder and a wildcard mean everything that begins like them."""
    parts = urlsplit(address, allow_fragments=False)
    key = (parts.path + (f"?{parts.query}" if parts.query else "")).lstrip("/")
    begin = min((key.index(mark) for mark in _WILD if mark in key), default=len(key))
    whole = begin == len(key) and key != "" and not key.endswith("/")
    return parts.netloc, key if whole else f"{key[:begin]}*"


def _summed_up(read: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    by_bucket: dict[str, list[str]] = {}
    for bucket, key in read:
        by_bucket.setdefault(bucket, []).append(key.removesuffix("*"))
    return [(bucket, f"{_beginning(keys)}*") for bucket, keys in sorted(by_bucket.items())]


def _beginning(texts: Sequence[str]) -> str:
    """What all begin with."""
    return "".join(column[0] for column in takewhile(lambda c: len(set(c)) == 1, zip(*texts, strict=False)))
