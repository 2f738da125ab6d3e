"""How much memory this process could still get: what the machine has, and what its control groups allow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from spotsurfer_agent import cgplaces, procfs

_HIERARCHIES = (cgplaces.V2_MEMORY, cgplaces.V1_MEMORY)
_SCORE = Path("/proc/self/oom_score_adj")
LEAST_PRECIOUS = "1000"  # see proc(5)


def free_bytes() -> int:
    """Bytes that could still be used without anything being killed for it."""
    return min([_machine("MemAvailable:"), *(_left(folder) for folder in _own_folders())])


def lacking(needed_bytes: int) -> str:
    """That there is less memory than this, as a sentence; "" = there is enough."""
    free = free_bytes()
    if free >= needed_bytes:
        return ""
    return f"the machine has too little memory: {needed_bytes >> 20} MiB are needed, {free >> 20} MiB are free"


def whole_bytes() -> int:
    """Memory of this machine, or as much of it as the control groups of this process allow."""
    limits = [n for folder in _own_folders() for h in _HIERARCHIES if (n := _number(folder / h.limit)) is not None]
    return min([_machine("MemTotal:"), *limits])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # another hierarchy, or "max"
        return None


@contextlib.contextmanager
def first_to_go() -> Iterator[None]:
    """If the machine runs out of memory meanwhile, this process is killed and not the job: a save can be made again."""
    before = _SCORE.read_text()
    _SCORE.write_text(LEAST_PRECIOUS)
    try:
        yield
    finally:
        _SCORE.write_text(before)


def _machine(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def _own_folders() -> Iterator[Path]:
    """The control groups of this process that may limit memory, innermost first."""
    found = cgplaces.places(Path("/proc/self/cgroup").read_text(), procfs.text("self", "mountinfo"))
    for name in ("memory", cgplaces.UNIFIED):
        if name in found:
            folder, top = found[name]
            yield folder
            yield from (p for p in folder.parents if p.is_relative_to(top))


def _left(folder: Path) -> int:
    for files in _HIERARCHIES:
        try:
            allowed, used = int((folder / files.limit).read_text()), int((folder / files.used).read_text())
            return max(0, allowed - used + files.page_cache(folder))
        except (OSError, ValueError):  # another hierarchy, or "max"
            continue
    return 1 << 62
