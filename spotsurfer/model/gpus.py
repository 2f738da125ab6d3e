"""GPUs of a machine, of an offer, or of the machine where a checkpoint was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpus:
    """What is known of them. Texts that are empty and sizes of 0 are not known; `count` always is."""

    chip: str = ""  # as a catalogue names it ("h100") or the driver ("NVIDIA H100 80GB HBM3")
    count: int = 0
    memory_bytes: int = 0  # of each
    driver: str = ""  # "580.159.04"


NO_GPUS = Gpus()
