"""A lock that many may hold together, or one alone. Who wants to be alone goes first, so that nobody waits for ever."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """Not to be taken twice by one thread."""

    def __init__(self) -> None:
        self._change = threading.Condition(threading.Lock())
        self._together = self._wanting = 0
        self._alone = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """With others who are here together, while nobody is alone."""
        with self._change:
            while self._alone or self._wanting:
                self._change.wait()
            self._together += 1
        try:
            yield
        finally:
            with self._change:
                self._together -= 1
                if self._wanting and not self._together:
                    self._change.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """With nobody else."""
        with self._change:
            self._wanting += 1
            while self._alone or self._together:
                self._change.wait()
            self._wanting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._change:
                self._alone = False
                self._change.notify_all()
