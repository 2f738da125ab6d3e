"""Starts and ends one box, for its supervisor.

Only for the main thread: the kernel kills process 1 of a box when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import syscalls

from spotsurfer.model.errors import HostUnfit
from spotsurfer_providers.local.box import network, rootfs
from spotsurfer_providers.local.box.cgroups import BoxGroup
from spotsurfer_providers.local.box.disk import Disk, make_disk
from spotsurfer_providers.local.box.records import BoxRecord

_SAY_SECONDS = 30.0
# Folders that a box needs: nothing above them is ever hidden.
_NEEDED = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/dev", "/proc", "/sys")


@dataclass
class Box:
    """A running box: its process 1 and the socket to it."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    group: BoxGroup
    console: int  # read end of its output

    @property
    def pid(self) -> int:
        """Process 1 of the box, seen from the host."""
        return self.process.pid

    def kill(self) -> None:
        """End it and all in it; returns when nothing of it runs any more."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.group.kill()  # also thaws: process 1 ends only after everything in its namespace, and the frozen can't end
        self.process.wait()
        self.line.close()
        self.group.remove()


def start_box(record: BoxRecord, group: BoxGroup, folder: Path, hidden: list[str], serve: Callable[[int], None]) -> Box:
    """Make group, disk, link and process 1, call `serve` with its pid when the link is up, then let user-data run.

    The caller is in the network namespace that plays the cloud. Raises HostUnfit or DiskFull, and leaves nothing then.
    """
    _make_disk_point(record.root)
    group.create(record.cpus, record.memory_bytes)
    try:
        disk = make_disk(folder, record.disk_bytes, record.disk_kind)
        try:
            box = _spawn(group, record.clock_offset_seconds)
            try:
                _boot(box, record, disk, hidden, serve)
            except BaseException:
                box.kill()
                raise
        finally:
            os.close(disk.fd)  # mounted by now, or useless
    except BaseException:
        group.kill()
        group.remove()
        raise
    return box


def _make_disk_point(root: str) -> None:
    """The one folder that a box needs and no system has."""
    try:
        Path(root + rootfs.DISK_AT).mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise HostUnfit(f"The folder {root}{rootfs.DISK_AT}, a box's disk, can't be made: {e.strerror}; make it by hand") from e


def _spawn(group: BoxGroup, clock_offset_seconds: int) -> Box:
    ours, theirs = socket.socketpair()
    read, write = os.pipe2(os.O_CLOEXEC)
    with theirs, syscalls.children_in_new_namespaces(clock_offset_seconds):
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "spotsurfer_providers.local.box.init", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=write,
            cwd="/",
            start_new_session=True,
        )
    os.close(write)
    ours.settimeout(_SAY_SECONDS)
    return Box(process, ours, group, read)


def _boot(box: Box, record: BoxRecord, disk: Disk, hidden: list[str], serve: Callable[[int], None]) -> None:
    said = box.line.makefile("r", encoding="utf-8")
    _expect(said.readline(), "unshared")
    box.group.add(box.pid)
    network.make_link(box.pid)
    if record.link_bits_per_second is not None:
        network.shape(box.pid, record.link_bits_per_second)
    view = rootfs.View(
        device=disk.device,
        disk_kind=disk.kind,
        cgroups=[(str(t.path), t.options) for t in box.group.trees],
        hidden=[h for h in hidden if not any(Path(n).is_relative_to(h) for n in _NEEDED)],
        root=record.root,
        runtimes=record.runtimes,
        folders=record.folders,
    )
    _say(box.line, {"name": record.id, "user_data": record.user_data, "view": dataclasses.asdict(view)})
    _expect(said.readline(), "up")
    box.group.delegate()  # only now: process 1 has made its first place the top of its control groups
    serve(box.pid)
    _say(box.line, "run")


def _say(line: socket.socket, what: Any) -> None:
    line.sendall(json.dumps(what).encode() + b"\n")


def _expect(text: str, what: str) -> None:
    said = json.loads(text) if text else "nothing: it died; see console.log"
    if said != what:
        why = said.get("failed", said) if isinstance(said, dict) else said
        raise HostUnfit(f"A box could not be started: {why}")
