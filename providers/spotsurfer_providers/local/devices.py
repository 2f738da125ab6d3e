"""The devices of a box: what programs expect of any machine, and the graphics processors of this one. No disk but its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.gpus import NO_GPUS, Gpus
from spotsurfer_providers.local import kernel

DEV = Path("/dev")
USUAL = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse", "kvm", "net/tun")
GRAPHICS = ("nvidia*", "nvidia-caps/*", "dri/*", "kfd")
FOLDERS = ("pts", "shm", "mqueue", "net")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


@dataclass(frozen=True, slots=True)
class Device:
    """A device node: its name below /dev, its mode with the kind, owner and group, its number."""

    name: str
    mode: int
    owner: tuple[int, int]
    number: int


def of_host() -> list[Device]:
    """Those of this host that a box gets, too."""
    paths = [DEV / name for name in USUAL] + [p for pattern in GRAPHICS for p in sorted(DEV.glob(pattern))]
    return [of(str(p)) for p in paths if p.is_char_device()]  # not every host has each


def gpus_of_host() -> Gpus:
    """NVIDIA's of this host: each box has all of them, whatever its type would have elsewhere. Their chip is not asked for."""
    count = sum(p.is_char_device() for p in DEV.glob("nvidia[0-9]*"))
    return Gpus(count=count) if count else NO_GPUS


def of(path: str) -> Device:
    """The device node at a path below /dev. Raises OSError."""
    st = Path(path).stat()
    return Device(str(Path(path).relative_to(DEV)), st.st_mode, (st.st_uid, st.st_gid), st.st_rdev)


def make(target: str, devices: Sequence[Device]) -> None:
    """A /dev of its own at the folder `target`, with terminals that nobody else sees. Raises OSError."""
    kernel.mount("tmpfs", target, "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=0755,size=1m")
    for folder in FOLDERS:
        os.makedirs(f"{target}/{folder}")  # noqa: PTH103 - as the kernel sees them
    for d in devices:
        path = Path(target, d.name)
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, d.mode, d.number)
        path.chmod(stat.S_IMODE(d.mode))  # whatever the umask
        os.chown(path, *d.owner)
    for name, to in LINKS.items():
        Path(target, name).symlink_to(to)
    kernel.mount(
        "devpts", target + "/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
