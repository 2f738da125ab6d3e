"""Access to a store in Cloud Storage: the controller's credentials, and the boundary that limits one attempt's token."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from spotsurfer_wire import object_keys
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.object_keys import KeyRights
from spotsurfer_wire.store.port import RightsUnreachable

from spotsurfer.model.errors import Invalid
from spotsurfer_providers import google_credentials
from spotsurfer_providers.bucket_rights import Read, bucket_and_prefix, reads, summed_up

# ---- Controller: application default credentials, as for its other calls of Google.

RENEW_SECONDS = 10.0  # for one question: each use of the store waits
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Chain:
    """For obstore. google-auth renews the token before it ends, and keeps it only in memory."""

    def __init__(self) -> None:
        self._found: Any = None
        self._is_refused = False
        self._lock = threading.Lock()

    def __call__(self) -> Any:
        """A `GCSCredential`. Raises RightsUnreachable, and google-auth's errors if the chain has or gets nothing."""
        from google.auth.exceptions import TransportError

        with self._lock:
            try:
                if self._found is None:
                    self._found = google_credentials.default()[0]
                if not self._found.valid or self._is_refused:
                    self._renew()
            except TransportError as e:
                raise RightsUnreachable(str(e.args[0] if e.args else e)) from e
            # Already expired: so each request asks here, and google-auth decides when to renew.
            return {"token": self._found.token, "expires_at": LONG_AGO}

    def _renew(self) -> None:
        from google.auth.credentials import TokenState
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        request: Any = Request()
        try:
            self._found.refresh(partial(request, timeout=RENEW_SECONDS))
            self._is_refused = False
        except GoogleAuthError:
            if self._found.token_state is TokenState.INVALID:  # else it is good for some minutes yet
                raise

    def refused(self) -> None:
        """The token may have ended by another clock than this host's: there will be a new one."""
        self._is_refused = True


def find(tables: Mapping[str, Any]) -> Chain | None:
    """The entry point. `tables`: those of [provider], of which none is needed. None if google-auth is missing."""
    del tables
    try:
        import google.auth  # noqa: F401 -- only whether it is there
    except ModuleNotFoundError:
        return None
    return Chain()


# ---- Boundary: the rights of one attempt in the store and on its inputs. Pure.
# A token has the rights that both the job's account and this boundary give. Each rule takes rights from roles, for objects
# that a condition names. Cloud Storage tells *absent* from *forbidden* only to those who may list, so an attempt may list the
# store's bucket. It can learn the names of other jobs' objects, but not their content.
# Sources: "Credential Access Boundaries" of Cloud Storage, "IAM roles for Cloud Storage", "Conditions: attribute reference";
# for the limits the description of the Security Token Service's API.

SCHEMES = ("gs",)
RULES_MAX = 10
OPERATORS_MAX = 12  # of one condition
CHARACTERS_MAX = 2048  # of one condition; and a boundary "should not exceed" so many
LIST, READ = "inRole:roles/storage.legacyBucketReader", "inRole:roles/storage.legacyObjectReader"
CREATE = "inRole:roles/storage.objectCreator"  # not where there is something already: that takes the right to delete
REPLACE = "inRole:roles/storage.objectUser"  # read, create, remove
_ANY = "*"

Rule = dict[str, Any]


def boundary(url: str, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> dict[str, Any]:
    """What the security token service takes as `options`, for one attempt; `home`: the scope of the folder it works in.

    Inputs for which there is no room are generalized as far as needed: to common beginnings of their addresses, at last to
    whole buckets. The account of the job bounds them anyway. None of them opens anything of the store. Raises Invalid if there
    is still no room.
    """
    bucket, prefix = bucket_and_prefix(url, SCHEMES)
    read = reads(inputs, "gs", OwnStore(url))
    own = _own(bucket, prefix, object_keys.rights_of_attempt(job, attempt, home))
    summed = summed_up(read, bucket, prefix)
    whole = sorted({(name, key if name == bucket else _ANY) for name, key in summed})
    made = [{"accessBoundaryRules": [*own, *_reading(wanted, bucket)]} for wanted in (read, summed, whole)]
    possible = [b for b in made if _is_possible(b["accessBoundaryRules"])]
    if not possible:
        others = {name for name, _ in read} - {bucket}
        raise Invalid(
            f"the rights of job {job} do not fit into a token of Google: its inputs lie in {len(others)} buckets besides that "
            "of the store; bring the inputs together in fewer buckets, outside of the store's"
        )
    short = (b for b in possible if len(json.dumps(b)) <= CHARACTERS_MAX)
    return {"accessBoundary": next(short, min(possible, key=lambda b: len(json.dumps(b))))}


def _is_possible(rules: Sequence[Rule]) -> bool:
    conditions = [str(rule.get("availabilityCondition", {}).get("expression", "")) for rule in rules]
    fit = (operators(text) <= OPERATORS_MAX and len(text) <= CHARACTERS_MAX for text in conditions)
    return len(rules) <= RULES_MAX and all(fit)


def operators(condition: str) -> int:
    """Logical ones, of which a condition has only some."""
    return sum(condition.count(sign) for sign in (" && ", " || ", "!("))


def _reading(read: Sequence[Read], own: str) -> list[Rule]:
    """Rules for inputs, each for some of one bucket, which may also be listed."""
    of_bucket: dict[str, list[str]] = {}
    for bucket, key in sorted(set(read)):
        of_bucket.setdefault(bucket, []).append("" if key == _ANY else _named(bucket, key))
    rules: list[Rule] = []
    for bucket, named in of_bucket.items():
        itself = [] if bucket == own else [_bucket(bucket)]
        some = [[]] if "" in named else [named[i : i + OPERATORS_MAX] for i in range(0, len(named), OPERATORS_MAX)]
        rules += [_rule(bucket, (LIST, READ), _any([*itself, *keys]) if keys else "") for keys in some]
    return rules


def _own(bucket: str, prefix: str, rights: KeyRights) -> list[Rule]:
    """The rights of `rights_of_attempt`. What may be replaced may be removed, too: Cloud Storage has one right for both.

    Room is scarce. So what may be replaced stands in the last rule alone, and what only the controller creates is known by its
    folder or by its last name, which nothing else that is created once has.
    """

    def named(keys: Sequence[str]) -> list[str]:
        return [_named(bucket, prefix + key) for key in keys]

    replaced = tuple(dict.fromkeys((*rights.overwritten, *rights.removed)))
    once = named([key for key in rights.own if key not in replaced])
    folders = named([key for key in rights.controllers if key.endswith("*")])
    names = sorted({key.rpartition("/")[2] for key in rights.controllers} - {"*"})
    not_ours = _any([*folders, *(f'resource.name.endsWith("/{name}")' for name in names)])
    return [
        _rule(bucket, (LIST, READ), _any([_bucket(bucket), *once, *named(rights.read)])),
        _rule(bucket, (CREATE,), f"({_any(once)}) && !({not_ours})"),
        _rule(bucket, (REPLACE,), _any(named(replaced))),
    ]


def _rule(bucket: str, permissions: Sequence[str], condition: str) -> Rule:
    rule: Rule = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        "availablePermissions": list(permissions),
    }
    return rule | ({"availabilityCondition": {"expression": condition}} if condition else {})


def _any(conditions: Sequence[str]) -> str:
    return " || ".join(conditions)


def _bucket(bucket: str) -> str:
    """Whether it is the bucket itself, whose objects are listed."""
    return f'resource.name == "projects/_/buckets/{bucket}"'


def _named(bucket: str, pattern: str) -> str:
    """Whether the object is this one, or begins so if the pattern ends with `*`. CEL's texts are JSON's, but for surrogates."""
    name = f"projects/_/buckets/{bucket}/objects/{pattern}"
    if name.endswith("*"):
        return f"resource.name.startsWith({json.dumps(name[:-1], ensure_ascii=False)})"
    return f"resource.name == {json.dumps(name, ensure_ascii=False)}"
