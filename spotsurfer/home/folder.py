"""Reads a folder of the submit host: which names go along, as entries of a tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.home_tree import FILE, FOLDER, LINK, HomeEntry, excluded

from spotsurfer.common.units import size as human
from spotsurfer.jobspec.validate import unstorable
from spotsurfer.model.errors import InputMissing, JobFileError

FILES_MAX = 20_000
BYTES_MAX = 20 << 30
# What only the submit host needs: histories, environments that programs build for one host, locks and logs of their own run.
USUAL_EXCLUDE = (
    ".git", ".hg", ".svn", "__pycache__", ".snakemake/conda", ".snakemake/conda-archive", ".snakemake/singularity",
    ".snakemake/locks", ".snakemake/log", ".nextflow", ".nextflow.log*",
)  # fmt: skip
REMEDY = "name what the job needs (home_files, --home-file), leave parts out (home_exclude), or fetch large files from a bucket"


@dataclass(frozen=True, slots=True)
class Found:
    """One name of the folder; `source` is where its bytes are. The digest is computed later."""

    entry: HomeEntry
    source: Path
    stamp: str = ""  # changes whenever the file's content may have


def read(
    home: Path, names: Sequence[str], exclude: Sequence[str], skip: Callable[[Path], bool] = lambda _: False
) -> list[Found]:
    """Everything in the folder, or what `names` (paths or wildcards in it) name, parents first.

    A link that leads out of the folder counts as what it leads to. Pipes and sockets stay, and files that `skip` says. Raises
    InputMissing, JobFileError.
    """
    if not home.is_dir():
        raise InputMissing(f"The folder {home} is not there: name another one in home.")
    found: dict[str, Found] = {}
    total = 0
    for path, source in _named(home, names) if names else _walk(home, "", home):
        if path in found or excluded(path, tuple(exclude)) or skip(source):
            continue
        one = _look(home, path, source)
        if one is None:
            continue
        for above in reversed(Path(path).parents):
            if str(above) != "." and str(above) not in found:
                found[str(above)] = _folder(str(above), home / above)
        found[path] = one
        total += one.entry.size
        if len(found) > FILES_MAX or total > BYTES_MAX:
            what = f"more than {FILES_MAX:,} names" if len(found) > FILES_MAX else f"more than {human(BYTES_MAX)}"
            raise JobFileError(f"The folder {home} holds {what}: {REMEDY}.")
    return sorted(found.values(), key=lambda f: f.entry.path.split("/"))


def _named(home: Path, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for name in names:
        plain = os.path.normpath(home / name)
        if not Path(plain).is_relative_to(home):
            raise JobFileError(f"home_files names {name!r}, which is not in {home}: name it in inputs.")
        pattern = os.path.relpath(plain, home)
        hits = [home] if pattern == "." else sorted(home.glob(pattern)) if set("*?[") & set(pattern) else [home / pattern]
        for hit in hits:
            if not os.path.lexists(hit):
                raise InputMissing(f"home_files names {name!r}, and {hit} is not there.")
            path = "" if hit == home else str(hit.relative_to(home))
            if path:
                yield path, hit
            if hit.is_dir():
                yield from _walk(home, path, hit)


def _walk(home: Path, top: str, folder: Path, inside: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """All names below. A link to a folder outside of `home` is entered, but not within itself."""
    try:
        names = sorted(x.name for x in folder.iterdir())
    except OSError as e:
        raise InputMissing(f"The folder {folder} can't be read ({e.strerror}): leave it out (home_exclude).") from None
    for name in names:
        path, source = f"{top}/{name}" if top else name, folder / name
        yield path, source
        if not source.is_dir() or (source.is_symlink() and not leads_out(home, source)):
            continue
        real = os.path.realpath(source)
        if real not in inside:
            yield from _walk(home, path, source, inside | {real})


def leads_out(home: Path, link: Path) -> bool:
    """Whether a link leads to something outside of the folder."""
    return not Path(os.path.realpath(link)).is_relative_to(os.path.realpath(home))


def _look(home: Path, path: str, source: Path) -> Found | None:
    if why := unstorable(path):
        raise InputMissing(f"The folder {home} holds {path!r}, a name that {why}: rename it, or leave it out (home_exclude).")
    try:
        facts = source.lstat()
        if stat.S_ISLNK(facts.st_mode):
            if not leads_out(home, source):
                target = os.readlink(source)  # noqa: PTH115 -- its text, whatever it is
                return Found(HomeEntry(path, LINK, 0, facts.st_mtime_ns, target=target), source)
            facts = source.stat()
    except OSError as e:
        if source.is_symlink():
            return None  # it leads nowhere
        raise InputMissing(f"{source} can't be read: {e.strerror}.") from None
    if stat.S_ISDIR(facts.st_mode):
        return _folder(path, source)
    if not stat.S_ISREG(facts.st_mode):
        return None
    if not os.access(source, os.R_OK):
        raise InputMissing(f"You may not read {source}: leave it out (home_exclude).")
    entry = HomeEntry(path, FILE, stat.S_IMODE(facts.st_mode) & 0o777, facts.st_mtime_ns, facts.st_size)
    return Found(entry, source, f"{facts.st_size}.{facts.st_mtime_ns}.{facts.st_ctime_ns}.{facts.st_ino}")


def _folder(path: str, source: Path) -> Found:
    facts = source.stat()
    return Found(HomeEntry(path, FOLDER, stat.S_IMODE(facts.st_mode) & 0o777, facts.st_mtime_ns), source)
