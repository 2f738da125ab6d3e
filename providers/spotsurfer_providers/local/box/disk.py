"""A private disk without a name: a sparse file that no folder lists, behind a loop device that frees itself.

The file is opened with O_TMPFILE and the loop device with autoclear, so the kernel removes both as soon as no process holds
them: no crash leaves either behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.errors import DiskFull, HostUnfit

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_LOOP_CONFIG_BYTES = 304  # struct loop_config
_LOOP_FLAGS_AT = 8 + 52  # fd, block_size, then lo_flags within struct loop_info64
_TRIES = 50
_PACKAGES = {"btrfs": "btrfs-progs", "ext4": "e2fsprogs", "xfs": "xfsprogs"}

# Equal on all machines of one image, so that a folder's entries have the same order on all of them.
HASH_SEED = "9b5a6c1e-0d53-4b5f-8a07-5e1c7c1f0a44"
USUAL = ("btrfs", "ext4")  # uses the first that this host can make
MAKERS: dict[str, list[str]] = {
    "btrfs": ["mkfs.btrfs", "-q", "-K", "-f", "-m", "single"],
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", f"lazy_itable_init=1,nodiscard,hash_seed={HASH_SEED}", "-m", "0"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
}


@dataclass(frozen=True, slots=True)
class Disk:
    """A loop device with a file system on it. It lives while `fd` is open or it is mounted."""

    fd: int
    device: str
    kind: str


def make_disk(folder: Path, size_bytes: int, wanted: str = "") -> Disk:
    """A fresh disk with its bytes in the file system of `folder`; `wanted`: of this kind ("" = a usual one).

    Raises HostUnfit if loop devices or the file system's tools are missing, DiskFull if it does not fit.
    """
    kinds = (wanted,) if wanted else USUAL
    kind = next((k for k in kinds if shutil.which(MAKERS[k][0])), None)
    if kind is None:
        lacks = " and no ".join(MAKERS[k][0] for k in kinds)
        raise HostUnfit(f"No {lacks} here: install {_PACKAGES[kinds[0]]} (apt-get install {_PACKAGES[kinds[0]]})")
    backing = _nameless_file(folder)
    try:
        os.ftruncate(backing, size_bytes)
        fd, device = _attach(backing)
    finally:
        os.close(backing)
    try:
        _format(kind, device)
    except BaseException:
        os.close(fd)
        raise
    return Disk(fd, device, kind)


def _nameless_file(folder: Path) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    fd, name = tempfile.mkstemp(prefix="disk-", dir=folder)  # for file systems without O_TMPFILE, as NFS
    os.unlink(name)  # noqa: PTH108 - mkstemp gives a string
    return fd


def _attach(backing: int) -> tuple[int, str]:
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    except OSError as e:
        raise HostUnfit(f"No loop devices here ({e.strerror}): load the kernel module with modprobe loop") from e
    try:
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            found = _try_attach(f"/dev/loop{number}", backing)
            if found is not None:
                return found, f"/dev/loop{number}"
    except OSError as e:
        raise HostUnfit(f"Can't use a loop device ({e}): boxes need /dev/loop* and Linux 5.8 or later") from e
    finally:
        os.close(control)
    raise HostUnfit("No free loop device could be had: others take them as fast as we ask; try again")


def _try_attach(device: str, backing: int) -> int | None:
    """The device's descriptor, or None if another process was quicker."""
    config = bytearray(_LOOP_CONFIG_BYTES)
    struct.pack_into("=II", config, 0, backing, 0)
    struct.pack_into("=I", config, _LOOP_FLAGS_AT, _LO_FLAGS_AUTOCLEAR)
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _LOOP_CONFIGURE, bytes(config))
    except OSError as e:
        os.close(fd)
        if e.errno == errno.EBUSY:
            return None
        raise
    return fd


def _format(kind: str, device: str) -> None:
    done = subprocess.run([*MAKERS[kind], device], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No space left" in done.stderr:
        raise DiskFull(f"No room for a box's disk: {done.stderr.strip()}")
    raise HostUnfit(f"mkfs.{kind} on {device} failed: {done.stderr.strip()}; set disk_bytes to at least 256 MiB")
