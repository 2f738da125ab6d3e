"""What programs know of files besides name and content: inode numbers, and positions in folders being listed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from spotsurfer_wire.linux import procfs
from spotsurfer_wire.manifest import HELD, KNOWN, Entry

from spotsurfer_agent.host import root_fs

# ---- Inode numbers that files had before, on disks that can assign them again
#
# A program may know a file by its number: SQLite does not write to a database if its number changed since it was opened. On
# btrfs the numbers of a subvolume count up, so files are made in the order of their numbers, and the numbers between are used
# up. ext4 accepts a wish (`inode_goal` in sysfs). XFS assigns numbers as it likes.

SUBVOLUME_INODE = 256  # of the root of every btrfs subvolume
_FIRST = 257  # that a new subvolume assigns
# 12 µs each. For a file that no process has open, few numbers are used up: another number does as well.
SKIPS_CHEAP, SKIPS_MAX = 10_000, 2_000_000
REMEDY = "have it use write-ahead logging (PRAGMA journal_mode=WAL), or machines with a btrfs or ext4 disk"
_MAGIC, _ROLLBACK = b"SQLite format 3\0", 1  # sqlite.org/fileformat.html: write version, 18 bytes from the beginning
_INODE_HEAD = 20


class NumberTaken(OSError):
    """A file can't have the number that a program knows it by; a sentence."""


def means(path: Path) -> str:
    """The kind of disk that can assign the files of this folder their numbers again; "" = this one can't."""
    kind, st = root_fs.kind_at(path), path.stat()
    if kind == "btrfs":
        return kind if st.st_ino == SUBVOLUME_INODE else ""
    return kind if kind == "ext4" and os.access(_goal(st.st_dev), os.W_OK) else ""


def inode_fact(path: Path) -> str:
    """The fact of how this folder's disk assigns numbers."""
    return means(path) or f"any, on {root_fs.kind_at(path)}"


def why_not(path: Path, number: int) -> str:
    """Why a file of this folder could not get its number on another machine; "" = it could, as far as can be told here."""
    kind = means(path)
    if not kind:
        return f"no other machine could give it on a disk with {root_fs.kind_at(path)}"
    return "is too high to be reached on another machine" if kind == "btrfs" and number > SKIPS_MAX else ""


@contextlib.contextmanager
def apart(folder: Path) -> Iterator[None]:
    """On ext4, a folder made in this block lies, with its files, in a region of numbers that others are unlikely to use.

    ext4 puts files near their folder, so the agent's own files would take numbers of the job's files.
    """
    if means(folder) != "ext4":
        yield
        return
    given = _Wished(_goal(folder.stat().st_dev))
    given.wish(os.statvfs(folder).f_files * 15 // 16)
    try:
        yield
    finally:
        given.close()


def _goal(device: int) -> Path:
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    return Path("/sys/fs/ext4", name, "inode_goal")


# ---- Who knows a file by its number


def databases(pid: int, device: int) -> Iterator[tuple[int, str, int]]:
    """SQLite databases on this device that a process has open for writing with a rollback journal: descriptor, path, number."""
    for fd, name, st in _open(pid, device):
        if _known_by_number(pid, fd, st):
            yield fd, name, st.st_ino


def held(pids: Iterable[int], device: int) -> dict[int, int]:
    """Numbers of files on this device that processes have open or mapped, with `manifest.HELD` or `KNOWN`."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for m in procfs.mappings(procfs.text(pid, "maps")):
                found.setdefault(m.inode, HELD)
        for fd, _, st in _open(pid, device):
            if found.get(st.st_ino) != KNOWN:
                found[st.st_ino] = KNOWN if _known_by_number(pid, fd, st) else HELD
    found.pop(0, None)  # of memory that is no file's
    return found


def _open(pid: int, device: int) -> Iterator[tuple[int, str, os.stat_result]]:
    for fd, name in procfs.descriptors(pid):
        if name.startswith("/"):
            with contextlib.suppress(OSError):
                st = os.stat(f"/proc/{pid}/fd/{fd}")  # noqa: PTH116 -- many of them
                if st.st_dev == device and st.st_nlink and (stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode)):
                    yield fd, name, st


def _known_by_number(pid: int, fd: int, st: os.stat_result) -> bool:
    if not stat.S_ISREG(st.st_mode) or st.st_size < _INODE_HEAD or not procfs.flags(pid, fd) & os.O_ACCMODE:
        return False
    with contextlib.suppress(OSError):
        with Path(f"/proc/{pid}/fd/{fd}").open("rb", buffering=0) as f:
            head = f.read(_INODE_HEAD)
        return head.startswith(_MAGIC) and head[18] == _ROLLBACK
    return False


# ---- Numbers for files that are made


class Numbers:
    """Numbers as the disk assigns them."""

    def wish(self, number: int) -> None:
        """Ask for this number for the next file; 0 = any."""

    def got(self, number: int) -> None:
        """The file got this number."""

    def again(self, wanted: int, number: int) -> bool:  # noqa: ARG002 -- as others have it
        """Whether a file with this number must be made anew after all others, because another file may need the number."""
        return False

    def close(self) -> None:
        """No more files are made."""


class _Counted(Numbers):
    """Numbers of a btrfs subvolume in which nobody else makes files."""

    def __init__(self, top: int, entries: Sequence[Entry]) -> None:
        reach = _FIRST + len(entries) + SKIPS_MAX
        self._folder, self._next, self._spare = f"/proc/self/fd/{top}", _FIRST, SKIPS_CHEAP
        self._needed = max((e.inode for e in entries if e.held and e.inode <= reach), default=0)

    def wish(self, number: int) -> None:
        if number > self._needed:
            self._spare -= max(0, number - self._next)
            if self._spare < 0:
                return
        while self._next < number:
            fd = os.open(self._folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            self.got(os.fstat(fd).st_ino)
            os.close(fd)

    def got(self, number: int) -> None:
        self._next = number + 1


class _Wished(Numbers):
    """Numbers of an ext4: the search for a free one begins at our wish, also for files that others make meanwhile."""

    def __init__(self, goal: Path) -> None:
        self._fd = os.open(goal, os.O_WRONLY | os.O_CLOEXEC)

    def wish(self, number: int) -> None:
        if number < 1 << 32:
            os.pwrite(self._fd, b"%d\n" % number, 0)

    def again(self, wanted: int, number: int) -> bool:
        return 0 < wanted != number

    def close(self) -> None:
        self.wish(0)
        os.close(self._fd)


@contextlib.contextmanager
def numbers(root: Path, top: int, entries: Sequence[Entry]) -> Iterator[Numbers]:
    """For files that are made below `root`, which is open as `top`, and empty."""
    kind = means(root)
    given = _Counted(top, entries) if kind == "btrfs" else _Wished(_goal(root.stat().st_dev)) if kind == "ext4" else Numbers()
    try:
        yield given
    finally:
        given.close()


# ---- Positions: folders that a program is in the middle of listing
#
# The kernel keeps the listing's position, a number that leads to the same names only if the folder has the same positions. On
# btrfs they count up in each folder, so entries are added in their order, and positions between are used up. On ext4 they are
# hashes of the names, equal on file systems with one hash seed, as machines of one image have. On other disks a listing has
# to end before it can be saved.

GETDENTS64 = 217  # on x86-64
FIRST = 2  # position in a fresh folder of a btrfs
BUFFER_BYTES = 1 << 30  # of addresses: unfilled pages take no memory
WAIT_SECONDS, LOOK_SECONDS = 2.0, 0.1
_LISTING_HEAD = struct.Struct("=QqHB")  # of linux_dirent64: number, position of the next, length, kind
_MAP_NORESERVE = 0x4000  # from <asm-generic/mman-common.h>
_DOTS = (".", "..")
_libc = ctypes.CDLL(None, use_errno=True)


class TooMany(OSError):
    """More entries than one system call returns."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing under way: process and folder as the job sees them."""

    process: int
    command: str
    path: str
    inode: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.command}) is in the middle of listing {self.path}"


def under_way(pids: Iterable[int], device: int) -> list[Listing]:
    """Listings on this device that are not at their end."""
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
    """Wait a moment for listings to end; returns those that did not."""
    end = time.monotonic() + WAIT_SECONDS
    while (found := listings()) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    return found


# ---- Positions


def listing_fact(scratch: Path) -> str:
    """The fact of how this disk assigns positions in folders of the job; see `keeps`."""
    kind = means(scratch)
    return f"ext4 {_hashes(scratch.parent)}" if kind == "ext4" else kind or f"of {root_fs.kind_at(scratch)}"


def keeps(scratch: Path) -> bool:
    """Whether another disk can assign the same positions."""
    return means(scratch) != ""


@functools.cache
def _hashes(folder: Path) -> str:
    """Which hash of names this file system uses."""
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
    """Names, each with the position behind it, from one system call."""
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE) as room:
        begin = ctypes.c_char.from_buffer(room)
        count = _libc.syscall(GETDENTS64, fd, ctypes.byref(begin), ctypes.c_uint(size))
        del begin  # else the buffer can't be freed
        if count < 0:
            raise OSError(ctypes.get_errno(), "a folder can't be listed")
        data = room[:count]
    at = 0
    while at < len(data):
        _, behind, length, _ = _LISTING_HEAD.unpack_from(data, at)
        yield os.fsdecode(data[at + _LISTING_HEAD.size : at + length].split(b"\0", 1)[0]), behind
        at += length
