"""Which processes of a job have a GPU open, from /proc only: no driver is asked, so jobs without a GPU pay nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer_wire.linux import procfs

DEVICES = "/dev/nvidia"
GRAPHICS = ("/libnvidia-glcore", "/libnvidia-eglcore")  # OpenGL, Vulkan and EGL load one of them
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


@dataclass(frozen=True, slots=True)
class Holding:
    """What a process holds of NVIDIA's devices."""

    descriptors: Mapping[int, str] = field(default_factory=dict)  # number -> device
    mappings: tuple[procfs.Mapping, ...] = ()
    draws: bool = False  # it has loaded NVIDIA's libraries for graphics

    @property
    def device(self) -> str:
        """One of the devices."""
        return next(iter(self.descriptors.values()), "") or next(m.name for m in self.mappings)

    def is_inherited(self, parents: Iterable[Holding]) -> bool:
        """Whether this is what a child of one of these processes inherited by fork, or a child of such a child.

        CUDA maps its devices at addresses that chance chose, so another program has none of them. A program that draws may
        have opened the devices itself.
        """
        theirs = {(m.start, m.name) for parent in parents for m in parent.mappings}
        return not self.draws and not theirs.isdisjoint((m.start, m.name) for m in self.mappings)


def holdings(pids: Iterable[int]) -> dict[int, Holding]:
    """The processes that hold an NVIDIA device, by a descriptor or in their memory."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            maps = procfs.text(pid, "maps")
            descriptors = {number: name for number, name in procfs.descriptors(pid) if name.startswith(DEVICES)}
            mappings = tuple(m for m in procfs.mappings(maps) if m.name.startswith(DEVICES)) if DEVICES in maps else ()
            if descriptors or mappings:
                found[pid] = Holding(descriptors, mappings, any(mark in maps for mark in GRAPHICS))
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
