"""Interval policies: when a job that runs should be saved next.

What is *safe* is not their business: the agent hastens saves where a notice's window asks for it (its `fit`), and saves
on each notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from spotsurfer.model.lives import Lives


@dataclass(frozen=True, slots=True)
class SaveView:
    """One job on one machine, just after a save (or its start). Durations in seconds.

    `lives`: of machines of this kind that were seen to run, lost or given back. `noticed`, `unnoticed`: losses of them
    with and without a notice long enough to save the job. `cap_seconds`: the age at which the cloud takes every
    machine, None = it does not.
    """

    age_seconds: float  # of the machine
    save_seconds: float  # the job stands still so long for a live save
    restart_seconds: float  # from a loss until the job runs again, apart from the work to be done again
    final_seconds: float  # a final save takes so long to be durable
    notice_seconds: float = 0.0  # what a notice leaves for it; 0 = none is given
    lives: Lives = field(default_factory=Lives)
    noticed: int = 0
    unnoticed: int = 0
    band: int | None = None  # of interruption, 0 (rare) to 4; None = unknown
    cap_seconds: float | None = None
    left_seconds: float | None = None  # of work; None = nobody knows
    asked_seconds: float | None = None  # the interval that user or operator named; the controller asks nobody then


class Interval(Protocol):
    """Pure by contract: the same view gives the same answer; no clock, no chance, no I/O."""

    def save_after(self, view: SaveView) -> float | None:
        """Seconds of work until the next live save; None = none before the job's end."""
        ...
