"""Memory: how much is free here, and how much of it malloc keeps."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

from spotsurfer_wire.linux import cgroups, procfs

# ---- What malloc keeps of this process's memory

_libc = ctypes.CDLL(None, use_errno=True)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_M_ARENA_MAX = -8
_BUFFER_BYTES = 32 << 20  # the most that glibc takes
_IDLE_BYTES = 256 << 20
_USUAL_BYTES = 128 << 10  # glibc's own value of both


def share_heap() -> None:
    """Threads that begin from now on share one heap. A thread's own heap never gives back the free memory at its end, and a
    save or two would leave hundreds of megabytes there.
    """
    option = getattr(_libc, "mallopt", None)
    if option is not None:
        option(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(1))


def reuse_memory() -> None:
    """Reuse buffers of some megabytes instead of giving them back each time: the first touch of every page costs more than
    the work on it. `trim_memory` gives the memory back. See mallopt(3); without glibc this does nothing.
    """
    share_heap()
    _keep_free(_BUFFER_BYTES, _IDLE_BYTES)


def return_memory() -> None:
    """Give every buffer of some hundred kilobytes back to the machine when it is freed. Otherwise the C library keeps as much
    as was ever in use. For processes that live long and move much data now and then.
    """
    share_heap()
    _keep_free(_USUAL_BYTES, _USUAL_BYTES)


def trim_memory() -> None:
    """Give memory that this process does not use any more back to the machine, if its C library can.

    This ends `reuse_memory`: large buffers are given back when they are freed again. It takes some milliseconds after a save of
    gigabytes.
    """
    _keep_free(_USUAL_BYTES, _USUAL_BYTES)
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _keep_free(mapped_from: int, idle: int) -> None:
    """Buffers of so many bytes get a mapping of their own, and so much may lie free at the end of the heap."""
    option = getattr(_libc, "mallopt", None)
    if option is not None:
        option(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(mapped_from))
        option(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(idle))


# ---- How much memory this process could still get: what the machine has, and what its control groups allow

_HIERARCHIES = (cgroups.V2_MEMORY, cgroups.V1_MEMORY)
_SCORE = Path("/proc/self/oom_score_adj")
PART = "memory"  # file in the folder of an agent that shares its machine: bytes for it and its job
LEAST_PRECIOUS = "1000"  # see proc(5)


def free_bytes() -> int:
    """Bytes that this process could still use without any process being killed for it."""
    return min([_machine("MemAvailable:"), *(_left(folder) for folder in _own_folders())])


def lacking(needed_bytes: int) -> str:
    """A sentence that less memory is free than this; "" = enough is free."""
    free = free_bytes()
    if free >= needed_bytes:
        return ""
    return f"the machine has too little memory: {needed_bytes >> 20} MiB are needed, {free >> 20} MiB are free"


def whole_bytes() -> int:
    """Memory of this machine, or as much of it as the control groups of this process allow."""
    limits = [n for folder in _own_folders() for h in _HIERARCHIES if (n := _number(folder / h.limit)) is not None]
    return min([_machine("MemTotal:"), *limits])


def part_bytes(folder: Path) -> int | None:
    """The part of the machine's memory that is for the agent with this folder, and its job; None = all of it."""
    return _number(folder / PART)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # another hierarchy, or "max"
        return None


@contextlib.contextmanager
def first_to_go() -> Iterator[None]:
    """If the machine runs out of memory, the kernel kills this process and not the job: a save can be repeated."""
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
    found = cgroups.places(Path("/proc/self/cgroup").read_text(), procfs.text("self", "mountinfo"))
    for name in ("memory", cgroups.UNIFIED):
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
