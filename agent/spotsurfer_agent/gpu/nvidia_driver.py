"""NVIDIA's driver by way of cuda-bindings; `python -m` with the path of a lock is the side-car with this machine's driver.

Only the side-car loads anything of CUDA, never the agent itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotsurfer_wire.gpu_facts import DRIVER_MIN, About, Card

from spotsurfer_agent.gpu.driver_port import OK, DriverUnfit, State

# Paths of the driver's library: the runtime's own loader does not search the machine's folders.
LIBRARIES = (
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
)
MANAGEMENT = "libnvidia-ml.so.1"
SYMBOLS = (
    "cuCheckpointProcessGetRestoreThreadId",
    "cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock",
    "cuCheckpointProcessGetState", "CUcheckpointLockArgs", "CUcheckpointRestoreArgs", "CUcheckpointGpuPair", "CUuuid",
)  # fmt: skip
DRIVER_REMEDY = f"use a machine image with driver {DRIVER_MIN} or later"
STATES = {0: State.RUNNING, 1: State.LOCKED, 2: State.CHECKPOINTED, 3: State.FAILED}


class Binding:
    """The driver of this machine, attached once, because that takes seconds on a machine with many GPUs."""

    def __init__(self) -> None:
        """Raises DriverUnfit."""
        self._cuda = _load()
        result = self._cuda.cuInit(0)[0]
        if _name(result) != OK:
            raise DriverUnfit(f"CUDA does not start here ({_name(result)}): look at nvidia-smi")
        self._management = management()
        about = self.about()
        version = int(about.driver.partition(".")[0] or DRIVER_MIN)
        if version < DRIVER_MIN:
            raise DriverUnfit(f"the driver {about.driver} can't move GPU memory to another GPU: {DRIVER_REMEDY}")

    def about(self) -> About:
        """The driver and its GPUs now."""
        version = self._cuda.cuDriverGetVersion()[1]
        count = self._cuda.cuDeviceGetCount()[1]
        driver = str(self._management.nvmlSystemGetDriverVersion()) if self._management is not None else ""
        return About(driver, int(version), tuple(self._card(i) for i in range(count)))

    def _card(self, index: int) -> Card:
        device = self._cuda.cuDeviceGet(index)[1]
        uuid = bytes(self._cuda.cuDeviceGetUuid(device)[1].bytes).hex()
        name = self._cuda.cuDeviceGetName(128, device)[1].split(b"\0")[0].decode()
        total = int(self._cuda.cuDeviceTotalMem(device)[1])
        free, mig, virtual = total, False, False
        if (ml := self._management) is not None:
            long = f"GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
            handle = ml.nvmlDeviceGetHandleByUUID(long)
            memory = ml.nvmlDeviceGetMemoryInfo(handle)
            total, free = int(memory.total), int(memory.free)
            mig = _asked(ml, lambda: ml.nvmlDeviceGetMigMode(handle)[0] == 1)
            virtual = _asked(ml, lambda: ml.nvmlDeviceGetVirtualizationMode(handle) == ml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
        return Card(uuid, name, total, free, mig, virtual)

    def state(self, pid: int) -> tuple[str, State | None]:
        """State of a process."""
        result, *rest = self._cuda.cuCheckpointProcessGetState(pid)
        return _name(result), STATES.get(int(rest[0])) if _name(result) == OK else None

    def restore_thread(self, pid: int) -> tuple[str, str]:
        """The thread of a process that executes the driver's calls."""
        result, *rest = self._cuda.cuCheckpointProcessGetRestoreThreadId(pid)
        return _name(result), str(int(rest[0])) if _name(result) == OK else ""

    def lock(self, pid: int, timeout_ms: int) -> str:
        """Stop a process's CUDA calls."""
        arguments = self._cuda.CUcheckpointLockArgs()
        arguments.timeoutMs = timeout_ms
        return _name(self._cuda.cuCheckpointProcessLock(pid, arguments)[0])

    def checkpoint(self, pid: int) -> str:
        """Move a process's GPU memory out."""
        return _name(self._cuda.cuCheckpointProcessCheckpoint(pid, None)[0])

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> str:
        """Move a process's GPU memory back."""
        arguments = None
        if pairs:
            arguments = self._cuda.CUcheckpointRestoreArgs()
            arguments.gpuPairs = [self._pair(*p) for p in pairs]
            arguments.gpuPairsCount = len(pairs)
        return _name(self._cuda.cuCheckpointProcessRestore(pid, arguments)[0])

    def unlock(self, pid: int) -> str:
        """Let a process's calls go on."""
        return _name(self._cuda.cuCheckpointProcessUnlock(pid, None)[0])

    def _pair(self, old: str, new: str) -> Any:
        pair = self._cuda.CUcheckpointGpuPair()
        pair.oldUuid, pair.newUuid = self._uuid(old), self._uuid(new)
        return pair

    def _uuid(self, digits: str) -> Any:
        uuid = self._cuda.CUuuid()
        ctypes.memmove(int(uuid.getPtr()), bytes.fromhex(digits), 16)  # the binding only allows reading the bytes
        return uuid


def _load() -> Any:
    if library := next((name for name in LIBRARIES if Path(name).exists()), None):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # later loads by its short name get the same one
    try:
        driver: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError as e:
        raise DriverUnfit(f"the runtime has no cuda-bindings ({e}): build it with them") from None
    if missing := [s for s in SYMBOLS if not hasattr(driver, s)]:
        raise DriverUnfit(f"this cuda-bindings lacks {', '.join(missing)}: 13.0 or later is needed, and 13.3.0 is faulty")
    try:
        driver.cuDriverGetVersion()
    except Exception as e:  # the binding's own classes, for a missing library
        raise DriverUnfit(f"this machine has no NVIDIA driver ({e}): use a machine image that has") from None
    return driver


def management() -> Any:
    """NVML, initialized; None if it is missing: then fewer facts are known, which is no obstacle."""
    for library in LIBRARIES:
        for path in glob.glob(str(Path(library).with_name(MANAGEMENT))):  # noqa: PTH207
            with contextlib.suppress(Exception):  # its absence, its own errors: all the same here
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                ml: Any = importlib.import_module("pynvml")
                ml.nvmlInit()
                return ml
    return None


def _asked(ml: Any, question: Any) -> bool:
    try:
        return bool(question())
    except ml.NVMLError:
        return False  # this GPU does not know of it


def _name(result: Any) -> str:
    name = str(getattr(result, "name", result))
    return name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")


if __name__ == "__main__":
    from spotsurfer_agent.gpu import sidecar

    sys.exit(sidecar.main(Binding, Path(sys.argv[1])))
