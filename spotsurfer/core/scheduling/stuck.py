"""A job that is alive and makes no progress: waiting for a lock, a lost connection, an answer that never comes. Pure.

Only a job that runs can be stuck. One that its agent holds still, that is being saved or moved, or that was suspended, is not.
Nor is one with memory that still arrives after a restore. `idle` is another matter: there a user says that a job without work
may sleep.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from spotsurfer_wire.usage import Window

from spotsurfer.common.units import duration
from spotsurfer.core.facts.attempt_view import AttemptView, holder_of
from spotsurfer.core.scheduling.suspension import UNTOLD
from spotsurfer.model.actions import SetStuck
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobSpec, rehearses
from spotsurfer.model.snapshot import JobSeen

# Less than this is what a waiting program does by the way: timers, a keep-alive, the file system's own work.
CPU_CORES = 0.005
DISK_BYTES_PER_SECOND = 16 << 10
NETWORK_BYTES_PER_SECOND = 1 << 10
GPU_SHARE = 0.005


def makes_progress(spec: JobSpec, w: Window) -> bool:
    """Whether a job did anything in this window. GPUs without figures count as busy, other unknown figures as nothing."""
    seconds = max(w.seconds, 1.0)
    return bool(
        w.cpu_cores >= CPU_CORES
        or (spec.gpus > 0 and w.gpu_share is None)
        or (w.gpu_share or 0.0) >= GPU_SHARE
        or (w.own_disk_bytes or 0.0) / seconds >= DISK_BYTES_PER_SECOND
        or ((w.received_bytes or 0.0) + (w.sent_bytes or 0.0)) / seconds >= NETWORK_BYTES_PER_SECOND
        or w.printed_bytes
        or w.arriving_bytes
    )


def settled(seen: JobSeen, own: Sequence[AttemptView]) -> SetStuck | None:
    """The job became stuck, or is so no more; None if nothing changed."""
    job = seen.job
    since, holder = _since(seen, own), holder_of(own)
    if (since is None) == (job.stuck_since is None):
        return None
    if since is None or holder is None:
        why = "it works again" if holder is not None and holder.attempt.state is A.RUNNING else "it leaves its machine"
        return SetStuck(job.id, None, None, why)
    gpu = ", GPU" if job.spec.gpus else ""
    for_ = duration((holder.now - since).total_seconds())
    why = f"for {for_} it used no processor, disk, network{gpu} and printed nothing, although it is alive"
    return SetStuck(job.id, holder.attempt.number, since, why)


def _since(seen: JobSeen, own: Sequence[AttemptView]) -> datetime | None:
    """Since when it is stuck; None if it is not, or nobody wants to know."""
    job, still, holder = seen.job, seen.still, holder_of(own)
    if job.spec.stuck_seconds is None or still is None or holder is None or rehearses(job):
        return None
    agent = holder.agent
    if holder.attempt.state is not A.RUNNING or agent is None or agent.frozen or holder.now - still.until > UNTOLD:
        return None
    since = max(t for t in (still.since, holder.attempt.since, job.resumed_at) if t is not None)
    return since if holder.now - since >= timedelta(seconds=job.spec.stuck_seconds) else None
