"""What was asked of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DISK_SPARE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Order:
    """What to measure, and in which folder. Sizes in bytes."""

    size: int
    dirty_bytes: int
    dumps: int
    work: Path
    quick: bool = False  # one round of each scene, and huge pages only as this machine has them

    @property
    def rounds(self) -> int:
        """How often each scene is played."""
        return 1 if self.quick else 3

    @property
    def disk(self) -> int:
        """A disk with room for plain image files of the job."""
        return 2 * self.size + DISK_SPARE_BYTES
