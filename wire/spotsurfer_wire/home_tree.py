"""A folder of the submit host as a job gets it, and what the job made of it: entries without the bytes of files.

A tree is an object that its SHA-256 names, as its files are: the next job of the same folder sends nothing again. A list of
changes is written by the machine at the end of the job; `was` is the entry as the job got it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

FILE, LINK, FOLDER, GONE = "file", "link", "dir", "gone"
KINDS = (FILE, LINK, FOLDER, GONE)


@dataclass(frozen=True, slots=True)
class HomeEntry:
    """One name below the folder. Times in nanoseconds since 1970."""

    path: str
    kind: str
    mode: int = 0
    mtime_ns: int = 0
    size: int = 0
    sha256: str = ""  # of a file, in hexadecimal digits
    target: str = ""  # of a link


@dataclass(frozen=True, slots=True)
class HomeTree:
    """All entries, parents first."""

    entries: list[HomeEntry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HomeChange:
    """What became of one name; `was`: None = it was not sent along."""

    now: HomeEntry
    was: HomeEntry | None = None


@dataclass(frozen=True, slots=True)
class HomeChanges:
    """All of a job's changes. Written after the files that they name."""

    changes: list[HomeChange] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)  # names that can't come home: pipes, sockets, text that is no UTF-8


def followed(tree: HomeTree, changes: HomeChanges) -> HomeTree:
    """The tree after another job's changes came home, as far as nothing else came in between. Pure."""
    now = {e.path: e for e in tree.entries}
    for change in changes.changes:
        e, was = change.now, now.get(change.now.path)
        if was not in (None, change.was) and (was.kind, was.sha256, was.target) != (e.kind, e.sha256, e.target):
            continue  # what came first stays, as at home
        if e.kind == GONE:
            now.pop(e.path, None)
        else:
            now[e.path] = e
    kept = (now[path] for path in sorted(now, key=lambda p: p.split("/")) if _has_folders(path, now))
    return HomeTree(list(kept))


def _has_folders(path: str, entries: dict[str, HomeEntry]) -> bool:
    above = path.rpartition("/")[0]
    return not above or (above in entries and entries[above].kind == FOLDER and _has_folders(above, entries))


def is_plain(path: str) -> bool:
    """Whether a path lies plainly below its folder, by its text."""
    return bool(path) and "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))


def problem(tree: HomeTree) -> str:
    """Why a tree must not be laid out, or "": each entry lies in folders of the tree, and no two have one path."""
    kinds: dict[str, str] = {}
    for e in tree.entries:
        above = e.path.rpartition("/")[0]
        if not is_plain(e.path) or e.kind not in (FILE, LINK, FOLDER):
            return f"{e.path!r} is no path below the folder"
        if e.path in kinds or (above and kinds.get(above) != FOLDER):
            return f"{e.path!r} is there twice, or does not lie in a folder of it"
        kinds[e.path] = e.kind
    return ""


def excluded(path: str, patterns: list[str] | tuple[str, ...]) -> bool:
    """Whether a pattern names the path, or a folder above it. One without a slash names the last part, at any depth."""
    parts = path.split("/")
    above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    return any(fnmatchcase(a if "/" in p else a.rpartition("/")[2], p) for p in patterns for a in above)
