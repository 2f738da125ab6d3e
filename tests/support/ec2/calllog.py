"""Every call: by whom, on what, with which answer. It can be asked which right each call needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.sts.models import AssumedRole, sts_backends

_PARTITION = "aws"


class CallLog:
    """The calls so far, as plain data."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def add(self, call: Mapping[str, Any]) -> None:
        """One more."""
        with self._lock:
            self._calls.append({"n": len(self._calls) + 1, **call})

    def since(self, number: int = 0) -> list[dict[str, Any]]:
        """Those after number `number`."""
        with self._lock:
            return self._calls[number:]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._calls.clear()


def session(key_id: str | None) -> AssumedRole | None:
    """The role's session that a key belongs to."""
    found = sts_backends[DEFAULT_ACCOUNT_ID][_PARTITION].get_assumed_role_from_access_key(key_id or "")
    return found if isinstance(found, AssumedRole) else None


def expire(role: str, now: datetime) -> None:
    """End the sessions of a role (its name) that there are now."""
    for made in sts_backends[DEFAULT_ACCOUNT_ID][_PARTITION].assumed_roles:
        if made.role_arn.rpartition("/")[2] == role:
            made.expiration = min(made.expiration, now.replace(tzinfo=None))


def secret_of(key_id: str | None) -> tuple[str, str | None] | None:
    """Secret and session token of a key; None for one that moto takes without looking."""
    role = session(key_id)
    return None if role is None else (role.secret_access_key, role.session_token)


def expired(key_id: str | None, now: datetime) -> bool:
    """Whether a key belongs to a session that is over."""
    role = session(key_id)
    return role is not None and role.expiration.replace(tzinfo=UTC) <= now


def principal(key_id: str | None) -> dict[str, Any]:
    """Who has a key. `type`: role (with ARN and the session's policy), user, root (any unknown key, as in moto), anonymous."""
    if not key_id:
        return {"type": "anonymous", "arn": "anonymous"}
    if role := session(key_id):
        return {
            "type": "role",
            "arn": role.arn,
            "role": role.role_arn,
            "session_policy": role.policy,
            "session": role.session_name,
        }
    for user in iam_backends[DEFAULT_ACCOUNT_ID][_PARTITION].users.values():
        if any(key.access_key_id == key_id for key in user.access_keys):
            return {"type": "user", "arn": user.arn}
    return {"type": "root", "arn": f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:root", "key": key_id}


def needed(
    service: str, operation: str, action: str, who: Mapping[str, Any], resources: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """A line of the log: `action` is what a policy names, `resources` have `arn` and their tags at the time of the call."""
    return {
        "service": service,
        "operation": operation,
        "action": action,
        "principal": dict(who),
        "resources": [dict(r) for r in resources],
        **more,
    }
