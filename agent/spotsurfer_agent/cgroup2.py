"""Control groups v2: the controllers that a job's group needs, and the leaf for whoever would be in their way.

A group has a controller's files only if the group above hands it on (`cgroup.subtree_control`), which the kernel refuses
(EBUSY) while processes are in the group above itself. So they go into a leaf beside the job's group: the shim in its scope on a
machine with systemd, process 1 and agent in a box. Source: the kernel's cgroup-v2.rst, "No Internal Process Constraint".
"""

from __future__ import annotations

import contextlib
import errno
import time
from pathlib import Path

LEAF = "spotsurfer-leaf"
CONTROLLERS = ("memory", "cpu", "io", "pids")  # those that the kernel has are handed on
# What a job's group must have: to stand still, to be stopped before memory ends, to tell what it uses and of kills for memory.
FILES = ("cgroup.freeze", "memory.high", "memory.current", "memory.stat", "memory.events")
SETTLE_SECONDS = 10.0


def home(folder: Path) -> Path:
    """Where groups of a process lie that is in `folder` itself: never below a leaf, which can't have any with controllers."""
    return folder.parent if folder.name == LEAF else folder


def lacking(folder: Path) -> list[str]:
    """Which of FILES a group does not have."""
    return [name for name in FILES if not (folder / name).exists()]


def delegate(folder: Path) -> None:
    """Groups in `folder` get the controllers that there are; processes in the folder itself go into its leaf. Idempotent.

    Raises OSError where a process can't be moved. A controller that is not handed down to `folder` is left out.
    """
    above = [p for p in folder.parents if (p / "cgroup.controllers").exists()]
    for group in reversed(above):
        _hand_on(group)
    if _hand_on(folder):
        settle(folder)
        if left := _hand_on(folder):
            raise OSError(errno.EBUSY, f"{', '.join(left)} can't be handed on", str(folder))


def settle(folder: Path) -> None:
    """Move the processes of `folder` itself into its leaf, which is made. Raises OSError.

    A process that can't be seen from this pid namespace reads as 0 and stays.
    """
    leaf = folder / LEAF
    leaf.mkdir(exist_ok=True)
    leaf.chmod(0o755)
    end = time.monotonic() + SETTLE_SECONDS
    while pids := [pid for pid in read(folder / "cgroup.procs").split() if pid != "0"]:
        if time.monotonic() > end:
            raise OSError(errno.EBUSY, f"processes {', '.join(pids)} can't be moved into its leaf", str(folder))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                write(leaf / "cgroup.procs", pid)


def _hand_on(folder: Path) -> list[str]:
    """Hand on what is there; which controllers the kernel refused because of processes in `folder`."""
    have, on = read(folder / "cgroup.controllers").split(), read(folder / "cgroup.subtree_control").split()
    busy = []
    for name in CONTROLLERS:
        if name in have and name not in on:
            try:
                write(folder / "cgroup.subtree_control", f"+{name}")
            except OSError as e:  # others: no kernel can have this controller here, as `cpu` beside real-time processes
                if e.errno == errno.EBUSY:
                    busy.append(name)
    return busy


def read(file: Path) -> str:
    """A file of the kernel's; "" where it can't be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def write(file: Path, value: str) -> None:
    """One write, as the kernel wants it. Raises OSError."""
    file.write_text(value)
