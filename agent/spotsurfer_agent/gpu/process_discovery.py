"""Which processes of a job have a GPU open, by /proc alone: no driver is asked, so that jobs without one cost nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.linux import procfs

DEVICES = "/dev/nvidia"
SERVER_OF_MANY = "nvidia-cuda-mps"  # as the kernel cuts it: MPS


@dataclass(frozen=True, slots=True)
class Frail:
    """A library whose threads end their process where they run while its GPU memory is out."""

    name: str
    held: bool  # with its threads held it was shown to survive on a real GPU: so it is saved; else it is refused


# Part of a mapped file's name -> what it is. JAX (0.11, driver 580.159.04) ended by signal 11 in three runs of three;
# held, it came through thirteen saves in five (docs/gpu.md).
FRAIL = {"/xla_cuda": Frail("JAX", held=True)}


def present() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def holders(pids: Iterable[int]) -> dict[int, str]:
    """Those that hold a device of NVIDIA's, and one such device of each."""
    found = {}
    for pid in pids:
        device = _held(pid)
        if device:
            found[pid] = device
    return found


def _held(pid: int) -> str:
    return next((name for _, name in procfs.descriptors(pid) if name.startswith(DEVICES)), "")


def frail_library(pid: int) -> Frail | None:
    """What a process has loaded whose threads end it while its GPU memory is out; None = nothing that is known."""
    with contextlib.suppress(OSError):
        maps = procfs.text(pid, "maps")
        return next((frail for mark, frail in FRAIL.items() if mark in maps), None)
    return None


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes, what they share counted for each."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found += procfs.resident_bytes(pid)
    return found


def shared_by_server() -> bool:
    """Whether this machine's GPUs are shared by NVIDIA's multi-process service, whose clients can't be saved."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().startswith(SERVER_OF_MANY):
                return True
    return False
