"""A folder as an object store: create if absent by link(2), replace by rename(2), both durable before the answer.

The layout is that of obstore's local store, so that a controller can read and write the same folder beside it. Unfinished
objects lie in one folder for each box, `.staged/<box>#0`, which goes with the box; obstore's listings skip names that end in
# and digits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

STAGED = ".staged"


class Exists(Exception):
    """An object of this key exists already."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: key, size in bytes, time of the last write (nanoseconds since 1970), and a tag that changes with each."""

    key: str
    size: int
    modified_ns: int
    etag: str


class Objects:
    """The folder `root`. The caller has checked the keys (`server.key_problem`). Methods raise OSError."""

    def __init__(self, root: Path, owner: str) -> None:
        self.root = root
        self._staged = root / STAGED / f"{owner}#0"
        self._numbers = itertools.count(1)
        self._lasting = {root}  # folders that we have made durable

    def stage(self) -> tuple[Path, BinaryIO]:
        """A new file for an object's bytes; then `commit` or `drop` it."""
        self._staged.mkdir(parents=True, exist_ok=True)
        path = self._staged / f"{next(self._numbers)}#0"
        return path, path.open("xb")

    def commit(self, staged: Path, file: BinaryIO, key: str, *, only_if_absent: bool) -> Entry:
        """Make the staged bytes the object `key`, durably. Raises Exists."""
        file.flush()
        os.fsync(file.fileno())
        file.close()
        target = self.root / key
        while True:
            self._make_folder(target.parent)
            try:
                self._place(staged, target, only_if_absent=only_if_absent)
                break
            except FileNotFoundError:
                if not staged.exists():
                    raise
                self._lasting = {self.root}  # empty folders were removed: make them again
        _fsync(target.parent)
        return self._entry(key, target.stat())

    def drop(self, staged: Path, file: BinaryIO) -> None:
        """Discard staged bytes; harmless after `commit`."""
        file.close()
        staged.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove half-written objects."""
        drop_staged(self.root, self._staged.name.removesuffix("#0"))

    def _place(self, staged: Path, target: Path, *, only_if_absent: bool) -> None:
        if not only_if_absent:
            staged.replace(target)
            return
        try:
            os.link(staged, target)
        except FileExistsError as e:
            _fsync(target.parent)  # report the other writer's object only once it is durable
            raise Exists(str(target)) from e
        staged.unlink()

    def _make_folder(self, folder: Path) -> None:
        """Make a folder, durably: the maker of an existing one may not have reached its fsync yet."""
        if folder in self._lasting:
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _fsync(folder.parent)
        self._lasting.add(folder)

    def find(self, key: str) -> Entry | None:
        """The entry of an object, or None."""
        try:
            return self._entry(key, (self.root / key).stat())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def open(self, key: str) -> tuple[Entry, BinaryIO] | None:
        """An object and its bytes, consistent with each other, or None."""
        try:
            file = (self.root / key).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return self._entry(key, os.fstat(file.fileno())), file

    def delete(self, key: str) -> None:
        """Remove; an absent object is no error."""
        path = self.root / key
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
            _fsync(path.parent)

    def walk(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Objects whose key begins with `prefix` and is greater than `after`, in the order of their bytes."""
        folder, _, _ = prefix.rpartition("/")
        if folder and not {"", ".", ".."}.isdisjoint(folder.split("/")):
            return  # no key has such parts, and as a path they would lead elsewhere
        start = f"{folder}/" if folder else ""
        yield from self._walk(start, prefix, after)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[Entry]:
        for name, is_folder in self._names(folder):
            key = folder + name
            if is_folder:
                if _may_hold(key, prefix, after):
                    yield from self._walk(key, prefix, after)
            elif key.startswith(prefix) and key > after:
                entry = self.find(key)
                if entry is not None:
                    yield entry

    def _names(self, folder: str) -> list[tuple[str, bool]]:
        """Names in a folder in key order: a folder sorts as its name with the slash."""
        try:
            with os.scandir(self.root / folder) as found:
                names = [(e.name + "/", True) if e.is_dir() else (e.name, False) for e in found]
        except (FileNotFoundError, NotADirectoryError):
            return []
        visible = [n for n in names if not _hidden(n[0].rstrip("/")) and not (folder == "" and n[0] == f"{STAGED}/")]
        return sorted(visible, key=lambda n: os.fsencode(n[0]))

    @staticmethod
    def _entry(key: str, s: os.stat_result) -> Entry:
        if not stat.S_ISREG(s.st_mode):
            raise IsADirectoryError(key)
        return Entry(key, s.st_size, s.st_mtime_ns, f"{s.st_ino:x}-{s.st_mtime_ns:x}-{s.st_size:x}")


def drop_staged(root: Path, owner: str) -> bool:
    """Remove a box's half-written objects; returns whether there were any."""
    folder = root / STAGED / f"{owner}#0"
    found = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _may_hold(folder: str, prefix: str, after: str) -> bool:
    """Whether keys of `folder` (with its slash) can match."""
    fits = folder.startswith(prefix) or prefix.startswith(folder)
    return fits and (folder > after or after.startswith(folder))


def _hidden(name: str) -> bool:
    _, mark, tail = name.rpartition("#")
    return bool(mark) and tail.isdigit()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
