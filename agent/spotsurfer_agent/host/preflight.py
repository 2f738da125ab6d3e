"""Whether this machine can run and protect a job; `python -m` tries a control group as a shim would.

Each reason against the machine is one sentence with the remedy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from spotsurfer_wire.linux import cgroups, syscalls
from spotsurfer_wire.linux.cgroups import UNIFIED

from spotsurfer_agent.host import cgroup, launch
from spotsurfer_agent.host.cgroup import CgroupError, JobCgroup
from spotsurfer_agent.host.tools import Tools

CRIU_AT_LEAST = (4, 2)
OF_MACHINE = "machine.json"  # in the folder of a slot, see `slots.keeper`
FREE_BYTES_AT_LEAST = 256 << 20


def problems(base: Path, tools: Tools) -> list[str]:
    """Why not; empty = it can. On a machine that is kept, what its first agent found holds for those after it; not the disk."""
    known = base / "runtime" / f"fit-{(base / 'runtime' / 'current').resolve().name}"
    if known.exists():
        return [x for x in (_disk(base),) if x is not None]
    found = hosting(base, tools)
    if os.geteuid() == 0:
        found = [x for x in (_rights(), _criu(tools)) if x is not None] + found
    if not found and (base / OF_MACHINE).exists():
        known.touch()
    return found


def hosting(base: Path, tools: Tools) -> list[str]:
    """Why this machine can't even run a job, saved or not; empty = it can."""
    if os.geteuid() != 0:
        return ["The agent is not root, and keeping a job apart needs root: start it as root."]
    checks: list[Callable[[], str | None]] = [_namespaces, lambda: _control_groups(tools), lambda: _disk(base)]
    return [found for check in checks if (found := check()) is not None]


def criu_version(tools: Tools) -> str:
    """The version of CRIU; empty if it does not run."""
    try:
        done = subprocess.run([*tools.criu, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    found = re.search(r"Version:\s*(\S+)", done.stdout)
    return found.group(1) if found else ""


def _rights() -> str | None:
    lacks = launch.missing_capabilities()
    if lacks:
        return f"This machine withholds rights that CRIU needs ({', '.join(lacks)}): give the agent full root rights."
    return None


def _criu(tools: Tools) -> str | None:
    version = criu_version(tools)
    if not version:
        return f"CRIU does not run here ({tools.criu[-1]}): rebuild the runtime for this machine's processor."
    if tuple(int(x) for x in re.findall(r"\d+", version)[:2]) < CRIU_AT_LEAST:
        return f"CRIU is {version}, at least 4.2 is needed on recent kernels: rebuild the runtime."
    check = partial(subprocess.run, [*tools.criu, "check"], capture_output=True, text=True, check=False)
    done = check()
    if done.returncode:  # an inode that vanishes just then makes CRIU's look at its own descriptors fail
        done = check()
    if not done.returncode:
        return None
    lines = [x for x in (done.stderr + done.stdout).splitlines() if "Error" in x or "Warn" in x]
    reason = lines[0].strip() if lines else "no reason given"
    return f"The kernel {os.uname().release} lacks what CRIU needs ({reason}): use an image with a stock distribution kernel."


def _namespaces() -> str | None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        flags = launch.OWN | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET

        def body() -> None:
            syscalls.unshare(flags)
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
    found = try_cgroup(tools.python)
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


# ---- `python -m spotsurfer_agent.host.preflight`: does a control group of our own do what a job's has to?
#
# A process of its own makes one, tries it and removes it, where a job's shim would be: on a machine with systemd in a scope.
# The list of a kernel's controllers says little, because each group on the way has to hand them on.

LIMIT_SECONDS = 60.0
WRITABLE = "mount cgroup2 writable on /sys/fs/cgroup"
COUNTED = "boot without cgroup_disable=memory, or give the container a control group with the memory controller"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, and the remedy; neither begins a sentence nor ends one."""

    what: str
    remedy: str


def try_cgroup(python: Sequence[str]) -> Trouble | None:
    """Try a group; None = all is well. `python` starts an interpreter that finds this package."""
    argv = [*cgroup.scope_prefix("look"), *python, "-m", "spotsurfer_agent.host.preflight"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return Trouble(f"control groups could not be tried ({e})", WRITABLE)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Trouble(f"control groups could not be tried ({why})", WRITABLE)
    told = json.loads(done.stdout)
    return Trouble(*told) if told else None


def tried(group: JobCgroup) -> Trouble | None:
    """Make the group, see what it can do, remove it."""
    try:
        group.create()
        try:
            group.freeze()
            group.thaw()
            missing = cgroups.lacking(Path(group.folders[UNIFIED])) if UNIFIED in group.folders else []
        finally:
            group.remove()
    except (CgroupError, OSError) as e:
        return Trouble(f"control groups can't be used ({e.strerror or e})", WRITABLE)
    if missing:
        where = f"groups in {Path(group.freezer).parent} lack {', '.join(missing)}"
        return Trouble(f"control groups don't count memory, so its end would end the job ({where})", COUNTED)
    return None


def main() -> None:
    """Print the result as JSON."""
    try:
        found = tried(JobCgroup.below_own(f"spotsurfer-look-{os.getpid()}"))
    except OSError as e:
        found = Trouble(f"control groups can't be used ({e.strerror or e})", WRITABLE)
    json.dump(astuple(found) if found else None, sys.stdout)


if __name__ == "__main__":
    main()
