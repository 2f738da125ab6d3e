"""Access to a store in Cloud Storage: the controller's credentials, and the boundary that limits one attempt's token."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from spotsurfer_wire import object_keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.object_keys import KeyRights

from spotsurfer.model.errors import Invalid
from spotsurfer_providers import google_credentials
from spotsurfer_providers.bucket_rights import Read, bucket_and_prefix, reads, summed_up

# ---- Controller: application default credentials, as for its other calls of Google.

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Chain:
    """For obstore. google-auth renews the token before it ends, and keeps it only in memory."""

    def __init__(self) -> None:
        self._found: Any = None
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        """A `GCSCredential`. Raises google-auth's errors if the chain has or gets nothing."""
        from google.auth.transport.requests import Request

        with self._lock:
            if self._found is None:
                self._found = google_credentials.default()[0]
            if not self._found.valid:
                self._found.refresh(Request())
            # Already expired: so each request asks here, and google-auth decides when to renew.
            return {"token": self._found.token, "expires_at": LONG_AGO}

    def refused(self) -> None:
        """Does nothing: google-auth renews by the clock."""


def find(tables: Mapping[str, Any]) -> Chain | None:
    """The entry point. `tables`: those of [provider], of which none is needed. None if google-auth is missing."""
    del tables
    try:
        import google.auth  # noqa: F401 -- only whether it is there
    except ModuleNotFoundError:
        return None
    return Chain()


# ---- Boundary: the rights of one attempt in the store and on its inputs. Pure.
# A token has the rights that both the job's account and this boundary give. Each rule takes rights from a role, for objects
# that a condition names. Cloud Storage tells *absent* from *forbidden* only to those who may list, so an attempt may list the
# store's bucket. It can learn the names of other jobs' objects, but not their content.
# Sources: "Credential Access Boundaries" of Cloud Storage, "IAM roles for Cloud Storage", "Conditions: attribute reference".

SCHEMES = ("gs",)
RULES_MAX = 10
OPERATORS_MAX = 12  # of one condition
LIST, READ = "inRole:roles/storage.legacyBucketReader", "inRole:roles/storage.legacyObjectReader"
CREATE = "inRole:roles/storage.objectCreator"  # not where there is something already: that takes the right to delete
REPLACE = "inRole:roles/storage.objectUser"


def boundary(url: str, job: str, attempt: int, inputs: Sequence[str]) -> dict[str, Any]:
    """What the security token service takes as `options`, for one attempt.

    Many inputs of one bucket are generalized to common beginnings of their addresses; the account of the job bounds them
    anyway. None of them opens anything of the store. Raises Invalid if there is still no room.
    """
    bucket, prefix = bucket_and_prefix(url, SCHEMES)
    read = reads(inputs, "gs", OwnStore(url))
    rights = object_keys.rights_of_attempt(job, attempt)
    own = _own(bucket, prefix, rights)
    reading = _reading(read, bucket)
    if len(own) + len(reading) > RULES_MAX:
        reading = _reading(summed_up(read, bucket, prefix), bucket)
    if len(own) + len(reading) > RULES_MAX:
        others = {b for b, _ in read} - {bucket}
        raise Invalid(
            f"the rights of job {job} do not fit into a token of Google: its inputs lie in {len(others)} buckets besides that "
            f"of the store, at most {RULES_MAX - len(own)} are possible; bring the inputs together in fewer buckets, outside "
            "of the store's"
        )
    return {"accessBoundary": {"accessBoundaryRules": [*own, *reading]}}


def _reading(read: Sequence[Read], own: str) -> list[dict[str, Any]]:
    """Rules for inputs, each for some of one bucket, which may also be listed."""
    of_bucket: dict[str, list[str]] = {}
    for bucket, key in sorted(set(read)):
        of_bucket.setdefault(bucket, []).append(_named(bucket, key))
    rules: list[dict[str, Any]] = []
    for bucket, named in of_bucket.items():
        itself = [] if bucket == own else [f'resource.name == "projects/_/buckets/{bucket}"']
        some = (named[i : i + OPERATORS_MAX] for i in range(0, len(named), OPERATORS_MAX))
        rules += [_rule(bucket, (LIST, READ), " || ".join([*itself, *keys])) for keys in some]
    return rules


def _own(bucket: str, prefix: str, rights: KeyRights) -> list[dict[str, Any]]:
    """The rights of `rights_of_attempt`. What may be replaced may be removed, too: Cloud Storage has one right for both."""

    def named(keys: Sequence[str]) -> str:
        return " || ".join(_named(bucket, prefix + key) for key in keys)

    replaced = tuple(dict.fromkeys((*rights.overwritten, *rights.removed)))
    return [
        _rule(bucket, (LIST,)),
        _rule(bucket, (READ,), named(rights.own)),
        _rule(bucket, (CREATE,), f"({named(rights.own)}) && !({named(rights.controllers)})"),
        _rule(bucket, (REPLACE,), named(replaced)),
    ]


def _rule(bucket: str, permissions: Sequence[str], condition: str = "") -> dict[str, Any]:
    rule: dict[str, Any] = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        "availablePermissions": list(permissions),
    }
    return rule | ({"availabilityCondition": {"expression": condition}} if condition else {})


def _named(bucket: str, pattern: str) -> str:
    """Whether the object is one of these. `*` stands for any characters, at most once."""
    head, star, tail = f"projects/_/buckets/{bucket}/objects/{pattern}".partition("*")
    if not star:
        return f"resource.name == {json.dumps(head)}"
    begins = f"resource.name.startsWith({json.dumps(head)})"
    return f"({begins} && resource.name.endsWith({json.dumps(tail)}))" if tail else begins
