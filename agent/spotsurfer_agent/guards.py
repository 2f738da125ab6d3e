"""When has an event happened? For each state an ordered list of guards; the first that holds names the edge."""

from __future__ import annotations

from collections.abc import Callable

from spotsurfer_agent.engines.port import WorkloadState as W
from spotsurfer_agent.facts import Facts, Task
from spotsurfer_agent.protocol import AgentState as S
from spotsurfer_agent.protocol import Want
from spotsurfer_agent.table import TERMINAL, Event, State

E = Event
WISHED_SECONDS = 30.0  # at least, between a save and the next that the job itself asks for
PRECOPY_GAIN_SECONDS = 1.0  # with a notice: a live save is made while there is time if it shortens the final one by so much
PRESSED_TRIES = 5  # to save a job that was frozen because its memory was about to end
OVERRUN_GRACE_SECONDS = 60.0  # a final save under way at the deadline may go on for so long: machines die late

Check = Callable[[State, Facts], bool]


def _idle(_: State, f: Facts) -> bool:
    return f.busy is None


def _stop(_: State, f: Facts) -> bool:
    return f.desired is not None and f.desired.want is Want.STOP


def asked(s: State, f: Facts) -> bool:
    """The controller wants a drain that has not failed yet."""
    return f.desired is not None and f.desired.want is Want.DRAIN and f.desired.sequence != s.drain_failed


def _drain(s: State, f: Facts) -> bool:
    return asked(s, f) or f.pressed or (f.interrupted and _time_to_go(f))


def _time_to_go(f: Facts) -> bool:
    """With a notice: at once, unless it is known how long the final save takes and there is more time than that."""
    left = f.notice_left_seconds
    if not f.rules.patient or f.fit is None or left is None:
        return True
    under_way = f.fit.live_seconds if f.busy is Task.LIVE else 0.0
    return left <= f.fit.reserve_seconds + under_way


def _lost_it(_: State, f: Facts) -> bool:
    return f.head is not None and not f.mine


def _step_due(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.step_due


def _exited(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.workload is W.EXITED


def _vanished(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.pending_final is None and f.workload in (W.LOST, W.ABSENT)


def _starved(s: State, f: Facts) -> bool:
    """It stands still for want of memory, and each try to save it failed."""
    return _idle(s, f) and f.pressed and not f.unprotected and f.pending_final is None and s.failures >= PRESSED_TRIES


def _refused(_: State, f: Facts) -> bool:
    return bool(f.refusal)


def _ended(task: Task, *, well: bool) -> Check:
    return lambda _, f: f.outcome is not None and f.outcome.task is task and (not f.outcome.error) is well


def _both(*checks: Check) -> Check:
    return lambda s, f: all(check(s, f) for check in checks)


def _looked(s: State, f: Facts) -> bool:
    return s.booted and f.head_read


def _nothing(_: State, f: Facts) -> bool:
    return f.pending_final is None and f.workload is W.ABSENT and not f.began_before


def _unneeded(s: State, f: Facts) -> bool:
    limit = f.rules.limit_seconds
    late = 0 < limit < f.now - s.since
    return f.interrupted or _stop(s, f) or late or (f.mine and asked(s, f))


def _never_needed(s: State, f: Facts) -> bool:
    return s.booted and _nothing(s, f) and _unneeded(s, f)


def _granted(_: State, f: Facts) -> bool:
    return f.mine and not f.lapsed


def _late(s: State, f: Facts) -> bool:
    if not f.interrupted or f.warning is None or f.warning.deadline_at is None:
        return False
    end = f.warning.deadline_at - f.rules.margin_seconds
    return f.now >= (end if _idle(s, f) else f.warning.deadline_at + OVERRUN_GRACE_SECONDS)


def may_save(s: State, f: Facts) -> bool:
    """Nothing speaks against beginning a save now. Where memory arrives it waits; too long, and the last checkpoint stands."""
    ours = s.held_since is None and not f.held and not f.lapsed and f.mine
    return ours and _idle(s, f) and not f.arriving and f.now >= s.retry_at


def waits_for_memory(s: State, f: Facts) -> bool:
    """A save is wanted and can't begin because memory still arrives."""
    asked = f.desired is not None and f.head is not None and f.desired.save_at_least > f.head.sequence
    return f.arriving and _idle(s, f) and (asked or s.name is S.DRAINING)


def _save_due(s: State, f: Facts) -> bool:
    if not may_save(s, f) or f.now < s.live_at or f.workload is not W.RUNNING or f.head is None or f.unprotected:
        return False
    if f.interrupted:
        return _save_before_leaving(f)
    interval = f.rules.interval_seconds
    asked = f.desired is not None and f.desired.save_at_least > f.head.sequence
    asked |= f.wishes_save and f.now - s.freeze_at >= WISHED_SECONDS
    return asked or (interval is not None and f.now - s.freeze_at >= interval)


def _save_before_leaving(f: Facts) -> bool:
    """With a notice and time enough: a live save now makes the final one short, whoever is ready for the job by then."""
    left = f.notice_left_seconds
    if f.fit is None or left is None or f.fit.gain_seconds < PRECOPY_GAIN_SECONDS:
        return False
    return left > f.fit.live_seconds + f.fit.reserve_seconds


def _final_saved(s: State, f: Facts) -> bool:
    return f.own_final and _idle(s, f)


def _may_run_on(_: State, f: Facts) -> bool:
    return not (f.interrupted or f.pressed) and f.pending_final is None


def _withdrawn(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.pending_final is None and not (f.interrupted or f.pressed or asked(s, f))


def _kept(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.kept


def _returned(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.returned and not f.lapsed


def _keeps_in_vain(s: State, f: Facts) -> bool:
    """It is not to come back: another one went on with it, it is over, or there is no time left."""
    return (not f.kept and not f.returned) or _stop(s, f) or _late(s, f) or f.now - s.since > f.rules.keep_seconds


_HOLDER = ((E.LOST_IT, _lost_it), (E.STOPPED, _stop))
GUARDS: dict[S, tuple[tuple[Event, Check], ...]] = {
    S.BOOT: (
        (E.REFUSED, _both(_refused, _nothing)),
        (E.REFUSED, _ended(Task.BOOT, well=False)),
        (E.UNNEEDED, _never_needed),
        (E.RETURNED, _both(_looked, lambda _, f: f.returned)),
        (E.KEPT, _both(_looked, lambda _, f: f.kept)),
        (E.FINAL_SAVED, _both(_looked, lambda _, f: f.own_final)),
        (E.PUBLISHED, _both(_looked, lambda _, f: f.own_done)),
        (E.LOST_IT, _both(_looked, _lost_it, lambda _, f: f.workload is not W.ABSENT or f.began_before)),
        (E.PENDING, _both(_looked, lambda _, f: f.pending_final is not None)),
        (E.ADOPTED, _both(_looked, lambda _, f: f.workload is W.RUNNING)),
        (E.STEP_DUE, _both(_looked, _step_due)),
        (E.EXITED, _both(_looked, lambda _, f: f.workload is W.EXITED)),
        (E.VANISHED, _both(_looked, lambda _, f: f.began_before)),
        (E.READY, _looked),
    ),
    S.STANDBY: ((E.REFUSED, _refused), (E.UNNEEDED, _unneeded), (E.GRANTED, _granted)),
    S.RESTORING: (*_HOLDER, (E.FAILED, _ended(Task.BEGIN, well=False)), (E.STARTED, _ended(Task.BEGIN, well=True))),
    S.RUNNING: (
        (E.FINAL_SAVED, _final_saved),
        *_HOLDER,
        (E.STEP_DUE, _step_due),
        (E.EXITED, _exited),
        (E.VANISHED, _vanished),
        (E.DRAIN, _drain),
        (E.SAVE_DUE, _save_due),
    ),
    S.STEPPING: (
        (E.FINAL_SAVED, _final_saved),
        *_HOLDER,
        (E.FAILED, _both(_ended(Task.STEP, well=False), lambda _, f: f.outcome is not None and f.outcome.kind != "store")),
        (E.STEPPED, _ended(Task.STEP, well=True)),
    ),
    S.SAVING: (*_HOLDER, (E.DRAIN, _drain), (E.SAVE_FAILED, _ended(Task.LIVE, well=False)), (E.SAVED, _idle)),
    S.DRAINING: (
        (E.KEPT, _kept),
        (E.FINAL_SAVED, _final_saved),
        *_HOLDER,
        (E.LATE, _both(_late, lambda _, f: f.saved_itself)),  # no time is left to start it and save it again
        (E.STEP_DUE, _step_due),
        (E.EXITED, _exited),
        (E.VANISHED, _vanished),
        (E.VANISHED, _starved),
        (E.DRAIN_FAILED, _both(_ended(Task.FINAL, well=False), _may_run_on)),
        (E.WITHDRAWN, _withdrawn),
        (E.LATE, _late),
    ),
    S.KEEPING: ((E.RETURNED, _returned), (E.UNNEEDED, _keeps_in_vain)),
    S.RETURNING: (
        *_HOLDER,
        (E.FAILED, _both(_ended(Task.THAW, well=False), lambda _, f: f.outcome is not None and f.outcome.kind != "store")),
        (E.STARTED, _ended(Task.THAW, well=True)),
    ),
    S.PUBLISHING: ((E.PUBLISHED, lambda _, f: f.own_done), *_HOLDER),
    **{s: () for s in TERMINAL},
}


def happened(state: State, facts: Facts) -> Event | None:
    """The first event whose guard holds: the edge that `step` takes."""
    return next((event for event, holds in GUARDS[state.name] if holds(state, facts)), None)
