"""What a save keeps of files on shared file systems that the job has open for writing.

They are no part of the scratch, so a restore finds them as the job left them, which may be later than the checkpoint. A file
that only grows needs its length and its ends. The content of any other is copied: before the freeze, and again during it if it
was written to meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.manifest import GROWS, KEPT, Entry, Shared, Stored

from spotsurfer_agent.chunks.writer import Content, Table
from spotsurfer_agent.files import shared_ends, shared_plan, tree
from spotsurfer_agent.files.scratch import RACY_NS, Changed
from spotsurfer_agent.files.shared_plan import Writing
from spotsurfer_agent.host.root_fs import Mount
from spotsurfer_agent.linux import file_copy
from spotsurfer_agent.linux.processors import lane_count
from spotsurfer_agent.prepare.inputs import shared_file_systems

LANES_MAX = 4  # files that are compared side by side in the freeze
KEPT_BYTES = 1 << 30  # of content, if nobody says otherwise


@dataclass(slots=True)
class Caught:
    """The files at the instant of a save: records without content, and where to read what is kept."""

    records: list[Shared] = field(default_factory=list)
    stamps: dict[str, tree.Stamp] = field(default_factory=dict)
    places: dict[str, Path] = field(default_factory=dict)
    known: dict[str, Content] = field(default_factory=dict)  # content that need not be read

    def kept(self) -> list[Entry]:
        """The files whose content is kept, for a `Sender`."""
        return [x.entry for x in self.records if x.way == KEPT]

    def filled(self, entries: Iterable[Entry]) -> list[Shared]:
        """The records, with the entries that were sent."""
        sent = {e.path: e for e in entries}
        return [replace(x, entry=sent.get(x.entry.path, x.entry)) for x in self.records]


class SharedWrites:
    """Of the job of one agent's folder; remembers what its last save saw."""

    def __init__(self, base: Path, keys: Keys) -> None:
        self._root, self._copies, self._keys = base / shared_file_systems.FOLDER, base / "job" / "shared", keys
        self.most_bytes = KEPT_BYTES
        self.warning = ""  # about the last save; empty = all can be brought back
        self._last: dict[str, Shared] = {}
        self._index: dict[str, tuple[tree.Stamp, Content]] = {}
        self._ahead: dict[str, tree.Stamp] = {}

    def ahead(self, pids: Callable[[], Iterable[int]], mounts: Sequence[Mount], *, copies: bool) -> None:
        """While the job runs: write back what it wrote; with `copies`, copy what is kept.

        If nothing wrote to a file for a while before, its times tell if something does afterwards. The copy of any other is
        compared with it in the freeze.
        """
        self._ahead = {}
        if not shared_file_systems.written(mounts):
            return
        self._clear()
        self._sync(mounts)
        kept = [w for w, way in self._chosen(open_for_writing(pids(), mounts)) if way == KEPT] if copies else []
        before = {w.path: self._stamp(w) for w in kept}
        if any(before.values()):
            time.sleep(1.1 * RACY_NS / 1e9)
        for w in kept:
            if (at := before[w.path]) is not None and self._index.get(w.path, (None, None))[0] != at:
                with contextlib.suppress(OSError, tree.UnsafePath):  # the freeze copies it
                    quiet = not w.mapped and self._stamp(w) == at
                    copied = self._copy(w)
                    if quiet:
                        self._ahead[w.path] = copied

    def _stamp(self, w: Writing) -> tree.Stamp | None:
        with contextlib.suppress(OSError, tree.UnsafePath), self._opened(w) as fd:
            return tree.stamp(os.fstat(fd))
        return None

    def catch(self, pids: Iterable[int], mounts: Sequence[Mount], trusted: Mapping[str, Stored], *, stays: bool) -> Caught:
        """The files as they are now; the job stands still. Raises OSError. `stays`: it does until they are read."""
        caught, late = Caught(), list[Writing]()
        for w, way in self._chosen(open_for_writing(pids, mounts)):
            with self._opened(w) as fd:
                if w.mapped:
                    os.fsync(fd)  # and thereby make the next write to it change its times
                st = os.fstat(fd)
                head, tail = shared_ends.ends(fd, st.st_size, self._keys) if way == GROWS else ("", "")
            caught.records.append(Shared(_entry(w.path, st), way, head, tail))
            if way == KEPT:
                caught.stamps[w.path] = at = tree.stamp(st)
                if not w.mapped and (content := self._unchanged(w.path, at, trusted)) is not None:
                    caught.known[w.path] = content
                    continue
                caught.places[w.path] = (self._root / w.path) if stays else self._copy_of(w.path)
                if not stays and self._ahead.get(w.path) != at:
                    late.append(w)
        with ThreadPoolExecutor(lane_count(1, LANES_MAX, 1)) as pool:
            list(pool.map(self._copy, late))
        self.warning = shared_plan.warning(caught.records, self.most_bytes)
        return caught

    def settle(self, mounts: Sequence[Mount]) -> None:
        """Before the save counts: what the records rely on has to outlive this machine."""
        if shared_file_systems.written(mounts):
            self._sync(mounts)

    def remember(self, caught: Caught, records: list[Shared], table: Table) -> None:
        """The save was made of these. It saw them a while after the job stopped: what is written later has other times."""
        self._clear()
        self._last = {x.entry.path: x for x in records}
        kept = [x.entry for x in records if x.way == KEPT]
        self._index = {e.path: (caught.stamps[e.path], Content.of(e.extents, table.rows)) for e in kept}

    def resume(self, records: list[Shared]) -> None:
        """The job goes on from a checkpoint with these."""
        self._last, self._index = {x.entry.path: x for x in records}, {}

    def forget(self) -> None:
        """The job is gone."""
        self.resume([])
        self.warning = ""
        self._clear()

    def _clear(self) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)

    def _sync(self, mounts: Sequence[Mount]) -> None:
        for m in mounts:
            if m.target in shared_file_systems.written([m]):
                fd = os.open(m.source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    syscalls.syncfs(fd)
                finally:
                    os.close(fd)

    def _chosen(self, found: list[Writing]) -> Iterator[tuple[Writing, str]]:
        """The files, each with what is kept of it."""
        ways = shared_plan.ways(found, {w.path: self._went_back(w) for w in found}, self.most_bytes)
        return ((w, ways[w.path]) for w in found)

    def _went_back(self, w: Writing) -> bool:
        """Whether the job changed what the last save saw of it: then it does not only grow."""
        before = self._last.get(w.path)
        if before is None or before.entry.inode != w.inode or before.way != GROWS:
            return before is not None and before.entry.inode == w.inode
        with contextlib.suppress(OSError, tree.UnsafePath), self._opened(w) as fd:
            return shared_ends.ends(fd, before.entry.size, self._keys) != (before.head, before.tail)
        return True

    def _unchanged(self, path: str, at: tree.Stamp, trusted: Mapping[str, Stored]) -> Content | None:
        before, content = self._index.get(path, (None, None))
        if content is None or before != at or any(c.digest not in trusted for c in content.chunks):
            return None
        return Content(content.extents, [trusted[c.digest] for c in content.chunks])

    @contextlib.contextmanager
    def _opened(self, w: Writing) -> Iterator[int]:
        """Its file, and no other one that has taken its name. Raises OSError."""
        fd = tree.open_below(self._root, w.path, os.O_RDONLY)
        try:
            if os.fstat(fd).st_ino != w.inode:
                raise Changed(0, f"{w.path} on a shared file system was replaced while the job has it open for writing")
            yield fd
        finally:
            os.close(fd)

    def _copy_of(self, path: str) -> Path:
        return self._copies / path.replace("%", "%25").replace("/", "%2F")

    def _copy(self, w: Writing) -> tree.Stamp:
        self._copies.mkdir(parents=True, exist_ok=True)
        copy = self._copy_of(w.path)
        with self._opened(w) as fd:
            at = tree.stamp(os.fstat(fd))
            (file_copy.update if copy.exists() else file_copy.copy)(fd, copy)
            return at


def open_for_writing(pids: Iterable[int], mounts: Sequence[Mount]) -> list[Writing]:
    """Files on the job's writable shared file systems that these processes may write to."""
    below = {m.target.rstrip("/") + "/": shared_file_systems.name_of(m) for m in mounts if shared_file_systems.written([m])}
    found: dict[str, Writing] = {}
    for path, inode, size, at_end, mapped in _handles(pids, tuple(below)) if below else ():
        target = max((t for t in below if path.startswith(t)), key=len)
        one = Writing(f"{below[target]}/{path.removeprefix(target)}", inode, size, at_end, mapped)
        if (seen := found.get(one.path)) is not None:
            one = replace(one, at_end=one.at_end and seen.at_end, mapped=one.mapped or seen.mapped)
        found[one.path] = one
    return list(found.values())


def _handles(pids: Iterable[int], below: tuple[str, ...]) -> Iterator[tuple[str, int, int, bool, bool]]:
    """Path, inode, size, whether it is written at its end alone, whether by a mapping."""
    for pid in pids:
        for fd, name in procfs.descriptors(pid):
            if name.startswith(below) and not _is_gone(name) and (flags := procfs.flags(pid, fd)) & os.O_ACCMODE:
                with contextlib.suppress(OSError):
                    st = os.stat(f"/proc/{pid}/fd/{fd}")  # noqa: PTH116 -- many of them
                    if stat.S_ISREG(st.st_mode):
                        at_end = bool(flags & os.O_APPEND) or procfs.position(pid, fd) >= st.st_size
                        yield name, st.st_ino, st.st_size, at_end, False
        with contextlib.suppress(OSError):  # it has ended
            for m in procfs.mappings(procfs.text(pid, "maps")):
                if m.mode[1] == "w" and m.mode[3] == "s" and m.name.startswith(below) and not _is_gone(m.name):
                    st = os.stat(f"/proc/{pid}/map_files/{m.start:x}-{m.end:x}")  # noqa: PTH116
                    yield m.name, m.inode, st.st_size, False, True


def _is_gone(name: str) -> bool:
    """Removed while it is open, as the kernel or an NFS client says: CRIU carries it."""
    return name.endswith(" (deleted)") or name.rpartition("/")[2].startswith(".nfs")


def _entry(path: str, st: os.stat_result) -> Entry:
    mode = stat.S_IMODE(st.st_mode)
    return Entry(path, "file", mode, st.st_uid, st.st_gid, st.st_mtime_ns, st.st_size, inode=st.st_ino)
