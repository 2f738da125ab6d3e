"""Memory of the agent's processes, as the kernel counts it: by process, and by what is mapped.

RSS counts a page of a library for each process that maps it; PSS shares it out among them, so only PSS may be added up.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LOOK_SECONDS = 0.05
MODULES = {"spotsurfer_agent": "agent", "spotsurfer_agent.shim": "shim", "spotsurfer_agent.restore.pager": "pager"}
AGENT, RESPAWNER = "agent", "respawner"
# start-end, permissions, offset, device, inode, name: proc_pid_smaps(5)
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)")
_GUARD_BYTES_MAX = 64 << 10
_SHARED = re.compile(r"\.so\b")


@dataclass(slots=True)
class Memory:
    """Bytes. `groups`: of RSS, by kind of mapping; `buffers` among them are blocks that a save holds an image in."""

    rss: int = 0
    pss: int = 0
    anonymous: int = 0
    groups: Counter[str] = field(default_factory=Counter)

    @property
    def own(self) -> int:
        """RSS without the buffers of a save."""
        return self.rss - self.groups["buffers"]

    def plus(self, other: Memory) -> None:
        """Add another process."""
        self.rss, self.pss, self.anonymous = self.rss + other.rss, self.pss + other.pss, self.anonymous + other.anonymous
        self.groups.update(other.groups)


def of_process(pid: int) -> Memory:
    """One process now. Raises OSError where it is gone."""
    found, group, guarded_from = Memory(), "", 0
    pending = 0  # RSS of a mapping whose flags are still to come
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if mapping := _MAPPING.match(line):
            begin, end = int(mapping[1], 16), int(mapping[2], 16)
            group = _group(mapping[4], behind_guard=begin == guarded_from)
            guarded_from = end if mapping[3].startswith("---") and end - begin <= _GUARD_BYTES_MAX else 0
            continue
        name, _, rest = line.partition(":")
        if name == "VmFlags":
            found.groups["buffers" if group == "anonymous" and "hg" in rest.split() else group] += pending
        elif name in ("Rss", "Pss", "Anonymous"):
            size = int(rest.split()[0]) * 1024
            if name == "Rss":
                found.rss, pending = found.rss + size, size
            elif name == "Pss":
                found.pss += size
            else:
                found.anonymous += size
    return found


def _group(name: str, *, behind_guard: bool) -> str:
    if name == "[heap]":
        return "heap"
    if name == "[stack]" or (not name and behind_guard):
        return "stacks"
    if not name or name.startswith("["):
        return "anonymous"
    return "libraries" if _SHARED.search(name) else "files"


def agents() -> dict[str, Memory]:
    """All processes of the agent on this machine, by what they are; processes of the job are none of them."""
    found: dict[str, Memory] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError):  # one that just ends
                if (kind := _kind(folder)) is not None:
                    found.setdefault(kind, Memory()).plus(of_process(int(folder.name)))
    return found


def _kind(folder: Path) -> str | None:
    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    status = (folder / "status").read_text()
    inside = re.search(r"^NSpid:\s+\d+\s+\d+", status, re.MULTILINE) is not None  # a pid namespace below ours: the job
    if inside or module not in MODULES:
        return None
    return RESPAWNER if "--respawn" in words else MODULES[module]


@dataclass(slots=True)
class Peak:
    """The most of anything, each by itself: they need not be of one instant."""

    rss: Counter[str] = field(default_factory=Counter)
    own: Counter[str] = field(default_factory=Counter)
    buffers: Counter[str] = field(default_factory=Counter)
    pss: int = 0
    pss_own: int = 0

    def note(self, now: dict[str, Memory]) -> None:
        """One look."""
        for kind, memory in now.items():
            self.rss[kind] = max(self.rss[kind], memory.rss)
            self.own[kind] = max(self.own[kind], memory.own)
            self.buffers[kind] = max(self.buffers[kind], memory.groups["buffers"])
        total = sum(m.pss for m in now.values())
        self.pss = max(self.pss, total)
        self.pss_own = max(self.pss_own, total - sum(m.groups["buffers"] for m in now.values()))


@contextlib.contextmanager
def watched() -> Iterator[Peak]:
    """The peak of a block, looked at twenty times a second."""
    peak, over = Peak(), threading.Event()

    def look() -> None:
        while not over.is_set():
            peak.note(agents())
            over.wait(LOOK_SECONDS)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
