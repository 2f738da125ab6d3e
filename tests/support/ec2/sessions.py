"""What the policy of a role's session forbids on S3. Rights of the role itself are judged from the call log, by tests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from support.ec2.s3calls import S3Call
from support.iam.document import read
from support.iam.evaluate import Request, decide

_policy = cache(lambda text: read("session", text))
CONTEXT = {"aws:SecureTransport": "true"}


def forbidden(who: Mapping[str, Any], call: S3Call) -> str:
    """Why a session with a policy may not do this; "" where it may, and for everybody else."""
    if not who.get("session_policy"):
        return ""
    policy = _policy(who["session_policy"])
    asked = [Request(call.right, arn, {**CONTEXT, **call.conditions}) for arn in call.arns]
    asked += [Request("s3:GetObject", f"arn:aws:s3:::{call.copied_from}", CONTEXT)] if call.copied_from else []
    decisions = [(request, decide(request, [policy])) for request in asked]
    return "; ".join(f"{r.action} on {r.resource}: {d.why}" for r, d in decisions if not d.allowed)
