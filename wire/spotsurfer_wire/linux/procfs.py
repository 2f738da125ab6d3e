"""Files below /proc: mountinfo, maps, status and descriptors of processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class MountLine:
    """One line of a mountinfo."""

    root: str
    point: str
    kind: str
    options: str


def mount_lines(text: str) -> list[MountLine]:
    """The lines of a mountinfo."""
    found = []
    for line in lines(text):
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        found.append(MountLine(_unescape(fields[3]), _unescape(fields[4]), rest[0], rest[-1]))
    return found


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


PAGE = os.sysconf("SC_PAGE_SIZE")


class Mapping(NamedTuple):
    """One stretch of a process's addresses."""

    start: int
    end: int  # behind its last byte
    mode: str  # four letters, like "rw-p": read, write, execute, private or shared
    inode: int  # 0 = no file's
    name: str  # "" = none


def text(pid: int | str, name: str) -> str:
    """A file below /proc/<pid>. Names in it are the job's: bytes that are no UTF-8 become lone surrogates. Raises OSError."""
    return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="surrogateescape")


def lines(text: str) -> list[str]:
    """The lines of a file of /proc. Only a line feed ends a line: the kernel escapes it in names, but not the other characters
    that end lines in a text.
    """
    return text.removesuffix("\n").split("\n") if text else []


def mappings(maps: str) -> Iterator[Mapping]:
    """The lines of a process's `maps`, by address."""
    for line in lines(maps):
        addresses, mode, _, _, inode, *name = line.split(None, 5)
        start, end = addresses.split("-")
        yield Mapping(int(start, 16), int(end, 16), mode, int(inode), "".join(name))


def status(pid: int) -> dict[str, str]:
    """The `status` of a process, line by line. Raises OSError if the process is gone."""
    told = Path(f"/proc/{pid}/status").read_bytes().decode(errors="replace")
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines(told))}


def takes(pid: int, number: int) -> bool:
    """Whether a process catches, blocks or ignores this signal, so does not end by it at once. Raises OSError if it is gone."""
    found = status(pid)
    masks = (found.get(name, "0") for name in ("SigCgt", "SigBlk", "SigIgn"))
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def runs_own(pid: int) -> bool:
    """Whether a process runs its own program; until it calls exec it runs its parent's. Raises OSError if it is gone."""
    one, other = (Path(f"/proc/{x}/exe").stat() for x in (pid, status(pid)["PPid"]))
    return (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino)


def children(pid: int) -> list[int]:
    """Children of a process's first thread: its own, then adopted orphans. Raises OSError if the process is gone."""
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def number_inside(pid: int) -> int:
    """A process's number in its innermost pid namespace, which CRIU's images use too. Raises OSError."""
    return int(status(pid).get("NSpid", str(pid)).split()[-1])


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, shared memory included. Raises OSError."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """Number of each open descriptor and the kernel's name for it; nothing if the process is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 -- names are wanted
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 -- many of them


def flags(pid: int, fd: int) -> int:
    """The flags that this descriptor was opened with; 0 if it is closed by now."""
    with contextlib.suppress(OSError):
        return int(next(x for x in lines(text(pid, f"fdinfo/{fd}")) if x.startswith("flags:")).split()[1], 8)
    return 0


def position(pid: int, fd: int) -> int:
    """The position of the descriptor's next read; 0 if it is closed by now."""
    with contextlib.suppress(OSError):
        return int(next(x for x in lines(text(pid, f"fdinfo/{fd}")) if x.startswith("pos:")).split()[1])
    return 0


def written_aside(pids: Iterable[int]) -> set[int]:
    """Inode numbers of files that these processes may write without a call each time: by mappings, or past the page cache."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            maps = mappings(text(pid, "maps"))
            found |= {m.inode for m in maps if m.inode and m.mode[1] == "w" and m.mode[3] == "s"}
        for fd, _ in descriptors(pid):
            with contextlib.suppress(OSError):
                if flags(pid, fd) & os.O_DIRECT:
                    found.add(os.stat(f"/proc/{pid}/fd/{fd}").st_ino)  # noqa: PTH116
    return found
