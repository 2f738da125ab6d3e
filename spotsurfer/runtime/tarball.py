"""A tar.gz whose bytes depend on nothing but names, modes and contents.

It is made of two gzip members, which every gzip reads as one file: the base, compressed once and kept, and the agent's
own part, so that a change of the agent costs a second and not a new compression of everything.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

_BLOCK_BYTES = 512
_END_BYTES = 2 * _BLOCK_BYTES
_LEVEL = 6


def member(tree: Path, *, last: bool) -> bytes:
    """The folder as one gzip member of a tar; only the last member carries the tar's end mark."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(_entries(tree)):
            _add(tar, path, path.relative_to(tree).as_posix())
        length = tar.offset
    data = plain.getvalue()[:length] + (bytes(_END_BYTES) if last else b"")
    return gzip.compress(data, compresslevel=_LEVEL, mtime=0)


def _entries(tree: Path) -> list[Path]:
    return [Path(at) / name for at, folders, names in os.walk(tree) for name in (*folders, *names)]


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tar.gettarinfo(str(path), name)
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    executable = info.isdir() or bool(info.mode & 0o100)
    info.mode = 0o777 if info.issym() else 0o755 if executable else 0o644
    if info.islnk():  # two names of one file: write it twice, the order of the walk must not matter
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    if info.isreg():
        with path.open("rb") as f:
            tar.addfile(info, f)
    else:
        tar.addfile(info)
