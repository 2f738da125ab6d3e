"""How fast the store takes bytes, and so how hard it is worth compressing them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from spotsurfer_agent.chunks.limits import Limits

ZSTD_BYTES_PER_SECOND = 250e6  # of one thread on data that hardly shrinks: below that the link is what is waited for
SETTLED_SECONDS = 0.5  # of busy time before the measurement is believed


class Pace:
    """Measures while at least one put is in flight; with other settings than "auto" it only repeats the setting."""

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._now = limits, now
        self._lock = threading.Lock()
        self._flying, self._since = 0, 0.0
        self._busy_seconds, self._bytes = 0.0, 0

    @contextlib.contextmanager
    def put(self, size: int) -> Iterator[None]:
        """Around one put of so many bytes; one that fails counts for its time only."""
        with self._lock:
            self._flying += 1
            if self._flying == 1:
                self._since = self._now()
        sent = 0
        try:
            yield
            sent = size
        finally:
            with self._lock:
                self._flying -= 1
                self._bytes += sent
                if self._flying == 0:
                    self._busy_seconds += self._now() - self._since

    @property
    def bytes_per_second(self) -> float | None:
        """What the store took so far; None while too little was seen."""
        with self._lock:
            busy = self._busy_seconds + (self._now() - self._since if self._flying else 0.0)
            return self._bytes / busy if busy >= SETTLED_SECONDS else None

    def how(self) -> str:
        """The compression to use for the next chunk."""
        if self._limits.compression != "auto":
            return self._limits.compression
        rate, full = self.bytes_per_second, self._flying >= self._limits.puts
        slow = rate is not None and full and rate < ZSTD_BYTES_PER_SECOND * self._limits.threads
        return "zstd" if slow else "lz4"
