"""Who asks the test cloud, and whether he may: tokens of accounts, whole or cut down, and grants with conditions.

Sources: "Credential Access Boundaries", "IAM roles for Cloud Storage", "Allow policies" of Google's documentation. Conditions
are in CEL, and celpy evaluates them.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.celtypes import StringType
from spotsurfer_wire import clock
from support.gce.errors import Refused

ACCOUNT = "iam.googleapis.com/ServiceAccount"  # a type of resources
KEYS = {"availableResource", "availablePermissions", "availabilityCondition"}  # of a rule
BUCKETS = "//storage.googleapis.com/projects/_/buckets/"
# What we use of predefined roles.
_UPLOADS = {"storage.multipartUploads.abort", "storage.multipartUploads.create", "storage.multipartUploads.listParts"}
ROLES: Mapping[str, frozenset[str]] = {
    "roles/storage.legacyBucketReader": frozenset({
        "storage.buckets.get", "storage.objects.list", "storage.multipartUploads.list",
    }),
    "roles/storage.legacyObjectReader": frozenset({"storage.objects.get"}),
    "roles/storage.objectCreator": frozenset({"storage.objects.create", *_UPLOADS}),
    "roles/storage.objectUser": frozenset({
        "storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list",
        "storage.objects.update", "storage.multipartUploads.list", *_UPLOADS,
    }),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions of an account on what a resource's name begins with, if a condition holds."""

    account: str
    permissions: frozenset[str]
    resource: str = ""
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Who:
    """An account, and the rules to which its token is cut down; `until` by the monotonic clock."""

    account: str
    until: float
    rules: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One permission that a call needed."""

    account: str
    permission: str
    resource: str
    allowed: bool


@functools.cache
def _condition(text: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(text), functions={"extract": _extract})


def _extract(text: StringType, template: StringType) -> StringType:
    """IAM's own: what stands for the braces, up to what follows them in the template, or to the end; "" if it does not fit."""
    before, _, rest = template.partition("{")
    after = rest.partition("}")[2]
    found = text.partition(before)[2]
    return StringType(found.partition(after)[0] if after and after in found else "" if after else found)


def _is_within(name: str, resource: str) -> bool:
    """Of a resource and what is below it; one that ends with a sign is a beginning of names."""
    return name.startswith(resource) if not resource or resource[-1] in "/@" else f"{name}/".startswith(f"{resource}/")


def holds(condition: str, name: str, kind: str) -> bool:
    """Whether a condition holds for a resource of this name and type."""
    told: Any = json_to_cel({"name": name, "type": kind, "service": kind.partition("/")[0]})
    return not condition or bool(_condition(condition).evaluate({"resource": told}))


@dataclass
class Identity:
    """`grants` None: everybody with a token may do everything, and what is asked is noted all the same."""

    grants: list[Grant] | None = None
    asked: list[Asked] = field(default_factory=list)
    token_seconds: float = 3600.0
    now: Callable[[], float] = time.monotonic
    _tokens: dict[str, Who] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self, account: str, rules: Sequence[Mapping[str, Any]] | None = None, until: float | None = None) -> str:
        """A new token."""
        token = f"ya29.{secrets.token_urlsafe(24)}"
        self._tokens[token] = Who(account, self.now() + self.token_seconds if until is None else until, rules)
        return token

    def who(self, authorization: str | None) -> Who:
        """Whose token it is. Raises Refused. A signed assertion of a key file counts as its account's token."""
        token = (authorization or "").removeprefix("Bearer ")
        if token.count(".") == 2 and not token.startswith("ya29."):
            claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
            return Who(str(claims["iss"]), self.now() + 1.0)
        found = self._tokens.get(token)
        if found is None or self.now() >= found.until:
            raise Refused(401, "authError", "Request had invalid authentication credentials.")
        return found

    def may(self, who: Who, permission: str, resource: str, kind: str) -> bool:
        """Whether this token gives the permission on the resource, by its full name below //service/."""
        name = resource.partition("//")[2].partition("/")[2] or resource
        allowed = self._is_granted(who.account, permission, name, kind) and (
            who.rules is None or any(_gives(rule, permission, resource, name, kind) for rule in who.rules)
        )
        with self._lock:
            self.asked.append(Asked(who.account, permission, name, allowed))
        return allowed

    def _is_granted(self, account: str, permission: str, name: str, kind: str) -> bool:
        if self.grants is None:
            return True
        own = (g for g in self.grants if g.account == account and permission in g.permissions)
        return any(_is_within(name, g.resource) and holds(g.condition, name, kind) for g in own)

    def need(self, who: Who, permission: str, resource: str, kind: str) -> None:
        """Raises Refused if it is not given."""
        if not self.may(who, permission, resource, kind):
            raise Refused(403, "forbidden", f"Required '{permission}' permission for '{resource}'")

    # ---- services that make tokens

    def impersonated(self, who: Who, account: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """iamcredentials.projects.serviceAccounts.generateAccessToken"""
        self.need(who, "iam.serviceAccounts.getAccessToken", f"projects/-/serviceAccounts/{account}", ACCOUNT)
        seconds = float(str(body.get("lifetime", "3600s")).removesuffix("s"))
        if seconds > 3600:
            raise Refused(400, "badRequest", "The access token lifetime cannot exceed 3600 seconds.")
        seconds = min(seconds, self.token_seconds)
        return {"accessToken": self.issue(account, until=self.now() + seconds), "expireTime": _utc(seconds)}

    def exchanged(self, form: Mapping[str, str]) -> dict[str, Any]:
        """sts.token, from one token to a lesser one."""
        assert form["grantType"] == "urn:ietf:params:oauth:grant-type:token-exchange", form
        subject = self.who(f"Bearer {form['subjectToken']}")
        rules = json.loads(form["options"])["accessBoundary"]["accessBoundaryRules"]
        check(rules)
        left = subject.until - self.now()
        token = self.issue(subject.account, rules, subject.until)
        kind = form["requestedTokenType"]
        return {"access_token": token, "issued_token_type": kind, "token_type": "Bearer", "expires_in": int(left)}


def check(rules: Sequence[Mapping[str, Any]]) -> None:
    """What the documentation and the API's description say of a boundary. Raises Refused."""
    if not 1 <= len(rules) <= 10:
        raise Refused(400, "invalid_request", "A Credential Access Boundary can have at most 10 rules.")
    for rule in rules:
        if not rule["availableResource"].startswith(BUCKETS) or rule.keys() - KEYS:
            raise Refused(400, "invalid_request", "Invalid Credential Access Boundary.")
        for permission in rule["availablePermissions"]:
            if permission.removeprefix("inRole:") not in ROLES:
                raise Refused(400, "invalid_request", f"Invalid permission {permission}.")
        expression = rule.get("availabilityCondition", {}).get("expression", "true")
        _condition(expression)
        if len(expression) > 2048 or len(re.findall(r"&&|\|\||!(?!=)", expression)) > 12:
            raise Refused(400, "invalid_request", "The condition is too long.")


def _gives(rule: Mapping[str, Any], permission: str, resource: str, name: str, kind: str) -> bool:
    there: str = rule["availableResource"]
    inside = resource == there or resource.startswith(f"{there}/")
    roles = (ROLES[r.removeprefix("inRole:")] for r in rule["availablePermissions"])
    condition = rule.get("availabilityCondition", {}).get("expression", "")
    return inside and any(permission in role for role in roles) and holds(condition, name, kind)


def _utc(seconds: float) -> str:
    return (clock.utc() + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
