"""Can this machine protect a job? Each reason against it is one sentence with the remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from spotsurfer_agent import grouplook, launch, linux, privileges
from spotsurfer_agent.tools import Tools

CRIU_AT_LEAST = (4, 2)
FREE_BYTES_AT_LEAST = 256 << 20


def problems(base: Path, tools: Tools) -> list[str]:
    """Why not; empty = it can."""
    found = hosting(base, tools)
    if os.geteuid() == 0:
        found = [x for x in (_rights(), _criu(tools)) if x is not None] + found
    return found


def hosting(base: Path, tools: Tools) -> list[str]:
    """Why this machine can't even run a job, saved or not; empty = it can."""
    if os.geteuid() != 0:
        return ["The agent is not root, and keeping a job apart needs root: start it as root."]
    checks: list[Callable[[], str | None]] = [_namespaces, lambda: _control_groups(tools), lambda: _disk(base)]
    return [found for check in checks if (found := check()) is not None]


def criu_version(tools: Tools) -> str:
    """What CRIU says of itself; empty when it does not run."""
    try:
        done = subprocess.run([*tools.criu, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    found = re.search(r"Version:\s*(\S+)", done.stdout)
    return found.group(1) if found else ""


def _rights() -> str | None:
    lacks = privileges.lacking()
    if lacks:
        return f"This machine withholds rights that CRIU needs ({', '.join(lacks)}): give the agent full root rights."
    return None


def _criu(tools: Tools) -> str | None:
    version = criu_version(tools)
    if not version:
        return f"CRIU does not run here ({tools.criu[-1]}): rebuild the runtime for this machine's processor."
    if tuple(int(x) for x in re.findall(r"\d+", version)[:2]) < CRIU_AT_LEAST:
        return f"CRIU is {version}, at least 4.2 is needed on recent kernels: rebuild the runtime."
    done = subprocess.run([*tools.criu, "check"], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [x for x in (done.stderr + done.stdout).splitlines() if "Error" in x or "Warn" in x]
        reason = lines[0].strip() if lines else "no reason given"
        return (
            f"The kernel {os.uname().release} lacks what CRIU needs ({reason}): use an image with a stock distribution kernel."
        )
    return None


def _namespaces() -> str | None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        flags = launch.OWN | linux.CLONE_NEWNS | linux.CLONE_NEWNET

        def body() -> None:
            linux.unshare(flags)
            os._exit(0)

        launch.guard(write, body)
    os.close(write)
    with os.fdopen(read) as told:
        reason = told.read().strip()
    _, status = os.waitpid(pid, 0)
    if status:
        return (
            f"This machine allows no new namespaces ({reason}): give the agent a machine or a container with full root rights."
        )
    return None


def _control_groups(tools: Tools) -> str | None:
    found = grouplook.look(tools.python)
    return f"{found.what[0].upper()}{found.what[1:]}: {found.remedy}." if found is not None else None


def _disk(base: Path) -> str | None:
    try:
        base.mkdir(parents=True, exist_ok=True)
        probe = base / f".write-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as e:
        return f"{base} can't be written ({e.strerror}): mount a disk there."
    free = shutil.disk_usage(base).free
    if free < FREE_BYTES_AT_LEAST:
        return f"Only {free >> 20} MiB are free in {base}, too little for an image: ask for a larger disk."
    return None
