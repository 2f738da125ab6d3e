"""What the kernel says of the machine's memory: huge pages in use, and how much of what is free could become some."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

HUGE_ORDER = 9  # of a block of 2 MiB


@dataclass(frozen=True, slots=True)
class Pages:
    """Bytes. `free_huge`: free memory in blocks that are large enough for a huge page."""

    anonymous: int
    huge: int
    free: int
    free_huge: int

    def since(self, before: Pages) -> Pages:
        """What came; of free memory, what there was before."""
        return Pages(self.anonymous - before.anonymous, self.huge - before.huge, before.free, before.free_huge)

    def told(self, moved: int) -> dict[str, Any]:
        """Shares for a row: of what came, huge pages; of what was needed, free blocks of their size."""
        came = max(self.anonymous, 1)
        return {"huge_share": max(self.huge, 0) / came, "free_huge_share": self.free_huge / max(moved, 1), "came_bytes": came}


def pages(meminfo: Path = Path("/proc/meminfo"), buddyinfo: Path = Path("/proc/buddyinfo")) -> Pages:
    """Now."""
    rows = {x.split(":")[0]: int(x.split()[1]) << 10 for x in meminfo.read_text().splitlines() if x.endswith(" kB")}
    blocks = [[int(n) for n in x.split()[4:]] for x in buddyinfo.read_text().splitlines()]
    free_huge = sum(count << order for row in blocks for order, count in enumerate(row) if order >= HUGE_ORDER) * 4096
    return Pages(rows.get("AnonPages", 0), rows.get("AnonHugePages", 0), rows.get("MemFree", 0), free_huge)
