"""A folder as entries of a manifest, and back.

Paths in a manifest are hostile: no link is followed, and none leaves the root.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from spotsurfer_wire.chunks import reader
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import KNOWN, Entry, Extent, Stored, sizes

from spotsurfer_agent.files import identity
from spotsurfer_agent.files.identity import Numbers, NumberTaken

# ---- A few threads with bounded work in flight, so that memory stays flat however large the files are

T = TypeVar("T")
WORKERS = 12
IN_FLIGHT = 32


class Pool:
    """Runs pieces of work; `submit` waits while too many are under way. The first failure stops the rest."""

    def __init__(self, workers: int = WORKERS, in_flight: int = IN_FLIGHT) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="chunks")
        self._room = threading.BoundedSemaphore(in_flight)
        self._failure: BaseException | None = None

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Hand in a piece of work. Raises the first failure of an earlier one."""
        self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        future = self._threads.submit(work, *args)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        if not future.cancelled() and self._failure is None:
            self._failure = future.exception()
        self._room.release()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None and self._failure is not None:
            raise self._failure


# ---- From a folder to entries

# Attributes that matter on another machine; the rest belongs to the file system.
XATTRS = ("user.", "security.capability", "system.posix_acl_")
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
EMPTY_SUBVOLUME_INODE = 2  # in a snapshot: BTRFS_EMPTY_SUBVOL_DIR_OBJECTID
TOP = "."  # the folder itself, as the first entry where its owner and mode matter


class Disordered(OSError):
    """The entries of a folder don't get their order; a sentence."""


class UnsafePath(Exception):
    """A manifest names a path that could leave its root, or one twice."""


class Unsavable(Exception):
    """The tree holds something that can't be carried to another machine."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """If two stamps are equal, so is the content: nothing wrote to the file in between."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(slots=True)
class Walked:
    """A tree as it was read; `stamps` of its regular files, by path."""

    entries: list[Entry] = field(default_factory=list)
    stamps: dict[str, Stamp] = field(default_factory=dict)


def walk(root: Path, *, moving: bool = False, snapshot: bool = False) -> Walked:
    """Everything below `root`, parents first, names sorted; if the tree is `moving`, files that vanish meanwhile are skipped.

    Raises Unsavable for devices, and for a subvolume below `root`: a btrfs snapshot holds only an empty folder for it.
    """
    out, links = Walked(), dict[tuple[int, int], str]()
    vanished = (FileNotFoundError, NotADirectoryError) if moving else ()
    folders = [""]
    while folders:
        folder, names = folders.pop(), list[str]()
        with contextlib.suppress(*vanished), os.scandir(root / folder) as found:
            names = sorted(x.name for x in found)
        for name in names:
            with contextlib.suppress(*vanished):
                path = f"{folder}/{name}" if folder else name
                st = (root / path).lstat()
                out.entries.append(_entry(root, path, st, links))
                if stat.S_ISREG(st.st_mode):
                    out.stamps[path] = stamp(st)
                if stat.S_ISDIR(st.st_mode):
                    if snapshot and st.st_ino == EMPTY_SUBVOLUME_INODE:
                        raise Unsavable(
                            f"{path} in the job's folder is a btrfs subvolume, which can't be kept: make it a plain folder"
                        )
                    folders.append(path)
    return out


def stamp(st: os.stat_result) -> Stamp:
    """The stamp that shows whether a file changed."""
    return Stamp(st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)


def top(root: Path) -> Entry:
    """The folder itself."""
    return dataclasses.replace(_entry(root, "", root.lstat(), {}), path=TOP, inode=0)


def _entry(root: Path, path: str, st: os.stat_result, links: dict[tuple[int, int], str]) -> Entry:
    kind, target, size = KINDS.get(stat.S_IFMT(st.st_mode)), "", 0
    if kind is None:
        raise Unsavable(f"{path} in the job's folder is a device: remove it, devices can't be carried along")
    if kind != "dir" and st.st_nlink > 1:
        first = links.setdefault((st.st_dev, st.st_ino), path)
        if first != path:
            return Entry(path, "hardlink", target=first)
    if kind == "symlink":
        target = str((root / path).readlink())
    if kind == "file":
        size = st.st_size
    mode = stat.S_IMODE(st.st_mode)
    return Entry(path, kind, mode, st.st_uid, st.st_gid, st.st_mtime_ns, size, target, _xattrs(root / path), inode=st.st_ino)


def _xattrs(path: Path) -> dict[str, str]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return {}  # a file system without them
    kept = [n for n in names if n.startswith(XATTRS)]
    return {n: base64.b64encode(os.getxattr(path, n, follow_symlinks=False)).decode() for n in kept}


# ---- From entries to a folder


def parts(path: str) -> list[str]:
    """The names along a relative path. Raises UnsafePath for a path that is not plainly below its root."""
    names = path.split("/")
    if not path or "\0" in path or any(n in ("", ".", "..") for n in names):
        raise UnsafePath(f"path {path!r} in the manifest does not lie below its root")
    return names


def check(entries: list[Entry], table: list[Stored]) -> None:
    """Check the whole list before anything is written. Raises UnsafePath and BadChunk."""
    seen, known = dict[str, str](), sizes(table)
    for e in entries:
        names = parts(e.path)
        above = "/".join(names[:-1])
        if e.path in seen or (above and seen.get(above) != "dir"):
            raise UnsafePath(f"path {e.path!r} is in the manifest twice or not in a folder of it")
        if e.kind == "hardlink" and seen.get(e.target, "dir") in ("dir", "hardlink"):
            raise UnsafePath(f"{e.path!r} repeats {e.target!r}, which is no file of the manifest")
        if e.kind not in (*KINDS.values(), "hardlink"):
            raise UnsafePath(f"{e.path!r} is of a kind that this version does not know: {e.kind!r}")
        try:
            e.extents.validate(e.size, known)
        except ProtocolError as error:
            raise BadChunk(f"{e.path!r} in the manifest is described wrongly: {error}") from error
        seen[e.path] = e.kind


def build(root: Path, entries: list[Entry], table: list[Stored], source: Reader) -> None:
    """Make the tree below the existing, empty folder `root`, with the old inode numbers if the disk allows it.

    Raises UnsafePath, BadChunk, StoreError and OSError; among them NumberTaken and Disordered.
    """
    own = entries[0] if entries and (entries[0].path, entries[0].kind) == (TOP, "dir") else None
    entries = entries[1:] if own is not None else entries
    check(entries, table)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with Pool() as pool, identity.numbers(root, top, entries) as numbers:
            _Building(top, entries, lambda file: file.fill(pool, source, table), numbers).run()
        for e in reversed(entries):  # folders last, deepest first: new entries changed their times
            if e.kind == "dir":
                with _parent(top, e.path) as (folder, name):
                    _dress_folder(e, folder, name)
        if own is not None:
            _dress_folder(own, top, ".")
    finally:
        os.close(top)


def make_empty(root: Path, path: str, uid: int, gid: int) -> None:
    """Make an empty file of this owner at a path below `root`, replacing any. Raises UnsafePath; OSError also for a link."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with _parent(top, path) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o644, dir_fd=folder)
            os.fchown(fd, uid, gid)
            os.close(fd)
    finally:
        os.close(top)


def open_below(root: Path, path: str, flags: int) -> int:
    """A descriptor of a file below `root`; no link is followed. Raises UnsafePath, OSError."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with _parent(top, path) as (folder, name):
            return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(top)


def open_known(root: Path, e: Entry) -> int:
    """A descriptor for writing of the file that has this entry's path and number. Raises UnsafePath, OSError."""
    fd = open_below(root, e.path, os.O_WRONLY)
    if os.fstat(fd).st_ino != e.inode:
        os.close(fd)
        raise OSError(0, f"{e.path} was replaced by another file a moment ago")
    return fd


def refill(root: Path, entries: Iterable[Entry], table: list[Stored], source: Reader, *, anew: bool) -> None:
    """Give files below `root` their content, owners and times: those that are there, or made `anew` in place of any.

    Raises UnsafePath, BadChunk, StoreError and OSError.
    """
    with contextlib.ExitStack() as stack:
        fresh = list[tuple[int, str, str]]()
        with Pool() as pool:
            for e in entries:
                if anew:
                    above, _, name = e.path.rpartition("/")
                    making = f".{name}.making"
                    folder = open_below(root, above, os.O_RDONLY | os.O_DIRECTORY)
                    stack.callback(os.close, folder)
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(making, dir_fd=folder)
                    file = _make(e, folder, making)
                    fresh.append((folder, making, name))
                else:
                    file = _File(e, open_known(root, e))
                    file.empty()
                if file is not None:
                    file.fill(pool, source, table)
        for folder, making, name in fresh:
            os.rename(making, name, src_dir_fd=folder, dst_dir_fd=folder)


def _dress_folder(e: Entry, folder: int, name: str) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        _dress(e, fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _parent(top: int, path: str) -> Iterator[tuple[int, str]]:
    """The folder that holds a path, reached without following any link, and the last name."""
    *above, last = parts(path)
    fd = os.dup(top)
    try:
        for name in above:
            lower = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = lower
        yield fd, last
    finally:
        os.close(fd)


class _Building:
    """Makes files in the order of their inode numbers. A file waits in the top folder until its own folder exists."""

    def __init__(self, top: int, entries: list[Entry], fill: Callable[[_File], None], numbers: Numbers) -> None:
        self._top, self._entries, self._fill, self._numbers = top, entries, fill, numbers
        self._ready = {""}  # folders in their places
        self._listed = {_above(e) for e in entries if e.position}  # folders with positioned entries, which are placed last
        self._waiting: dict[str, str] = {}  # names in the top folder, by path
        self._prefix = ".making-"
        while any(e.path.startswith(self._prefix) for e in entries):
            self._prefix += "-"

    def run(self) -> None:
        """Make everything except the attributes of folders."""
        # In the order of their numbers; those without a known number first.
        in_order = sorted((e for e in self._entries if e.kind != "hardlink"), key=lambda e: e.inode)
        late = [e for e in in_order if not self._made(e, e.inode)]
        for e in late:
            self._made(e, 0)
        last = dict[str, list[Entry]]()
        for e in self._entries:
            if e.kind == "hardlink" or e.path in self._waiting:
                last.setdefault(_above(e), []).append(e)
        for folder, found in last.items():
            if folder in self._listed:
                self._put_in_order(folder, found)
            else:
                for e in found:
                    self._put(e)

    def _put_in_order(self, folder: str, entries: list[Entry]) -> None:
        """Put each entry at its position, see `files.identity`. Raises Disordered."""
        with _parent(self._top, f"{folder}/x") as (path, _):
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path)
        try:
            at = identity.FIRST
            for e in sorted(entries, key=lambda e: e.position):
                for _ in range(e.position - at):
                    os.mknod(self._prefix, dir_fd=fd)
                    os.unlink(self._prefix, dir_fd=fd)
                self._put(e)
                at = e.position + 1
            if identity.positions(f"/proc/self/fd/{fd}/.") != {e.path.rpartition("/")[2]: e.position for e in entries}:
                what = f"a program was listing {folder}"
                raise Disordered(0, f"{what}, and this machine's disk can't give it the order that it had")
        finally:
            os.close(fd)

    def _made(self, e: Entry, number: int) -> bool:
        above = _above(e)
        if above in self._ready and above not in self._listed:
            with _parent(self._top, e.path) as (folder, name):
                made = self._make(e, folder, name, number)
            if made and e.kind == "dir":
                self._ready.add(e.path)
            return made
        waits = f"{self._prefix}{len(self._waiting)}"
        if made := self._make(e, self._top, waits, number):
            self._waiting[e.path] = waits
        return made

    def _make(self, e: Entry, folder: int, name: str, wanted: int) -> bool:
        """Make a file; returns whether it has its number, or may have another one."""
        self._numbers.wish(wanted)
        file = _make(e, folder, name)
        number = os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino
        self._numbers.got(number)
        if self._numbers.again(wanted, number):
            (os.rmdir if e.kind == "dir" else os.unlink)(name, dir_fd=folder)
            return False
        if e.held == KNOWN and number != e.inode:
            what = f"{e.path} was file number {e.inode} where the job ran, and a program knows it by that"
            raise NumberTaken(0, f"{what}; this machine's disk can't give that number")
        if file is not None:
            self._fill(file)
        return True

    def _put(self, e: Entry) -> None:
        with _parent(self._top, e.path) as (folder, name):
            if e.kind == "hardlink":
                with _parent(self._top, self._waiting.get(e.target, e.target)) as (there, first):
                    os.link(first, name, src_dir_fd=there, dst_dir_fd=folder, follow_symlinks=False)
            else:
                os.rename(self._waiting.pop(e.path), name, src_dir_fd=self._top, dst_dir_fd=folder)


def _above(e: Entry) -> str:
    return e.path.rpartition("/")[0]


def _make(e: Entry, folder: int, name: str) -> _File | None:
    """Make one entry; returns the file if it must be filled."""
    if e.kind == "dir":
        os.mkdir(name, 0o700, dir_fd=folder)
    elif e.kind == "symlink":
        os.symlink(e.target, name, dir_fd=folder)
        os.chown(name, e.uid, e.gid, dir_fd=folder, follow_symlinks=False)
        os.utime(name, ns=(e.mtime_ns, e.mtime_ns), dir_fd=folder, follow_symlinks=False)
    elif e.kind == "socket":
        os.mknod(name, stat.S_IFSOCK | 0o600, dir_fd=folder)
        os.chown(name, e.uid, e.gid, dir_fd=folder, follow_symlinks=False)
        os.chmod(name, e.mode & 0o7777, dir_fd=folder)
        os.utime(name, ns=(e.mtime_ns, e.mtime_ns), dir_fd=folder, follow_symlinks=False)
    elif e.kind == "fifo":
        os.mkfifo(name, 0o600, dir_fd=folder)
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        _dress(e, fd)
        os.close(fd)
    else:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        return _File(e, fd)
    return None


class _File:
    """A file being written by several threads; the last one dresses and closes it."""

    def __init__(self, entry: Entry, fd: int) -> None:
        self._entry, self._fd = entry, fd
        self._pieces: dict[int, list[Extent]] = {}
        for extent in entry.extents:
            self._pieces.setdefault(extent.chunk, []).append(extent)
        self._left, self._lock = len(self._pieces) + 1, threading.Lock()

    def __del__(self) -> None:
        if self._fd >= 0:  # pieces were given up
            os.close(self._fd)

    def empty(self) -> None:
        """Drop what is in it."""
        os.ftruncate(self._fd, 0)

    def fill(self, pool: Pool, source: Reader, table: list[Stored]) -> None:
        """Hand the file's chunks to the pool."""
        try:
            os.ftruncate(self._fd, self._entry.size)
            for chunk, extents in self._pieces.items():
                pool.submit(self._piece, source, table[chunk], extents)
        finally:
            self._done()

    def _piece(self, source: Reader, chunk: Stored, extents: list[Extent]) -> None:
        try:
            data = memoryview(source.plain(chunk, keep=False))
            for e in extents:
                reader.put(self._fd, data[e.skip : e.skip + e.length], e.offset)
        finally:
            self._done()

    def _done(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        fd, self._fd = self._fd, -1
        try:
            _dress(self._entry, fd)
        finally:
            os.close(fd)


def _dress(e: Entry, fd: int) -> None:
    """Set owner, mode, attributes and times, in this order: each one may undo the next."""
    os.fchown(fd, e.uid, e.gid)
    os.fchmod(fd, e.mode & 0o7777)
    for name, value in e.xattrs.items():
        if name.startswith(XATTRS):
            with contextlib.suppress(NotADirectoryError):
                os.setxattr(fd, name, base64.b64decode(value))
    os.utime(fd, ns=(e.mtime_ns, e.mtime_ns))
