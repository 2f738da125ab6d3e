"""Which processes of a job have a GPU open, from /proc only: no driver is asked, so jobs without a GPU pay nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import procfs

DEVICES = "/dev/nvidia"
SERVER_OF_MANY = "nvidia-cuda-mps"  # of MPS, as the kernel truncates it


@dataclass(frozen=True, slots=True)
class Frail:
    """A library that crashes its process if its threads run while the GPU memory is out."""

    name: str
    held: bool  # it survived on a real GPU with its threads held, so it is saved; else it is refused


# Part of a mapped file's name -> the library. JAX (0.11, driver 580.159.04) ended by signal 11 in three runs of three;
# with its threads held, it survived thirteen saves in five runs (docs/gpu.md).
FRAIL = {"/xla_cuda": Frail("JAX", held=True)}


def present() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def holders(pids: Iterable[int]) -> dict[int, str]:
    """Processes that hold an NVIDIA device, with one such device each."""
    found = {}
    for pid in pids:
        if device := next((name for _, name in procfs.descriptors(pid) if name.startswith(DEVICES)), ""):
            found[pid] = device
    return found


def frail_library(pid: int) -> Frail | None:
    """The frail library that a process has loaded; None = no known one."""
    with contextlib.suppress(OSError):
        maps = procfs.text(pid, "maps")
        return next((frail for mark, frail in FRAIL.items() if mark in maps), None)
    return None


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes; shared memory counts for each."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found += procfs.resident_bytes(pid)
    return found


def shared_by_server() -> bool:
    """Whether NVIDIA's multi-process service shares this machine's GPUs: its clients can't be saved."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().startswith(SERVER_OF_MANY):
                return True
    return False
