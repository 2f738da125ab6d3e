"""Policies: what is worth it. What is *safe* is never their business."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.market import Offer


class Policy(Protocol):
    """Pure by contract: the same arguments give the same answer; no clock, no chance, no I/O."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """The offers this job should try, best first. `offers` fit its size and are not cooling down."""
        ...

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime) -> str | None:
        """A sentence why the job should move from `here` to `there`, or None."""
        ...
