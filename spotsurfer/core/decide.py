"""decide(snapshot, policy, now) -> Decision. The parent that holds the ifs; everything it calls is pure too."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from spotsurfer.core import backoff, exits
from spotsurfer.core.attempts import UNUSABLE, Plans, decide_attempt
from spotsurfer.core.case import Case, cases, finished, holder_of, wanted
from spotsurfer.core.idle import idle
from spotsurfer.core.keeping import keeper, taken_back, why
from spotsurfer.core.limits import out_of_memory, over_budget
from spotsurfer.core.moves import in_transit, leaving
from spotsurfer.core.ownership import NothingLeft, choose_checkpoint, passed_over, ready, tried_since, unsafe
from spotsurfer.core.planning import Planner
from spotsurfer.core.rewind import going_back
from spotsurfer.core.silence import doubt
from spotsurfer.core.suspension import coming_back, failed_drain
from spotsurfer.model.actions import (
    Action,
    Ask,
    Close,
    Decision,
    EndJob,
    GiveBack,
    Grant,
    Mark,
    Pace,
    Recall,
    Retry,
    SetWish,
    Sweep,
    Terminate,
)
from spotsurfer.model.job import ENDED, HOLDS, OVER, WAITS, Attempt, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import JobSeen, Snapshot
from spotsurfer.model.transitions import ATTEMPT, JobEvent, advance
from spotsurfer.model.transitions import AttemptEvent as E
from spotsurfer.ports.interval import Interval
from spotsurfer.ports.policy import Policy
from spotsurfer.ports.purchase import Purchase

TROUBLE_SECONDS = 600.0  # for a final save of which nothing is known


def decide(
    snapshot: Snapshot, policy: Policy, now: datetime, purchase: Purchase | None = None, interval: Interval | None = None
) -> Decision:
    """What to do about the world now, what was rejected and why, and when to look again at the latest.

    `purchase` says what is bought for jobs with a deadline; None = as `policy` ranks, as for all others. `interval` says how
    often jobs are saved whose users did not; None = as they were submitted with.
    """
    snapshot = replace(snapshot, doubt=doubt(snapshot, now))
    planner = Planner(snapshot, policy, now, purchase, interval)
    actions: list[Action] = []
    level = planner.contest.level
    for seen in sorted(snapshot.jobs, key=lambda s: (-level(s), s.job.submitted_at, s.job.id)):
        actions += _decide_job(snapshot, seen, planner, now)
    if snapshot.listing_complete and not snapshot.ahead:
        actions += [Sweep(o.id, "it belongs to no attempt of ours") for o in snapshot.orphans if not o.gone]
    wake = min((c.until for c in snapshot.cooldowns if c.until > now), default=None)
    hurry = planner.contest.hurry or any(in_transit(cases(snapshot, s, now)) for s in snapshot.jobs)
    levels, alarms = dict(planner.contest.levels), planner.alarms()
    return Decision(tuple(actions), tuple(planner.rejected), wake, dict(planner.notes), hurry, levels, alarms)


def _decide_job(snapshot: Snapshot, seen: JobSeen, planner: Planner, now: datetime) -> list[Action]:
    if seen.trouble:
        return _of_trouble(snapshot, seen, planner, now)
    if recalled := _recall(seen):
        return recalled
    own = cases(snapshot, seen, now)
    doubted = next((c.doubt for c in own if c.state in HOLDS and c.silent_seconds > c.silence_seconds), "")
    if doubted:
        planner.note(seen.job.id, doubted)
    actions = _of_attempts(own, planner)
    acted = {
        getattr(a, "attempt", None) for a in actions if not (isinstance(a, Pace) or (isinstance(a, Ask) and a.event is None))
    }
    job_level = _of_job(snapshot, seen, own, planner)
    if job_level is not None:
        return [*actions, job_level]
    marked = _marked(own, actions)
    if (back := _give_back(seen, marked, planner, acted)) is not None:
        return [*actions, back]
    grant = _grant(snapshot, seen, marked, planner, acted)
    if grant is not None:
        actions.append(grant)
    plan = planner.plan(seen, own)
    return [*actions, plan] if plan is not None else actions


def _of_trouble(snapshot: Snapshot, seen: JobSeen, planner: Planner, now: datetime) -> list[Action]:
    """It is held, so that its user hears of it and can try again. Its machine is told to save it and gets its time for that;
    what is cancelled, or was not saved by then, costs no more. Of what has ended only its machines are left to be ended.
    """
    job, own = seen.job, cases(snapshot, seen, now)
    why = f"the controller can't deal with it ({seen.trouble}): report that, and `resume` it to try again"
    planner.note(job.id, why)
    if job.wish is Wish.RUN and job.state not in ENDED:
        return [SetWish(job.id, Wish.HOLD, why)]
    actions = [a for c in own if c.state not in OVER and (a := _to_leave(c, why)) is not None]
    if job.state in ENDED:
        return actions
    if job.wish is Wish.CANCEL and all(c.state in OVER for c in own):
        actions.append(EndJob(job.id, JobEvent.CANCELLED, job.reason or "cancelled"))
    elif job.wish is Wish.HOLD and (held := _of_hold(seen, own)) is not None:
        actions.append(held)
    return actions


def _to_leave(c: Case, why: str) -> Action | None:
    """The next step towards the end of a machine of which nothing is known but its row and whether it is there."""
    a = c.attempt
    if c.gone and E.INSTANCE_GONE in ATTEMPT[a.state]:
        return Mark(a.job, a.number, E.INSTANCE_GONE, "the machine is gone")
    if a.state in HOLDS and (c.seen.job.wish is Wish.CANCEL or (a.state is A.DRAINING and c.age_seconds > TROUBLE_SECONDS)):
        return Mark(a.job, a.number, E.SILENT, "whether it was saved is not known")
    if a.state in (A.RESTORING, A.RUNNING):
        return Ask(a.job, a.number, "drain", a.desired_save, None, E.DRAIN_ASKED, why)
    if E.TERMINATE_CALLED in ATTEMPT[a.state] or (a.state is A.RELEASING and c.age_seconds > c.limits.release_again_seconds):
        return Terminate(a.job, a.number, why)
    return None


def _recall(seen: JobSeen) -> list[Action]:
    """The store says that an attempt owns the job, and this database, from a backup, has never heard of it."""
    job, head = seen.job.id, seen.head
    if head is None or head.epoch == 0 or any(a.number == head.epoch for a in seen.attempts):
        return []
    before = [Mark(job, a.number, E.SILENT, "another one owns the job by now") for a in seen.attempts if a.state in HOLDS]
    why = "it owns the job by the store, and this database, which is older, did not know it"
    return [*before, Recall(job, head.epoch, seen.desired_heard.get(head.epoch, 0), why)]


def _of_attempts(own: Sequence[Case], planner: Planner) -> list[Action]:
    way = planner.gives_way(own[0].seen) if own else None
    kept = keeper(own) if way is None else None
    plans = Plans(planner.unwanted(own), leaving(own, planner), planner.pace, way, kept)
    found = (decide_attempt(c, plans) for c in own)
    return [a for a in found if a is not None]


def _marked(own: Sequence[Case], actions: Sequence[Action]) -> list[Case]:
    """The attempts as they will be when what was seen has been recorded: a grant need not wait for another look."""
    marks = {a.attempt: a for a in actions if isinstance(a, Mark)}
    return [replace(c, attempt=_after(c.attempt, marks[c.attempt.number])) if c.attempt.number in marks else c for c in own]


def _after(a: Attempt, mark: Mark) -> Attempt:
    return replace(a, state=advance(ATTEMPT, a.state, mark.event), reason=a.reason or mark.reason)


def _of_job(snapshot: Snapshot, seen: JobSeen, own: Sequence[Case], planner: Planner) -> Action | None:
    """The one edge or wish of the job itself that is due, or None."""
    job, head = seen.job, seen.head
    if job.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED) or head is None:
        if head is None:
            planner.note(job.id, "the store can't be read")
        return None
    if head.done and going_back(seen) is None:
        return _of_done(seen)
    if job.wish is Wish.CANCEL:
        return Close(job.id, head.number, job.reason or "cancelled")
    if job.wish is Wish.HOLD:
        return coming_back(seen, own) or _of_hold(seen, own)
    if job.state is JobState.HELD:
        return EndJob(job.id, JobEvent.RESUMED, "resumed")
    return _of_limits(snapshot, seen, own)


def _of_done(seen: JobSeen) -> Action | None:
    job, head = seen.job, seen.head
    assert head is not None
    if not finished(seen):
        if job.failures < head.failures:
            why = f"{exits.ended(head.exit_code, head.undelivered)}; retry {head.failures} of {job.spec.retries}"
            return Retry(job.id, head.exit_code or 0, why)
        return None
    if head.cancelled:
        return EndJob(job.id, JobEvent.CANCELLED, job.reason or "cancelled")
    if job.state is JobState.HELD:
        return EndJob(job.id, JobEvent.RESUMED, "its command has ended")
    if job.state is JobState.QUEUED:
        return EndJob(job.id, JobEvent.ATTEMPT_PLANNED, "its command has ended")
    event = JobEvent.SUCCEEDED if head.succeeded else JobEvent.FAILED
    return EndJob(job.id, event, exits.ended(head.exit_code, head.undelivered), head.exit_code)


def _of_hold(seen: JobSeen, own: Sequence[Case]) -> Action | None:
    if seen.job.state is JobState.HELD or holder_of(own) is not None or unsafe(own):
        return None
    return EndJob(seen.job.id, JobEvent.HELD, seen.job.reason)


def _of_limits(snapshot: Snapshot, seen: JobSeen, own: Sequence[Case]) -> Action | None:
    job = seen.job
    money = over_budget(snapshot, seen)
    if money is not None:
        return SetWish(job.id, Wish.HOLD, money)
    if (why := _unusable(own) or out_of_memory(snapshot, seen)) is not None:
        return SetWish(job.id, Wish.HOLD, why)
    if (why := _garbled(own)) is not None:
        return SetWish(job.id, Wish.HOLD, why)
    never_ran = _never_ran(own)
    if len(never_ran) >= snapshot.limits.launch_failures_max:
        why = f"{len(never_ran)} machines in a row never got the job to run; the last: {never_ran[-1]}"
        return SetWish(job.id, Wish.HOLD, why)
    if len(backoff.setbacks(own)) >= snapshot.limits.launch_failures_max:
        return SetWish(job.id, Wish.HOLD, backoff.said(own))
    return _settled_move(seen, own) or _settled_rewind(seen, own) or idle(seen, own)


def _garbled(own: Sequence[Case]) -> str | None:
    """What its agent says has not been understood for so long that, were it silent, it would be given up."""
    holder = holder_of(own)
    if holder is None or holder.unread is None or not holder.unread.garbled:
        return None
    agent = holder.agent
    since = (agent.understood_at or agent.spoke_at) if agent is not None else holder.attempt.since
    if holder.hearing.seconds(since, holder.now) <= holder.silence_seconds:
        return None
    return f"what the agent of attempt {holder.attempt.number} reports can't be read: {holder.unread.why}"


def _unusable(own: Sequence[Case]) -> str | None:
    """What an agent says of image or inputs with which no machine would fare better; each further one would cost money."""
    runs = any(c.attempt.state in HOLDS and not (c.agent and c.agent.state == "broken") for c in own)
    for c in own:
        if c.agent is None or not tried_since(c.seen.job, c.attempt):
            continue
        if c.agent.state == "broken" and c.agent.error_kind in UNUSABLE:
            return c.agent.error
        if not runs and c.agent.state == "standby" and c.agent.unfit_kind in UNUSABLE:
            return c.agent.unfit
    return None


def _never_ran(own: Sequence[Case]) -> list[str]:
    """Reasons of the newest attempts in a row that were ordered and never owned the job."""
    reasons: list[str] = []
    for c in reversed(own):
        ran = c.attempt.granted_at is not None and not (c.attempt.store_failed or c.attempt.restore_refused)
        if ran or not tried_since(c.seen.job, c.attempt):
            break
        if c.attempt.gave_way_to:
            continue  # it was no fault of the machine
        if c.attempt.launched_at is not None and c.attempt.state not in WAITS and c.attempt.reason:
            reasons.insert(0, c.attempt.reason)
    return reasons


def _settled_move(seen: JobSeen, own: Sequence[Case]) -> Action | None:
    """A move request ends when the machine ordered for it holds the job, was refused, or the drain for it failed."""
    job = seen.job
    if job.move is None:
        return None
    serving = [c for c in own if c.attempt.for_move == job.move.number]
    if any(c.attempt.state is A.RUNNING for c in serving):
        return SetWish(job.id, None, "moved", clear_move=True)
    if serving and all(c.attempt.state in (A.REFUSED, A.RELEASING, A.RELEASED, A.LOST) for c in serving):
        return SetWish(job.id, None, f"the move failed: {serving[-1].attempt.reason}", clear_move=True)
    failed = failed_drain(own)
    return None if failed is None else SetWish(job.id, None, f"the move failed, the job runs on: {failed}", clear_move=True)


def _settled_rewind(seen: JobSeen, own: Sequence[Case]) -> Action | None:
    """Going back is over when the head shows it, or when the drain that it needs failed: nothing is thrown away for it."""
    job = seen.job
    if job.rewind is None:
        return None
    if going_back(seen) is None:
        return SetWish(job.id, None, f"it went back to checkpoint {job.rewind.checkpoint}", clear_rewind=True)
    failed = failed_drain(own)
    if failed is None:
        return None
    why = f"going back to {job.rewind.checkpoint} failed, the job runs on: {failed}"
    return SetWish(job.id, None, why, clear_rewind=True)


def _give_back(seen: JobSeen, own: Sequence[Case], planner: Planner, acted: Collection[int | None]) -> GiveBack | None:
    """The job goes on where it stands frozen, because it could not go on elsewhere."""
    kept = taken_back(own)
    if kept is None or kept.agent is None or seen.head is None or kept.attempt.number in acted:
        return None
    if planner.gives_way(seen) is not None:
        return None
    head = seen.head
    return GiveBack(seen.job.id, kept.attempt.number, head.number, kept.agent.kept, head.sequence, why(own, kept))


def _grant(
    snapshot: Snapshot, seen: JobSeen, own: Sequence[Case], planner: Planner, acted: Collection[int | None]
) -> Action | None:
    waiter = ready(own)
    if waiter is None or waiter.attempt.number in acted or not wanted(seen) or seen.head is None:
        return None
    why_not = unsafe(own)
    if why_not is not None:
        planner.reject(seen.job.id, f"grant to attempt {waiter.attempt.number}", why_not)
        return None
    if planner.may_be_outgrown(waiter):
        planner.reject(seen.job.id, f"grant to attempt {waiter.attempt.number}", "how large the final save is was not told yet")
        return None
    try:
        checkpoint = choose_checkpoint(seen, snapshot.limits)
    except NothingLeft as e:
        return SetWish(seen.job.id, Wish.HOLD, str(e))
    start = f"from checkpoint {checkpoint}" if checkpoint else "from the beginning"
    start += passed_over(seen, checkpoint)
    head = seen.head
    return Grant(waiter.attempt.job, waiter.attempt.number, head.number, checkpoint, head.sequence, start)
