"""Ends boxes without a supervisor, and removes what crashes left.

Little remains after a crash: the kernel ends a box with its supervisor, and disk, mounts and link with the box. Only the
control group and the records stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from spotsurfer_wire.linux import syscalls

from spotsurfer_providers.local.box.cgroups import PARENT, BoxGroup, Hierarchy
from spotsurfer_providers.local.box.records import BoxFolder, BoxState, BoxStatus, Home
from spotsurfer_providers.local.box.supervisor_client import SOCKET, poke
from spotsurfer_providers.local.object_gateway.folder_store import drop_staged

LISTED_SECONDS = 3600.0  # how long an ended box stays in listings
_HALF_MADE_SECONDS = 60.0
_LOOP_CLR_FD = 0x4C01
_LOGS = ("console.log", "console.log.1", "supervisor.log")


def settle(home: Home, trees: Sequence[Hierarchy], folder: BoxFolder, now: datetime) -> list[str]:
    """End a box whose supervisor is gone and record that; returns the removed things. Leaves a kept box alone."""
    if folder.status().state is BoxState.ENDED:
        return []
    with folder.if_abandoned() as abandoned:
        status = folder.status()
        if not abandoned or status.state is BoxState.ENDED:
            return []
        removed = _sweep_box(home, trees, folder)
        if removed is None:
            return []  # it does not die yet: retried at the next look
        reason = status.reason or ("terminated" if folder.ordered_to_end() else "its supervisor died")
        folder.write_status(BoxStatus(BoxState.ENDED, reason, status.reclaimed, now.isoformat()))
        return removed


def _sweep_box(home: Home, trees: Sequence[Hierarchy], folder: BoxFolder) -> list[str] | None:
    """Remove a box's remains outside its folder; None if some of them can't be ended."""
    group = BoxGroup(trees, home.group_name(folder.id))
    pids, existed = group.pids(), group.exists()
    if not (group.kill() and group.remove()):
        return None
    removed = [f"process {pid} of {folder.id}" for pid in sorted(pids)]
    removed += [f"control group {group.name}"] if existed else []
    with contextlib.suppress(FileNotFoundError):
        (folder.path / SOCKET).unlink()
        removed.append(f"socket of {folder.id}")
    root = folder.record().store_root
    if root is not None and drop_staged(Path(root), home.group_name(folder.id)):
        removed.append(f"half-written objects of {folder.id}")
    return removed


def archive(home: Home, folder: BoxFolder, now: datetime) -> bool:
    """Move a box that ended long ago out of the listings; returns whether it did."""
    status = folder.status()
    if status.state is not BoxState.ENDED or status.ended_at is None:
        return False
    if now - datetime.fromisoformat(status.ended_at) < timedelta(seconds=LISTED_SECONDS):
        return False
    with home.launching(), contextlib.suppress(FileNotFoundError):
        for name in _LOGS:
            (folder.path / name).unlink(missing_ok=True)
        folder.path.rename(home.ended / folder.id)
    return True


def end_now(folder: BoxFolder, wait_seconds: float = 10.0) -> list[str]:
    """Order a box's end and wait for it, whether or not its supervisor cooperates."""
    if folder.status().state is BoxState.ENDED:
        return []
    folder.order_end()
    poke(folder.path)
    until = time.monotonic() + wait_seconds
    while time.monotonic() < until:
        with folder.if_abandoned() as abandoned:
            if abandoned:
                return [f"box {folder.id}"]
        time.sleep(0.02)
    return []


def drop_torn(folder: BoxFolder) -> list[str]:
    """Remove a folder with an unreadable record (a power cut during a write), if no process keeps the box."""
    try:
        folder.record()
    except (OSError, ValueError, TypeError):
        with folder.if_abandoned() as abandoned:
            if abandoned:
                shutil.rmtree(folder.path, ignore_errors=True)
                return [f"torn folder {folder.id}"]
    return []


def sweep_half_made(home: Home, now: datetime) -> list[str]:
    """Remove folders of launches that died before their box existed."""
    removed = []
    for path in home.boxes.glob(".new-*"):
        with contextlib.suppress(FileNotFoundError):
            if now.timestamp() - path.stat().st_mtime < _HALF_MADE_SECONDS:
                continue
            with BoxFolder(path).if_abandoned() as abandoned:
                if abandoned:
                    shutil.rmtree(path, ignore_errors=True)
                    removed.append(f"half-made folder {path.name}")
    return removed


def sweep_groups(home: Home, trees: Sequence[Hierarchy]) -> list[str]:
    """Remove control groups of this data folder without a living box."""
    names = {p.name for t in trees for p in (t.path / PARENT).glob(f"box-*-{home.mark}")}
    removed = []
    for name in sorted(names):
        folder = home.folder(name.removesuffix(f"-{home.mark}"))
        if folder.path.exists() and folder.status().state is not BoxState.ENDED:
            continue  # alive, or can't be ended
        group = BoxGroup(trees, name)
        if group.kill() and group.remove():
            removed.append(f"control group {name}")
    return removed


def sweep_loops(home: Home) -> list[str]:
    """Free loop devices (and their mounts, in our namespace) whose file was the disk of an ended box.

    The kernel does it by itself; this covers unknown kernels and crashes.
    """
    if any(f.status().state is not BoxState.ENDED for f in home.folders()):
        return []  # a living box's disk looks the same: it has no name
    removed = []
    for backing in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        device = f"/dev/{backing.parent.parent.name}"
        with contextlib.suppress(OSError):
            if backing.read_text().strip().startswith(f"{home.boxes}/"):
                removed += [*_unmount(device), *_free(device)]
    return removed


def _unmount(device: str) -> list[str]:
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    points = [row[1] for row in rows if row[0] == device]
    for point in reversed(points):
        syscalls.umount(point)
    return [f"mount {p}" for p in points]


def _free(device: str) -> list[str]:
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _LOOP_CLR_FD)
    finally:
        os.close(fd)
    return [f"loop device {device}"]
