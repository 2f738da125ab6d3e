"""The controller suspends a job by itself, with a reason, and lets it go on again. Pure.

`suspended` is the wish; what follows is what follows a user's own: the final save, the release of the machine, HELD. `held_by`
says who wanted it. A user's `suspend` takes such a job over, a user's `resume` ends any suspension. A job
is woken by its user, or by a connection to its front.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotsurfer.core.case import Case
from spotsurfer.model.actions import SetWish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, Wish
from spotsurfer.model.snapshot import JobSeen


def suspended(seen: JobSeen, by: HeldBy, why: str) -> SetWish:
    """Save the job, give its machine back, and keep it until `by` or its user lets it go on."""
    return SetWish(seen.job.id, Wish.HOLD, why, held_by=by)


def can_be(holder: Case) -> bool:
    """The job runs and could be saved just now: nothing is lost with its machine."""
    agent = holder.agent
    if holder.attempt.state is not A.RUNNING or agent is None or holder.unsaved or holder.noticed or agent.frozen:
        return False
    return bool(agent.protection) and agent.error_kind not in ("save", "store")


def coming_back(seen: JobSeen, own: Sequence[Case]) -> SetWish | None:
    """A job that the controller wanted to suspend and that could not be saved runs on; None for any other."""
    job = seen.job
    if job.held_by is HeldBy.USER or (failed := failed_drain(own)) is None:
        return None
    return SetWish(job.id, Wish.RUN, f"it could not be suspended ({job.reason}), and runs on: {failed}")


def failed_drain(own: Sequence[Case]) -> str | None:
    """What the holder says of the final save that was asked for and failed; None where none did."""
    return next((c.drain_error for c in own if c.drain_error is not None), None)
