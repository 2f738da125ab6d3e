"""When the holder of a moving job makes its final save, and when a drained machine gets its frozen job back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotsurfer.core.facts.attempt_view import AttemptView, finished, going_back, holder_of, wanted
from spotsurfer.core.facts.ownership import ready, unsafe
from spotsurfer.core.scheduling.launch import Planner
from spotsurfer.model.job import HOLDS, WAITS, Wish
from spotsurfer.model.job import AttemptState as A

# ---- Return: a machine that was drained for a move keeps the job frozen until the job runs elsewhere
#
# The job is safe twice then: as a checkpoint, and as the frozen processes. The machine that keeps it owns nothing: its final
# entry is in the head log, and it runs the job only after an entry that gives the job back. The controller writes that entry if
# the job can't go on elsewhere, with the same proof that any grant needs, and only while no newer checkpoint exists. So the log
# has one owner at any time, and the job continues from exactly the state of the newest checkpoint.
#
# The machine keeps the job until all memory of the job has arrived elsewhere, the job should no longer run, the user goes back
# to another checkpoint, the cloud reclaims the machine, or `keep_seconds` are over.

RESERVE_SECONDS = 30.0  # for a final save without a forecast
SPARE_SECONDS = 10.0  # of a notice's window: the job runs on for so long before its next save
GRACE_SECONDS = 15.0  # for a waiter that could not take the job at the moment of its final save
LOADING = frozenset({"standby", "restoring"})  # agent states in which the job does not run there yet


def keeper(own: Sequence[AttemptView]) -> AttemptView | None:
    """The attempt that keeps the job frozen and may still get it back; None = there is none."""
    return next((c for c in reversed(own) if _is_of_use(c) and not _arrived(own)), None)


def taken_back(own: Sequence[AttemptView]) -> AttemptView | None:
    """The attempt that gets back the job that it keeps, because the job can't go on elsewhere; None = there is none."""
    kept = keeper(own)
    if kept is None or kept.quiet or holder_of(own) is not None or unsafe(own) is not None:
        return None
    if not kept.owns:  # a later owner failed
        return kept
    if kept.noticed or ready(own) is not None:
        return None
    waits = any(c.state in WAITS for c in own)
    return None if waits and kept.age_seconds < GRACE_SECONDS else kept


def why(own: Sequence[AttemptView], kept: AttemptView) -> str:
    """A sentence about why the job comes back."""
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
    """Whether the job runs elsewhere with all of its memory, and does not stand still there for want of more."""
    holder = holder_of(own)
    if holder is None or holder.state not in HOLDS - {A.RESTORING} or holder.agent is None:
        return False
    return holder.agent.state not in LOADING and not holder.agent.arriving and not holder.agent.pressed


# ---- Leaving: when the holder makes its final save. Not before the next machine is warm.
#
# The job stands still from its final save until it runs again elsewhere. So all possible work comes before: the next machine
# is up and has fetched the newest checkpoint, and if that is old, the holder makes a live one first while the job runs on. Then
# the final save holds only the difference. The wait is limited: by a setting for a move that is merely wanted, and by the
# notice for a reclaim: the final save begins while there is time for it, even if the next machine is not ready.

NOTICED = "the cloud gave notice"
IN_VAIN = (
    f"{NOTICED}: a final save can't be done in time, so the job runs on; another machine goes on from the newest checkpoint"
)
# An agent looks each second and reports at once. If it has not reported another witness's notice by then, it missed it.
AGENT_NOTICE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Leaving:
    """The orders for the holder, each with its reason: the final save, or a live one before it."""

    drain: str | None = None
    seconds_left: float | None = None
    save: str | None = None
    gives_way_to: str = ""  # the job of higher priority for which it drains
    hurry: bool = False  # the job is about to change machines: the waiter should look often, the holder keeps the job frozen


STAY = Leaving()


def leaving(own: Sequence[AttemptView], planner: Planner) -> Leaving:
    """Whether the holder should save for the last time now, or do something before."""
    holder = holder_of(own)
    if holder is None or finished(holder.seen):
        return STAY
    if holder.noticed:
        return _noticed(holder, ready(own), planner)
    back = going_back(holder.seen) if holder.seen.job.wish is not Wish.HOLD else None
    if back is not None:  # tried once: a failed order is settled
        return Leaving(f"its user goes back to checkpoint {back.checkpoint}")
    wished = _wished(own, holder, planner)
    # After a failed final save, wait before a retry that is not urgent: every attempt pauses the job, perhaps in vain.
    if wished.drain is None or not holder.failed_lately:
        return wished
    planner.note(holder.seen.job.id, f"{holder.failed_lately}; it runs on, and the next try is made within a minute")
    return STAY


def _wished(own: Sequence[AttemptView], holder: AttemptView, planner: Planner) -> Leaving:
    """Orders for a holder that could as well stay: because of a suspension, limits, or a standby machine."""
    job = holder.seen.job
    if job.wish is Wish.HOLD:
        return Leaving(f"suspended: {job.reason}")
    if (way := planner.contest.ways.get(job.id)) is not None:
        return Leaving(way.why, gives_way_to=way.to)
    if (why := planner.waits(holder)) is not None:
        return Leaving(why)
    waiter = ready(own)
    if waiter is None or not planner.needed(waiter, holder):
        return STAY
    reason = f"attempt {waiter.attempt.number} stands by on {waiter.attempt.pool}: {waiter.attempt.purpose}"
    return _wanted(holder, waiter, reason, planner)


def _noticed(holder: AttemptView, waiter: AttemptView | None, planner: Planner) -> Leaving:
    """After a notice: save as late as is safe, but at once if the next machine is warm or the save's duration is unknown."""
    agent, deadline = holder.agent, holder.deadline_at
    left = (deadline - holder.now).total_seconds() if deadline else None
    now = Leaving(NOTICED, left, hurry=True)
    if agent is None or not holder.agent_noticed:
        warned = holder.warned
        late = warned is not None and (holder.now - warned.at).total_seconds() >= AGENT_NOTICE_SECONDS
        return now if late or holder.attempt.state is not A.RUNNING else STAY
    if agent.state != "draining" and left is not None and agent.fit is not None and left < agent.fit.least_seconds:
        planner.note(holder.seen.job.id, IN_VAIN)
        return STAY
    if _nothing_to_wait_for(holder) or agent.state == "draining" or left is None or agent.fit is None:
        return now
    if left <= agent.fit.reserve_seconds or (waiter is not None and warm(waiter)):
        return now
    planner.note(holder.seen.job.id, "the cloud gave notice: the job runs on until the next machine is warm or time is short")
    return STAY


def _wanted(holder: AttemptView, waiter: AttemptView, reason: str, planner: Planner) -> Leaving:
    """A move that is not forced: live save, fetch, then drain. A holder that drains already goes on."""
    drain, agent = Leaving(reason, hurry=True), holder.agent
    # After a failed save a wait for the next live one is useless, and the final save shows the problem.
    saves_fail = agent is not None and agent.state == "running" and agent.error_kind in ("save", "store")
    if _nothing_to_wait_for(holder) or saves_fail or waiter.age_seconds > holder.limits.warm_wait_seconds:
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
    """Whether the holder does not run the job, waiting is off, or the job can't be saved and starts over elsewhere."""
    return holder.unsaved or holder.attempt.state is not A.RUNNING or holder.limits.warm_wait_seconds <= 0


def warm(waiter: AttemptView) -> bool:
    """Whether the machine holds the newest checkpoint completely, if the job has one."""
    head = waiter.head
    if head is None or head.checkpoint is None:
        return head is not None
    return waiter.agent is not None and waiter.agent.warm_checkpoint == head.checkpoint


def _pays(holder: AttemptView) -> bool:
    """Whether another live save would shorten the pause, by the agent's forecast since the newest checkpoint."""
    agent, head = holder.agent, holder.head
    if agent is None or agent.fit is None or head is None or agent.head < head.number or agent.state != "running":
        return False
    return agent.fit.gain_seconds >= holder.limits.precopy_gain_seconds


def in_transit(own: Sequence[AttemptView]) -> bool:
    """Whether the job stands still, or soon will, until the controller's next step: then it looks again at once."""
    holder = holder_of(own)
    if holder is None:
        return ready(own) is not None or keeper(own) is not None
    if holder.attempt.state is A.RESTORING:
        return holder.attempt.from_checkpoint is not None
    return holder.attempt.state is A.DRAINING or (holder.agent is not None and holder.agent.state == "draining")
