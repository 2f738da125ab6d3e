"""The state machine of one attempt: states and edges, the guards that decide when an edge is taken, and one step. Pure.

Theory of operation. The agent waits (BOOT, STANDBY: owns nothing), then holds the job (RESTORING, RUNNING, STEPPING, SAVING,
DRAINING, PUBLISHING), may keep it frozen after its final save (KEEPING: owns nothing; RETURNING: owns it again), then ends (the
terminal states: the workload is killed, the last report is written, the machine powered off). `step` looks at the facts, takes
at most one edge, and returns what to do. It is level-triggered: an effect is wanted again until the facts show that it
happened, so a lost one does no harm.

Five rules of this file:
1. A missing key *is* the illegal move; guards are an ordered list for each state, and the first that holds wins.
2. The agent acts on the cloud's notice, whatever the controller does or fails to do.
3. A lapsed lease holds the job still. Nothing is saved, started or released before ownership is *proved* anew: by a head entry
   of our own that began after the lapse. Reading alone would not do: a grant may have been decided already and be on its way,
   and only winning the number that it wants to write shows that it comes too late.
4. A kept job never runs on without a grant that gives it back, and not before an entry of our own has followed that grant.
5. A state in which the workload is dead is *shown* only after the kill is done: the controller relies on it when it gives the
   job away.

Not in the table, on purpose: when an event has happened (the guards), how a save or restore works (engines), who else owns the
job (mailbox), and the moment of the freeze.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from spotsurfer_wire.final_save_forecast import Prospect, prospect
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import Want

from spotsurfer_agent.control.facts import Do, Effect, Facts, Hold, Outcome, PowerOff, Release, Renew, Shut, Task, Unguard
from spotsurfer_agent.ports.engine import WorkloadState as W


class Event(StrEnum):
    """What can happen to the agent."""

    READY = "ready"
    REFUSED = "refused"
    ADOPTED = "adopted"
    PENDING = "pending"
    GRANTED = "granted"
    STARTED = "started"
    STEP_DUE = "step due"
    STEPPED = "stepped"
    FAILED = "failed"
    SAVE_DUE = "save due"
    SAVED = "saved"
    SAVE_FAILED = "save failed"
    DRAIN = "drain"
    FINAL_SAVED = "final saved"
    KEPT = "kept"
    RETURNED = "returned"
    DRAIN_FAILED = "drain failed"
    WITHDRAWN = "withdrawn"
    EXITED = "exited"
    VANISHED = "vanished"
    PUBLISHED = "published"
    LATE = "late"
    STOPPED = "stopped"
    UNNEEDED = "unneeded"
    LOST_IT = "lost it"


E = Event
TABLE: dict[S, dict[Event, S]] = {
    S.BOOT: {
        E.READY: S.STANDBY,  # preflight fine, head and specification read, nothing runs here
        E.REFUSED: S.BROKEN,  # this machine can't protect a job, or this version can't read the store
        E.ADOPTED: S.RUNNING,  # an earlier agent of this machine had it running
        E.PENDING: S.DRAINING,  # an earlier agent left a final save without its verdict
        E.STEP_DUE: S.STEPPING,  # a step ended while no agent was there, or one died before it had started the next
        E.EXITED: S.PUBLISHING,  # the command ended while no agent was there
        E.VANISHED: S.BROKEN,  # it ran here once and left no exit status
        E.KEPT: S.KEEPING,  # an earlier agent drained, and the job stands frozen still
        E.RETURNED: S.RETURNING,  # the same, and it may go on here
        E.FINAL_SAVED: S.DRAINED,  # an earlier agent drained and could not say so any more
        E.PUBLISHED: S.FINISHED,  # an earlier agent published and could not say so any more
        E.LOST_IT: S.FENCED,  # somebody else owns what still runs here
        E.UNNEEDED: S.HALTED,  # notice, stop or time limit before anything ran
    },
    S.STANDBY: {
        E.GRANTED: S.RESTORING,  # the head names us
        E.REFUSED: S.BROKEN,  # the head speaks a protocol that we don't
        E.UNNEEDED: S.HALTED,  # notice, stop or time limit before anything ran
    },
    S.RESTORING: {
        E.STARTED: S.RUNNING,  # the job goes on here
        E.FAILED: S.BROKEN,  # the report says why; the next attempt may take an older checkpoint
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted
    },
    S.RUNNING: {
        E.SAVE_DUE: S.SAVING,  # the interval is over, or a checkpoint was asked for
        E.DRAIN: S.DRAINING,  # notice, or asked
        E.STEP_DUE: S.STEPPING,  # a step of the job ended, and another one follows
        E.EXITED: S.PUBLISHING,  # the command ended
        E.VANISHED: S.BROKEN,  # processes gone without an exit status
        E.FINAL_SAVED: S.DRAINED,  # a final entry whose save seemed to have failed: it counts
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.STEPPING: {
        E.STEPPED: S.RUNNING,  # the next step runs; a drain that was wanted meanwhile follows
        E.FAILED: S.BROKEN,  # it can't be started here
        E.FINAL_SAVED: S.DRAINED,  # a final entry whose save seemed to have failed: it counts
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.SAVING: {
        E.SAVED: S.RUNNING,  # committed
        E.SAVE_FAILED: S.RUNNING,  # promise: the job is unharmed
        E.DRAIN: S.DRAINING,  # a live save can't be broken off: the final one follows it at once
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.DRAINING: {
        E.KEPT: S.KEEPING,  # the head holds our final entry; should the job not go on elsewhere, it may come back
        E.FINAL_SAVED: S.DRAINED,  # the head holds our final entry, and nothing is kept
        E.DRAIN_FAILED: S.RUNNING,  # promise: asked for and failed, so it runs on; with a notice it is tried again instead
        E.WITHDRAWN: S.RUNNING,  # not wanted any more before it began
        E.STEP_DUE: S.STEPPING,  # a step ended first: only what runs can be saved
        E.EXITED: S.PUBLISHING,  # the command ended first
        E.VANISHED: S.BROKEN,  # processes gone without an exit status; or no memory left, not even to save it
        E.LATE: S.OVERRUN,  # the notice window is over; the newest committed checkpoint stands
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.KEEPING: {
        E.RETURNED: S.RETURNING,  # it could not go on elsewhere: a grant gives it back to us
        E.UNNEEDED: S.DRAINED,  # it goes on elsewhere, or is over; or the machine or our patience is about to end
    },
    S.RETURNING: {
        E.STARTED: S.RUNNING,  # it goes on where it stood
        E.FAILED: S.BROKEN,  # it can't be let go; the next attempt goes on from the checkpoint
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.PUBLISHING: {
        E.PUBLISHED: S.FINISHED,  # the head says done, and it is ours
        E.STOPPED: S.HALTED,  # not wanted any more
        E.LOST_IT: S.FENCED,  # another attempt was granted, or the job was closed
    },
    S.DRAINED: {},
    S.FINISHED: {},
    S.OVERRUN: {},
    S.FENCED: {},
    S.BROKEN: {},
    S.HALTED: {},
}
TERMINAL = frozenset(s for s, edges in TABLE.items() if not edges)


@dataclass(frozen=True, slots=True)
class State:
    """Where the agent stands. All times are monotonic."""

    name: S = S.BOOT
    since: float = 0.0
    shown: S = S.BOOT  # what reports say: a dead workload only once it is dead
    booted: bool = False
    killed: bool = False
    save_tried: int = 0  # number of the last save that an agent before us tried
    freeze_at: float = 0.0  # instant of the newest save, or of the start
    retry_at: float = float("-inf")  # the task of this state is not begun before
    failures: int = 0  # of that task, in a row
    live_at: float = float("-inf")  # no live save is begun before
    live_failures: int = 0  # of live saves, in a row
    missing_bytes: int | None = None  # memory that had not arrived at the last look; None = all was there
    missing_since: float = 0.0  # so much was missing
    held_since: float | None = None  # when the lease had lapsed
    drain_sequence: int = 0  # of the desired object that the final save under way was begun for
    drain_failed: int = 0
    error: str = ""
    error_kind: str = ""
    behind: tuple[str, str] = ("", "")  # error and kind, shown again once the program that ended by its save runs again


WISHED_SECONDS = 30.0  # at least, between a save and the next that the job itself asks for
PRECOPY_GAIN_SECONDS = 1.0  # with a notice: a live save is made while there is time if it shortens the final one by so much
STALLED_SECONDS = 30.0  # without one more page of arriving memory, in a job that is frozen because memory was about to end
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
    return asked(s, f) or f.pressed or (f.interrupted and _time_to_go(f) and not _in_vain(f))


def _time_to_go(f: Facts) -> bool:
    """The final save must begin now, unless its length is known and more time is left."""
    left, fit = f.notice_left_seconds, f.fit
    if not f.rules.patient or left is None or fit is None:
        return True
    return left <= fit.reserve_seconds + (fit.live_seconds if f.busy is Task.LIVE else 0.0)  # a live save ends first


def _in_vain(f: Facts) -> bool:
    """A final save can't be done in time: the job runs on, for it may end. In the margin it is tried, for machines die late."""
    left = f.notice_left_seconds
    if f.fit is None or left is None or left <= f.rules.margin_seconds:
        return False
    return prospect(f.fit, left) is Prospect.LOST


def _lost_it(_: State, f: Facts) -> bool:
    return f.head is not None and not f.mine


def _step_due(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.step_due


def _exited(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.status.state is W.EXITED


def _vanished(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.status.pending_final is None and f.status.state in (W.LOST, W.ABSENT)


def _starved(s: State, f: Facts) -> bool:
    """The job stands still for want of memory, and can't be saved: each try failed, or the rest of its memory finds no room."""
    stalled = f.arriving and f.now - s.missing_since > STALLED_SECONDS
    hopeless = s.failures >= PRESSED_TRIES or stalled
    return _idle(s, f) and f.pressed and not f.unprotected and f.status.pending_final is None and hopeless


def _ended(task: Task, *, well: bool) -> Check:
    return lambda _, f: f.outcome is not None and f.outcome.task is task and (not f.outcome.error) is well


def _both(*checks: Check) -> Check:
    return lambda s, f: all(check(s, f) for check in checks)


def _looked(s: State, f: Facts) -> bool:
    return s.booted and f.head_read


def _nothing(_: State, f: Facts) -> bool:
    return f.status.pending_final is None and f.status.state is W.ABSENT and not f.began_before


def _unneeded(s: State, f: Facts) -> bool:
    limit = f.rules.limit_seconds
    late = 0 < limit < f.now - s.since
    return f.interrupted or _stop(s, f) or late or (f.mine and asked(s, f))


def _granted(_: State, f: Facts) -> bool:
    return f.mine and not f.lapsed


def _late(s: State, f: Facts) -> bool:
    if not f.interrupted or f.notice is None or f.notice.deadline_at is None:
        return False
    end = f.notice.deadline_at - f.rules.margin_seconds
    return f.now >= (end if _idle(s, f) else f.notice.deadline_at + OVERRUN_GRACE_SECONDS)


def _save_ordered(f: Facts) -> bool:
    return f.desired is not None and f.head is not None and f.desired.save_at_least > f.head.sequence


def may_save(s: State, f: Facts) -> bool:
    """Nothing speaks against a save now. It waits while memory arrives; if that takes too long, the last checkpoint stands."""
    ours = s.held_since is None and not f.status.held and not f.lapsed and f.mine
    return ours and _idle(s, f) and not f.arriving and f.now >= s.retry_at


def waits_for_memory(s: State, f: Facts) -> bool:
    """A save is wanted and can't begin because memory still arrives."""
    return f.arriving and _idle(s, f) and (_save_ordered(f) or s.name is S.DRAINING)


def _save_due(s: State, f: Facts) -> bool:
    if not may_save(s, f) or f.now < s.live_at or f.status.state is not W.RUNNING or f.head is None or f.unprotected:
        return False
    if f.interrupted:  # with enough time, a live save now makes the final one short, whichever machine is ready by then
        fit, left = f.fit, f.notice_left_seconds
        if fit is None or left is None or fit.gain_seconds < PRECOPY_GAIN_SECONDS:
            return False
        return left > fit.live_seconds + fit.reserve_seconds
    interval, age = f.rules.interval_seconds, f.now - s.freeze_at
    wished = f.wishes_save and age >= WISHED_SECONDS
    return _save_ordered(f) or wished or (interval is not None and age >= interval)


def _final_saved(s: State, f: Facts) -> bool:
    return f.own_final and _idle(s, f)


def _may_run_on(_: State, f: Facts) -> bool:
    return not (f.interrupted or f.pressed) and f.status.pending_final is None


def _withdrawn(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.status.pending_final is None and not (f.interrupted or f.pressed or asked(s, f))


def _kept(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.kept


def _returned(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.returned and not f.lapsed


def _keeps_in_vain(s: State, f: Facts) -> bool:
    """The kept job will not come back: another machine went on with it, it is over, or no time is left."""
    return (not f.kept and not f.returned) or _stop(s, f) or _late(s, f) or f.now - s.since > f.rules.keep_seconds


_HOLDER = ((E.LOST_IT, _lost_it), (E.STOPPED, _stop))
# For each state an ordered list: the first guard that holds names the edge.
GUARDS: dict[S, tuple[tuple[Event, Check], ...]] = {
    S.BOOT: (
        (E.REFUSED, _both(lambda _, f: bool(f.refusal), _nothing)),
        (E.REFUSED, _ended(Task.BOOT, well=False)),
        (E.UNNEEDED, _both(lambda s, _: s.booted, _nothing, _unneeded)),
        (E.RETURNED, _both(_looked, lambda _, f: f.returned)),
        (E.KEPT, _both(_looked, lambda _, f: f.kept)),
        (E.FINAL_SAVED, _both(_looked, lambda _, f: f.own_final)),
        (E.PUBLISHED, _both(_looked, lambda _, f: f.own_done)),
        (E.LOST_IT, _both(_looked, _lost_it, lambda _, f: f.status.state is not W.ABSENT or f.began_before)),
        (E.PENDING, _both(_looked, lambda _, f: f.status.pending_final is not None)),
        (E.ADOPTED, _both(_looked, lambda _, f: f.status.state is W.RUNNING)),
        (E.STEP_DUE, _both(_looked, _step_due)),
        (E.EXITED, _both(_looked, lambda _, f: f.status.state is W.EXITED)),
        (E.VANISHED, _both(_looked, lambda _, f: f.began_before)),
        (E.READY, _looked),
    ),
    S.STANDBY: ((E.REFUSED, lambda _, f: bool(f.refusal)), (E.UNNEEDED, _unneeded), (E.GRANTED, _granted)),
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
        (E.LATE, _both(_late, lambda _, f: f.status.saved_itself)),  # no time is left to start it and save it again
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


VANISHED = "the job's processes vanished without an exit status"
LAST_WORDS_SECONDS = 120.0  # the last report may take so long before the power goes all the same
SENDING_SECONDS = 900.0  # … and what an ended job made of its folder, before it is killed
STARVED = "its memory was about to end and it could not be saved"
BACKOFF_SECONDS = {
    Task.FINAL: 2.0,
    Task.SETTLE: 2.0,
    Task.KILL: 1.0,
    Task.PUBLISH: 15.0,
    Task.LIVE: 60.0,
    Task.STEP: 5.0,
    Task.THAW: 1.0,
}

TASKS = {
    S.BOOT: Task.BOOT,
    S.RESTORING: Task.BEGIN,
    S.STEPPING: Task.STEP,
    S.SAVING: Task.LIVE,
    S.DRAINING: Task.SETTLE,
    S.RETURNING: Task.THAW,
    S.PUBLISHING: Task.PUBLISH,
}


def step(state: State, facts: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The state after one look at the facts (at most one edge), and what to do now; `loop` carries that out. Pure."""
    state = _arrival(_absorb(state, facts), facts)
    event = happened(state, facts)
    if event is not None:
        state = _enter(state, event, facts)
    state, keeping = _keep(state, facts)
    state, doing = _work(state, facts)
    if state.name not in TERMINAL or state.killed:
        state = dataclasses.replace(state, shown=state.name)
    return state, (*keeping, *doing)


def _absorb(s: State, f: Facts) -> State:
    """Take in how a task ended, before any edge is looked at."""
    o = f.outcome
    if o is None:
        return s
    if o.error:
        return _failed(s, f, o)
    note = (o.note, (o.kind or "output") if o.note else "") if o.task is not Task.STEP else s.behind
    changes: dict[str, object] = {"failures": 0, "retry_at": float("-inf"), "error": note[0], "error_kind": note[1]}
    if o.task is Task.BOOT:
        changes["booted"] = True
    elif o.task is Task.BEGIN:
        changes["freeze_at"] = o.at
    elif o.task is Task.KILL:
        changes = {"killed": True}
    elif o.save is not None:
        changes |= {"freeze_at": o.at - o.save.durable_seconds, "live_at": float("-inf"), "live_failures": 0}
    return dataclasses.replace(s, **changes)  # type: ignore[arg-type]


def _arrival(s: State, f: Facts) -> State:
    missing = f.status.arriving_bytes
    return s if missing == s.missing_bytes else dataclasses.replace(s, missing_bytes=missing, missing_since=f.now)


def _failed(s: State, f: Facts, o: Outcome) -> State:
    overtaken = o.task is Task.LIVE and s.name is S.DRAINING  # the final save follows at once
    if overtaken or (s.name in TERMINAL and o.task is not Task.KILL):
        return s
    live = o.task is Task.LIVE  # it is tried again in another state, maybe after other tasks
    count = (s.live_failures if live else s.failures) + 1
    next_at = f.now + min(0.5 * 2 ** min(count, 10), BACKOFF_SECONDS.get(o.task, 0.0))
    changes: dict[str, object] = (
        {"live_failures": count, "live_at": next_at} if live else {"failures": count, "retry_at": next_at}
    )
    if s.name not in TERMINAL:
        changes |= {"error": o.error, "error_kind": o.kind}
    another = f.step_due and not f.status.saved_itself  # that step is saved instead
    if o.task is Task.FINAL and not (f.interrupted or f.pressed or another):
        changes |= {"drain_failed": s.drain_sequence, "retry_at": float("-inf")}
    return dataclasses.replace(s, **changes)  # type: ignore[arg-type]


def _enter(s: State, event: Event, f: Facts) -> State:
    name = TABLE[s.name][event]
    changes: dict[str, object] = {"name": name, "since": f.now, "retry_at": float("-inf"), "failures": 0}
    if s.name is S.BOOT and f.head is not None and s.save_tried > f.head.sequence:
        changes["live_at"] = f.now + BACKOFF_SECONDS[Task.LIVE]  # that save may be what the agent before us died of
    if name is S.BROKEN and f.pressed:
        changes |= {"error": f"{STARVED}: {s.error}", "error_kind": "lost"}
    elif name is S.BROKEN and f.refusal:
        changes |= {"error": f.refusal, "error_kind": "store"}
    elif name is S.BROKEN and (event is Event.VANISHED or not s.error):  # whatever failed before, this is why
        changes |= {"error": f.status.lost_because or VANISHED, "error_kind": "restore" if f.status.image_is_bad else "lost"}
    elif name is S.STEPPING and f.status.saved_itself:
        changes["behind"] = (s.error, s.error_kind)
    elif name in (S.PUBLISHING, S.DRAINED, S.KEEPING, S.RETURNING, S.STEPPING):
        changes["behind"] = ("", "")
        changes |= {"error": "", "error_kind": ""}
    if name is S.RETURNING and f.desired is not None and f.desired.want is Want.DRAIN:
        changes["drain_failed"] = f.desired.sequence  # that drain is over; the next one has another number
    return dataclasses.replace(s, **changes)  # type: ignore[arg-type]


def _keep(s: State, f: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The lease: hold the job while somebody else might own it, let it go on when that is ruled out."""
    runs = f.status.state is W.RUNNING
    if not runs and not _comes_back(s, f):
        return dataclasses.replace(s, held_since=None), ()
    hold = (Hold(),) if runs and not f.status.held else ()  # between two steps there is nothing to hold
    if runs and s.name in TERMINAL:
        return s, () if s.killed else hold
    if s.held_since is None:
        if not f.lapsed and not (runs and f.status.held):
            return s, ()
        return dataclasses.replace(s, held_since=f.now), (Hold(),) if runs else ()
    if f.lapsed or not f.mine:
        return s, hold
    if f.proved_at > s.held_since:
        return dataclasses.replace(s, held_since=None), (Release(),) if runs else ()
    return s, (*hold, Renew())


def _comes_back(s: State, f: Facts) -> bool:
    """Nothing runs, and something will: the next step, or a program that ended as it saved itself."""
    ended = f.status.state is W.EXITED and (f.step_due or s.name in (S.SAVING, S.DRAINING))
    return s.name is S.STEPPING or ended


def _work(s: State, f: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The task that the state wants, if none is under way; the end of the machine once everything is reported."""
    if s.name in TERMINAL:
        return s, _last(s, f)
    if s.name is S.DRAINING and f.pressed and f.unprotected and f.busy is None:
        return s, (Unguard(),)  # it can never be saved: better to let it run than to wait for ever
    if f.busy is not None or f.now < s.retry_at:
        return s, ()
    if s.name is S.DRAINING and f.status.pending_final is None:
        if not may_save(s, f):
            return s, ()
        sequence = f.desired.sequence if f.desired is not None and asked(s, f) else 0
        return dataclasses.replace(s, drain_sequence=sequence), (Do(Task.FINAL),)
    if s.name in (S.STEPPING, S.RETURNING) and (s.held_since is not None or f.lapsed or not f.mine):
        return s, ()
    task = TASKS.get(s.name)
    return s, () if task is None or (task is Task.BOOT and s.booted) else (Do(task),)


def _last(s: State, f: Facts) -> tuple[Effect, ...]:
    effects: list[Effect] = []
    if s.name not in (S.DRAINED, S.FINISHED):
        effects.append(Shut(f"the attempt is {s.name}"))
    if not s.killed and f.busy is None and f.now >= s.retry_at:
        effects.append(Do(Task.KILL))
    said = s.killed and s.shown is s.name and f.reported
    if said or f.now - s.since >= (SENDING_SECONDS if f.busy is Task.KILL else LAST_WORDS_SECONDS):
        effects.append(PowerOff())
    return tuple(effects)
