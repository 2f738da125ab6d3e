"""Whether a machine's GPUs are those that a job asks for, and those that its checkpoint needs. Pure.

An image with GPU memory goes on only on the same chip, the same number of GPUs and the same driver (docs/gpu.md). Agents
compare that with what the driver itself says; here it is compared before a machine is bought, with what is known then. What
is not known speaks against nothing.
"""

from __future__ import annotations

import re

from spotsurfer.model.gpus import Gpus
from spotsurfer.model.job import JobSpec

MAKERS = frozenset({"nvidia", "tesla"})  # parts of names that tell no chip from another
NVIDIA_DEVICES = "nvidia.com/gpu"
MEMORY_SHARE = 0.15  # by which sizes of one chip's memory may differ: 80 GB are 81 559 MiB to one and 79 GiB to another
GIB = 1 << 30


def asked(spec: JobSpec) -> int:
    """How many GPUs a job's machine must have at least."""
    named = bool(spec.gpu) or any(d.startswith(NVIDIA_DEVICES) for d in spec.devices)
    return max(spec.gpus, 1) if named else spec.gpus


def lacking(spec: JobSpec, there: Gpus) -> str | None:
    """Why a machine with these GPUs does not fit the job, or None."""
    count = asked(spec)
    if there.count < count:
        return f"it has {_counted(there)}, the job asks for {count}"
    if count and spec.gpu and not same_chip(Gpus(spec.gpu), there):
        return f"its GPU is {there.chip!r}, the job asks for {spec.gpu!r}"
    return None


def unlike(image: Gpus, there: Gpus) -> str | None:
    """Why a checkpoint made on these GPUs could not go on with those, or None."""
    if image.count != there.count:
        return f"it has {_counted(there)}, the checkpoint was made with {_counted(image)}"
    if not same_chip(image, there):
        return f"its GPU is {there.chip!r}, the checkpoint was made on {image.chip!r}"
    if image.driver and there.driver and image.driver != there.driver:
        return f"machines there have the GPU driver {there.driver!r}, the checkpoint was made with {image.driver!r}"
    return None


def same_chip(one: Gpus, other: Gpus) -> bool:
    """Whether two names may mean the same chip: one of them says all that the other says, and the memory is as large."""
    few, many = sorted((_words(one.chip), _words(other.chip)), key=len)
    if not few <= many:
        return False
    sizes = [size for g in (one, other) if (size := _memory(g))]
    return len(sizes) < 2 or abs(sizes[0] - sizes[1]) <= MEMORY_SHARE * max(sizes)


def _words(chip: str) -> frozenset[str]:
    return frozenset(w for w in re.split(r"[^a-z0-9]+", chip.lower()) if w and w not in MAKERS and not _gigabytes(w))


def _gigabytes(word: str) -> float:
    found = re.fullmatch(r"(\d{1,4})gb", word)
    return float(found[1]) if found else 0.0


def _memory(g: Gpus) -> float:
    """GB of each, as told or as the name says; 0 = not known."""
    named = next((x for w in re.split(r"[^a-z0-9]+", g.chip.lower()) if (x := _gigabytes(w))), 0.0)
    return named or g.memory_bytes / GIB


def _counted(g: Gpus) -> str:
    if not g.count:
        return "no GPU"
    return f"{g.count} GPU{'s' if g.count > 1 else ''}" + (f" ({g.chip})" if g.chip else "")
