"""A machine that was drained for a move keeps the job frozen until the job runs elsewhere. When does it get it back?

The job is safe twice then: as a checkpoint, and as the processes that it was made of. Who keeps it owns nothing: its final
entry is in the head log, and it runs on only after an entry that gives the job back to it. That is written where the job can't
go on elsewhere, with the same proof that a grant to anybody needs, and only while nothing newer was saved. So the log has one
owner at any time, and what runs on is the very state of the newest checkpoint.

It is kept no longer than there is a use for it: until all memory of the job has arrived elsewhere, nobody wants it to run any
more, its user goes back to another checkpoint, the cloud takes the machine, or `keep_seconds` are over.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotsurfer.core.case import Case, holder_of, wanted
from spotsurfer.core.ownership import ready, unsafe
from spotsurfer.core.rewind import going_back
from spotsurfer.model.job import HOLDS, WAITS
from spotsurfer.model.job import AttemptState as A

RESERVE_SECONDS = 30.0  # for a final save of which nothing is known
SPARE_SECONDS = 10.0  # of a notice's window, in which the job runs on before it is saved once more
GRACE_SECONDS = 15.0  # for who waits for the job, and could not take it just when it was saved
LOADING = frozenset({"standby", "restoring"})  # as its agent says: the job does not run there yet


def keeper(own: Sequence[Case]) -> Case | None:
    """The attempt that keeps the job frozen to some use; None = nobody does."""
    return next((c for c in reversed(own) if _is_of_use(c) and not _arrived(own)), None)


def taken_back(own: Sequence[Case]) -> Case | None:
    """The attempt that is to have the job again that it keeps, because it can't go on elsewhere; None = nobody is."""
    kept = keeper(own)
    if kept is None or kept.quiet or holder_of(own) is not None or unsafe(own) is not None:
        return None
    if not kept.owns:  # whoever had it since then failed
        return kept
    if kept.noticed or ready(own) is not None:
        return None
    waits = any(c.state in WAITS for c in own)
    return None if waits and kept.age_seconds < GRACE_SECONDS else kept


def why(own: Sequence[Case], kept: Case) -> str:
    """Why the job comes back, a sentence."""
    after = [c.attempt for c in own if c.attempt.head_number > kept.attempt.head_number]
    if not after:
        return "no other machine took the job"
    last = max(after, key=lambda a: a.head_number)
    return f"attempt {last.number} could not go on with it: {last.reason}"


def _is_of_use(c: Case) -> bool:
    head, agent = c.head, c.agent
    if c.state is not A.DRAINED or agent is None or head is None or not agent.kept or c.gone:
        return False
    newest = head.checkpoint == agent.kept and not head.done
    return newest and wanted(c.seen) and going_back(c.seen) is None and _has_time(c)


def _has_time(c: Case) -> bool:
    if c.age_seconds > c.limits.keep_seconds:
        return False
    if not c.noticed:
        return True
    if c.deadline_at is None or c.agent is None:
        return False
    reserve = c.agent.fit.reserve_seconds if c.agent.fit is not None else RESERVE_SECONDS
    return (c.deadline_at - c.now).total_seconds() > reserve + SPARE_SECONDS


def _arrived(own: Sequence[Case]) -> bool:
    """The job runs elsewhere, with all of its memory."""
    holder = holder_of(own)
    if holder is None or holder.state not in HOLDS - {A.RESTORING} or holder.agent is None:
        return False
    return holder.agent.state not in LOADING and not holder.agent.arriving
