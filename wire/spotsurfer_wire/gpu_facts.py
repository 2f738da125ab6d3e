"""GPUs as a driver describes them and as an image's facts record them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRIVER_MIN = 580  # the first driver that saves what we need


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU, in CUDA's order. Memory in bytes."""

    uuid: str  # 32 hexadecimal digits
    name: str
    total_bytes: int
    free_bytes: int
    mig: bool = False  # cut into instances
    virtual: bool = False  # a vGPU

    @property
    def used_bytes(self) -> int:
        """Memory in use, by all processes."""
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class About:
    """The driver and its GPUs. Facts that are not known are empty and speak against nothing."""

    driver: str = ""  # "580.159.04"
    cuda: int = 0  # 13000
    cards: tuple[Card, ...] = field(default_factory=tuple)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> About:
        """What `dataclasses.asdict` made, after JSON."""
        return About(raw["driver"], raw["cuda"], tuple(Card(**c) for c in raw["cards"]))


# ---- GPUs in the facts of an image: which are compared, which are for people, and how the GPUs then map to the GPUs now
#
# Pure, except for `driver_here`.

CHIP, COUNT, DRIVER = "GPU", "GPU count", "GPU driver"  # compared: see `restore.compatibility.RULES`
UUIDS, MEMORY, PROCESSES = "GPU uuids", "GPU memory in use", "GPU processes"
THREADS = "GPU restore threads"  # process:thread, of an image whose other threads were held
NONE = "none"


def of(about: About) -> dict[str, str]:
    """Facts of a machine."""
    if not about.cards:
        return {CHIP: NONE, COUNT: "0", DRIVER: NONE}
    chips = sorted({card.name for card in about.cards})
    return {CHIP: ", ".join(chips), COUNT: str(len(about.cards)), DRIVER: about.driver or "unknown"}


def of_job(about: About, processes: Iterable[int]) -> dict[str, str]:
    """Facts of a job while it still uses its GPUs; `processes` by their numbers inside."""
    return {
        UUIDS: " ".join(card.uuid for card in about.cards),
        MEMORY: " ".join(str(card.used_bytes) for card in about.cards),
        PROCESSES: " ".join(map(str, sorted(processes))),
    }


@functools.cache
def driver_here(said: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Version of this machine's GPU driver as its kernel module reports it; empty if it has none. Asks no driver."""
    try:
        first = said.read_text(errors="replace").partition("\n")[0]
    except OSError:
        return ""
    found = re.search(r"\b\d{3,4}\.\d+(?:\.\d+)?\b", first)
    return found[0] if found else ""


def processes_of(facts: Mapping[str, str]) -> set[int]:
    """Numbers, inside, of the processes that have GPU memory in the image."""
    return {int(x) for x in facts.get(PROCESSES, "").split()}


def of_threads(spared: Mapping[int, int]) -> dict[str, str]:
    """Restore threads by process, both by their numbers inside."""
    return {THREADS: " ".join(f"{pid}:{thread}" for pid, thread in sorted(spared.items()))} if spared else {}


def threads_of(facts: Mapping[str, str]) -> dict[int, int]:
    """The reverse of `of_threads`; empty = no thread was held."""
    pairs = (x.partition(":") for x in facts.get(THREADS, "").split())
    return {int(pid): int(thread) for pid, _, thread in pairs}


def memory_of(facts: Mapping[str, str]) -> list[int]:
    """Bytes that were used of each GPU, in order."""
    return [int(x) for x in facts.get(MEMORY, "").split()]


def pairs(facts: Mapping[str, str], here: About) -> list[tuple[str, str]]:
    """All GPUs then and now, in order; empty if they are the same ones.

    The driver wants every GPU that the processes could see, also those that stay (NVIDIA/cuda-python#1983).
    """
    then, now = facts.get(UUIDS, "").split(), [card.uuid for card in here.cards]
    return [] if set(then) == set(now) else list(zip(then, now, strict=False))


def against(about: About, strange: Mapping[str, str], frail: Mapping[str, str], *, shared: bool) -> list[str]:
    """Why the driver can't save a job here, one sentence for each reason.

    `strange`: process -> a device that it holds without CUDA; `frail`: process -> a library that does not survive it.
    """
    found = [
        f"{process} holds {device} and has no CUDA of its own that could be saved (it draws with the GPU, opened it without "
        "CUDA, or is the child of a CUDA process that has ended): end that process before the save"
        for process, device in strange.items()
    ]
    found += [
        f"{process} uses {library}, and that library's threads would end it while its GPU memory is out: let the program save "
        "itself ([app])"
        for process, library in frail.items()
    ]
    if shared:
        found.append("this machine's GPU is shared by the multi-process service (MPS), and its clients can't be saved: stop it")
    for number, card in enumerate(about.cards):
        if card.mig:
            found.append(f"GPU {number} ({card.name}) is cut into instances (MIG), which can't be saved: switch that off")
        if card.virtual:
            found.append(f"GPU {number} ({card.name}) is a virtual one, which can't be saved: use a machine with a whole GPU")
    return found
