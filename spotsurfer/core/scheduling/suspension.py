"""When the controller suspends and resumes a job by itself, idleness included. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

from spotsurfer_wire.usage import WINDOW_SECONDS, Window

from spotsurfer.core.facts.attempt_view import AttemptView, holder_of
from spotsurfer.model.actions import SetWish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, JobSpec, Wish, rehearses
from spotsurfer.model.snapshot import JobSeen, QuietSeen

# ---- Suspension by the controller, with a reason
#
# `idle` returns the wish. The steps are the same as after a user's `suspend`: the final save, the release of the machine,
# HELD. `held_by` records who wanted it. A user's `suspend` takes such a job over, a user's `resume` ends any suspension but
# that by a budget (see `budgets`). The user, or a connection to one of the job's ports, wakes an idle job.


def can_be(holder: AttemptView) -> bool:
    """Whether the job runs and could be saved now, so that no work is lost with its machine."""
    agent = holder.agent
    if holder.attempt.state is not A.RUNNING or agent is None or holder.unsaved or holder.noticed or agent.frozen:
        return False
    return bool(agent.protection) and agent.error_kind not in ("save", "store")


def coming_back(seen: JobSeen, own: Sequence[AttemptView]) -> SetWish | None:
    """The wish to run on for a job that the controller wanted to suspend and could not save; None for any other job."""
    job = seen.job
    if job.held_by is not HeldBy.IDLE or (failed := failed_drain(own)) is None:
        return None
    return SetWish(job.id, Wish.RUN, f"it could not be suspended ({job.reason}), and runs on: {failed}")


def failed_drain(own: Sequence[AttemptView]) -> str | None:
    """The holder's error of the requested final save; None if it did not fail."""
    return next((c.drain_error for c in own if c.drain_error is not None), None)


# ---- Idleness: a job is suspended after the idle time that its user set
#
# A job is idle if it uses neither processors nor GPUs in any usage window, and has no connections. Unknown usage counts as
# work: after a gap in the reports the idle time begins anew, and GPUs without figures count as busy.

UNTOLD = timedelta(seconds=120)  # longest gap between two windows that does not count as work
HALF = WINDOW_SECONDS / 2  # a window that covers less is ignored until it has grown


def works(spec: JobSpec, w: Window) -> bool:
    """Whether a job with a limit on idle time did something in this window."""
    unseen = spec.gpus > 0 and w.gpu_share is None
    return unseen or w.cpu_cores >= spec.idle_cpu or (w.gpu_share or 0.0) >= spec.idle_gpu


def followed(
    before: QuietSeen | None, windows: Iterable[tuple[datetime, Window]], at_work: Callable[[Window], bool]
) -> QuietSeen | None:
    """Since when a job is not at work, after these windows, oldest first, each with its start; some may be known already."""
    quiet = before
    for at, w in windows:
        if w.seconds >= HALF:
            quiet = _after(quiet, at, w, at_work(w))
    return quiet


def _after(quiet: QuietSeen | None, at: datetime, w: Window, at_work: bool) -> QuietSeen:
    end = at + timedelta(seconds=max(w.seconds, WINDOW_SECONDS))
    if at_work:
        return QuietSeen(end, end, gpus_known=w.gpu_share is not None)
    if quiet is None or at - quiet.until > UNTOLD:
        return QuietSeen(at, end, w.cpu_cores, w.gpu_share is not None)
    new, old = (end - quiet.until).total_seconds(), (quiet.until - quiet.since).total_seconds()
    if new <= 0:
        return quiet
    mean = (quiet.cpu_cores * old + w.cpu_cores * new) / (old + new)
    return QuietSeen(quiet.since, end, mean, w.gpu_share is not None)


def idle(seen: JobSeen, own: Sequence[AttemptView]) -> SetWish | None:
    """The suspension of a job that was idle for as long as its user allows; None if it works or can't be saved."""
    job, quiet = seen.job, seen.quiet
    holder = holder_of(own)
    if job.spec.idle_seconds is None or quiet is None or holder is None or not can_be(holder):
        return None
    if quiet.connections or job.move is not None or job.rewind is not None or rehearses(job):
        return None
    since = max(t for t in (quiet.since, holder.attempt.since, job.resumed_at, quiet.last_closed_at) if t is not None)
    told = holder.now - quiet.until <= UNTOLD
    if not told or holder.now - since < timedelta(seconds=job.spec.idle_seconds):
        return None
    gpus = ", its GPUs did nothing" if quiet.gpus_known else ""
    nobody = ", nobody was connected" if job.spec.ports else ""
    why = f"idle since {since:%H:%M:%S} UTC: {quiet.cpu_cores:.3f} processors in use{gpus}{nobody}"
    return SetWish(job.id, Wish.HOLD, why, held_by=HeldBy.IDLE)
