"""A box's control group: its CPU and memory, and the list of what runs in it.

Two layouts, distinguished by the mount table: the old one with a hierarchy for each controller (v1, also if v2 is mounted
beside it without controllers) and the unified one (v2). A box gets one folder in each hierarchy that it needs; all have one
name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import cgroups, procfs

from spotsurfer.model.errors import HostUnfit

PARENT = "spotsurfer"
NEEDED = ("cpu", "memory", "pids")
WANTED_V1 = ("cpu", "cpuacct", "memory", "freezer", "pids")
CPU_PERIOD_MICROS = 100_000
PIDS_MAX = 32768
MOUNT_TABLE = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of control groups and those of its controllers that we use; none of its own means v2."""

    path: Path
    controllers: tuple[str, ...]
    unified: bool
    options: str = ""


def hierarchies(table: str) -> list[Hierarchy]:
    """The trees that a box joins, from the text of a mount table (/proc/self/mountinfo).

    Raises HostUnfit if cpu, memory or pids can't be limited.
    """
    mounts = procfs.mount_lines(table)
    found: dict[tuple[str, ...], Hierarchy] = {}  # a hierarchy may be mounted more than once
    for mount in mounts:
        names = mount.options.split(",")
        ours = tuple(c for c in WANTED_V1 if c in names)
        if mount.kind == "cgroup" and ours:
            # A second mount of the same hierarchy inside the box needs exactly its original options.
            options = ",".join(n for n in names if n not in ("rw", "ro"))
            found.setdefault(ours, Hierarchy(Path(mount.point), ours, unified=False, options=options))
    have = {c for controllers in found for c in controllers}
    if have.issuperset(NEEDED):
        return list(found.values())
    unified = next((Path(m.point) for m in mounts if m.kind == "cgroup2"), None)
    if unified is not None and not have:
        offered = (unified / "cgroup.controllers").read_text().split()
        if set(NEEDED).issubset(offered):
            return [Hierarchy(unified, tuple(c for c in cgroups.CONTROLLERS if c in offered), unified=True)]
    raise HostUnfit("Can't limit CPU, memory and pids here: mount control groups (v1 or v2) with those controllers")


def host_hierarchies() -> list[Hierarchy]:
    """`hierarchies` of this host."""
    return hierarchies(MOUNT_TABLE.read_text())


class BoxGroup:
    """The control group of one box, in all hierarchies."""

    def __init__(self, trees: Sequence[Hierarchy], name: str) -> None:
        self.trees = trees
        self.name = name

    def folders(self) -> list[Path]:
        """One folder for each hierarchy."""
        return [t.path / PARENT / self.name for t in self.trees]

    def create(self, cpus: float, memory_bytes: int) -> None:
        """Make the folders and set the limits; harmless if repeated. `cpus`: whole or part cores.

        Raises HostUnfit if the kernel refuses.
        """
        try:
            for tree in self.trees:
                folder = tree.path / PARENT / self.name
                folder.parent.mkdir(exist_ok=True)
                if tree.unified:
                    cgroups.delegate(tree.path)  # in a container, it holds processes
                    cgroups.delegate(folder.parent)
                folder.mkdir(exist_ok=True)
                for file, value in _settings(tree, cpus, memory_bytes).items():
                    (folder / file).write_text(value)
        except OSError as e:
            raise HostUnfit(f"Can't make a control group ({e}): boxes need root and a writable /sys/fs/cgroup") from e

    def add(self, pid: int) -> None:
        """Move a process in."""
        for folder in self.folders():
            (folder / "cgroup.procs").write_text(str(pid))

    def delegate(self) -> None:
        """Give controllers to groups made inside: on v2 process 1 goes into a leaf for that. Raises HostUnfit."""
        for tree in self.trees:
            if tree.unified:
                try:
                    cgroups.delegate(tree.path / PARENT / self.name)
                except OSError as e:
                    raise HostUnfit(f"Can't hand on controllers to a box ({e}): mount cgroup2 writable on {tree.path}") from e

    def pids(self) -> set[int]:
        """Everything that runs in it, groups below included."""
        found: set[int] = set()
        for top in self.folders():
            for folder in _tree(top):
                with contextlib.suppress(FileNotFoundError, OSError):
                    found.update(int(x) for x in (folder / "cgroup.procs").read_text().split())
        return found - {0}  # 0: a process of a pid namespace that is not visible from here

    def exists(self) -> bool:
        """Whether any folder of it is left."""
        return any(f.exists() for f in self.folders())

    def kill(self, wait_seconds: float = 5.0) -> bool:
        """Kill everything in it and wait; returns whether it is empty."""
        until = time.monotonic() + wait_seconds
        while pids := self.pids():
            self._thaw()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _thaw(self) -> None:
        """Thaws it: a frozen process (in the middle of a checkpoint) would not even die."""
        for top in self.folders():
            for folder in _tree(top):
                for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                    with contextlib.suppress(OSError):
                        if (folder / file).exists():
                            (folder / file).write_text(value)

    def remove(self, wait_seconds: float = 2.0) -> bool:
        """Remove the folders, deepest first; returns whether they are gone. Call it only when nothing runs in them."""
        until = time.monotonic() + wait_seconds
        while True:
            left = [top for top in self.folders() if not _remove_tree(top)]
            if not left:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.01)  # the kernel still counts the last exits


def _settings(tree: Hierarchy, cpus: float, memory_bytes: int) -> Mapping[str, str]:
    quota, pids = max(1000, int(cpus * CPU_PERIOD_MICROS)), {"pids.max": str(PIDS_MAX)}
    if tree.unified:
        return {"cpu.max": f"{quota} {CPU_PERIOD_MICROS}", "memory.max": str(memory_bytes), **pids}
    each = {
        "cpu": {"cpu.cfs_period_us": str(CPU_PERIOD_MICROS), "cpu.cfs_quota_us": str(quota)},
        "memory": {"memory.limit_in_bytes": str(memory_bytes)},
        "pids": pids,
    }
    return {file: value for c in tree.controllers for file, value in each.get(c, {}).items()}


def _tree(top: Path) -> list[Path]:
    """`top` and all folders below it, without those that vanish meanwhile."""
    try:
        below = [Path(e.path) for e in os.scandir(top) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [top, *(x for folder in below for x in _tree(folder))]


def _remove_tree(top: Path) -> bool:
    for folder in reversed(_tree(top)):
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError as e:
            if e.errno != errno.EBUSY:
                raise
            return False
    return True
