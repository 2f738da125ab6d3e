"""Inode numbers that files had before, on disks that can give them again.

A program may know a file by its number: SQLite does not write to a database that has another one than when it was opened.
On btrfs the numbers of a subvolume count up: so files are made in the order of their numbers, and those between are used up.
ext4 takes a wish (`inode_goal` in sysfs). XFS gives numbers as it likes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from spotsurfer_agent import jobroot, procfs
from spotsurfer_agent.manifest import HELD, KNOWN, Entry

SUBVOLUME_INODE = 256  # of the root of every btrfs subvolume
_FIRST = 257  # that a fresh one gives
# 12 µs each. For a file that nobody holds few are used up: it is as good with another number.
SKIPS_CHEAP, SKIPS_MAX = 10_000, 2_000_000
REMEDY = "have it use write-ahead logging (PRAGMA journal_mode=WAL), or machines whose disk is btrfs or ext4"
_MAGIC, _ROLLBACK = b"SQLite format 3\0", 1  # sqlite.org/fileformat.html: write version, 18 bytes from the beginning
_HEAD = 20


class NumberTaken(OSError):
    """A file can't have the number that a program knows it by; a sentence."""


def means(path: Path) -> str:
    """The kind of disk that gives the files of this folder their numbers again; "" = this one can't."""
    kind, st = jobroot.kind_at(path), path.stat()
    if kind == "btrfs":
        return kind if st.st_ino == SUBVOLUME_INODE else ""
    return kind if kind == "ext4" and os.access(_goal(st.st_dev), os.W_OK) else ""


def fact(path: Path) -> str:
    """How numbers come on this folder's disk, as it is compared."""
    return means(path) or f"any, on {jobroot.kind_at(path)}"


def why_not(path: Path, number: int) -> str:
    """Why a file of this folder could not get its number on another machine; "" = it could, as far as can be told here."""
    kind = means(path)
    if not kind:
        return f"no other machine could give it on a disk with {jobroot.kind_at(path)}"
    return "is too high to be reached on another machine" if kind == "btrfs" and number > SKIPS_MAX else ""


@contextlib.contextmanager
def apart(folder: Path) -> Iterator[None]:
    """A folder made in this block lies, with what is made in it, where on an ext4 nothing else is likely to take numbers.

    An ext4 puts files near their folder: what the agent has there would take numbers of the job's files.
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


# ---------------------------------------------------------------- who knows a file by its number


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
    of_some_size = stat.S_ISREG(st.st_mode) and st.st_size >= _HEAD
    return of_some_size and bool(procfs.flags(pid, fd) & os.O_ACCMODE) and _rolls_back(pid, fd)


def _rolls_back(pid: int, fd: int) -> bool:
    with contextlib.suppress(OSError):
        with Path(f"/proc/{pid}/fd/{fd}").open("rb", buffering=0) as f:
            head = f.read(_HEAD)
        return head.startswith(_MAGIC) and head[18] == _ROLLBACK
    return False


# ---------------------------------------------------------------- numbers for files that are made


class Numbers:
    """As the disk gives them."""

    def wish(self, number: int) -> None:
        """The next file is to have this number; 0 = any."""

    def got(self, number: int) -> None:
        """That is what it got."""

    def again(self, wanted: int, number: int) -> bool:  # noqa: ARG002 -- as others have it
        """Whether a file that got this number is to be made anew, behind all others: it may be the number of one of them."""
        return False

    def close(self) -> None:
        """Nothing more is made."""


class _Counted(Numbers):
    """Of a btrfs subvolume in which nobody else makes files."""

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
    """Of an ext4: the search for a free number begins where we say, also for others who make files meanwhile."""

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


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """As they are to be made; those of which no number is known first, and as they are."""
    return sorted(entries, key=lambda e: e.inode)
