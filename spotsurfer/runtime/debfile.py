"""Unpacks a .deb: an ar archive whose data member is a tar. Nothing is run, nothing of the system is touched."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from spotsurfer.model.errors import RuntimeBuildError

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60


def unpack(deb: Path, prefix: Path) -> list[str]:
    """Lays the package's files below `prefix`; returns their paths relative to it."""
    with tarfile.open(fileobj=io.BytesIO(_data_member(deb)), mode="r:*") as tar:
        members = [m for m in tar.getmembers() if m.isdir() or m.isfile() or m.issym() or m.islnk()]
        names = [_inside(m.name, deb) for m in members if not m.isdir()]
        tar.extractall(prefix, members=members)  # noqa: S202 - signed packages, and names are checked above
    return names


def _inside(name: str, deb: Path) -> str:
    parts = Path(name).parts
    if name.startswith("/") or ".." in parts:
        raise RuntimeBuildError(f"{deb.name} holds the path {name}, which leaves its folder: do not use this mirror")
    return "/".join(p for p in parts if p != ".")


def _data_member(deb: Path) -> bytes:
    data = deb.read_bytes()
    if not data.startswith(_MAGIC):
        raise RuntimeBuildError(f"{deb} is not a Debian package: remove it and build again")
    at = len(_MAGIC)
    while at + _HEADER_BYTES <= len(data):
        header = data[at : at + _HEADER_BYTES]
        name, length = header[:16].decode().strip(), int(header[48:58])
        at += _HEADER_BYTES
        if name.startswith("data.tar"):
            return data[at : at + length]
        at += length + length % 2  # members begin at even offsets
    raise RuntimeBuildError(f"{deb} has no data: remove it and build again")
