"""Folders that a program is in the middle of listing.

The kernel keeps its position, a number that leads to the same names only where the folder has the same positions. On btrfs
they count up in each folder: so entries are put into it in their order, and those between are used up. On ext4 they are
hashes of the names, which file systems with one hash seed share, as machines of one image have it. Elsewhere a listing has
to end before it can be saved.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from spotsurfer_agent import identity, jobroot, procfs

GETDENTS64 = 217  # on x86-64
FIRST = 2  # position in a fresh folder of a btrfs
BUFFER_BYTES = 1 << 30  # of addresses: what is not filled takes no memory
WAIT_SECONDS, LOOK_SECONDS = 2.0, 0.1
_HEAD = struct.Struct("=QqHB")  # of linux_dirent64: number, position of the next, length, kind
_MAP_NORESERVE = 0x4000  # from <asm-generic/mman-common.h>
_DOTS = (".", "..")
_libc = ctypes.CDLL(None, use_errno=True)


class TooMany(OSError):
    """More entries than one call of the kernel tells."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One that is under way: by a process as the job numbers it, of a folder as the job sees it."""

    process: int
    command: str
    path: str
    inode: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.command}) is in the middle of listing {self.path}"


def under_way(pids: Iterable[int], device: int) -> list[Listing]:
    """Listings of folders on this device of which names are left."""
    return [found for pid in pids for found in _of(pid, device)]


def _of(pid: int, device: int) -> Iterator[Listing]:
    for fd, name in procfs.descriptors(pid):
        if not name.startswith("/"):
            continue
        try:
            st = os.stat(f"/proc/{pid}/fd/{fd}")  # noqa: PTH116 -- many of them
            if st.st_dev == device and stat.S_ISDIR(st.st_mode) and st.st_nlink and _goes_on(pid, fd):
                yield Listing(procfs.number_inside(pid), procfs.status(pid).get("Name", "?"), name, st.st_ino)
        except OSError:  # it was closed meanwhile
            continue


def _goes_on(pid: int, fd: int) -> bool:
    at = procfs.position(pid, fd)
    if not at:
        return False
    folder = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.lseek(folder, at, os.SEEK_SET)
        return any(True for _ in _entries(folder, 1 << 16))
    finally:
        os.close(folder)


def await_end(listings: Callable[[], list[Listing]]) -> list[Listing]:
    """Wait a moment for listings to end; those that did not."""
    end = time.monotonic() + WAIT_SECONDS
    while (found := listings()) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    return found


# ---------------------------------------------------------------- positions


def fact(scratch: Path) -> str:
    """How positions in folders of the job come about on this disk, as it is compared; see `keeps`."""
    kind = identity.means(scratch)
    return f"ext4 {_hashes(scratch.parent)}" if kind == "ext4" else kind or f"of {jobroot.kind_at(scratch)}"


def keeps(scratch: Path) -> bool:
    """Whether positions come again elsewhere."""
    return identity.means(scratch) != ""


@functools.cache
def _hashes(folder: Path) -> str:
    """Which hashes names get here."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for number in range(8):
            Path(made, str(number)).touch()
        return sha256(repr(sorted(positions(Path(made)).items())).encode()).hexdigest()[:12]


def positions(folder: Path | str) -> dict[str, int]:
    """The position of each name in a folder. Raises OSError, among them TooMany."""
    at, found = 0, dict[str, int]()
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name, behind in _entries(fd, BUFFER_BYTES):
            if name not in _DOTS:
                found[name] = at
            at = behind
        if any(True for _ in _entries(fd, 1 << 16)):  # between two calls positions are not exact
            raise TooMany(0, "a folder has too many entries for its order to be kept")
    finally:
        os.close(fd)
    return found


def _entries(fd: int, size: int) -> Iterator[tuple[str, int]]:
    """Names with the positions behind them, of one call."""
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE) as room:
        begin = ctypes.c_char.from_buffer(room)
        count = _libc.syscall(GETDENTS64, fd, ctypes.byref(begin), ctypes.c_uint(size))
        del begin  # else the room can't be given back
        if count < 0:
            raise OSError(ctypes.get_errno(), "a folder can't be listed")
        data = room[:count]
    at = 0
    while at < len(data):
        _, behind, length, _ = _HEAD.unpack_from(data, at)
        yield os.fsdecode(data[at + _HEAD.size : at + length].split(b"\0", 1)[0]), behind
        at += length
