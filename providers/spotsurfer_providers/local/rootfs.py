"""What a box sees of the file system: the host's, read-only, with folders of its own where a machine writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_providers.local import kernel

DISK_AT = "/var/lib/spotsurfer"
PRIVATE = ("/tmp", "/run", "/var/tmp", "/dev/shm")  # noqa: S108 - mount points, not files of ours
_CGROUP_ROOT = "/sys/fs/cgroup"
_OPEN = kernel.MS_NOSUID | kernel.MS_NODEV
_PLAIN = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A hierarchy to be shown inside: where, and the options that name it ("" for v2)."""

    path: str
    options: str


@dataclass(frozen=True, slots=True)
class View:
    """How one box's file system is made. `hidden` are host folders that it must not even read."""

    device: str
    disk_kind: str
    cgroups: Sequence[CgroupMount]
    hidden: Sequence[str]


def build(view: View) -> None:
    """Make the calling process's (fresh) mount namespace the box's. In fresh pid, net and cgroup namespaces already.

    The order matters: mounts of the host that are covered anyway are dropped first, so that a box neither keeps them busy
    nor hands them on to the mount namespaces of its jobs.
    """
    mounted = _mount_points(Path("/proc/self/mountinfo").read_text())
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    covered = ("/proc", "/sys", DISK_AT, "/dev/mqueue", *PRIVATE, *view.hidden)
    _drop(mounted, covered)
    kernel.make_read_only("/")
    kernel.mount("proc", "/proc", "proc", _PLAIN)
    _mount_sys(view.cgroups)
    for folder in PRIVATE:
        if os.path.isdir(folder) and not os.path.islink(folder):  # noqa: PTH112,PTH114 - as the kernel sees them
            mode = "0755" if folder == "/run" else "1777"
            kernel.mount("tmpfs", folder, "tmpfs", _OPEN, f"mode={mode}")
    for folder in view.hidden:
        if os.path.isdir(folder):  # noqa: PTH112 - gone where a private folder covers it
            kernel.mount("tmpfs", folder, "tmpfs", _PLAIN | kernel.MS_RDONLY, "mode=0755,size=4k")
    kernel.mount(view.device, DISK_AT, view.disk_kind, 0)


def _mount_sys(cgroups: Sequence[CgroupMount]) -> None:
    """A fresh /sys shows the box's own network devices; below it only the box's own part of the control groups."""
    kernel.mount("sysfs", "/sys", "sysfs", _PLAIN | kernel.MS_RDONLY)
    if [c.path for c in cgroups] == [_CGROUP_ROOT]:
        kernel.mount("cgroup2", _CGROUP_ROOT, "cgroup2", _PLAIN)
        return
    kernel.mount("tmpfs", _CGROUP_ROOT, "tmpfs", _PLAIN, "mode=0755")
    for c in cgroups:
        Path(c.path).mkdir(parents=True, exist_ok=True)
        kernel.mount("cgroup", c.path, "cgroup" if c.options else "cgroup2", _PLAIN, c.options or None)


def _mount_points(table: str) -> list[str]:
    return [line.split()[4].encode().decode("unicode_escape") for line in table.splitlines()]


def _drop(mounted: Sequence[str], covered: Sequence[str]) -> None:
    for point in reversed(mounted):  # children come after their parents
        if any(point == c or point.startswith(c + "/") for c in covered):
            kernel.detach(point)
