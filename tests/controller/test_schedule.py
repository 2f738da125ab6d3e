"""When the controller looks again: at once after a step, soon while somebody waits, and not in a circle where nothing moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from spotsurfer.controller.schedule import AGAIN_SECONDS, Repeated, Schedule
from spotsurfer.model.actions import Action, Decision, Sweep
from spotsurfer.model.errors import Superseded
from spotsurfer.model.job import InstanceId

NEVER = 60.0  # between two ticks: each further look of these tests was asked for by the one before
SOME: tuple[Action, ...] = (Sweep(InstanceId("i-1"), "virtual", "it belongs to nobody"),)


class Looks:
    """Answers ticks with what it was given, then with nothing to do."""

    def __init__(self, *decisions: Decision) -> None:
        self._left = list(decisions)
        self.at: list[float] = []
        self.over = threading.Event()

    def tick(self) -> Decision:
        self.at.append(time.monotonic())
        if not self._left:
            self.over.set()
            return Decision()
        return self._left.pop(0)

    def gaps(self) -> Iterator[float]:
        assert self.over.wait(NEVER / 2), "nobody looked again"
        return (b - a for a, b in zip(self.at, self.at[1:], strict=False))


def looked(*decisions: Decision, hurry: float = 20.0) -> list[float]:
    """Seconds between looks."""
    looks = Looks(*decisions)
    schedule = Schedule(looks.tick, (NEVER, hurry), lambda _: None)
    schedule.start()
    try:
        return list(looks.gaps())
    finally:
        schedule.stop()


def test_after_a_step_the_next_one_is_looked_for_at_once() -> None:
    moved = Decision(SOME, advanced=True)
    first, second = looked(moved, moved)
    assert first + second < 2 * AGAIN_SECONDS, "it waited as if nothing had moved"


@pytest.mark.parametrize("decision", [Decision(SOME), Decision(SOME, hurry=True)])
def test_what_moved_nothing_is_not_repeated_without_a_rest(decision: Decision) -> None:
    (gap,) = looked(decision)
    assert gap > 0.8 * AGAIN_SECONDS


def test_background_work_is_repeated_after_a_failure_and_ends_with_the_lead() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            raise ValueError("no luck")
        if len(calls) == 4:
            raise Superseded("another one leads")

    repeated = Repeated("test", work, 0.01, "keeper.failed", at_once=True)
    repeated.start()
    repeated._thread.join(NEVER / 2)
    assert calls == [0, 1, 2, 3]
    repeated.stop()
