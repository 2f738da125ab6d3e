"""What was asked of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass

DISK_SPARE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Order:
    """What to measure. Sizes in bytes."""

    size: int
    dirty_bytes: int
    dumps: int

    @property
    def disk(self) -> int:
        """A disk with room for plain image files of the job."""
        return 2 * self.size + DISK_SPARE_BYTES
