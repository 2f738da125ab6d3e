"""When the holder of a moving job makes its final save, and when a drained machine gets its frozen job back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotsurfer.core.facts.attempt_view import AttemptView, finished, going_back, holder_of, wanted
from spotsurfer.core.facts.ownership import ready, unsafe
from spotsurfer.core.scheduling.launch import Planner
from spotsurfer.model.job import HOLDS, WAITS, Wish
from spotsurfer.model.job import AttemptState as A

# A machine that was drained for a move keeps the job frozen until the job runs elsewhere. When does it get it back?
#
# The job is safe twice then: as a checkpoint, and as the processes that it was made of. Who keeps it owns nothing: its final
# entry is in the head log, and it runs on only after an entry that gives the job back to it. That is written where the job
# can't
# go on elsewhere, with the same proof that a grant to anybody needs, and only while nothing newer was saved. So the log has one
# owner at any time, and what runs on is the very state of the newest checkpoint.
#
# It is kept no longer than there is a use for it: until all memory of the job has arrived elsewhere, nobody wants it to run any
# more, its user goes back to another checkpoint, the cloud takes the machine, or `keep_seconds` are over.

RESERVE_SECONDS = 30.0  # for a final save of which nothing is known
SPARE_SECONDS = 10.0  # of a notice's window, in which the job runs on before it is saved once more
GRACE_SECONDS = 15.0  # for who waits for the job, and could not take it just when it was saved
LOADING = frozenset({"standby", "restoring"})  # as its agent says: the job does not run there yet


def keeper(own: Sequence[AttemptView]) -> AttemptView | None:
    """The attempt that keeps the job frozen to some use; None = nobody does."""
    return next((c for c in reversed(own) if _is_of_use(c) and not _arrived(own)), None)


def taken_back(own: Sequence[AttemptView]) -> AttemptView | None:
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


def why(own: Sequence[AttemptView], kept: AttemptView) -> str:
    """Why the job comes back, a sentence."""
    after = [c.attempt for c in own if c.attempt.head_number > kept.attempt.head_number]
    if not after:
        return "no other machine took the job"
    last = max(after, key=lambda a: a.head_number)
    return f"attempt {last.number} could not go on with it: {last.reason}"


def _is_of_use(c: AttemptView) -> bool:
    head, agent = c.head, c.agent
    if c.state is not A.DRAINED or agent is None or head is None or not agent.kept or c.gone:
        return False
    newest = head.checkpoint == agent.kept and not head.done
    return newest and wanted(c.seen) and going_back(c.seen) is None and _has_time(c)


def _has_time(c: AttemptView) -> bool:
    if c.age_seconds > c.limits.keep_seconds:
        return False
    if not c.noticed:
        return True
    if c.deadline_at is None or c.agent is None:
        return False
    reserve = c.agent.fit.reserve_seconds if c.agent.fit is not None else RESERVE_SECONDS
    return (c.deadline_at - c.now).total_seconds() > reserve + SPARE_SECONDS


def _arrived(own: Sequence[AttemptView]) -> bool:
    """The job runs elsewhere, with all of its memory."""
    holder = holder_of(own)
    if holder is None or holder.state not in HOLDS - {A.RESTORING} or holder.agent is None:
        return False
    return holder.agent.state not in LOADING and not holder.agent.arriving


# When does the holder of a job that leaves its machine save for the last time? Not before the next machine is warm.
#
# The job stands still from its final save until it runs again elsewhere. So everything that can be done before is: the next
# machine is up and has fetched the newest checkpoint, and where that is old, a live one is made first while the job runs on.
# What
# is left for the final save is then the difference alone. Waiting has bounds: a setting for a move that is merely wanted, and
# for a reclaim the notice: the final save begins while there is time for it, whoever is ready or not.

NOTICED = "the cloud gave notice"
# An agent looks each second and reports at once. One that has not said what another witness said so long ago has not noticed.
AGENT_NOTICE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """What is wanted of the holder, each with its reason: the final save, or a live one before it."""

    drain: str | None = None
    seconds_left: float | None = None
    save: str | None = None
    gives_way_to: str = ""  # the job of higher priority for which it drains
    hurry: bool = False  # the job is about to change hands: who waits for it should look often, who leaves it keeps it frozen


STAY = Leaving()


def leaving(own: Sequence[AttemptView], planner: Planner) -> Leaving:
    """Whether the holder should save for the last time now, or do something before."""
    holder = holder_of(own)
    if holder is None or finished(holder.seen):
        return STAY
    if holder.noticed:
        return _noticed(holder, ready(own), planner)
    back = going_back(holder.seen) if holder.seen.job.wish is not Wish.HOLD else None
    if back is not None:  # tried once: an order that fails is settled
        return Leaving(f"its user goes back to checkpoint {back.checkpoint}")
    return _rested(holder, _wished(own, holder, planner), planner)


def _rested(holder: AttemptView, wished: Leaving, planner: Planner) -> Leaving:
    """What can wait is not tried again at once after a final save that failed: each try stops the job, in vain perhaps."""
    if wished.drain is None or not holder.failed_lately:
        return wished
    planner.note(holder.seen.job.id, f"{holder.failed_lately}; it runs on, and the next try is made within a minute")
    return STAY


def _wished(own: Sequence[AttemptView], holder: AttemptView, planner: Planner) -> Leaving:
    """What a suspension, limits, or somebody who stands by want of a holder that could as well stay."""
    job = holder.seen.job
    if job.wish is Wish.HOLD:
        return Leaving(f"suspended: {job.reason}")
    if (way := planner.gives_way(holder.seen)) is not None:
        return Leaving(way.why, gives_way_to=way.to)
    if (why := planner.waits(holder)) is not None:
        return Leaving(why)
    waiter = ready(own)
    if waiter is None or not planner.needed(waiter, holder):
        return STAY
    reason = f"attempt {waiter.attempt.number} stands by on {waiter.attempt.pool}: {waiter.attempt.purpose}"
    return _wanted(holder, waiter, reason, planner)


def _noticed(holder: AttemptView, waiter: AttemptView | None, planner: Planner) -> Leaving:
    """With a notice: as late as is safe, but at once when the next machine is warm or nothing is known of how long it takes."""
    agent, deadline = holder.agent, holder.deadline_at
    left = (deadline - holder.now).total_seconds() if deadline else None
    now = Leaving(NOTICED, left, hurry=True)
    if agent is None or not holder.told:
        return now if _unheeded(holder) else STAY
    if _nothing_to_wait_for(holder) or agent.state == "draining" or left is None or agent.fit is None:
        return now
    if left <= agent.fit.reserve_seconds or (waiter is not None and warm(waiter)):
        return now
    planner.note(holder.seen.job.id, "the cloud gave notice: the job runs on until the next machine is warm or time is short")
    return STAY


def _unheeded(holder: AttemptView) -> bool:
    """The agent had time to say that it noticed, and did not; or the job is leaving already."""
    warned = holder.warned
    late = warned is not None and (holder.now - warned.at).total_seconds() >= AGENT_NOTICE_SECONDS
    return late or holder.attempt.state is not A.RUNNING


def _wanted(holder: AttemptView, waiter: AttemptView, reason: str, planner: Planner) -> Leaving:
    """A move that is merely worth it: live save, fetch, then drain. Whoever drains already goes on."""
    drain = Leaving(reason, hurry=True)
    if _nothing_to_wait_for(holder) or _saves_fail(holder) or waiter.age_seconds > holder.limits.warm_wait_seconds:
        return drain
    number, head = waiter.attempt.number, holder.head
    if head is None:
        return STAY
    if holder.attempt.desired_save > head.sequence:
        planner.note(holder.seen.job.id, f"a live checkpoint is made before the move to attempt {number}")
        return STAY
    if head.checkpoint is None or (warm(waiter) and _pays(holder)):
        return Leaving(save=f"so that the move to attempt {number} has little left to send")
    if not warm(waiter):
        planner.note(holder.seen.job.id, f"attempt {number} stands by and fetches the newest checkpoint first")
        return STAY
    return drain


def _nothing_to_wait_for(holder: AttemptView) -> bool:
    """It drains already or never ran, nobody wants to wait, or there is nothing to fetch: the job starts over elsewhere."""
    return holder.unsaved or holder.attempt.state is not A.RUNNING or holder.limits.warm_wait_seconds <= 0


def _saves_fail(holder: AttemptView) -> bool:
    """The last save failed: waiting for the next one helps nobody, and the final one tells how it stands."""
    agent = holder.agent
    return agent is not None and agent.state == "running" and agent.error_kind in ("save", "store")


def warm(waiter: AttemptView) -> bool:
    """The machine holds the newest checkpoint whole; without one there is nothing to hold."""
    head = waiter.head
    if head is None or head.checkpoint is None:
        return head is not None
    return waiter.agent is not None and waiter.agent.warm_checkpoint == head.checkpoint


def _pays(holder: AttemptView) -> bool:
    """Another live save would shorten the pause, by what the agent said when it knew of the newest checkpoint."""
    agent, head = holder.agent, holder.head
    if agent is None or agent.fit is None or head is None or agent.head < head.number or agent.state != "running":
        return False
    return agent.fit.gain_seconds >= holder.limits.precopy_gain_seconds


def in_transit(own: Sequence[AttemptView]) -> bool:
    """The job stands still, or soon will, until the controller takes a step: look again at once."""
    holder = holder_of(own)
    if holder is None:
        return ready(own) is not None or keeper(own) is not None
    if holder.attempt.state is A.RESTORING:
        return holder.attempt.from_checkpoint is not None
    return holder.attempt.state is A.DRAINING or (holder.agent is not None and holder.agent.state == "draining")
