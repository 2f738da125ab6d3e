"""Which files a rule's job takes along, and how its results land in the working directory."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from snakemake_executor_plugin_spotsurfer.rule_request import Unfit

_UMASK = os.umask(0o077)  # asked once: it can't be asked without being changed, and threads land files
os.umask(_UMASK)


def below(path: str, folder: Path, what: str) -> str:
    """The path relative to `folder`. Raises Unfit for one outside of it."""
    plain = os.path.normpath(folder / path)
    if not Path(plain).is_relative_to(folder) or plain == str(folder):
        remedy = "machines see the working directory alone: copy it there, or use a storage plugin"
        raise Unfit(f"{what} {path} lies outside of {folder}: {remedy}")
    return str(PurePosixPath(plain).relative_to(folder))


def to_send(paths: Iterable[str], folder: Path) -> dict[str, Path]:
    """The files behind the paths, folders with all that is in them, by their names below `folder`. Raises Unfit."""
    found: dict[str, Path] = {}
    for path in paths:
        name = below(path, folder, "input")
        top = folder / name
        if top.is_dir():
            found |= {str(x.relative_to(folder)): x for x in sorted(_files(top))}
        elif top.is_file():
            found[name] = top
        else:
            raise Unfit(f"input {path} is not there")
    return found


def _files(top: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for root, folders, names in os.walk(top, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:  # a link that leads back up
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(root, name) for name in names if Path(root, name).is_file())


def as_pattern(path: str) -> str:
    """A path as the pattern that matches it alone."""
    return re.sub(r"[\[*?]", r"[\g<0>]", path)


def land(pieces: Iterator[bytes], name: str, folder: Path) -> None:
    """Write a result under its name below `folder`: whole or not at all, and never through a link out of it. Raises Unfit."""
    target = folder / below(name, folder, "output")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise Unfit(f"output {name} would land outside of {folder}: a folder on its way is a link")
    handle, partial = tempfile.mkstemp(prefix=".spotsurfer-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            for piece in pieces:
                out.write(piece)
        Path(partial).chmod(0o666 & ~_UMASK)
        Path(partial).replace(target)
    except BaseException:
        Path(partial).unlink()
        raise
