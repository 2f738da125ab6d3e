"""decide(snapshot, policy, now) -> Decision, with the judgement of agents that have gone silent. Pure.

This file holds the branches; all functions that it calls are pure, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spotsurfer.core.attempt_rules import UNUSABLE, Plans, decide_attempt
from spotsurfer.core.facts.attempt_view import AttemptView, cases, finished, going_back, holder_of, wanted
from spotsurfer.core.facts.ownership import NothingLeft, choose_checkpoint, passed_over, ready, tried_since, unsafe
from spotsurfer.core.moves import in_transit, keeper, leaving, taken_back, why
from spotsurfer.core.scheduling import launch, stuck
from spotsurfer.core.scheduling.capacity import out_of_memory, over_budget
from spotsurfer.core.scheduling.launch import Planner
from spotsurfer.core.scheduling.suspension import coming_back, failed_drain, idle
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
from spotsurfer.model.job import ENDED, HOLDS, MEMORY, OVER, WAITS, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import Doubt, HeadSeen, JobSeen, Snapshot
from spotsurfer.model.state_machine import ATTEMPT, JobEvent, advance
from spotsurfer.model.state_machine import AttemptEvent as E
from spotsurfer.ports.policies import Interval, Policy, Purchase

# ---- Doubt: whether silence is evidence. One silent agent is dead or cut off; many at once are cut off by what they share.
#
# A doubt ends by itself. If the store was down for machines, they report again. Otherwise only a new machine can show that the
# store is not the cause. If none is ordered anyway, the controller orders one more machine for a silent job, which waits beside
# the holder: that costs minutes of a machine and ends none. If it can't order one (limits, money, no offers), it gives up one
# silent machine after the other, hours later and long after each has frozen its job; the replacement can tell about the others.
# No job gets two owners by that: under a doubt the controller waits until the cloud shows that a machine it gave up is gone.

# Times count from the moment when all quiet agents were silent for longer than their leases.
ASKS_SECONDS = 900.0  # an outage of the store is mostly over by then
AGAIN = timedelta(seconds=1800)  # between two orders, or two give-ups, because of a doubt
GIVES_UP_SECONDS = 7200.0  # a healthy machine that only waits for the store should not lose unsaved work


def doubt(snapshot: Snapshot, now: datetime) -> Doubt | None:
    """Why the silence of agents is no evidence against them, and the next step; None if it is evidence.

    All agents write to one store. If more than half of those that reported before are quiet at once, the store refuses their
    writes, even if it accepts the controller's. Quiet means that an agent missed a report or two: agents report at different
    times, so the first one that is silent for too long is seldom the only one that can't report. A machine that was ordered
    since they fell silent, and reports, is evidence against this. (A machine that the cloud shows as gone needs no silence.)
    """
    reporting = (*HOLDS, A.BOOTING, A.READY)  # states in which an agent that reported before goes on to report if it can
    spoke = (c for seen in snapshot.jobs for c in cases(snapshot, seen, now) if c.spoke and c.state in reporting and not c.gone)
    known = [c for c in spoke if c.agent is None or not c.agent.workload_dead]
    quiet = [c for c in known if c.quiet]
    if len(quiet) < 2 or 2 * len(quiet) <= len(known):
        return None
    fell_silent_at = now - timedelta(seconds=min(c.unheard_seconds for c in quiet))
    if any(c.attempt.launched_at is not None and c.attempt.launched_at > fell_silent_at for c in known if not c.quiet):
        return None
    why = f"{len(quiet)} of {len(known)} agents fell silent together, so the store seems not to take their reports"
    found = Doubt(why)
    silent_for = min(c.silent_seconds - c.silence_seconds for c in quiet)
    if silent_for <= ASKS_SECONDS or _awaited(snapshot, quiet, fell_silent_at, now):
        return found
    left = (a for seen in snapshot.jobs for a in seen.attempts if a.state in (A.LOST, A.RELEASING, A.RELEASED))
    if silent_for > GIVES_UP_SECONDS and not any(now - a.since < AGAIN for a in left):
        cheapest = min(quiet, key=lambda c: (c.state in HOLDS, c.seen.job.spec.priority, c.seen.at_risk_seconds, c.attempt.job))
        found = replace(found, gives_up=(cheapest.attempt.job, cheapest.attempt.number))  # with the least work to lose
    able = [c.seen for c in quiet if c.state in HOLDS and wanted(c.seen) and not any(a.state in WAITS for a in c.seen.attempts)]
    # The one with the fewest attempts gets one more, so that it is another job each time.
    chosen = min(able, key=lambda seen: (len(seen.attempts), seen.job.submitted_at, seen.job.id), default=None)
    return replace(found, asks=None if chosen is None else chosen.job.id)


def _awaited(snapshot: Snapshot, quiet: Sequence[AttemptView], since: datetime, now: datetime) -> bool:
    """Whether a machine that can settle the doubt is on its way, or came a while ago and did not report either.

    A machine that stood by before the others fell silent, and reports, settles nothing.
    """
    told = {(c.attempt.job, c.attempt.number) for c in quiet}
    new = [(seen, a) for seen in snapshot.jobs for a in seen.attempts if (a.job, a.number) not in told]
    lately = max(since, now - AGAIN)
    return any(
        (a.state in WAITS and a.number not in seen.agents and a.number not in seen.unread)
        or (a.launched_at is not None and a.launched_at > lately)
        for seen, a in new
    )


TROUBLE_SECONDS = 600.0  # for a final save without a forecast


def decide(
    snapshot: Snapshot, policy: Policy, now: datetime, purchase: Purchase | None = None, interval: Interval | None = None
) -> Decision:
    """The actions to take now, and the rejected alternatives with reasons.

    `purchase` chooses what to buy for jobs with a deadline; None = `policy` ranks, as for all others. `interval` decides how
    often to save jobs without an interval from their user; None = as they were submitted.
    """
    snapshot = replace(snapshot, doubt=doubt(snapshot, now))
    planner = Planner(snapshot, policy, now, purchase, interval)
    contest = planner.contest
    actions: list[Action] = []
    for seen in sorted(snapshot.jobs, key=lambda s: (-contest.level(s), s.job.submitted_at, s.job.id)):
        actions += _decide_job(planner, seen, cases(snapshot, seen, now))
    actions += planner.purse.tell()
    actions += planner.fleet.actions()
    if not snapshot.ahead:
        orphans = (o for o in snapshot.orphans if not o.gone and snapshot.listed_at(o.provider) is not None)
        actions += [Sweep(o.id, o.provider, "it belongs to no attempt of ours") for o in orphans]
    hurry = contest.hurry or planner.fleet.hurry or any(in_transit(cases(snapshot, s, now)) for s in snapshot.jobs)
    alarms = planner.alarms()
    return Decision(tuple(actions), tuple(planner.rejected), dict(planner.notes), hurry, dict(contest.levels), alarms)


def _decide_job(planner: Planner, seen: JobSeen, own: Sequence[AttemptView]) -> list[Action]:
    """The actions for a job with these attempts: on each attempt, then on the job itself, then on who has it next."""
    if seen.trouble:
        return _of_trouble(planner, seen, own)
    if recalled := _recall(seen):
        return recalled
    if doubted := next((c.doubt for c in own if c.state in HOLDS and c.silent_seconds > c.silence_seconds), ""):
        planner.note(seen.job.id, doubted)
    if still := next((c.agent.waits for c in own if c.state in HOLDS and c.agent is not None and c.agent.waits), ""):
        planner.note(seen.job.id, f"it stands still: {still}")
    way = planner.contest.ways.get(seen.job.id)
    kept = keeper(own) if way is None else None
    plans = Plans(planner.unwanted(seen, own), leaving(own, planner), planner.pace, way, kept)
    actions = [a for c in own if (a := _of_attempt(planner, c, plans)) is not None]
    if (of_job := _of_job(planner, seen, own)) is not None:
        return [*actions, of_job]
    marks = {a.attempt: a for a in actions if isinstance(a, Mark)}
    marked = [_marked(c, marks.get(c.attempt.number)) for c in own]
    acted = {
        getattr(a, "attempt", None) for a in actions if not (isinstance(a, Pace) or (isinstance(a, Ask) and a.event is None))
    }
    if way is None and (back := taken_back(marked)) is not None and back.attempt.number not in acted:
        return [*actions, _give_back(seen, marked, back)]
    if (waiter := ready(marked)) is not None and waiter.attempt.number not in acted and wanted(seen) and seen.head is not None:
        actions += _grant(planner, seen.head, marked, waiter)
    plan = planner.plan(seen, own)
    return [*actions, plan] if plan is not None else actions


def _of_attempt(planner: Planner, c: AttemptView, plans: Plans) -> Action | None:
    """The action for an attempt; one on a kept machine may leave that instead of ending it."""
    action = decide_attempt(c, plans)
    return planner.fleet.left(c, action) if isinstance(action, Terminate) else action


def _of_trouble(planner: Planner, seen: JobSeen, own: Sequence[AttemptView]) -> list[Action]:
    """Hold a job that was set aside, so that its user notices and can try again. Its machine is asked to save it and gets time
    for that; afterwards, or if the job is cancelled, the machine is ended. For an ended job only the machines are ended.
    """
    job = seen.job
    why = f"the controller can't deal with it ({seen.trouble}): report that, and `resume` it to try again"
    planner.note(job.id, why)
    if job.wish is Wish.RUN and job.state not in ENDED:
        return [SetWish(job.id, Wish.HOLD, why)]
    ways = ((c, a) for c in own if c.state not in OVER and (a := _to_leave(c, why)) is not None)
    actions = [planner.fleet.left(c, a) or a if isinstance(a, Terminate) else a for c, a in ways]
    if job.state in ENDED:
        return actions
    if job.wish is Wish.CANCEL and all(c.state in OVER for c in own):
        actions.append(EndJob(job.id, JobEvent.CANCELLED, job.reason or "cancelled"))
    elif job.wish is Wish.HOLD and (held := _of_hold(seen, own)) is not None:
        actions.append(held)
    return actions


def _to_leave(c: AttemptView, why: str) -> Action | None:
    """The next step to end a machine if only its row and its presence in the listing are known."""
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
    """Recall an attempt that owns the job in the store and that this database, from a backup, does not know."""
    job, head = seen.job.id, seen.head
    if head is None or head.epoch == 0 or any(a.number == head.epoch for a in seen.attempts):
        return []
    before = [Mark(job, a.number, E.SILENT, "another one owns the job by now") for a in seen.attempts if a.state in HOLDS]
    why = "it owns the job by the store, and this database, which is older, did not know it"
    machine = seen.machines_heard.get(head.epoch, "")
    return [*before, Recall(job, head.epoch, seen.desired_heard.get(head.epoch, 0), why, machine)]


def _marked(c: AttemptView, mark: Mark | None) -> AttemptView:
    """The attempt as it will be after the mark, so that a grant need not wait for another look."""
    if mark is None:
        return c
    a = c.attempt
    return replace(c, attempt=replace(a, state=advance(ATTEMPT, a.state, mark.event), reason=a.reason or mark.reason))


def _of_job(planner: Planner, seen: JobSeen, own: Sequence[AttemptView]) -> Action | None:
    """The one action on the job itself that is due, or None."""
    job, head = seen.job, seen.head
    if job.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED) or head is None:
        if head is None:
            planner.note(job.id, "the store can't be read")
        return None
    if head.done and going_back(seen) is None and (finished(seen) or job.failures < head.failures):
        return _of_done(seen, head)
    if job.wish is Wish.CANCEL:
        return Close(job.id, head.number, job.reason or "cancelled")
    if (money := planner.purse.held(seen)) is not None:
        return money
    if job.wish is Wish.HOLD:
        return coming_back(seen, own) or _of_hold(seen, own)
    if job.state is JobState.HELD:
        return EndJob(job.id, JobEvent.RESUMED, "resumed")
    if (rival := planner.rivals.get(job.id)) is not None:
        return SetWish(job.id, Wish.HOLD, rival)
    return _of_limits(planner.snapshot, seen, own)


def _of_done(seen: JobSeen, head: HeadSeen) -> Action:
    job = seen.job
    if not finished(seen):
        why = f"{head.how_it_ended}; retry {head.failures} of {job.spec.retries}"
        return Retry(job.id, head.exit_code or 0, why)
    if head.cancelled:
        return EndJob(job.id, JobEvent.CANCELLED, job.reason or "cancelled")
    if job.state is JobState.HELD:
        return EndJob(job.id, JobEvent.RESUMED, "its command has ended")
    if job.state is JobState.QUEUED:
        return EndJob(job.id, JobEvent.ATTEMPT_PLANNED, "its command has ended")
    event = JobEvent.SUCCEEDED if head.succeeded else JobEvent.FAILED
    return EndJob(job.id, event, head.how_it_ended, head.exit_code, head.ended_by)


def _of_hold(seen: JobSeen, own: Sequence[AttemptView]) -> Action | None:
    if seen.job.state is JobState.HELD or holder_of(own) is not None or unsafe(own):
        return None
    return EndJob(seen.job.id, JobEvent.HELD, seen.job.reason)


def _of_limits(snapshot: Snapshot, seen: JobSeen, own: Sequence[AttemptView]) -> Action | None:
    why = over_budget(snapshot, seen) or _unusable(own)
    if why is None and (why := out_of_memory(snapshot, seen)) is not None and seen.job.spec.out_of_memory == "fail":
        return Close(seen.job.id, seen.head.number if seen.head else 0, why, MEMORY)
    why = why or _garbled(own)
    if why is None and len(never_ran := _never_ran(own)) >= snapshot.limits.launch_failures_max:
        why = f"{len(never_ran)} machines in a row never got the job to run; the last: {never_ran[-1]}"
    if why is None and len(launch.setbacks(own)) >= snapshot.limits.launch_failures_max:
        why = launch.backoff_reason(own)
    if why is not None:
        return SetWish(seen.job.id, Wish.HOLD, why)
    return _settled_move(seen, own) or _settled_rewind(seen, own) or idle(seen, own) or stuck.settled(seen, own)


def _garbled(own: Sequence[AttemptView]) -> str | None:
    """Why the job must be held because its agent's reports were unreadable for as long as would count as silence; or None."""
    holder = holder_of(own)
    if holder is None or holder.unread is None or not holder.unread.garbled:
        return None
    agent = holder.agent
    since = (agent.understood_at or agent.spoke_at) if agent is not None else holder.attempt.since
    if holder.hearing.seconds(since, holder.now) <= holder.silence_seconds:
        return None
    return f"what the agent of attempt {holder.attempt.number} reports can't be read: {holder.unread.why}"


def _unusable(own: Sequence[AttemptView]) -> str | None:
    """An agent's error about image or inputs that no other machine would avoid; each further machine would cost money."""
    runs = any(c.attempt.state in HOLDS and not (c.agent and c.agent.state == "broken") for c in own)
    for c in own:
        if c.agent is None or not tried_since(c.seen.job, c.attempt):
            continue
        if c.agent.state == "broken" and c.agent.error_kind in UNUSABLE:
            return c.agent.error
        if not runs and c.agent.state == "standby" and c.agent.unfit_kind in UNUSABLE:
            return c.agent.unfit
    return None


def _never_ran(own: Sequence[AttemptView]) -> list[str]:
    """The reasons of the newest consecutive attempts that were ordered and never owned the job."""
    reasons: list[str] = []
    for c in reversed(own):
        ran = c.attempt.granted_at is not None and not (c.attempt.store_failed or c.attempt.restore_refused)
        if ran or not tried_since(c.seen.job, c.attempt):
            break
        if c.attempt.gave_way_to:
            continue  # the machine was not at fault
        if c.attempt.launched_at is not None and c.attempt.state not in WAITS and c.attempt.reason:
            reasons.insert(0, c.attempt.reason)
    return reasons


def _settled_move(seen: JobSeen, own: Sequence[AttemptView]) -> Action | None:
    """End a move request once the machine ordered for it holds the job or was refused, or the drain for it failed."""
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


def _settled_rewind(seen: JobSeen, own: Sequence[AttemptView]) -> Action | None:
    """End a rewind once the head shows it, or if the drain that it needs failed: no unsaved work is thrown away for it."""
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


def _give_back(seen: JobSeen, own: Sequence[AttemptView], kept: AttemptView) -> GiveBack:
    """Give the job back to the machine that keeps it frozen, because it could not go on elsewhere."""
    head, agent = seen.head, kept.agent
    assert head is not None
    assert agent is not None
    return GiveBack(seen.job.id, kept.attempt.number, head.number, agent.kept, head.sequence, why(own, kept))


def _grant(planner: Planner, head: HeadSeen, own: Sequence[AttemptView], waiter: AttemptView) -> list[Action]:
    seen, number = waiter.seen, waiter.attempt.number
    why_not = unsafe(own)
    if why_not is None and planner.may_be_outgrown(waiter):
        why_not = "how large the final save is was not told yet"
    why_not = why_not or planner.licences.lets_go(seen.job)
    if why_not is not None:
        planner.reject(seen.job.id, f"grant to attempt {number}", why_not)
        return []
    try:
        checkpoint = choose_checkpoint(seen, waiter.limits)
    except NothingLeft as e:
        return [SetWish(seen.job.id, Wish.HOLD, str(e))]
    start = f"from checkpoint {checkpoint}" if checkpoint else "from the beginning"
    start += passed_over(seen, checkpoint)
    planner.licences.grant(seen.job)
    return [Grant(seen.job.id, number, head.number, checkpoint, head.sequence, start)]
