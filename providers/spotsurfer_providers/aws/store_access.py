"""Access to a store in S3: the controller's credentials, and the session policy that limits one attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from spotsurfer_wire import object_keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.object_keys import KeyRights
from spotsurfer_wire.store.port import RightsUnreachable

from spotsurfer.model.errors import ConfigError, Invalid
from spotsurfer_providers.bucket_rights import Read, bucket_and_prefix, reads, summed_up

# ---- Controller: credentials of the default chain, as for its other calls of AWS.

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class NoCredentials(Exception):
    """The chain has no credentials."""


class Chain:
    """For obstore. botocore renews the credentials before they end, and keeps them only in memory."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __call__(self) -> Any:
        """An `S3Credential`. Raises NoCredentials, RightsUnreachable, and botocore's errors if the chain is broken."""
        from botocore.exceptions import HTTPClientError

        try:
            found = self._session.get_credentials()
            if found is None:
                raise NoCredentials("no AWS credentials: set AWS_PROFILE, or see `aws sts get-caller-identity`")
            now = found.get_frozen_credentials()
        except HTTPClientError as e:
            raise RightsUnreachable(str(e)) from e
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
SCHEMES = ("s3", "s3a")
_TAIL_LETTERS = 8  # of a job's id, which denials match: more than its six random ones
_ANY = "*"


def session_policy(url: str, partition: str, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> str:
    """The policy of one attempt, as JSON that STS takes; `home`: the scope of the folder that the job works in.

    Inputs that would make it too long are generalized as far as needed: to common beginnings of their addresses, at last to
    whole buckets, all of which may be listed. The job role bounds them anyway. None of them opens anything of the store. Raises
    Invalid if the policy is still too long.
    """
    bucket, prefix = bucket_and_prefix(url, SCHEMES)
    read = reads(inputs, "s3", OwnStore(url))
    arn = f"arn:{partition}:s3:::"
    rights = object_keys.rights_of_attempt(job, attempt, home)
    own, folder = _own(arn, f"{bucket}/{prefix}", job, rights), [(bucket, prefix + key) for key in rights.read]
    texts = [_policy(arn, own, listed, [*wider, *folder]) for listed, wider in _ever_wider(read, bucket, prefix)]
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


def _policy(arn: str, own: Sequence[dict[str, object]], listed: Sequence[str], read: Sequence[Read]) -> str:
    statements = [*own, {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": [f"{arn}{b}" for b in listed]}]
    if read:
        objects = sorted({f"{arn}{b}/{key}" for b, key in read})
        statements.append({"Effect": "Allow", "Action": ["s3:GetObject", "s3:GetObjectVersion"], "Resource": objects})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _ever_wider(read: Sequence[Read], own: str, prefix: str) -> Iterator[tuple[Sequence[str], Sequence[Read]]]:
    """Listable buckets and readable patterns, the narrowest first; `own` and `prefix` are the store's."""
    buckets = sorted({own, *(bucket for bucket, _ in read)})
    summed = summed_up(read, own, prefix)
    whole = {(bucket, pattern if bucket == own else _ANY) for bucket, pattern in summed}
    yield buckets, read
    yield buckets, summed
    yield [_ANY], summed
    yield [_ANY], sorted(whole)
