"""The input files to upload: paths, folders and wildcards become a list of files with sizes and modes."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.jobspec.validate import unstorable
from spotsurfer.model.errors import InputMissing, JobFileError

INPUT_FILES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to send. `path` is its destination, relative to the job's folder; `mode` are its permission bits."""

    path: str
    source: Path
    size: int
    mode: int


def expand(patterns: Sequence[str], folder: Path, where: str) -> list[InputFile]:
    """All files of `patterns`, relative to `folder`; `where` begins each message ("job.toml line 4: inputs").

    A file inside `folder` arrives under the same relative path, any other under its last name. Symlinks are followed.
    Raises InputMissing for an absent, unreadable or irregular file; JobFileError if two files have one destination.
    """
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        for top in _matches(pattern, folder, where):
            for arrives, source in _walk(top, _arrival(top, folder)):
                file = _look(arrives, source, where)
                other = found.setdefault(file.path, file)
                if other.source != file.source:
                    both = f"{other.source} and {file.source}, which would both arrive as {file.path!r}"
                    raise JobFileError(f"{where} names {both}: rename one.")
                if len(found) > INPUT_FILES_MAX:
                    remedy = "pack them into an archive and unpack it in the job"
                    raise JobFileError(f"{where} names more than {INPUT_FILES_MAX:,} files: {remedy}.")
    return [found[path] for path in sorted(found)]


def _matches(pattern: str, folder: Path, where: str) -> list[Path]:
    if not pattern or "\0" in pattern:
        raise JobFileError(f"{where} holds {pattern!r}, expected a path, a folder or a wildcard like 'reads/*.fq'.")
    try:
        text = str(Path(pattern).expanduser())
    except RuntimeError:
        raise InputMissing(f"{where} names {pattern!r}, and there is no such user.") from None
    exact = folder / text
    try:
        if exact.exists():
            return [exact]
    except OSError as e:
        raise InputMissing(f"{where} names {pattern!r}, and {exact} can't be read: {e.strerror}.") from None
    if not glob.has_magic(text):
        raise InputMissing(f"{where} names {pattern!r}, and {exact} is not there.")
    hits = sorted(glob.glob(text, root_dir=folder, recursive=True))  # noqa: PTH207 - takes absolute patterns too
    if not hits:
        raise InputMissing(f"{where} names {pattern!r}, and nothing in {folder} matches it.")
    return [folder / hit for hit in hits]


def _arrival(top: Path, folder: Path) -> str:
    full, base = _plain(top), _plain(folder)
    if full == base:
        return ""
    return str(full.relative_to(base)) if full.is_relative_to(base) else full.name


def _plain(path: Path) -> Path:
    """Absolute, without "..": symlinks are kept, because a linked file arrives under the link's name."""
    return Path(os.path.normpath(Path.cwd() / path))


def _walk(top: Path, arrives: str) -> Iterator[tuple[str, Path]]:
    if not top.is_dir():
        yield arrives, top
        return
    seen: set[str] = set()
    for root, folders, files in os.walk(top, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:  # a symlink that leads back up
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(files):
            source = Path(root, name)
            yield str(Path(arrives, source.relative_to(top))), source


def _look(arrives: str, source: Path, where: str) -> InputFile:
    if why := unstorable(arrives):
        raise InputMissing(f"{where} includes {str(source)!r}, a name that {why}: rename the file.")
    try:
        facts = source.stat()
    except OSError as e:
        raise InputMissing(f"{where} includes {source}, which can't be read: {e.strerror}.") from None
    if not stat.S_ISREG(facts.st_mode):
        raise InputMissing(f"{where} includes {source}, which is no regular file.")
    if not os.access(source, os.R_OK):
        raise InputMissing(f"{where} includes {source}, which you may not read.")
    return InputFile(arrives, _plain(source), facts.st_size, facts.st_mode & 0o777)
