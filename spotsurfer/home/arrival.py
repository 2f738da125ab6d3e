"""Puts what a job made of a folder into it: what is done with each name is decided first, by values.

A name that changed at home since the job got it stays as it is, and the job's file is put beside it as `NAME.from-JOB`. The
list comes from a machine, so it is not trusted: nothing is written outside of the folder, and no link is made that leads out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from spotsurfer_wire.home_tree import FILE, FOLDER, GONE, LINK, HomeChange, HomeEntry, is_plain

from spotsurfer.model.errors import StoreDamaged

Fetch = Callable[[str], Iterator[bytes]]  # from a SHA-256 to the file's bytes
NOTED_TOGETHER = 50


class Act(StrEnum):
    """What is done with a name."""

    NOTHING = "nothing"
    DRESS = "dress"  # its bytes are there: mode and time alone
    PUT = "put"
    REMOVE = "remove"
    BESIDE = "beside"  # it changed at home: the job's goes beside it
    KEEP = "keep"  # it changed at home, and the job removed it


@dataclass(frozen=True, slots=True)
class Here:
    """What stands at home under a name. Times in nanoseconds since 1970."""

    kind: str
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    target: str = ""
    sha256: str = ""  # of a file with the size of one that it is compared with


def plan(change: HomeChange, here: Here | None, noted_ns: int) -> Act:
    """What is done, given what stands there; `noted_ns`: when the job was submitted. Pure."""
    now, was = change.now, change.was
    if now.kind == GONE:
        if here is None:
            return Act.NOTHING
        return Act.REMOVE if was is not None and _same(here, was) else Act.KEEP
    if here is not None and _same(here, now):
        dressed = now.kind != FILE or (here.mode, here.mtime_ns) == (now.mode, now.mtime_ns)
        return Act.NOTHING if dressed else Act.DRESS
    if here is None:
        return Act.PUT
    untouched = here.ctime_ns < noted_ns and here.kind != FOLDER if was is None else _same(here, was)
    return Act.PUT if untouched else Act.BESIDE


def _same(here: Here, e: HomeEntry) -> bool:
    if here.kind != e.kind:
        return False
    if e.kind == LINK:
        return here.target == e.target
    return e.kind == FOLDER or (here.size == e.size and (here.mtime_ns == e.mtime_ns or here.sha256 == e.sha256))


def look(path: Path, change: HomeChange) -> Here | None:
    """What stands there; a file is read only if its size alone does not tell. Raises OSError."""
    try:
        st = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(st.st_mode):
        return Here(LINK, 0, 0, st.st_mtime_ns, st.st_ctime_ns, os.readlink(path))  # noqa: PTH115 -- its text
    kind = FOLDER if stat.S_ISDIR(st.st_mode) else FILE if stat.S_ISREG(st.st_mode) else "other"
    sizes = [e.size for e in (change.now, change.was) if e is not None and e.kind == FILE]
    sha256 = _digest(path) if kind == FILE and st.st_size in sizes else ""
    return Here(kind, stat.S_IMODE(st.st_mode) & 0o777, st.st_size, st.st_mtime_ns, st.st_ctime_ns, "", sha256)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Arrival:
    """One job's changes on their way into the folder `home`. `fetch` gives the bytes of a file.

    `printed`: files for what the job prints. If such a file is empty, the job's own file of that name takes its place.
    """

    def __init__(self, home: Path, job: str, noted_ns: int, fetch: Fetch, printed: Collection[Path] = ()) -> None:
        self.home, self._job, self._noted_ns, self._fetch, self._printed = home, job, noted_ns, fetch, printed
        self.told: list[str] = []

    def run(self, changes: list[HomeChange], placed: set[str], note: Callable[[list[str]], None]) -> None:
        """Place all but what is `placed` already; `note` hears of what was placed since. Raises OSError, StoreDamaged."""
        fresh: list[str] = []
        for change in changes:
            path = change.now.path
            if path in placed:
                continue
            if why := self._hostile(change):
                self.told.append(f"{path[:200]!r} was left out: {why}")
                continue
            self._place(change)
            fresh.append(path)
            if len(fresh) >= NOTED_TOGETHER:
                note(fresh)
                fresh = []
        note(fresh)

    def _hostile(self, change: HomeChange) -> str:
        e = change.now
        if not is_plain(e.path) or e.kind not in (FILE, LINK, FOLDER, GONE):
            return "it is no path below the folder"
        if e.kind == LINK and self._leads_out(e):
            return f"it is a link that leads out of the folder, to {e.target[:200]}"
        return ""

    def _leads_out(self, e: HomeEntry) -> bool:
        """By its text, and where its own folder really is. Behind a name ".." is taken for out: the name may become a link."""
        home, above = os.path.realpath(self.home), os.path.realpath((self.home / e.path).parent)
        names = e.target.split("/")
        while names and names[0] == "..":
            names.pop(0)
        to = os.path.normpath(os.path.join(above, e.target))  # noqa: PTH118 -- an absolute one stands for itself
        inside = _inside(to, home) or _inside(to, str(self.home))
        return ".." in names or not inside or not _inside(above, home)

    def _place(self, change: HomeChange) -> None:
        now = change.now
        if now.kind == GONE:
            target: Path | None = self.home / now.path
        else:
            target = self._parents(now.path)
        assert target is not None
        here = look(target, change)
        if here is not None and here.kind == FILE and here.size == 0 and target in self._printed:
            here = None
        act = plan(change, here, self._noted_ns)
        if act is Act.REMOVE:
            self._remove(target, change)
        elif act is Act.KEEP:
            self.told.append(f"{now.path} changed here meanwhile, so it stays, though the job removed it")
        elif act is Act.DRESS:
            self._dress(target, now)
        elif act is Act.PUT:
            self._put(target, now)
        elif act is Act.BESIDE:
            beside = self._beside(target)
            if now.kind == FOLDER:
                beside.mkdir(exist_ok=True)
            else:
                self._put(beside, now)
            self.told.append(f"{now.path} changed here meanwhile: the job's is {beside.name} beside it")

    def _parents(self, path: str) -> Path:
        """Where a path goes, its folders made. What stands in the way of one stays, and the job's goes beside it."""
        at, *names = self.home, *path.split("/")
        for name in names[:-1]:
            inner = at / name
            if not inner.is_dir():
                try:
                    inner.mkdir()
                except FileExistsError:
                    inner = self._beside(inner)
                    inner.mkdir(exist_ok=True)
            at = inner
        return at / names[-1]

    def _beside(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.from-{self._job}")

    def _remove(self, target: Path, change: HomeChange) -> None:
        if change.was is not None and change.was.kind == FOLDER:
            with contextlib.suppress(OSError):  # something new is in it
                target.rmdir()
        else:
            target.unlink(missing_ok=True)

    def _put(self, target: Path, e: HomeEntry) -> None:
        """The whole entry or nothing: it is made under another name, then renamed. Raises OSError, StoreDamaged."""
        if e.kind == FOLDER:
            if target.is_symlink() or target.is_file():
                target.unlink()
            target.mkdir(exist_ok=True)
            target.chmod(e.mode & 0o777)
            return
        making = target.with_name(f".{target.name[:200]}.spotsurfer-{self._job}")
        making.unlink(missing_ok=True)
        if e.kind == LINK:
            making.symlink_to(e.target)
        else:
            self._write(making, e)
        try:
            if target.is_dir() and not target.is_symlink():
                target.rmdir()  # the job made a file of a folder
            making.rename(target)
        except OSError:
            making.unlink(missing_ok=True)
            raise

    def _write(self, making: Path, e: HomeEntry) -> None:
        fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        digest = hashlib.sha256()
        try:
            with os.fdopen(fd, "wb") as file:
                for piece in self._fetch(e.sha256):
                    digest.update(piece)
                    file.write(piece)
            if digest.hexdigest() != e.sha256:
                raise StoreDamaged(f"{e.path} of {self._job} did not come as its machine sent it: the store is damaged.")
            self._dress(making, e)
        except BaseException:
            making.unlink(missing_ok=True)
            raise

    def _dress(self, path: Path, e: HomeEntry) -> None:
        path.chmod(e.mode & 0o777)
        os.utime(path, ns=(e.mtime_ns, e.mtime_ns))


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
