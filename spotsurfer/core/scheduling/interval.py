"""How often a running job is saved: asks the interval policy after each save and checks its answer. Pure.

An interval set by user or operator is used without asking a policy. The usual interval replaces a policy that fails or answers
nonsense. The agent shortens the interval if a notice's window requires it, but never makes it longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spotsurfer.common.units import counted, duration
from spotsurfer.core.facts.attempt_view import AttemptView
from spotsurfer.core.facts.pool_evidence import Evidence
from spotsurfer.core.scheduling.deadline import USUAL_SECONDS, asked, launches
from spotsurfer.model.job import AttemptState, rehearses
from spotsurfer.model.lifetimes import Fates
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.policies import Interval, SaveView

LEAST_SECONDS, MOST_SECONDS = 30.0, 7 * 86400.0  # limits on every policy's answer
GUESS_SECONDS = 10.0  # duration of a save's pause as long as none was made
SAME = 0.1  # a smaller relative change is not sent to the agent
NEARLY_DONE = 0.05  # of the work: a job with less left may run longer than its user estimated
# On spot, unsaved work counts as not done (`core/scheduling/deadline.py`): at most this share of the time to spare is risked.
SPARE_SHARE = 0.1
SAVES_SHARE = 20.0  # the job works at least so many times as long as a save takes, however little time is to spare
HASTY = "; sooner than would cost least: the deadline leaves no more to be risked"
ON_DEMAND_BAND = 0  # the cloud does not reclaim such a machine, but machines fail


@dataclass(frozen=True, slots=True)
class Paced:
    """Seconds between live saves from now on, and why. `alarm`: the policy failed; "" = it did not."""

    seconds: float
    saves: int  # number of saves when the policy was asked
    why: str
    alarm: str = ""


def paced(case: AttemptView, interval: Interval, offers: Sequence[Offer], known: Evidence) -> Paced | None:
    """The interval for the job of a running attempt; None if the policy is not due."""
    if not due(case):
        return None
    view = view_of(case, offers, known)
    assert case.agent is not None
    saves, before = case.agent.saves, case.attempt.pace_seconds
    seconds, alarm = _asked(interval, view)
    most = _affordable(case, view)
    hasty = most is not None and seconds > most
    seconds = most if hasty and most is not None else seconds
    if before is not None and abs(seconds - before) <= SAME * before:
        seconds = before
    return Paced(seconds, saves, explained(seconds, view, alarm) + (HASTY if hasty else ""), alarm)


def due(case: AttemptView) -> bool:
    """Whether to ask the policy: it was never asked or a save was made since, and user and operator set no interval."""
    job, a, agent = case.seen.job, case.attempt, case.agent
    if job.spec.checkpoint_interval_seconds is not None or rehearses(job) or a.state is not AttemptState.RUNNING:
        return False
    return agent is not None and not case.unsaved and not case.noticed and agent.saves != a.pace_saves


def view_of(case: AttemptView, offers: Sequence[Offer], known: Evidence) -> SaveView:
    """The view for an interval policy."""
    a, agent = case.attempt, case.agent
    fates = known.get((a.pool, a.market), Fates())
    fit = agent.fit if agent is not None else None
    save = case.seen.save_seconds or GUESS_SECONDS  # how long a save stops the job: as on its last machine, or a guess
    if agent is not None and agent.saves > 0 and agent.frozen_seconds > 0:
        save = agent.frozen_seconds / agent.saves  # as measured there
    work = case.seen.job.spec.work_seconds
    left = None if work is None else work - case.seen.done_seconds
    soon = work is not None and left is not None and left <= NEARLY_DONE * work  # the job may soon prove the estimate wrong
    spot = a.market is Market.SPOT
    window = fit.window_seconds if fit is not None else None
    band = next((o.interruption_band for o in offers if (o.pool, o.market) == (a.pool, a.market)), None)
    return SaveView(
        age_seconds=max((case.now - (a.launched_at or a.planned_at)).total_seconds(), 0.0),
        save_seconds=save,
        restart_seconds=launches(case.seen.attempts)[0] + save,
        final_seconds=fit.start_seconds + fit.durable_seconds if fit is not None else save,
        notice_seconds=(window or 0.0) if spot else 0.0,
        lives=fates.lives,
        noticed=fates.noticed,
        unnoticed=fates.unnoticed,
        band=band if spot else ON_DEMAND_BAND,
        left_seconds=None if soon else left,
    )


def _affordable(case: AttemptView, view: SaveView) -> float | None:
    """The longest interval because of a deadline that is not at risk yet; None = no such limit."""
    job = case.seen.job
    if job.spec.deadline_seconds is None or job.spec.work_seconds is None:
        return None
    spare = job.spec.deadline_seconds - (case.now - job.submitted_at).total_seconds() - job.spec.work_seconds
    spare += case.seen.done_seconds
    return max(SPARE_SHARE * spare, SAVES_SHARE * view.save_seconds, LEAST_SECONDS) if spare > 0 else None


def _asked(interval: Interval, view: SaveView) -> tuple[float, str]:
    """The policy's answer within sensible limits, or the usual interval with the error of the answer."""
    said, alarm = asked("interval", lambda: interval.save_after(view), _sensible)
    if alarm:
        return USUAL_SECONDS, alarm
    if said is None:  # no save before the end: if the end comes later than expected, one is made
        return min(view.left_seconds or MOST_SECONDS, MOST_SECONDS), ""
    # The job works at least half of its time.
    return min(max(float(said), LEAST_SECONDS, view.save_seconds), MOST_SECONDS), ""


def _sensible(said: object) -> bool:
    if isinstance(said, bool) or not isinstance(said, int | float):
        return said is None
    return math.isfinite(said) and said > 0


def explained(seconds: float, view: SaveView, alarm: str) -> str:
    """The interval with its numbers, in one sentence."""
    if alarm:
        return f"saved every {duration(seconds)}, as usual: {alarm}"
    watched = sum(view.lives.watched)
    losses, saved = round(view.lives.losses), counted(view.noticed, "job")
    were = "was" if losses == 1 else "were"
    lost = f"of machines like this one, which ran for {duration(watched)} in all, {losses} {were} lost"
    lost += f" ({saved} saved in time, {view.unnoticed} not)" if view.noticed + view.unnoticed else ""
    fits = "leaves time for a final save" if view.final_seconds <= view.notice_seconds else "leaves no time for a final save"
    notice = f"a notice {fits}" if view.notice_seconds > 0 else "machines may go without notice"
    left = "" if view.left_seconds is None else f"; {duration(view.left_seconds)} of work are left"
    return (
        f"saved every {duration(seconds)}: this machine is {duration(view.age_seconds)} old, a save stops the job for "
        f"{view.save_seconds:.1f} s, a restart takes {view.restart_seconds:.0f} s, {lost}, {notice}{left}"
    )
