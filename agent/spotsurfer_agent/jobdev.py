"""The job's own /dev: what programs expect of any machine, and this one's accelerators, for the machine is the job's.

No disk, no memory of the machine, nothing that reaches the kernel's log or its modules. It is memory that nobody can write to,
made anew on each machine, so an image holds nothing of it; terminals and shared memory are mounted there. Standard library
only: shims use it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from pathlib import Path

from spotsurfer_agent import linux

USUAL = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
ACCELERATORS = ("nvidia*", "nvidia-caps/*", "dri/*", "kfd", "accel/*", "neuron*", "infiniband/*")
FOLDERS = ("pts", "shm", "mqueue")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_FLAGS = linux.MS_NOSUID | linux.MS_NOEXEC
_NVIDIA = Path("/proc/driver/nvidia/gpus")
_WAKE_SECONDS = 60.0


def mount(target: str, machine: Path = Path("/dev")) -> None:
    """Make it at the folder `target`, after what the machine has in its own. Raises OSError."""
    _wake()
    linux.mount("tmpfs", target, "tmpfs", _FLAGS, "mode=0755,size=64k")
    for folder in FOLDERS:
        _folder(Path(target, folder))
    nodes = [machine / name for name in USUAL] + [p for pattern in ACCELERATORS for p in sorted(machine.glob(pattern))]
    for node in nodes:
        if node.is_char_device():  # not every machine has each
            _copy(node, Path(target) / node.relative_to(machine))
    for name, to in LINKS.items():
        Path(target, name).symlink_to(to)
    linux.mount("", target, flags=linux.MS_REMOUNT | linux.MS_RDONLY | _FLAGS)


def _copy(node: Path, to: Path) -> None:
    st = node.stat()
    if not to.parent.is_dir():
        _folder(to.parent)
    os.mknod(to, st.st_mode, st.st_rdev)
    to.chmod(stat.S_IMODE(st.st_mode))  # whatever the umask
    os.chown(to, st.st_uid, st.st_gid)


def _folder(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def _wake() -> None:
    """NVIDIA's nodes are made by the first program that uses the driver, and a job could not make them."""
    if _NVIDIA.is_dir() and not Path("/dev/nvidia-uvm").exists():
        numbers = [f"--create-nvidia-device-file={i}" for i in range(len(list(_NVIDIA.iterdir())))]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["nvidia-modprobe", "--unified-memory", *numbers], capture_output=True, check=False, timeout=_WAKE_SECONDS
            )
