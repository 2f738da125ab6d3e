"""Control groups: where a process's groups lie, which files count memory there, and delegation in v2."""

from __future__ import annotations

import contextlib
import errno
import time
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import procfs
from spotsurfer_wire.linux.procfs import mount_lines

# ---- Where a process's control groups lie, and which files count memory there

UNIFIED = ""


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Names of a memory controller's files, and of fields in its `memory.stat` (cgroup-v1/memory.rst, cgroup-v2.rst)."""

    limit: str
    used: str
    anonymous: str
    shared: str
    idle: str  # page cache that was not used lately
    active: str
    most: str  # the highest use so far; page cache counts
    kills: str  # the file with a line `oom_kill`

    def page_cache(self, folder: Path) -> int:
        """Bytes of a group's page cache, which the kernel can drop when memory is short. Raises OSError, ValueError."""
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(stat.get(name, 0)) for name in (self.idle, self.active))

    def killed(self, folder: Path) -> int:
        """Number of processes that the out-of-memory killer ended in a group since it was made. Raises OSError, ValueError."""
        told = dict(line.split() for line in (folder / self.kills).read_text().splitlines())
        return int(told.get("oom_kill", 0))


V1_MEMORY = MemoryFiles(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_rss",
    "total_shmem",
    "total_inactive_file",
    "total_active_file",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
)


V2_MEMORY = MemoryFiles(
    "memory.max", "memory.current", "anon", "shmem", "inactive_file", "active_file", "memory.peak", "memory.events"
)


def places(groups: str, mounts: str) -> dict[str, tuple[Path, Path]]:
    """Controller -> (folder of a process's own group, where its hierarchy is mounted), from its `cgroup` and `mountinfo`."""
    mounted = _mounted(mounts)
    found: dict[str, tuple[Path, Path]] = {}
    for line in procfs.lines(groups):
        _, controllers, path = line.split(":", 2)
        for c in controllers.split(","):
            where = _place(mounted.get(c), path)
            if where is not None:
                found[c] = (Path(where), Path(mounted[c][1]))
    return found


def _mounted(text: str) -> dict[str, tuple[str, str]]:
    """Controller -> (root of the mount inside the hierarchy, mount point)."""
    found: dict[str, tuple[str, str]] = {}
    for line in mount_lines(text):
        if line.kind == "cgroup2":
            found[UNIFIED] = (line.root, line.point)
        if line.kind == "cgroup":
            for option in line.options.split(","):
                found[option] = (line.root, line.point)
    return found


def _place(mounted: tuple[str, str] | None, path: str) -> str | None:
    """The folder of a cgroup path, as far as the mount shows it."""
    if mounted is None:
        return None
    root, point = mounted
    if root == "/":
        return point.rstrip("/") + path.rstrip("/")
    if path == root or path.startswith(root + "/"):
        return point + path[len(root) :].rstrip("/")
    return point  # a mount of another root: its mount point shows the part that we may use


# ---- Delegation in v2: the controllers that a job's group needs, and the leaf for processes in the way
#
# A group has a controller's files only if the group above hands the controller on (`cgroup.subtree_control`). The kernel
# refuses that (EBUSY) while the upper group itself holds processes. So these move into a leaf beside the job's group: the shim
# in its scope on a machine with systemd, process 1 and the agent in a box. They move first: the kernel would accept `cpu` and
# `pids` alone, but make the group a threaded one, whose leaf takes no process. Sources: cgroup-v2.rst, "No Internal Process
# Constraint" and "Threads".

LEAF = "spotsurfer-leaf"
CONTROLLERS = ("memory", "cpu", "io", "pids")  # those that the kernel has are handed on
# What a job's group must have: to freeze, to stop before memory ends, to report its usage and out-of-memory kills.
FILES = ("cgroup.freeze", "memory.high", "memory.current", "memory.stat", "memory.events")
UNSEEN = "0"  # how the kernel lists a process of another pid namespace
SETTLE_SECONDS = 10.0


def home(folder: Path) -> Path:
    """The folder for groups of a process that is in `folder`: never below a leaf, where groups can't have controllers."""
    return folder.parent if folder.name == LEAF else folder


def lacking(folder: Path) -> list[str]:
    """Which of FILES a group does not have."""
    return [name for name in FILES if not (folder / name).exists()]


def delegate(folder: Path) -> None:
    """Groups in `folder` get the available controllers; processes in the folder itself move into its leaf. Idempotent.

    Raises OSError if a process can't be moved. A controller that is not handed down to `folder` is left out.
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
    """Move the processes of `folder` itself into its leaf, which this makes. Raises OSError if one can't be moved."""
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
    """Whether processes in `folder` itself are in the way. Only the root group, which has no type, may have some."""
    return (folder / "cgroup.type").exists() and bool(read(folder / "cgroup.procs").split())


def _missing(folder: Path) -> list[str]:
    """Controllers that are available and not handed on."""
    have, on = read(folder / "cgroup.controllers").split(), read(folder / "cgroup.subtree_control").split()
    return [name for name in CONTROLLERS if name in have and name not in on]


def _hand_on(folder: Path) -> None:
    """Hand on the available controllers. A kernel that refuses one may accept others: `cpu` beside real-time processes."""
    for name in _missing(folder):
        with contextlib.suppress(OSError):
            write(folder / "cgroup.subtree_control", f"+{name}")


def read(file: Path) -> str:
    """The text of a kernel file; "" if it can't be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def write(file: Path, value: str) -> None:
    """One write, as the kernel wants it. Raises OSError."""
    file.write_text(value)
