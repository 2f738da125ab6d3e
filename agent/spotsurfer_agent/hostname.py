"""The name that a job takes for its machine's: the same wherever it is, and found by it at its own address.

A copy of a job keeps the name that it was copied with, for its programs have read it already.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable

from spotsurfer_agent import linux, netns

LENGTH_MAX = 63  # of a label, RFC 1035
DOMAIN = "(none)"  # what the kernel says where nobody set one
_OTHERS = re.compile(r"[^a-z0-9-]+")


def of(job: str) -> str:
    """Of the job with this id."""
    return _OTHERS.sub("-", job.lower())[:LENGTH_MAX].strip("-") or "job"


def take(name: str) -> None:
    """Give it to the calling process's UTS namespace. Raises OSError."""
    socket.sethostname(name)
    linux.setdomainname(DOMAIN)


def of_process(pid: int) -> str:
    """What a process takes for its machine's name. Raises OSError."""
    here, there = (os.open(f"/proc/{who}/ns/uts", os.O_RDONLY | os.O_CLOEXEC) for who in ("thread-self", pid))
    try:
        linux.setns(there, linux.CLONE_NEWUTS)  # of this thread alone
        try:
            return socket.gethostname()
        finally:
            linux.setns(here, linux.CLONE_NEWUTS)
    finally:
        os.close(here)
        os.close(there)


def hosts(before: str, names: Iterable[str]) -> str:
    """A `hosts` file in which these names are the job's own address; `before` is one without."""
    own = " ".join(dict.fromkeys(n for n in names if n))
    return f"{netns.INSIDE} {own}\n{before}"
