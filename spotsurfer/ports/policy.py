"""Policies: what is worth it. What is *safe* is never their business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Offer


@dataclass(frozen=True, slots=True)
class PauseSeen:
    """What a move costs the job in standing still, in seconds."""

    final_save_seconds: float | None = (
        None  # forecast, after the live save that a planned move makes first; None = not measured
    )
    past_seconds: tuple[float, ...] = ()  # whole pauses of this job's earlier moves, oldest first

    @property
    def expected_seconds(self) -> float | None:
        """The best guess: the last pause, or what the save alone takes where that is more; None = nothing is known."""
        known = [*self.past_seconds[-1:], *([] if self.final_save_seconds is None else [self.final_save_seconds])]
        return max(known, default=None)


class Policy(Protocol):
    """Pure by contract: the same arguments give the same answer; no clock, no chance, no I/O."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """The offers this job should try, best first. `offers` fit its size and are not cooling down."""
        ...

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """A sentence why the job should move from `here` to `there`, or None. `pause`: what it would cost in standing still."""
        ...
