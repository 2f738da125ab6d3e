"""What a job is doing, in one word for people: derived from its attempts, never stored."""

from __future__ import annotations

from collections.abc import Sequence

from spotsurfer.core.case import holder_of
from spotsurfer.model.job import ENDED, WAITS, Attempt, AttemptState, HeldBy, Job, JobState, Wish

OF_HOLDER = {
    AttemptState.RESTORING: "restoring",
    AttemptState.RUNNING: "running",
    AttemptState.DRAINING: "saving",
}
OF_WAITER = {
    AttemptState.PLANNED: "ordering",
    AttemptState.REQUESTED: "ordering",
    AttemptState.BOOTING: "booting",
    AttemptState.READY: "waiting",
}
PHASES = tuple(
    dict.fromkeys(
        [
            *("queued", *OF_WAITER.values(), "starting", *OF_HOLDER.values(), "moving"),
            *("suspending", "suspended", "held", *sorted(map(str, ENDED))),
        ]
    )
)  # all that `phase` says


def phase(job: Job, attempts: Sequence[Attempt]) -> str:
    """One word: queued, ordering, booting, waiting, starting, restoring, running, saving, moving, suspending,
    suspended (by the controller, for a while), or a state.
    """
    if job.state is JobState.HELD and job.held_by is not HeldBy.USER:
        return "suspended"
    if job.state in ENDED or job.state is JobState.HELD:
        return str(job.state)
    holder = holder_of(attempts)
    waiter = next((a for a in attempts if a.state in WAITS), None)
    if holder is not None and job.wish is Wish.HOLD:
        return "suspending"
    if holder is not None and waiter is not None:
        return "moving"
    if holder is not None:
        word = OF_HOLDER[holder.state]
        return "starting" if word == "restoring" and holder.from_checkpoint is None else word
    return OF_WAITER[waiter.state] if waiter is not None else "queued"


def moves(attempts: Sequence[Attempt]) -> int:
    """How often the job went on elsewhere from a checkpoint."""
    return sum(1 for a in attempts if a.granted_at is not None and a.from_checkpoint is not None)
