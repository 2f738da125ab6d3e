"""When is a job idle, and suspended for it? Its user says after which time. Pure.

Idle is what uses neither processors nor GPUs, window of usage by window of usage, and to what nobody is connected. What was not
told counts as work: a machine that falls silent for a while makes the time begin anew, and GPUs that nobody sees are at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from spotsurfer_agent.usage.window import WINDOW_SECONDS, Window

from spotsurfer.core.case import Case, holder_of
from spotsurfer.core.suspension import can_be, suspended
from spotsurfer.model.actions import SetWish
from spotsurfer.model.job import HeldBy, JobSpec, rehearses
from spotsurfer.model.snapshot import JobSeen, QuietSeen

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


def idle(seen: JobSeen, own: Sequence[Case]) -> SetWish | None:
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
