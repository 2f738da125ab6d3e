"""When the controller suspends and resumes a job by itself, idleness included. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from spotsurfer_wire.usage import WINDOW_SECONDS, Window

from spotsurfer.core.facts.attempt_view import AttemptView, holder_of
from spotsurfer.model.actions import SetWish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, JobSpec, Wish, rehearses
from spotsurfer.model.snapshot import JobSeen, QuietSeen

# The controller suspends a job by itself, with a reason, and lets it go on again. Pure.
#
# `suspended` is the wish; what follows is what follows a user's own: the final save, the release of the machine, HELD.
# `held_by` says who wanted it. A user's `suspend` takes such a job over, a user's `resume` ends any suspension. A job
# is woken by its user, or by a connection to its front.


def suspended(seen: JobSeen, by: HeldBy, why: str) -> SetWish:
    """Save the job, give its machine back, and keep it until `by` or its user lets it go on."""
    return SetWish(seen.job.id, Wish.HOLD, why, held_by=by)


def can_be(holder: AttemptView) -> bool:
    """The job runs and could be saved just now: nothing is lost with its machine."""
    agent = holder.agent
    if holder.attempt.state is not A.RUNNING or agent is None or holder.unsaved or holder.noticed or agent.frozen:
        return False
    return bool(agent.protection) and agent.error_kind not in ("save", "store")


def coming_back(seen: JobSeen, own: Sequence[AttemptView]) -> SetWish | None:
    """A job that the controller wanted to suspend and that could not be saved runs on; None for any other."""
    job = seen.job
    if job.held_by is HeldBy.USER or (failed := failed_drain(own)) is None:
        return None
    return SetWish(job.id, Wish.RUN, f"it could not be suspended ({job.reason}), and runs on: {failed}")


def failed_drain(own: Sequence[AttemptView]) -> str | None:
    """What the holder says of the final save that was asked for and failed; None where none did."""
    return next((c.drain_error for c in own if c.drain_error is not None), None)


# When is a job idle, and suspended for it? Its user says after which time. Pure.
#
# Idle is what uses neither processors nor GPUs, window of usage by window of usage, and to what nobody is connected. What was
# not
# told counts as work: a machine that falls silent for a while makes the time begin anew, and GPUs that nobody sees are at work.

UNTOLD = timedelta(seconds=120)  # between two windows: for so long nothing is concluded from what is missing
HALF = WINDOW_SECONDS / 2  # a window that covers less says little yet; it is looked at again when it has grown


def followed(before: QuietSeen | None, windows: Iterable[tuple[datetime, Window]], spec: JobSpec) -> QuietSeen | None:
    """What is known after these windows, oldest first, each with its beginning; some may be known already."""
    quiet = before
    for at, w in windows:
        if w.seconds >= HALF:
            quiet = _after(quiet, at, w, spec)
    return quiet


def _after(quiet: QuietSeen | None, at: datetime, w: Window, spec: JobSpec) -> QuietSeen:
    end = at + timedelta(seconds=max(w.seconds, WINDOW_SECONDS))
    unseen = spec.gpus > 0 and w.gpu_share is None
    if unseen or w.cpu_cores >= spec.idle_cpu or (w.gpu_share or 0.0) >= spec.idle_gpu:
        return QuietSeen(end, end, gpus_known=w.gpu_share is not None)
    if quiet is None or at - quiet.until > UNTOLD:
        return QuietSeen(at, end, w.cpu_cores, w.gpu_share is not None)
    new, old = (end - quiet.until).total_seconds(), (quiet.until - quiet.since).total_seconds()
    if new <= 0:
        return quiet
    mean = (quiet.cpu_cores * old + w.cpu_cores * new) / (old + new)
    return QuietSeen(quiet.since, end, mean, w.gpu_share is not None)


def idle(seen: JobSeen, own: Sequence[AttemptView]) -> SetWish | None:
    """The suspension of a job that did nothing for as long as its user bears; None where it works or can't be saved."""
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
    return suspended(seen, HeldBy.IDLE, said(quiet, since, bool(job.spec.ports)))


def said(quiet: QuietSeen, since: datetime, has_front: bool) -> str:
    """Why, with its numbers."""
    gpus = ", its GPUs did nothing" if quiet.gpus_known else ""
    nobody = ", nobody was connected" if has_front else ""
    return f"idle since {since:%H:%M:%S} UTC: {quiet.cpu_cores:.3f} processors in use{gpus}{nobody}"
