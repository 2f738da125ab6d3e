"""Who may own the job next, and from which checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from spotsurfer.core.facts.attempt_view import AttemptView, going_back
from spotsurfer.model.job import HOLDS, Attempt, Job
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import JobSeen, Limits


def unsafe(cases: Sequence[AttemptView]) -> str | None:
    """Why nobody new may own the job now, or None."""
    for c in cases:
        if c.attempt.state in HOLDS:
            return f"attempt {c.attempt.number} holds it"
        if not c.harmless:
            left = c.silence_seconds - c.silent_seconds
            until = c.doubt if c.doubt else f"silent for {max(left, 0):.0f} s more"
            return f"attempt {c.attempt.number} may still run: wait until it is gone or {until}"
    return None


def ready(cases: Sequence[AttemptView]) -> AttemptView | None:
    """The waiter that stands by and could take the job; one that reports that it could not does not count."""
    return next((c for c in cases if c.attempt.state is A.READY and (c.agent is None or c.agent.can_take)), None)


class NothingLeft(Exception):
    """No checkpoint of the job can be restored, or it can't be started; the message names the attempts."""


def tried_since(job: Job, attempt: Attempt) -> bool:
    """Whether an attempt counts: the user has not resumed the job since then."""
    return job.resumed_at is None or attempt.planned_at >= job.resumed_at


def late(seen: JobSeen, limits: Limits, now: datetime) -> list[Attempt]:
    """Attempts that count and entered their present state within `refusal_seconds`: so long a type that refused is avoided."""
    since = now - timedelta(seconds=limits.refusal_seconds)
    return [a for a in seen.attempts if a.since > since and tried_since(seen.job, a)]


def refusing(seen: JobSeen, limits: Limits, now: datetime) -> dict[str, str]:
    """Machine types that lately refused the job's checkpoint, with the reason."""
    return {a.pool.instance_type: a.reason for a in late(seen, limits, now) if a.restore_refused}


def choose_checkpoint(seen: JobSeen, limits: Limits) -> str | None:
    """The newest checkpoint, or the one before it if that failed; None = from the beginning, if none was ever made.

    Raises NothingLeft if both failed: each further try would cost a machine and fail alike. The controller never throws saved
    work away by starting over unasked.
    """
    head, back = seen.head, going_back(seen)
    if back is not None:
        return back.checkpoint
    if head is None or head.checkpoint is None or head.done:
        candidates: list[str | None] = [None]
    else:
        older = [c for c in head.checkpoints if c != head.checkpoint]
        candidates = [head.checkpoint, *older[-1:]]
    blamed = [a for a in seen.attempts if a.restore_failed and tried_since(seen.job, a)]
    for candidate in candidates:
        if sum(1 for a in blamed if a.from_checkpoint == candidate) < limits.restore_failures_max:
            return candidate
    last = max(blamed, key=lambda a: a.number)
    what = "restored from its newest checkpoints" if head and head.checkpoint else "started"
    raise NothingLeft(f"it could not be {what}: {last.reason}")


def tried_in_vain(attempts: Sequence[Attempt], checkpoint: str | None) -> str:
    """A sentence about the machine that could not go on with a checkpoint, and why; "" = none is known."""
    failed = [a for a in attempts if a.from_checkpoint == checkpoint is not None and (a.restore_failed or a.restore_refused)]
    if not failed:
        return ""
    last = max(failed, key=lambda a: (a.restore_failed, a.number))  # a refusal by a machine says little about the checkpoint
    what = "restore it" if last.restore_failed else "go on with it"
    return f"attempt {last.number} on {last.pool.instance_type} could not {what}: {last.reason}"


def passed_over(seen: JobSeen, chosen: str | None) -> str:
    """Why the chosen checkpoint is not the newest, to be put behind its name; empty when it is."""
    if going_back(seen) is not None:
        return ", as its user asked"
    newest = seen.head.checkpoint if seen.head is not None and not seen.head.done else None
    if newest is None or newest == chosen:
        return ""
    failed = [a for a in seen.attempts if a.restore_failed and tried_since(seen.job, a) and a.from_checkpoint == newest]
    return f": the newest, {newest}, could not be restored ({failed[-1].reason})"
