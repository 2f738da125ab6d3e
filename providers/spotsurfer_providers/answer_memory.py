"""Answers of a cloud that seldom change, so that they are not asked for each time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from spotsurfer.ports.clock import Clock

T = TypeVar("T")


class Memory:
    """Answers that stay valid for a while. `get` asks again when one has become too old."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[datetime, Any]] = {}

    def get(self, name: str, seconds: float, ask: Callable[[], T]) -> T:
        """The answer; an exception of `ask` is raised, and nothing is remembered."""
        now = self._clock.now()
        until, answer = self._kept.get(name, (now, None))
        if until <= now:
            answer = ask()
            self._kept[name] = (now + timedelta(seconds=seconds), answer)
        found: T = answer
        return found

    def put(self, name: str, seconds: float, answer: object) -> None:
        """Remember it for this long."""
        self._kept[name] = (self._clock.now() + timedelta(seconds=seconds), answer)
