"""Where a process's control groups lie, and which files count memory there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent import procfs
from spotsurfer_agent.mountlines import mount_lines

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
        """Bytes of a group that give way when memory is short. Raises OSError, ValueError."""
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(stat.get(name, 0)) for name in (self.idle, self.active))

    def killed(self, folder: Path) -> int:
        """Processes of a group that the kernel ended for want of memory, since it was made. Raises OSError, ValueError."""
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
    return point  # a mount of another root: what we see at its point is ours to use
