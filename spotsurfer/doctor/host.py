"""Checks of the machine: rights, kernel, tools, room. They change nothing that stays."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from spotsurfer_agent import grouplook, privileges

from spotsurfer.doctor.finding import Finding, fail, ok, warn
from spotsurfer.ports.clock import SystemClock
from spotsurfer.settings import Settings
from spotsurfer.units import size

NAMESPACES = ("--pid", "--mount", "--ipc", "--net", "--uts", "--time")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "nsenter": "util-linux", "mount": "mount", "tar": "tar"}
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = frozenset({"cpu", "memory", "freezer"})
MEMORY_FEW_BYTES = 2 << 30
DISK_LEAST_BYTES, DISK_FEW_BYTES = 1 << 30, 10 << 30
LIMIT_SECONDS = 20
TIME_ERROR = 5  # of adjtimex(2): the kernel's clock is not synchronized


def system(_: Settings) -> Finding:
    """Distribution, kernel, processor."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        name = "unknown distribution"
    text = f"{name}, kernel {platform.release()}, {platform.machine()}, {os.cpu_count()} processors"
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return fail(text, "the agent's runtime is built for x86-64 Linux: use such a machine")
    return ok(text)


def root(_: Settings) -> Finding:
    """Boxes and CRIU need it."""
    if os.geteuid() != 0:
        return fail("not root", "boxes and CRIU need root on this host: run with sudo")
    return ok("root")


def rights(_: Settings) -> Finding:
    """Root of a container may lack some of root's rights."""
    if lacks := privileges.lacking():
        remedy = "CRIU needs them: run on the machine itself, or give them to the container"
        return fail(f"root without {', '.join(lacks)}", remedy)
    if not privileges.may(privileges.SECOND_USER):
        text = "root without CAP_SYS_RESOURCE: a job whose processes belong to several users can't be saved"
        return warn(text, "give the container that right (--cap-add SYS_RESOURCE), or keep each job to one user")
    return ok("CRIU has the rights that it needs")


def namespaces(_: Settings) -> Finding:
    """New namespaces of every kind that boxes and jobs use."""
    refused = [n.removeprefix("--") for n in NAMESPACES if not _runs(["unshare", n, "--fork", "true"])]
    if refused:
        advice = "run on the machine itself or in a container with full root rights; kernels before 5.6 have no time namespace"
        return fail(f"no new namespaces of these kinds: {', '.join(refused)}", advice)
    return ok("pid, mount, ipc, net, uts and time namespaces can be made")


def control_groups(_: Settings) -> Finding:
    """CPU, memory and freezer, in either version; in the second, whether a group of our own really gets them."""
    second = CGROUPS / "cgroup.controllers"
    unified = _words(second) | {"freezer"} if second.exists() else set[str]()  # version 2 can always freeze
    old = {word for options in _mounted("cgroup") for word in options.split(",")}
    for version, controllers in ((2, unified), (1, old)):
        if controllers >= CONTROLLERS:
            found = grouplook.look([sys.executable]) if version == 2 and os.geteuid() == 0 else None
            return fail(found.what, found.remedy) if found else ok(f"version {version}, with {', '.join(sorted(CONTROLLERS))}")
    missing = ", ".join(sorted(CONTROLLERS - unified - old))
    return fail(
        f"control groups lack {missing}", "mount /sys/fs/cgroup as a stock distribution does (systemd, or a host kernel)"
    )


def loop_devices(_: Settings) -> Finding:
    """Private disks of boxes."""
    if not Path("/dev/loop-control").exists():
        return fail("no loop devices", "modprobe loop; in a container, give it /dev/loop-control and /dev/loop*")
    return ok("loop devices can be made")


def btrfs(_: Settings) -> Finding:
    """Snapshots of the scratch."""
    if shutil.which("mkfs.btrfs") is None:
        return fail("mkfs.btrfs is not there", "apt-get install btrfs-progs (or your distribution's package of it)")
    known = "btrfs" in Path("/proc/filesystems").read_text() or _runs(["modprobe", "--dry-run", "btrfs"])
    if not known:
        return warn("the kernel has no btrfs", "boxes fall back to slower copies: use a stock distribution kernel")
    return ok("btrfs in the kernel, mkfs.btrfs is there")


def tools(_: Settings) -> Finding:
    """Programs of the host."""
    missing = {tool: package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if missing:
        return fail(f"missing programs: {', '.join(missing)}", f"apt-get install {' '.join(sorted(set(missing.values())))}")
    return ok(f"{', '.join(TOOLS)} are there")


def memory(_: Settings) -> Finding:
    """What jobs can have."""
    facts = _meminfo()
    total, free = facts.get("MemTotal", 0), facts.get("MemAvailable", 0)
    text = f"{size(free)} of {size(total)} memory are free"
    if free < MEMORY_FEW_BYTES:
        return warn(text, "a job's memory and its image must fit: end other programs, or ask for small jobs")
    return ok(text)


def disk(settings: Settings) -> Finding:
    """Room below the data folder."""
    folder = existing(settings.controller.data_dir)
    free = shutil.disk_usage(folder).free
    text = f"{size(free)} are free below {folder}"
    remedy = "make room, or set [controller] data_dir and [store] url to a larger disk"
    if free < DISK_LEAST_BYTES:
        return fail(text, remedy)
    return warn(text, remedy) if free < DISK_FEW_BYTES else ok(text)


def clock(_: Settings) -> Finding:
    """Times in reports and bills."""
    now = SystemClock().now()
    installed = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    if now < installed:
        return fail(
            f"the clock says {now:%Y-%m-%d %H:%M}, which is before this program was installed",
            "set it: timedatectl set-ntp true",
        )
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # asks only: all modes are zero
    except (OSError, AttributeError):
        state = 0
    if state == TIME_ERROR:
        return warn(
            f"{now:%Y-%m-%d %H:%M:%S} UTC, but nobody keeps the clock in step", "timedatectl set-ntp true (or run chrony)"
        )
    return ok(f"{now:%Y-%m-%d %H:%M:%S} UTC, in step")


def existing(path: Path) -> Path:
    """The nearest folder of `path` that is there."""
    return next(p for p in (path, *path.parents) if p.is_dir())


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=LIMIT_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())


def _mounted(kind: str) -> list[str]:
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [row[3] for row in rows if row[2] == kind]


def _meminfo() -> Mapping[str, int]:
    rows = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) == 3}
