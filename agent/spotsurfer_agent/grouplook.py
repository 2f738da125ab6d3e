"""`python -m spotsurfer_agent.grouplook`: whether a control group of our own does what a job's has to.

A process of its own makes one, tries and removes it, where a job's shim would be: on a machine with systemd in a scope. Which
controllers a kernel lists says little, for each group on the way has to hand them on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from spotsurfer_agent import cgroup2, scopes
from spotsurfer_agent.cgplaces import UNIFIED
from spotsurfer_agent.cgroup import CgroupError, JobCgroup

LIMIT_SECONDS = 60.0
WRITABLE = "mount cgroup2 writable on /sys/fs/cgroup"
COUNTED = "boot without cgroup_disable=memory, or give the container a control group with the memory controller"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong, and the remedy; neither begins a sentence nor ends one."""

    what: str
    remedy: str


def look(python: Sequence[str]) -> Trouble | None:
    """Try a group; None = all is well. `python` starts an interpreter that finds this package."""
    argv = [*scopes.prefix("look"), *python, "-m", "spotsurfer_agent.grouplook"]
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
            missing = cgroup2.lacking(Path(group.folders[UNIFIED])) if UNIFIED in group.folders else []
        finally:
            group.remove()
    except (CgroupError, OSError) as e:
        return Trouble(f"control groups can't be used ({e.strerror or e})", WRITABLE)
    if missing:
        where = f"groups in {Path(group.freezer).parent} lack {', '.join(missing)}"
        return Trouble(f"control groups don't count memory, so its end would end the job ({where})", COUNTED)
    return None


def main() -> None:
    """Say it."""
    try:
        found = tried(JobCgroup.below_own(f"spotsurfer-look-{os.getpid()}"))
    except OSError as e:
        found = Trouble(f"control groups can't be used ({e.strerror or e})", WRITABLE)
    json.dump(astuple(found) if found else None, sys.stdout)


if __name__ == "__main__":
    main()
