"""What a user should hear of a job with GPUs before it runs: what saving it costs, and where it could not be saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GIB = 1 << 30
HOST_SHARE = 1.1  # of the GPU memory in use must be free in the machine while it is saved: docs/gpu.md
UNSAVED = ("none", "app")  # engines that move no GPU memory
# Sums of 256 MB over two H200s, measured by bench/gpu/programs/allreduce.py.
FAST_GB_S, SOCKETS_GB_S = 292, 3.5


def about_nccl(spec: Mapping[str, Any]) -> str:
    """What saving a job on several GPUs costs its NCCL; "" = nothing."""
    own = spec.get("environment", {}).get("SPOTSURFER_NCCL", "sockets")
    if spec.get("gpus", 0) < 2 or own != "sockets" or spec.get("engine") in UNSAVED:
        return ""
    return (
        f"So that {spec['gpus']} GPUs can be saved together, NCCL goes by sockets: sums over GPUs ran at {SOCKETS_GB_S:g} "
        f"instead of {FAST_GB_S} GB/s on two H200s. "
        'SPOTSURFER_NCCL = "own" in [environment] leaves NCCL as it is; then such a job can only save itself ([app]) '
        "or start over."
    )


def about_room(spec: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> str:
    """That the first choice has too little memory to save full GPUs; "" = it has enough."""
    if not choices or spec.get("engine") in UNSAVED or not (spec.get("gpus") or spec.get("gpu")):
        return ""
    first = choices[0]
    need = first["gpus"] * first["gpu_memory_bytes"] * HOST_SHARE
    if need <= first["memory_bytes"]:
        return ""
    return (
        f"{first['instance_type']} has {first['memory_bytes'] / GIB:.0f} GiB of memory and {need / HOST_SHARE / GIB:.0f} GiB "
        f"on its GPUs: a save needs free memory for all GPU memory in use and a tenth more. Ask for more in resources.memory."
    )
