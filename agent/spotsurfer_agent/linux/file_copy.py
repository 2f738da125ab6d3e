"""A copy of a file on the same disk: it shares blocks if the file system can (XFS, btrfs), and holes stay holes."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np

BLOCK_BYTES = 256 << 10  # compared at a time
PIECE_BYTES = 1 << 20  # of a copy that goes through our memory
FICLONE = 0x40049409  # ioctl_ficlone(2)
CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EPERM})  # another way may do


class ShortFile(OSError):
    """A file became shorter while it was read: it was not frozen."""


def copy(source: int, target: Path) -> None:
    """From a descriptor to a file that only root reads, made or emptied first.

    Raises OSError; among them ShortFile if the file shrank: the copy is as short.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    into = os.open(target, flags, 0o600)
    try:
        if not _shared(source, into):
            _by_data(source, into)
    finally:
        os.close(into)


def update(source: int, target: Path) -> None:
    """Make an earlier copy equal to its source again. What is equal is only read, which is much faster. Raises as `copy`."""
    size = os.fstat(source).st_size
    into = os.open(target, os.O_RDWR | os.O_CLOEXEC)
    theirs, ours = (memoryview(bytearray(BLOCK_BYTES)) for _ in range(2))
    one, other = (np.frombuffer(block, dtype=np.uint8) for block in (theirs, ours))
    try:
        os.ftruncate(into, size)
        for at in range(0, size, BLOCK_BYTES):
            count = min(BLOCK_BYTES, size - at)
            for fd, block in ((source, theirs), (into, ours)):
                if os.preadv(fd, [block[:count]], at) != count:
                    raise ShortFile(0, "a file became shorter while it was copied")
            if not np.array_equal(one[:count], other[:count]):
                os.pwrite(into, theirs[:count], at)
    finally:
        os.close(into)


def next_data(fd: int, at: int, size: int) -> int:
    """Position of the next byte, from `at` on, outside of a hole; `size` if there is none."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as e:
        return size if e.errno == errno.ENXIO else at  # anything else: the file system can't tell


def _shared(source: int, into: int) -> bool:
    try:
        fcntl.ioctl(into, FICLONE, source)
    except OSError as e:
        if e.errno not in CANNOT:
            raise
        return False
    return True


def _by_data(source: int, into: int) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(into, size)
    at = 0
    while (at := next_data(source, at, size)) < size:
        end = _next_hole(source, at, size)
        while at < end:
            done = _carried(source, into, at, end - at)
            if not done:
                os.ftruncate(into, at)
                raise ShortFile(0, "a file became shorter while it was copied")
            at += done


def _next_hole(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_HOLE)
    except OSError:
        return size


def _carried(source: int, into: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(source, into, count, at, at)
    except OSError as e:
        if e.errno not in CANNOT:
            raise
    return os.pwrite(into, os.pread(source, min(count, PIECE_BYTES), at), at)
