"""Control groups v2: the controllers that a job's group needs, and the leaf for whoever would be in their way.

A group has a controller's files only if the group above hands it on (`cgroup.subtree_control`), which the kernel refuses
(EBUSY) while processes are in the group above itself. So they go into a leaf beside the job's group: the shim in its scope on a
machine with systemd, process 1 and agent in a box. They go first: `cpu` and `pids` alone would not be refused, but make the
group a threaded one, whose leaf takes no process. Sources: cgroup-v2.rst, "No Internal Process Constraint" and "Threads".
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
UNSEEN = "0"  # how the kernel lists a process of another pid namespace
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
        if not _held(group):  # else others are in it, whom we leave alone
            _hand_on(group)
    if _missing(folder):
        if _held(folder):
            settle(folder)
        _hand_on(folder)


def settle(folder: Path) -> None:
    """Move the processes of `folder` itself into its leaf, which is made. Raises OSError where one can't be moved."""
    leaf = folder / LEAF
    leaf.mkdir(exist_ok=True)
    leaf.chmod(0o755)
    end = time.monotonic() + SETTLE_SECONDS
    while pids := read(folder / "cgroup.procs").split():
        if pids == [UNSEEN]:
            raise OSError(errno.EBUSY, "a process of another pid namespace is in it", str(folder))
        if time.monotonic() > end:
            raise OSError(errno.EBUSY, f"processes {', '.join(pids)} can't be moved into its leaf", str(folder))
        for pid in pids:
            if pid != UNSEEN:
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    write(leaf / "cgroup.procs", pid)


def _held(folder: Path) -> bool:
    """Whether processes in `folder` itself are in the way. The top of all, which alone has no type, may have some."""
    return (folder / "cgroup.type").exists() and bool(read(folder / "cgroup.procs").split())


def _missing(folder: Path) -> list[str]:
    """What is there and not handed on."""
    have, on = read(folder / "cgroup.controllers").split(), read(folder / "cgroup.subtree_control").split()
    return [name for name in CONTROLLERS if name in have and name not in on]


def _hand_on(folder: Path) -> None:
    """Hand on what is there. A kernel that refuses one may still have the others: `cpu` beside real-time processes."""
    for name in _missing(folder):
        with contextlib.suppress(OSError):
            write(folder / "cgroup.subtree_control", f"+{name}")


def read(file: Path) -> str:
    """A file of the kernel's; "" where it can't be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def write(file: Path, value: str) -> None:
    """One write, as the kernel wants it. Raises OSError."""
    file.write_text(value)
