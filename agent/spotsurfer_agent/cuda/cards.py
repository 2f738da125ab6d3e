"""GPUs as a driver describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
        """By all who use it."""
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
