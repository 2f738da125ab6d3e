"""What the kernel tells of one process in /proc; the layouts are those of proc(5)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")


class Mapping(NamedTuple):
    """One stretch of a process's addresses."""

    start: int
    end: int  # behind its last byte
    mode: str  # four letters, like "rw-p": read, write, execute, private or shared
    inode: int  # 0 = no file's
    name: str  # "" = none


def mappings(maps: str) -> Iterator[Mapping]:
    """The lines of a process's `maps`, by address."""
    for line in maps.splitlines():
        addresses, mode, _, _, inode, *name = line.split(None, 5)
        start, end = addresses.split("-")
        yield Mapping(int(start, 16), int(end, 16), mode, int(inode), "".join(name))


def status(pid: int) -> dict[str, str]:
    """Its `status`, line by line. Raises OSError where it is gone."""
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def number_inside(pid: int) -> int:
    """Its number in the innermost pid namespace that it belongs to, which CRIU's images use too. Raises OSError."""
    return int(status(pid).get("NSpid", str(pid)).split()[-1])


def resident_bytes(pid: int) -> int:
    """Its memory that is there, what it shares included. Raises OSError."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """Number of each open descriptor and what the kernel calls it; nothing where the process is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 -- names are wanted
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 -- many of them
