"""Where the kernel tells what a job uses: the files of its control group, v1 or v2, and of the machine.

Files stay open and are read by `pread`, for a second sample costs a microsecond then. What a kernel does not have is None.
On v1 the kernel counts neither waiting (PSI) nor disk by group in full, so both are the machine's there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent.cgplaces import UNIFIED, V1_MEMORY, V2_MEMORY
from spotsurfer_agent.netns import PEER

READ_BYTES = 1 << 14
SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own are
DISKS = re.compile(r"(sd[a-z]+|hd[a-z]+|x?vd[a-z]+|nvme\d+n\d+|mmcblk\d+)$")  # whole ones: partitions would count twice
WAITED = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. Bytes; `cpu_seconds` counts from the group's beginning."""

    cpu_seconds: float
    memory_bytes: int
    resident_bytes: int
    working_bytes: int
    cache_bytes: int
    swap_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """What only grows, read once a window. None = not told here."""

    stalled_seconds: tuple[float | None, float | None, float | None] = (None, None, None)  # as WAITED
    disk: tuple[int, int] | None = None  # bytes read, written
    network: tuple[int, int] | None = None  # bytes received, sent by the job
    processes: int | None = None


class Pinned:
    """A small file of the kernel that is read again and again."""

    def __init__(self, path: Path) -> None:
        self._path, self._fd = path, -1

    def read(self) -> str:
        """What it says now; "" where there is none, or no longer."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, READ_BYTES, 0).decode()
        except (OSError, UnicodeDecodeError):
            self.close()
            return ""

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Meters:
    """Of one job. `folders` are its control groups (`cgroup.JobCgroup`), `proc` the machine's /proc."""

    def __init__(self, folders: Mapping[str, str], proc: Path = Path("/proc")) -> None:
        self._v2 = UNIFIED in folders
        group = {name: Path(folder) for name, folder in folders.items()}
        nowhere = Path("/nowhere")
        own = group.get(UNIFIED, nowhere)
        memory = own if self._v2 else group.get("memory", nowhere)
        names = V2_MEMORY if self._v2 else V1_MEMORY
        self._cpu = Pinned(own / "cpu.stat" if self._v2 else group.get("cpuacct", nowhere) / "cpuacct.usage")
        self._used, self._stat = Pinned(memory / names.used), Pinned(memory / "memory.stat")
        self._swap = Pinned(memory / "memory.swap.current") if self._v2 else None
        self._waited = [Pinned(own / f"{x}.pressure" if self._v2 else proc / "pressure" / x) for x in WAITED]
        self._io = Pinned(own / "io.stat" if self._v2 else proc / "diskstats")
        self._net = Pinned(proc / "self" / "net" / "dev")
        self._procs = Pinned((own if self._v2 else group.get("cpuacct", nowhere)) / "cgroup.procs")
        self._names = names

    def sample(self) -> Sample | None:
        """Now; None where the group is gone, or can't be read."""
        cpu = _cpu_seconds(self._cpu.read(), v2=self._v2)
        used, stat = self._used.read(), _fields(self._stat.read())
        if cpu is None or not used or not stat:
            return None
        n, memory = self._names, _number(used)
        swap = _number(self._swap.read()) if self._swap is not None else stat.get("total_swap")
        idle, cache = stat.get(n.idle, 0), stat.get(n.idle, 0) + stat.get(n.active, 0)
        resident = stat.get(n.anonymous, 0) + stat.get(n.shared, 0)
        return Sample(cpu, memory or 0, resident, max((memory or 0) - idle, 0), cache, swap)

    def totals(self) -> Totals:
        """What grew so far."""
        stalled = tuple(_stalled(f.read()) for f in self._waited)
        disk = _io(self._io.read()) if self._v2 else _disks(self._io.read())
        procs = self._procs.read()
        assert len(stalled) == len(WAITED)
        return Totals(stalled, disk, _network(self._net.read()), procs.count("\n") if procs else None)  # type: ignore[arg-type]

    def close(self) -> None:
        """Let go of the files: a group that is to be removed is not kept alive by us."""
        files = (self._cpu, self._used, self._stat, self._swap, self._io, self._net, self._procs, *self._waited)
        for file in files:
            if file is not None:
                file.close()


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


def _fields(text: str) -> dict[str, int]:
    """Lines of a name and a number."""
    words = text.split()
    return {n: int(v) for n, v in zip(words[::2], words[1::2], strict=False) if v.isdigit()}


def _cpu_seconds(text: str, *, v2: bool) -> float | None:
    if v2:
        usec = _fields(text).get("usage_usec")
        return None if usec is None else usec / 1e6
    nsec = _number(text)
    return None if nsec is None else nsec / 1e9


def _stalled(text: str) -> float | None:
    """Seconds in which some of it waited: `some avg10=… total=<microseconds>`."""
    line = text.partition("\n")[0]
    total = line.rpartition("total=")[2]
    return int(total) / 1e6 if line.startswith("some ") and total.isdigit() else None


def _io(text: str) -> tuple[int, int] | None:
    """Sum over devices of `8:0 rbytes=… wbytes=… …`; layers of one disk may count twice."""
    if not text:
        return None
    said = [dict(x.split("=", 1) for x in line.split()[1:] if "=" in x) for line in text.splitlines()]
    return sum(int(x.get("rbytes", 0)) for x in said), sum(int(x.get("wbytes", 0)) for x in said)


def _disks(text: str) -> tuple[int, int] | None:
    """Sum over whole disks of /proc/diskstats."""
    rows = [row for line in text.splitlines() if len(row := line.split()) >= 10 and DISKS.match(row[2])]
    if not rows:
        return None
    return sum(int(r[5]) for r in rows) * SECTOR_BYTES, sum(int(r[9]) for r in rows) * SECTOR_BYTES


def _network(text: str) -> tuple[int, int] | None:
    """Of the job: what its machine's end of the link sent, it received."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == PEER and len(numbers := rest.split()) >= 9:
            return int(numbers[8]), int(numbers[0])
    return None
