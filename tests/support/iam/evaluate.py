"""The decision, by "Policy evaluation logic": an explicit deny wins; else each kind of policy that is there must allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.iam.conditions import all_hold
from support.iam.document import Policy, Statement
from support.iam.matching import matches, resource_matches


@dataclass(frozen=True)
class Request:
    """One action on one resource. `context` holds condition keys; their letters' case does not matter."""

    action: str
    resource: str
    context: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    principal: tuple[str, str] | None = None  # kind and name, for policies of resources: ("AWS", arn), ("Service", name)

    @property
    def keys(self) -> Mapping[str, str | Sequence[str]]:
        """The context, keys in lower case."""
        return {key.lower(): value for key, value in self.context.items()}


@dataclass(frozen=True)
class Decision:
    """`by` names policy and statement, of what allowed or denied."""

    allowed: bool
    by: tuple[str, ...]
    why: str


def decide(
    request: Request, identity: Sequence[Policy], session: Policy | None = None, resource: Policy | None = None
) -> Decision:
    """What becomes of a request of a principal with these identity policies, in a session with that policy.

    `resource` is a policy of the resource (a bucket's): here it only takes away. A role's trust policy: `trusts`.
    """
    for policy in (*identity, *((session,) if session else ()), *((resource,) if resource else ())):
        for statement in policy.statements:
            if not statement.allows and _meant(policy, statement, request):
                return Decision(False, (f"{policy.name}/{statement.sid}",), f"denied by {policy.name}/{statement.sid}")
    allowing = _allowing(identity, request)
    if not allowing:
        return Decision(False, (), "no identity policy allows it")
    if session is not None and not _allowing([session], request):
        return Decision(False, (), "the session policy does not allow it")
    return Decision(True, allowing, "")


def trusts(policy: Policy, request: Request) -> bool:
    """Whether a trust policy lets this principal take its role; it has no resources."""
    found = [s for s in policy.statements if _meant(policy, s, request)]
    return bool(found) and all(s.allows for s in found)


def _allowing(policies: Sequence[Policy], request: Request) -> tuple[str, ...]:
    return tuple(f"{p.name}/{s.sid}" for p in policies for s in p.statements if s.allows and _meant(p, s, request))


def _meant(policy: Policy, s: Statement, request: Request) -> bool:
    if any(matches(a, request.action, fold=True) for a in s.actions) == s.all_actions_but:
        return False
    context = request.keys if policy.variables else None
    if s.resources and any(resource_matches(r, request.resource, context) for r in s.resources) == s.all_resources_but:
        return False
    if s.principals and not _is(request, s):
        return False
    return all_hold(s.conditions, request.keys)


def _is(request: Request, s: Statement) -> bool:
    if ("*", "*") in s.principals or ("AWS", "*") in s.principals:
        return True
    if request.principal is None:
        return False
    kind, name = request.principal
    return any(k == kind and (n == name or _whole_account(n, name)) for k, n in s.principals)


def _whole_account(named: str, name: str) -> bool:
    """`arn:aws:iam::<account>:root` and `<account>` mean all of an account."""
    account = name.split(":")[4] if name.count(":") >= 5 else ""
    return bool(account) and named in (account, f"arn:aws:iam::{account}:root")
