"""The memory budget: how much memory saves and restores may take, and a number of bytes that several threads share."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from spotsurfer_wire.linux.memory import free_bytes


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


def threads_here() -> int:
    """How many threads hash, compress and encrypt on this machine if nobody says it."""
    return max(2, min(8, len(os.sched_getaffinity(0)) // 2))


MEMORY_BYTES_MIN = 64 << 20  # a few of the largest chunks on their way at once
ROOM_PART = 4  # of what is free; an image that is read may take half of it
SENT_BYTES = 192 << 20  # of a save, on their way through compression and to the store, besides the image that it holds


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds. `compression`: "none", "lz4", "zstd", or "auto": lz4, and zstd while the store takes less than zstd gives."""

    memory_bytes: int = 512 << 20  # of data on its way, not counting who handed it in
    threads: int = 2  # that hash, compress and encrypt
    puts: int = 16  # requests in flight
    compression: str = "lz4"

    @classmethod
    def of_settings(cls, memory_bytes: int, threads: int, compression: str) -> Limits:
        """From an agent's configuration; 0 bytes = half of what is available now without pushing anything out.

        0 threads = half of the processors, 2 to 8.
        """
        wanted = memory_bytes or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        return cls(max(MEMORY_BYTES_MIN, wanted), threads or threads_here(), compression=compression)

    @property
    def room_bytes(self) -> int:
        """Bytes that a writer may have on their way now: the limit, but never so much that the job itself loses memory."""
        return max(MEMORY_BYTES_MIN, min(self.memory_bytes, free_bytes() // ROOM_PART))

    @property
    def kept_bytes(self) -> int:
        """What a reader keeps; it may take as much again for what it fetched ahead and nobody asked for yet."""
        return self.memory_bytes // 2


USUAL = Limits()  # without a configuration
PAGER = Limits(memory_bytes=256 << 20, puts=8)  # of a restore, whether the job runs meanwhile or not


def image_bytes_max(setting_bytes: int, spoken_for_bytes: int = 0) -> int:
    """What a save may hold of an image: the setting, else half of what is free; never more than three quarters of that.

    Memory that is spoken for, because the job itself will need it meanwhile, does not count as free.
    """
    free = max(free_bytes() - spoken_for_bytes, 0)
    return min(setting_bytes, free * 3 // 4) if setting_bytes else free // 2
