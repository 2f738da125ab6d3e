"""The rights that terraform/aws gives, as `tests/aws/rights.json` has them: what applying the example made, ids numbered.

`test_terraform_apply.py` keeps that file fresh, so tests that can't run terraform judge by the real documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.ec2.client import TestEC2
from support.iam.calls import Line, requests_of
from support.iam.document import Policy, read
from support.iam.evaluate import Decision, Request, decide
from support.iam.matching import arn_matches
from support.tree import ROOT

FILE = ROOT / "tests/aws/rights.json"
BUCKET = "spotsurfer-123456789012-us-east-1"
_NUMBERED = re.compile(r"\b(subnet|sg|lt)-(\d{8})\b")
# role, statement, action: allowed, and not needed by the calls of our tests. Why they stay.
UNUSED: Mapping[tuple[str, str, str], str] = {
    ("controller", "Store", "s3:AbortMultipartUpload"): "an upload in parts that fails is given up, or it would be paid for",
    ("job", "Store", "s3:AbortMultipartUpload"): "the same on a machine that is told to stop while it uploads",
}
# role, statement, end of an ARN: named, and touched by none of them.
UNTOUCHED: Mapping[tuple[str, str, str], str] = {
    (
        "controller",
        "LaunchWith",
        "spot-instances-request/*",
    ): "EC2 may ask for it where a launch makes a spot request; our test EC2 does "
    "so only for one with tags. It allows nothing by itself",
}


@dataclass(frozen=True)
class Role:
    """A role and what it may do."""

    arn: str
    document: Mapping[str, Any]
    trust: Mapping[str, Any]

    @property
    def policy(self) -> Policy:
        """The document, read."""
        return read(self.arn.rpartition("/")[2], self.document)


def roles(ids: Mapping[str, Sequence[str]] | None = None, names: Mapping[str, str] | None = None) -> dict[str, Role]:
    """controller, machines, job. `ids`: for the numbered ones, by kind; `names`: texts to replace."""
    data = json.loads(FILE.read_text())
    if ids is not None:
        data = _with_ids(data, ids)
    text = json.dumps(data)
    for old, new in (names or {}).items():
        text = text.replace(old, new)
    return {name: Role(r["role"], r["policy"], r["trust"]) for name, r in json.loads(text).items()}


def make(cloud: TestEC2, made: Mapping[str, Role]) -> None:
    """These roles in the test EC2, and the profile of the machines."""
    iam = cloud.client("iam")
    for role in made.values():
        name = role.arn.rpartition("/")[2]
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(role.trust))
        iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=json.dumps(role.document))
    name = made["machines"].arn.rpartition("/")[2]
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def judged(log: Sequence[Line], made: Mapping[str, Role]) -> Iterator[tuple[Line, Request, Decision]]:
    """Each request of a role of ours, with what IAM would say."""
    by_arn = {role.arn: role.policy for role in made.values()}
    for line in log:
        policy = by_arn.get(str(line["principal"].get("role")))
        if policy is None:
            continue
        limits = line["principal"].get("session_policy")
        session = read("session", limits) if limits else None
        for request in requests_of(line):
            yield line, request, decide(request, [policy], session)


def granted(made: Mapping[str, Role]) -> set[tuple[str, str, str]]:
    """What is allowed: role, statement, action. Actions are named in full: a wildcard would hide what is never used."""
    found = set()
    for name, role in made.items():
        for s in role.policy.statements:
            assert s.allows and not s.all_actions_but and not any("*" in a for a in s.actions), f"{name}/{s.sid}"
            found |= {(name, s.sid, a) for a in s.actions}
    return found


def idle(log: Sequence[Line], made: Mapping[str, Role]) -> set[tuple[str, str, str]]:
    """Resources that are named and that no call touched: role, statement, end of the ARN. Of subnets one is enough."""
    touched = {(d.by, r.resource) for _, r, d in judged(log, made) if d.allowed}
    found = set()
    for name, role in made.items():
        for s in role.policy.statements:
            who = f"{role.arn.rpartition('/')[2]}/{s.sid}"
            seen = [arn for by, arn in touched if who in by]
            kinds = {r: ":".join(r.split(":")[:5]) + ":subnet/*" if ":subnet/" in r else r for r in s.resources}
            found |= {(name, s.sid, r.rpartition(":")[2]) for r, k in kinds.items() if not any(arn_matches(k, a) for a in seen)}
    return found


def used(log: Sequence[Line], made: Mapping[str, Role]) -> set[tuple[str, str, str]]:
    """What of it these calls needed."""
    short = {role.arn.rpartition("/")[2]: name for name, role in made.items()}
    found = set()
    for _, request, decision in judged(log, made):
        for by in decision.by:
            role, _, sid = by.partition("/")
            found.add((short[role], sid, request.action))
    return found


def _with_ids(value: Any, ids: Mapping[str, Sequence[str]]) -> Any:
    if isinstance(value, dict):
        return {k: _with_ids(v, ids) for k, v in value.items()}
    if not isinstance(value, list):
        return value
    out: list[Any] = []
    for item in value:
        numbered = _NUMBERED.search(item) if isinstance(item, str) else None
        if numbered is None or numbered[1] not in ids:
            out.append(_with_ids(item, ids))
        elif int(numbered[2]) == 1:
            out += [_NUMBERED.sub(real, item) for real in ids[numbered[1]]]
    return out
