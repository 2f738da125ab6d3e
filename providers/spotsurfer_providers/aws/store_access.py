"""Access to a store in S3: the controller's credentials, and the session policy that limits one attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from spotsurfer_wire import object_keys
from spotsurfer_wire.input_addresses import KEPT, OwnStore
from spotsurfer_wire.object_keys import KeyRights

from spotsurfer.model.errors import ConfigError, Invalid

# ---- Controller: credentials of the default chain, as for its other calls of AWS.

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class NoCredentials(Exception):
    """The chain has no credentials."""


class Chain:
    """For obstore. botocore renews the credentials before they end, and keeps them only in memory."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __call__(self) -> Any:
        """An `S3Credential`. Raises NoCredentials, and botocore's errors if the chain is broken."""
        found = self._session.get_credentials()
        if found is None:
            raise NoCredentials("no AWS credentials: set AWS_PROFILE, or see `aws sts get-caller-identity`")
        now = found.get_frozen_credentials()
        # Already expired: so each request asks here, and botocore decides when to renew.
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": LONG_AGO,
        }

    def refused(self) -> None:
        """Does nothing: botocore renews by the clock."""


def find(tables: Mapping[str, Any]) -> Chain | None:
    """The entry point. `tables`: those of [provider]; the profile is that of [provider.aws]. None if boto3 is missing.

    Raises ConfigError for a profile that does not exist.
    """
    try:
        import botocore.session
        from botocore.exceptions import BotoCoreError
    except ModuleNotFoundError:
        return None
    session = botocore.session.Session(profile=tables.get("aws", {}).get("profile"))
    try:
        session.get_credentials()
    except BotoCoreError as e:
        raise ConfigError(f"the store's AWS profile can't be used: {e}") from e
    return Chain(session)


# ---- Session policy: the rights of one attempt in the store and on its inputs. Pure.
# A session has the rights that both the job role and this policy give. Listing the store's bucket has no condition on the
# prefix: S3 tells *absent* from *forbidden* only to sessions that may list, and a GET carries no prefix to compare. So an
# attempt can learn the names of other jobs' objects, but not their content.

POLICY_CHARACTERS_MAX = 2048  # of STS AssumeRole, session policy
_WILD = ("*", "?", "[")
_TAIL_LETTERS = 8  # of a job's id, which denials match: more than its six random ones
_ANY = "*"


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Of s3://bucket/prefix; the prefix ends with a slash or is empty. Raises ConfigError for another kind of store."""
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "s3a") or not parts.netloc:
        raise ConfigError(f"store.url is {url!r}: machines of AWS need a store like s3://bucket/prefix")
    path = parts.path.strip("/")
    return parts.netloc, f"{path}/" if path else ""


def session_policy(url: str, partition: str, job: str, attempt: int, inputs: Sequence[str]) -> str:
    """The policy of one attempt, as JSON that STS takes.

    Inputs that would make it too long are generalized as far as needed: to common beginnings of their addresses, at last to
    whole buckets, all of which may be listed. The job role bounds them anyway. None of them opens anything of the store. Raises
    Invalid if the policy is still too long.
    """
    bucket, prefix = bucket_and_prefix(url)
    store = OwnStore(url)
    read = [_input(x) for x in inputs if x.startswith("s3://") and not store.holds(x)]
    arn = f"arn:{partition}:s3:::"
    own = _own(arn, f"{bucket}/{prefix}", job, object_keys.rights_of_attempt(job, attempt))
    texts = [_policy(arn, own, *wider) for wider in _ever_wider(read, bucket, prefix)]
    for text in texts:
        if len(text) <= POLICY_CHARACTERS_MAX:
            return text
    raise Invalid(
        f"the rights of job {job} do not fit into a session of AWS: its inputs lie in {len({b for b, _ in read} - {bucket})} "
        f"buckets besides that of the store, and the shortest policy for them has {len(texts[-1])} characters of at most "
        f"{POLICY_CHARACTERS_MAX}; bring the inputs together in fewer buckets, or shorten the prefix in store.url"
    )


def _own(arn: str, home: str, job: str, rights: KeyRights) -> list[dict[str, object]]:
    """The rights of `rights_of_attempt`. Conditions: S3 User Guide, "Enforce conditional writes on Amazon S3 buckets".

    The beginning and the parts of a multipart upload carry no If-None-Match; so only overwritable objects may come in parts.
    A session policy is short, so denials leave out bucket, prefix and the beginning of the job's id: they can only reduce the
    first statement, which covers only this job.
    """

    def ends(patterns: Sequence[str]) -> list[str]:
        return [f"{arn}*{p[p.index(job) + max(0, len(job) - _TAIL_LETTERS) :]}" for p in patterns]

    verbs = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    absent = {"Null": {"s3:if-none-match": "true"}}
    return [
        {"Effect": "Allow", "Action": verbs, "Resource": [f"{arn}{home}{p}" for p in rights.own]},
        {"Effect": "Deny", "Action": "s3:PutObject", "NotResource": ends(rights.overwritten), "Condition": absent},
        {"Effect": "Deny", "Action": "s3:PutObject", "Resource": ends(rights.controllers)},
        {"Effect": "Deny", "Action": "s3:DeleteObject", "NotResource": ends(rights.removed)},
    ]


def _policy(arn: str, own: Sequence[dict[str, object]], listed: Sequence[str], read: Sequence[tuple[str, str]]) -> str:
    statements = [*own, {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": [f"{arn}{b}" for b in listed]}]
    if read:
        objects = sorted({f"{arn}{b}/{key}" for b, key in read})
        statements.append({"Effect": "Allow", "Action": ["s3:GetObject", "s3:GetObjectVersion"], "Resource": objects})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _input(address: str) -> tuple[str, str]:
    """Bucket and pattern of an input: a folder or a wildcard covers everything with the same beginning."""
    parts = urlsplit(address, allow_fragments=False)
    key = (parts.path + (f"?{parts.query}" if parts.query else "")).lstrip("/")
    begin = min((key.index(mark) for mark in _WILD if mark in key), default=len(key))
    whole = begin == len(key) and key != "" and not key.endswith("/")
    return parts.netloc, key if whole else f"{key[:begin]}*"


def _ever_wider(
    read: Sequence[tuple[str, str]], own: str, prefix: str
) -> Iterator[tuple[Sequence[str], Sequence[tuple[str, str]]]]:
    """Listable buckets and readable patterns, the narrowest first; `own` and `prefix` are the store's."""
    buckets = sorted({own, *(bucket for bucket, _ in read)})
    summed = _summed_up(read, own, prefix)
    whole = {(bucket, pattern if bucket == own else _ANY) for bucket, pattern in summed}
    yield buckets, read
    yield buckets, summed
    yield [_ANY], summed
    yield [_ANY], sorted(whole)


def _summed_up(read: Sequence[tuple[str, str]], own: str, prefix: str) -> list[tuple[str, str]]:
    """By bucket; in the store's bucket (`own`, `prefix`) also by where they diverge from the store's keys."""
    groups: dict[tuple[str, str], list[str]] = {}
    for bucket, pattern in read:
        key = pattern.removesuffix("*")
        common = [len(_beginning([key, prefix + name])) for name in KEPT] if bucket == own else [-1]
        if max(common) == len(key):  # one file whose name is the beginning of a folder of the store
            groups[bucket, pattern] = [pattern]
        else:
            groups.setdefault((bucket, key[: 1 + max(common)]), []).append(f"{key}*")
    return [(bucket, keys[0] if len(keys) == 1 else f"{_beginning(keys)}*") for (bucket, _), keys in sorted(groups.items())]


def _beginning(texts: Sequence[str]) -> str:
    """The common beginning of all."""
    return "".join(column[0] for column in takewhile(lambda c: len(set(c)) == 1, zip(*texts, strict=False)))
