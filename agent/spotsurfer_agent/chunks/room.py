"""A number of bytes that several threads share."""

from __future__ import annotations

import threading


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
