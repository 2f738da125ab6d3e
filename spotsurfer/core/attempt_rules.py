"""The rules for one attempt: an ordered list, the first rule that matches wins.

They yield at most one action per attempt and tick. Otherwise a notice and a move for the price in the same tick would ask for
the same drain twice, and the second order has no edge in the state table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spotsurfer.core.facts.attempt_view import WORKING, AttemptView, finished
from spotsurfer.core.moves import Leaving
from spotsurfer.core.scheduling.interval import Paced
from spotsurfer.core.scheduling.machines import slot_empty
from spotsurfer.core.scheduling.preemption import Way
from spotsurfer.model.actions import Action, Ask, Launch, Mark, Pace, Terminate
from spotsurfer.model.job import HOLDS, OVER, WAITS, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.state_machine import AttemptEvent as E

UNUSABLE = ("image", "input", "secrets", "user")  # error kinds of the agent that another machine would not avoid
# The agent's error kind, if a job did not go on -> event and text. A kind without a row counts against the checkpoint.
OUTCOMES: dict[str, tuple[E, str]] = {
    "store": (E.STORE_FAILED, "the store did not answer"),  # the same checkpoint again
    "refused": (E.RESTORE_REFUSED, "the machine could not go on with the checkpoint"),  # the same one, another machine type
    "image": (E.STORE_FAILED, "the job's container image can't be used"),  # no fault of a checkpoint; the job is held
    "input": (E.STORE_FAILED, "an input of the job can't be fetched"),
    "secrets": (E.STORE_FAILED, "the job's secrets do not open"),
    "user": (E.STORE_FAILED, "the job's user does not exist there"),
    "hook": (E.STORE_FAILED, "its before_thaw did not succeed in time"),  # the same again: it has not run since
}
BLAMED = (E.RESTORE_FAILED, "the agent could not start the job")  # counts; after some of them the previous checkpoint is taken

Rule = Callable[[AttemptView, "Plans"], Action | None]


@dataclass(frozen=True, slots=True)
class Plans:
    """The intentions of the whole job that its attempts must know."""

    unwanted: frozenset[int]  # waiters that are no longer needed
    leaving: Leaving  # the holder's orders because of a move
    pace: Callable[[AttemptView], Paced | None]  # how often the holder should save
    way: Way | None  # the job of higher priority that is to have its machines
    keeper: AttemptView | None  # the attempt that keeps the job frozen for a possible return


def decide_attempt(case: AttemptView, plans: Plans) -> Action | None:
    """The one thing to do about this attempt now."""
    if case.attempt.state in OVER:
        return None
    return next((action for rule in RULES if (action := rule(case, plans)) is not None), None)


def _mark(c: AttemptView, event: E, reason: str) -> Mark:
    return Mark(c.attempt.job, c.attempt.number, event, reason)


def _terminate(c: AttemptView, reason: str) -> Terminate:
    return Terminate(c.attempt.job, c.attempt.number, reason)


def granted_after_all(c: AttemptView, _: Plans) -> Action | None:
    """The head names the attempt already: the controller crashed between the grant and its record."""
    if c.attempt.state is A.READY and c.owns:
        return _mark(c, E.EPOCH_GRANTED, "by the store it owns the job already")
    return None


def given_back_after_all(c: AttemptView, _: Plans) -> Action | None:
    """The head names the attempt again: the controller crashed between that entry and its record."""
    if c.attempt.state is A.DRAINED and c.owns and c.head is not None and not (c.head.final or c.head.done):
        return _mark(c, E.GIVEN_BACK, "by the store it has the job again")
    return None


def waiter_unwanted(c: AttemptView, plans: Plans) -> Action | None:
    """End a machine that is no longer needed."""
    if c.attempt.state not in WAITS:
        return None
    if finished(c.seen) or c.seen.job.wish is not Wish.RUN:
        return _terminate(c, "the job does not need a machine any more")
    if plans.way is not None:
        return Terminate(c.attempt.job, c.attempt.number, plans.way.why, plans.way.to)
    if c.attempt.number in plans.unwanted:
        return _terminate(c, "the machine is no longer needed")
    if c.warned is not None and not c.owns:
        return _terminate(c, "the cloud will take the machine before it was needed")
    return None


BLIND_SECONDS = 30.0  # a machine is planned for so long at a cloud that can't be listed


def planned(c: AttemptView, _: Plans) -> Action | None:
    """Order a planned machine, on a complete view of its cloud only."""
    if c.attempt.state is A.PLANNED and c.listed_at is not None:
        return Launch(c.attempt.job, c.attempt.number, c.attempt.purpose)
    if c.attempt.state is A.PLANNED and c.listed_elsewhere and (c.now - c.attempt.since).total_seconds() > BLIND_SECONDS:
        return _terminate(c, f"{c.attempt.pool.provider} can't be listed, and other clouds can")
    return None


def gone(c: AttemptView, _: Plans) -> Action | None:
    """The machine has ended."""
    if c.attempt.state is A.PLANNED or not c.gone:
        return None
    if c.over_by_head or c.owns_final:
        return None  # it ended with its work done: the rules below record that step by step
    if (c.attempt.state is A.RESTORING and c.broken) or _is_unwhole(c):
        return None  # its agent ended it and had reported why: that counts
    if c.attempt.state in (A.DRAINED, A.FINISHED, A.LOST):
        return _terminate(c, "the machine has ended")
    why = "the cloud took the machine" if c.instance is not None and c.instance.reclaimed else "the machine is gone"
    if c.agent is not None and c.broken and c.agent.error:
        why = c.agent.error  # its agent ended it, and had reported why
    return _mark(c, E.INSTANCE_GONE, why)


def appeared(c: AttemptView, _: Plans) -> Action | None:
    """The cloud's listing shows the machine."""
    if c.attempt.state is A.REQUESTED and c.instance is not None:
        return _mark(c, E.INSTANCE_SEEN, "the machine is in the cloud's listing")
    return None


def booted(c: AttemptView, _: Plans) -> Action | None:
    """The agent reports; if it reports that it can't do the work, end the machine."""
    if c.attempt.state not in (A.BOOTING, A.READY) or c.agent is None:
        return None
    if c.agent.workload_dead:
        return _terminate(c, c.agent.error or f"the agent is {c.agent.state}")
    if c.noticed:
        return _terminate(c, "the cloud will take the machine before it was needed")
    if c.attempt.state is A.READY and c.agent.unfit and not c.owns:
        blameless = c.agent.unfit_kind in UNUSABLE
        return _mark(c, E.STORE_FAILED if blameless else E.RESTORE_REFUSED, c.agent.unfit)
    if c.attempt.state is A.BOOTING and c.agent.state != "boot" and not c.agent.waits:
        return _mark(c, E.AGENT_READY, "the agent stands by")
    return None


def restored(c: AttemptView, _: Plans) -> Action | None:
    """The job started under the attempt, or could not."""
    if c.attempt.state is not A.RESTORING:
        return None
    if c.owns and c.head is not None and (c.head.done or c.head.final or c.head.number > c.attempt.head_number):
        return _mark(c, E.WORKLOAD_STARTED, "the head shows work of this attempt")
    if c.over_by_head:
        return _mark(c, E.WORKLOAD_STARTED, "the job was closed meanwhile")
    if c.agent is not None and c.broken:
        event, otherwise = OUTCOMES.get(c.agent.error_kind, BLAMED)
        return _mark(c, event, c.agent.error or otherwise)
    if c.agent is not None and c.agent.state in WORKING:
        return _mark(c, E.WORKLOAD_STARTED, "the agent says that the job runs")
    return None


def unwhole(c: AttemptView, _: Plans) -> Action | None:
    """The job ran, but the rest of its memory, or its next step, failed: that counts as a failed restore."""
    if c.agent is not None and _is_unwhole(c):
        return _mark(c, E.RESTORE_FAILED, c.agent.error or "its memory could not be brought")
    return None


def _is_unwhole(c: AttemptView) -> bool:
    blamed = c.agent is not None and c.agent.error_kind in ("restore", "start")
    return c.attempt.state in (A.RUNNING, A.DRAINING) and blamed and c.broken


def ended(c: AttemptView, _: Plans) -> Action | None:
    """The head shows that the work is over."""
    if c.attempt.state in (A.RUNNING, A.DRAINING) and c.over_by_head:
        return _mark(c, E.WORKLOAD_EXITED, "the job was cancelled" if _cancelled(c) else "its command has ended")
    return None


def drained(c: AttemptView, _: Plans) -> Action | None:
    """The head holds the final checkpoint, asked for or made by the agent alone."""
    if c.head is None or not c.owns_final:
        return None
    if c.attempt.state in (A.RUNNING, A.DRAINING):
        unsaved = c.seen.job.spec.engine == "none" or c.head.checkpoint is None
        return _mark(c, E.FINAL_SAVED, "it was drained unsaved" if unsaved else f"checkpoint {c.head.checkpoint} is final")
    return None


def save_failed(c: AttemptView, _: Plans) -> Action | None:
    """A failed checkpoint leaves the job running on its machine."""
    a, error = c.attempt, c.drain_error
    if error is None:
        return None
    return Ask(a.job, a.number, "run", a.desired_save, None, E.SAVE_FAILED, error or "the final save failed")


def withdrawn(c: AttemptView, plans: Plans) -> Action | None:
    """The reason to drain is gone before the drain finished."""
    a = c.attempt
    if a.state is A.DRAINING and plans.leaving.drain is None:
        return Ask(a.job, a.number, "run", a.desired_save, None, E.DRAIN_WITHDRAWN, "there is no reason to leave any more")
    return None


def silent(c: AttemptView, _: Plans) -> Action | None:
    """No report for longer than the lease (a holder has frozen its job by then), or none at all."""
    s = c.attempt.state
    unread = c.unread is not None and not c.unread.garbled  # unread for now; a report that can't be parsed counts as none
    boots = s is A.BOOTING and (c.agent.state == "boot" if c.agent is not None else not unread)
    if boots and c.hearing.seconds(c.attempt.since, c.now) > c.limits.boot_limit_seconds:
        return _mark(c, E.SILENT, f"no agent within {c.limits.boot_limit_seconds:.0f} s of booting")
    if (s is A.READY or s in HOLDS or (s is A.BOOTING and not boots)) and c.silent:
        return _mark(c, E.SILENT, f"no report for {c.silent_seconds:.0f} s")
    return None


def drain(c: AttemptView, plans: Plans) -> Action | None:
    """Ask the holder to save for the last time."""
    a, plan = c.attempt, plans.leaving
    if a.state not in (A.RESTORING, A.RUNNING) or plan.drain is None:
        return None
    last = Ask(a.job, a.number, "drain", a.desired_save, plan.seconds_left, E.DRAIN_ASKED, plan.drain)
    return replace(last, gives_way_to=plan.gives_way_to, keep=plan.hurry)


def hurry(c: AttemptView, plans: Plans) -> Action | None:
    """Tell a standby machine that the job comes, so that it looks at the head more often."""
    a = c.attempt
    if a.state is A.READY and plans.leaving.hurry and a.desired_want != "hurry":
        return Ask(a.job, a.number, "hurry", 0, None, None, "the job is about to come")
    return None


def save(c: AttemptView, plans: Plans) -> Action | None:
    """The user asked for a checkpoint, or a move wants a fresh one."""
    a, want = c.attempt, c.seen.job.save_at_least
    if a.state is not A.RUNNING or c.head is None:
        return None
    if want > max(c.head.sequence, a.desired_save):
        return Ask(a.job, a.number, "run", want, None, None, "a checkpoint was asked for")
    if plans.leaving.save is not None and a.desired_save <= c.head.sequence:
        return Ask(a.job, a.number, "run", c.head.sequence + 1, None, None, f"a checkpoint, {plans.leaving.save}")
    return None


def partial(c: AttemptView, _: Plans) -> Action | None:
    """The user wants the outputs so far. One machine is asked, once; if it does not deliver, the user asks again."""
    a, wanted = c.attempt, c.seen.job.partials_asked
    if a.state is not A.RUNNING or wanted <= max(x.desired_partial for x in c.seen.attempts):
        return None
    return Ask(a.job, a.number, "run", a.desired_save, None, None, "its outputs so far were asked for", wanted)


def signal(c: AttemptView, _: Plans) -> Action | None:
    """The user has a signal for its processes. Of several within one look the newest is sent."""
    a, job = c.attempt, c.seen.job
    if a.state is not A.RUNNING or job.signals_asked <= a.signals_told:
        return None
    why = f"SIG{job.signal} for its processes"
    number, name = job.signals_asked, job.signal
    return Ask(a.job, a.number, "run", a.desired_save, None, None, why, signal_number=number, signal=name)


def pace(c: AttemptView, plans: Plans) -> Action | None:
    """Set the interval between saves, anew after each save."""
    found = plans.pace(c)
    return None if found is None else Pace(c.attempt.job, c.attempt.number, found.seconds, found.saves, found.why)


HOME_SECONDS = 900.0  # so long a machine may send what a job that was ended made of its folder


def release(c: AttemptView, plans: Plans) -> Action | None:
    """End a machine with nothing left to do. One that just finished gets a moment for its last report (usage, frozen time)."""
    if c.attempt.state not in (A.DRAINED, A.FINISHED, A.LOST):
        return None
    if plans.keeper is not None and plans.keeper.attempt.number == c.attempt.number:
        return None  # until the job runs elsewhere
    said_all = c.agent is None or c.agent.workload_dead or c.agent.kept or c.gone
    patience = max(c.limits.last_report_seconds, HOME_SECONDS if c.seen.job.spec.home else 0.0)
    if c.attempt.state is not A.LOST and not said_all and c.age_seconds < patience:
        return None
    finished = "cancelled" if _cancelled(c) else "finished"
    reasons = {A.DRAINED: "drained", A.FINISHED: finished, A.LOST: c.attempt.reason or "lost"}
    return _terminate(c, reasons[c.attempt.state])


def _cancelled(c: AttemptView) -> bool:
    """Whether the user ended the job, not the job itself."""
    return c.head is not None and c.head.cancelled


def release_again(c: AttemptView, _: Plans) -> Action | None:
    """Repeat the order to end a machine until a listing shows that it worked."""
    if c.attempt.state is A.RELEASING and not c.gone and c.age_seconds > c.limits.release_again_seconds:
        return _terminate(c, "it is still there")
    return None


def released(c: AttemptView, _: Plans) -> Action | None:
    """The machine is confirmed gone."""
    if c.attempt.state is A.RELEASING and c.gone:
        return _mark(c, E.INSTANCE_GONE, "the machine is gone")
    return None


def emptied(c: AttemptView, _: Plans) -> Action | None:
    """The attempt left a machine that stays, and nothing of it is there any more."""
    if c.stays and slot_empty(c.attempt, c.agent):
        return _mark(c, E.SLOT_EMPTY, "nothing of it is left on the machine, which is kept")
    return None


RULES: tuple[Rule, ...] = (
    granted_after_all,
    given_back_after_all,
    waiter_unwanted,
    planned,
    gone,
    appeared,
    booted,
    restored,
    unwhole,
    ended,
    drained,
    save_failed,
    withdrawn,
    silent,
    drain,
    hurry,
    save,
    partial,
    signal,
    pace,
    release,
    emptied,
    release_again,
    released,
)
