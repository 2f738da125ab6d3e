"""Names of things."""

from __future__ import annotations

import hashlib
import re
from typing import NewType

JobId = NewType("JobId", str)
AttemptNumber = NewType("AttemptNumber", int)
InstanceId = NewType("InstanceId", str)

# Safe in an object key, a file name, a cgroup and a host name; the length leaves room for ".<attempt>".
JOB_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")


def launch_token(family: str, job: JobId, attempt: AttemptNumber) -> str:
    """The cloud's idempotency token of an attempt: the same attempt always asks for the same machine."""
    return hashlib.sha256(f"{family}/{job}/{attempt}".encode()).hexdigest()[:32]
