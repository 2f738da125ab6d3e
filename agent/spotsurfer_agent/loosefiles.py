"""Many objects into a folder, quickly and never torn: data first, then its name; names become durable all at once.

A file without a name is filled and written back, many side by side, and linked only then. So whatever has a name is whole,
also after a power failure, and only the folders are left to be made durable: once for a whole batch instead of once an object.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotsurfer_agent.addresses import address
from spotsurfer_agent.buffers import Buffer

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")  # keys that are their own file names
CANNOT = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EXDEV})  # no files without a name here
ALIGNMENT = 4096  # of memory and length, for the disk to read it directly; what every disk takes
DIRECT_BYTES_MIN = 256 << 10
SYNC_THREADS = 16  # flushes of one disk that are asked for together are done together


class LooseFiles:
    """Objects below `root` whose names are not durable yet."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: set[Path] = set()
        self._lock = threading.Lock()

    def create(self, key: str, data: Buffer) -> bool | None:
        """Write if absent; None where this file system or key needs another way. Raises OSError."""
        if not _PLAIN.fullmatch(key):
            return None
        path = self._root / key
        if path.parent not in self._folders:  # one that was removed since is made by the other way
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock:  # only a folder that is there: a store that refused to make it must not spoil every later `sync`
                self._folders.add(path.parent)
        return _placed(path, data)

    def sync(self) -> None:
        """All names that were given so far are durable when it returns. Raises OSError."""
        with self._lock:
            folders, self._folders = self._folders, set()
        try:
            fsync_all(_with_parents(folders, self._root))
        except OSError:
            with self._lock:
                self._folders |= folders
            raise


def create(root: Path, key: str, data: Buffer) -> bool | None:
    """Write one object if absent; None where this file system or key needs another way. Raises OSError.

    Its name is not durable yet, and never one of less than the whole object.
    """
    if not _PLAIN.fullmatch(key):
        return None
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    return _placed(path, data)


def read(root: Path, key: str, start: int = 0, length: int | None = None) -> bytes | None:
    """An object or a part of it, in one copy; None where this key needs another way. Raises OSError."""
    if not _PLAIN.fullmatch(key):
        return None
    fd = os.open(root / key, os.O_RDONLY | os.O_CLOEXEC)
    try:
        left = max(os.fstat(fd).st_size - start, 0)
        size = left if length is None else min(length, left)  # memory for all that was asked for is taken at once
        data = os.pread(fd, size, start)
        while len(data) < size and (more := os.pread(fd, size - len(data), start + len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def fsync_all(paths: Iterable[Path]) -> None:
    """Many files or folders at once: a disk does flushes together that are asked for together."""
    with ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="fsync") as threads:
        for _ in threads.map(fsync, paths):
            pass


def fsync(path: Path) -> None:
    """Make a file's content or a folder's names durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _with_parents(folders: Iterable[Path], root: Path) -> set[Path]:
    out = set[Path]()
    for folder in folders:
        while folder not in out:
            out.add(folder)
            if folder == root:
                break
            folder = folder.parent
    return out


def _is_aligned(view: memoryview) -> bool:
    """Whether the disk can take it from where it lies: no copy into the page cache, no memory for that."""
    if len(view) < DIRECT_BYTES_MIN or len(view) % ALIGNMENT:
        return False
    return address(view) % ALIGNMENT == 0


def _placed(path: Path, data: Buffer) -> bool | None:
    if path.exists():
        return False
    try:
        return _made(path, memoryview(data))
    except OSError as e:
        if e.errno in CANNOT:
            return None
        raise


def _made(path: Path, view: memoryview) -> bool:
    fd = _nameless(path.parent, os.O_DIRECT if _is_aligned(view) else 0)
    try:
        while view:
            view = view[os.write(fd, view) :]
        os.fdatasync(fd)
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)  # a folder makes it linkat, which follows
    except FileExistsError:
        return False
    finally:
        os.close(fd)
    return True


def _nameless(folder: Path, direct: int) -> int:
    flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
    try:
        return os.open(folder, flags | direct, 0o644)
    except OSError as e:
        if not direct or e.errno not in CANNOT:
            raise
    return os.open(folder, flags, 0o644)
