"""The job's private folder on this machine's disk, and how to keep it as it is at one instant."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.manifest import Entry, Manifest, Stored

from spotsurfer_agent.chunks.writer import Content, Table
from spotsurfer_agent.files import identity, tree
from spotsurfer_agent.files.staging import FULL
from spotsurfer_agent.host import root_fs
from spotsurfer_agent.linux import file_copy

FOLDERS = {"work": 0o755, "home": 0o755, "tmp": 0o1777, "shm": 0o1777, ".spotsurfer": 0o755, "hints": 0o755}
# File systems on which the first write to a mapped file after its write-back always changes its times.
STAMPED = frozenset({"btrfs", "ext4", "xfs"})
RACY_NS = 200_000_000  # two writes within it may leave the same times: a tick of the kernel is 10 ms at most
# A write through a mapping or past the cache changes the times first, and the disk may delay the data behind them.
ASIDE_NS = 2_000_000_000
SYNCS_MAX, SYNC_SECONDS = 5, 0.2
SPARED_PART = 10  # of the disk stays free for the job, which writes while its files are copied

LATE = (
    "the job was let go before its files were kept: the machine is too slow or overloaded, or it writes too much to a disk "
    "that needs its files copied (btrfs and XFS do not)"
)


class ScratchError(OSError):
    """The disk lacks a needed feature or failed; a sentence."""


class Changed(ScratchError):
    """A file is not the one that was examined."""


@dataclass(slots=True)
class Capture:
    """The scratch at one instant: its entries and where to read each file. `drop` gives the space back."""

    entries: list[Entry]
    where: Callable[[Entry], Path]
    stamps: dict[str, tree.Stamp]
    drop: Callable[[], None]
    known: dict[str, Content] = field(default_factory=dict)  # content of files that need not be read


class Scratch:
    """`<base>/job/scratch`: a btrfs subvolume if the disk is btrfs, else a folder."""

    def __init__(self, base: Path, btrfs: tuple[str, ...]) -> None:
        self.path = base / "job" / "scratch"
        self._kept = base / "job" / "kept"
        self._btrfs = btrfs
        self._seen = base / "job" / "seen"
        self._remove(self._seen)  # of an agent that died while it looked
        self.index: dict[str, tuple[tree.Stamp, Content]] = {}  # what an unchanged file consists of
        self._ahead: dict[str, tuple[tree.Stamp, Path]] = {}  # copies that were made while the job ran

    def make(self) -> None:
        """Create it with its folders if it is missing. Raises ScratchError."""
        if not self.path.is_dir():
            self._create()
        for name, mode in FOLDERS.items():
            (self.path / name).mkdir(exist_ok=True)
            (self.path / name).chmod(mode)

    def empty(self) -> None:
        """Start over with nothing in it. Raises ScratchError."""
        self._remove(self.path)
        self.index = {}
        self._create()

    def _create(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._run("subvolume", "create", str(self.path)):
            with identity.apart(self.path.parent):
                self.path.mkdir()
        self.path.chmod(0o755)

    @property
    def is_subvolume(self) -> bool:
        """Whether an instant of it can be kept without copying."""
        return self._kind() == "btrfs" and self.path.stat().st_ino == identity.SUBVOLUME_INODE

    def sync(self) -> int:
        """Write everything back, so that the work during the freeze is short.

        The job keeps writing, so this repeats while a pass takes long; each pass has less to do. Returns `now_ns` from before
        the last pass: a mapped page that was not written since changes its file's times at the next write.
        """
        fd, begun_ns = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), 0
        try:
            for _ in range(SYNCS_MAX):
                begun_ns, began = self.now_ns(), time.monotonic()
                syscalls.syncfs(fd)
                if time.monotonic() - began < SYNC_SECONDS:
                    break
        finally:
            os.close(fd)
        return begun_ns

    def copy_ahead(self, name: str, trusted: Mapping[str, Stored], pids: Callable[[], Iterable[int]] = tuple) -> bool:
        """On a disk without snapshots, copy while the job runs what `capture` would copy during the freeze.

        `capture` then copies again only what was written since. Arguments as there; `pids` returns the job's processes.
        Returns whether the disk lacks snapshots: then call `sync` afterwards, so that no copy is written back in the freeze.
        """
        self._ahead = {}
        if self.is_subvolume or self._kind() not in STAMPED:
            return False
        kept = self._kept / f"{name}.ahead"
        self.drop_kept()
        kept.mkdir(parents=True)
        time.sleep(1.1 * RACY_NS / 1e9)  # so that earlier writes are old enough even by a clock with coarse ticks
        begun_ns, spared = self.sync(), shutil.disk_usage(self.path.parent).total // SPARED_PART
        aside, listed = procfs.written_aside(pids()), self._listed(self.path, trusted, lambda: None, moving=True)
        for path in _to_copy(listed):
            stamp, copy = listed.stamps[path], kept / str(len(self._ahead))
            racy = ASIDE_NS if stamp.inode in aside else RACY_NS
            if stamp.ctime_ns < begun_ns - racy and stamp.size < self.free_bytes() - spared:
                try:
                    _copy(self.path / path, copy, stamp)
                    self._ahead[path] = stamp, copy
                except OSError:  # it is gone, or the disk is full: the capture tries again while the job is frozen
                    copy.unlink(missing_ok=True)
        return True

    def capture(self, name: str, trusted: Mapping[str, Stored], *, stays_frozen: bool) -> Callable[[], Capture]:
        """Capture this instant; the job is frozen. Call the result to list it, also after the job went on.

        `trusted` are chunks that the store holds, by digest: only files made of these are not read again. `stays_frozen`: the
        job does not run until the capture was read, so nothing needs to be copied.
        """
        if self.is_subvolume:
            kept = self._kept / name
            self._kept.mkdir(exist_ok=True)
            self._remove(kept)
            if error := self._run("subvolume", "snapshot", "-r", str(self.path), str(kept)):
                raise ScratchError(0, f"btrfs can't snapshot the job's folder: {error}")
            return lambda: self._listed(kept, trusted, lambda: self._remove(kept))
        self.sync()  # and thereby make the next write to a mapped file change its times
        if stays_frozen:
            return lambda: self._listed(self.path, trusted, lambda: None)
        copied = self._copied(self._kept / name, trusted)
        return lambda: copied

    @contextlib.contextmanager
    def still(self) -> Iterator[Path | None]:
        """A snapshot of a running job for a `with` block; None if the disk can't keep one. Raises ScratchError.

        Independent of captures: a save may begin and end meanwhile.
        """
        if not self.is_subvolume:
            yield None
            return
        if error := self._run("subvolume", "snapshot", "-r", str(self.path), str(self._seen)):
            raise ScratchError(0, f"btrfs can't snapshot the job's folder: {error}")
        try:
            yield self._seen
        finally:
            self._remove(self._seen)

    def remember(self, capture: Capture, entries: list[Entry], table: Table, instant_ns: int) -> None:
        """Note which chunks the files of a capture consist of; files written in the last instants are left out."""
        contents = {e.path: Content.of(e.extents, table.rows) for e in entries if e.kind == "file"}
        self._note(contents, capture.stamps, instant_ns)

    def brought_back(self, image: Manifest) -> None:
        """Its files were just restored from this checkpoint and nothing runs yet: the first save need not read them again."""
        stamps, chunks = tree.walk(self.path).stamps, image.chunks
        self._note({e.path: Content.of(e.extents, chunks) for e in image.scratch if e.kind == "file"}, stamps, self.now_ns())

    def _note(self, contents: dict[str, Content], stamps: dict[str, tree.Stamp], instant_ns: int) -> None:
        if self._kind() in STAMPED:
            self.index = {
                path: (stamp, content)
                for path, content in contents.items()
                if (stamp := stamps.get(path)) is not None and stamp.ctime_ns < instant_ns - RACY_NS
            }

    def now_ns(self) -> int:
        """The current time by the file system's clock."""
        mark = self.path.parent / "instant"
        mark.write_bytes(b"x")
        return mark.stat().st_mtime_ns

    def drop_link_remaps(self) -> None:
        """Remove the names that CRIU gave to deleted files and could not remove itself."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                if re.fullmatch(r"link_remap\.\d+", name):
                    Path(folder, name).unlink()

    def drop_kept(self) -> None:
        """Remove captures that were left behind."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._kept.iterdir():
                self._remove(path)

    def free_bytes(self) -> int:
        """Space left on its disk."""
        return shutil.disk_usage(self.path.parent).free

    def _listed(self, root: Path, trusted: Mapping[str, Stored], drop: Callable[[], None], *, moving: bool = False) -> Capture:
        walked = tree.walk(root, moving=moving, snapshot=root != self.path)
        walked.entries.insert(0, tree.top(root))
        known = {e.path: found for e in walked.entries if (found := self._known(e, walked.stamps, trusted)) is not None}
        return Capture(walked.entries, lambda e: root / e.path, walked.stamps, drop, known)

    def _known(self, e: Entry, stamps: dict[str, tree.Stamp], trusted: Mapping[str, Stored]) -> Content | None:
        stamp, known = self.index.get(e.path, (None, None))
        if e.kind != "file" or known is None or stamp != stamps.get(e.path):
            return None
        if any(c.digest not in trusted for c in known.chunks):
            return None
        return Content(known.extents, [trusted[c.digest] for c in known.chunks])  # the chunks of a failed save may be gone

    def _copied(self, kept: Path, trusted: Mapping[str, Stored]) -> Capture:
        """Copies of the files with unknown content; unchanged copies that were made ahead are used."""
        ahead, self._ahead = self._ahead, {}
        self._remove(kept)
        kept.mkdir(parents=True)
        capture = self._listed(self.path, trusted, lambda: self._drop(kept))
        places: dict[str, Path] = {}
        for path in _to_copy(capture):
            stamp, copy = ahead.get(path, (None, kept / str(len(places))))
            if stamp != capture.stamps[path]:
                copy = kept / str(len(places))
                try:
                    _copy(self.path / path, copy, capture.stamps[path])
                except Changed:
                    raise
                except OSError as e:
                    number = e.errno if e.errno in FULL else 0
                    raise ScratchError(number, f"the job's files can't be copied on this machine: {e.strerror}") from e
            places[path] = copy
        capture.where = lambda e: places[e.path]
        return capture

    def _drop(self, kept: Path) -> None:
        for folder in (kept, kept.with_name(f"{kept.name}.ahead")):
            self._remove(folder)

    def _kind(self) -> str:
        return root_fs.kind_at(self.path)

    def _remove(self, path: Path) -> None:
        if not path.exists():
            return
        if path.stat().st_ino == identity.SUBVOLUME_INODE:
            self._run("property", "set", "-ts", str(path), "ro", "false")
            if not self._run("subvolume", "delete", str(path)):
                return
        shutil.rmtree(path)

    def _run(self, *words: str) -> str:
        """Call btrfs; the error as a line, empty when all is well."""
        done = subprocess.run([*self._btrfs, *words], capture_output=True, text=True, check=False)
        return (done.stderr.strip().splitlines() or ["failed"])[-1] if done.returncode else ""


def _to_copy(capture: Capture) -> list[str]:
    return [e.path for e in capture.entries if e.kind == "file" and e.size and e.path not in capture.known]


def _copy(source: Path, target: Path, stamp: tree.Stamp) -> None:
    """Copy this very file: a running job may replace it, or a folder above it by a link. Raises OSError."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if tree.stamp(os.fstat(fd)) != stamp:
            raise Changed(0, LATE)
        file_copy.copy(fd, target)
    finally:
        os.close(fd)


def lay_init(scratch: Path, tini: str) -> str:
    """Put the static init into the scratch: its file is part of every image, so it moves along. Returns its path there."""
    data = Path(tini).read_bytes()
    inside = f".spotsurfer/tini-{hashlib.sha256(data).hexdigest()[:16]}"
    path = scratch / inside
    path.write_bytes(data)
    path.chmod(0o755)
    return inside


def own(path: Path, uid: int, gid: int) -> None:
    """Give a tree to the job's user; links are not followed."""
    os.lchown(path, uid, gid)
    if stat.S_ISDIR(path.lstat().st_mode):
        for child in path.iterdir():
            own(child, uid, gid)
