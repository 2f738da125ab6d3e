"""The memory budget of the chunk pipeline: its limits, and a number of bytes that several threads share."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from spotsurfer_wire.linux.memory import free_bytes

# ---- A number of bytes that several threads share


class Room:
    """`take` waits until there is room. One piece that is larger than all of it may be alone in it."""

    def __init__(self, total: int) -> None:
        self._total, self._used = total, 0
        self._changed = threading.Condition()
        self._open = True

    def take(self, size: int) -> bool:
        """Wait for room and use it; False once the room is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open or self._used == 0 or self._used + size <= self._total)
            if self._open:
                self._used += size
            return self._open

    def give(self, size: int) -> None:
        """Give room back."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    @property
    def used(self) -> int:
        """Bytes in use now."""
        return self._used


# ---- What the chunk pipeline may use of a machine

MEMORY_BYTES_MIN = 64 << 20  # a few of the largest chunks on their way at once
ROOM_PART = 4  # of what is free; an image that is read may take half of it


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds. `compression`: "none", "lz4", "zstd", or "auto": lz4, and zstd while the store takes less than zstd gives."""

    memory_bytes: int = 512 << 20  # of data on its way, not counting who handed it in
    threads: int = 2  # that hash, compress and encrypt
    puts: int = 16  # requests in flight
    compression: str = "lz4"

    @classmethod
    def of_settings(cls, memory_bytes: int, threads: int, compression: str) -> Limits:
        """From an agent's configuration; 0 bytes = half of what is free now."""
        wanted = memory_bytes or unused_bytes() // 2
        return cls(max(MEMORY_BYTES_MIN, wanted), max(1, threads), compression=compression)

    @property
    def room_bytes(self) -> int:
        """Bytes that may be on their way now: the limit, but never so much that the job itself loses memory."""
        return max(MEMORY_BYTES_MIN, min(self.memory_bytes, free_bytes() // ROOM_PART))


USUAL = Limits()  # without a configuration
PAGER = Limits(memory_bytes=256 << 20, puts=8)  # of a restore behind a running job


def unused_bytes() -> int:
    """Memory that is available now without pushing anything out."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
