"""THE agent's table: how one attempt lives on its machine.

Theory of operation. The agent waits (BOOT, STANDBY: owns nothing), then holds the job (RESTORING, RUNNING, SAVING, DRAINING,
PUBLISHING), then ends (the terminal states: the workload is killed, the last report is written, the machine powered off).
`step` looks at the facts, takes at most one edge, and says what to do. It is level-triggered: an effect is wanted again until
the facts show that it happened, so a lost one does no harm.

Four rules of this file:
1. A missing key *is* the illegal move; guards are an ordered list for each state, the first that matches wins.
2. The cloud's notice is acted on whatever the controller does or fails to do.
3. A lease that lapsed holds the job still; nothing is saved, started or released before ownership is *proved* anew: by a head
   entry of our own that began after the lapse. Reading alone would not do: a grant may have been decided already and be on its
   way, and only winning the number it wants to write shows that it comes too late.
4. A state in which the workload is dead is *shown* only after the kill is done: the controller gives the job away on its word.

Not in the table, on purpose: how a save or restore works (engines), who else owns the job (mailbox), what is due when
(`due` below only compares times), and the moment of the freeze.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from spotsurfer_agent.engines.port import WorkloadState as W
from spotsurfer_agent.facts import Do, Effect, Facts, Hold, Outcome, PowerOff, Release, Renew, Shut, Task
from spotsurfer_agent.protocol import AgentState as S
from spotsurfer_agent.protocol import Want

OVERRUN_GRACE_SECONDS = 60.0  # a final save under way at the deadline may go on for so long: machines die late
BACKOFF_SECONDS = {Task.FINAL: 2.0, Task.SETTLE: 2.0, Task.KILL: 1.0, Task.PUBLISH: 15.0, Task.LIVE: 60.0}


class Event(StrEnum):
    """What can happen to the agent."""

    READY = "ready"
    REFUSED = "refused"
    ADOPTED = "adopted"
    PENDING = "pending"
    GRANTED = "granted"
    STARTED = "started"
    FAILED = "failed"
    SAVE_DUE = "save due"
    SAVED = "saved"
    SAVE_FAILED = "save failed"
    DRAIN = "drain"
    FINAL_SAVED = "final saved"
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
        E.EXITED: S.PUBLISHING,  # the command ended while no agent was there
        E.VANISHED: S.BROKEN,  # it ran here once and left no exit status
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
        E.EXITED: S.PUBLISHING,  # the command ended
        E.VANISHED: S.BROKEN,  # processes gone without an exit status
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
        E.FINAL_SAVED: S.DRAINED,  # the head holds our final entry
        E.DRAIN_FAILED: S.RUNNING,  # promise: asked for and failed, so it runs on; with a notice it is tried again instead
        E.WITHDRAWN: S.RUNNING,  # not wanted any more before it began
        E.EXITED: S.PUBLISHING,  # the command ended first
        E.VANISHED: S.BROKEN,  # processes gone without an exit status
        E.LATE: S.OVERRUN,  # the notice window is over; the newest committed checkpoint stands
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
HOLDING = frozenset({S.RESTORING, S.RUNNING, S.SAVING, S.DRAINING, S.PUBLISHING})


@dataclass(frozen=True, slots=True)
class State:
    """Where the agent stands. All times are monotonic."""

    name: S = S.BOOT
    since: float = 0.0
    shown: S = S.BOOT  # what reports say: a dead workload only once it is dead
    booted: bool = False
    killed: bool = False
    freeze_at: float = 0.0  # instant of the newest save, or of the start
    retry_at: float = float("-inf")  # no task is begun before
    failures: int = 0  # of tasks, in a row
    held_since: float | None = None  # the lease had lapsed
    drain_sequence: int = 0  # of the desired object that the final save under way was begun for
    drain_failed: int = 0
    error: str = ""
    error_kind: str = ""


def step(state: State, facts: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The state after one look at the facts (at most one edge), and what to do now. Pure."""
    state = _absorb(state, facts)
    event = happened(state, facts)
    if event is not None:
        state = _enter(state, TABLE[state.name][event], facts)
    state, keeping = _keep(state, facts)
    state, doing = _work(state, facts)
    if state.name not in TERMINAL or state.killed:
        state = dataclasses.replace(state, shown=state.name)
    return state, (*keeping, *doing)


def happened(state: State, facts: Facts) -> Event | None:
    """The first event whose guard holds: the edge that `step` takes."""
    return next((event for event, holds in GUARDS[state.name] if holds(state, facts)), None)


# ---------------------------------------------------------------- guards

Check = Callable[[State, Facts], bool]


def _idle(_: State, f: Facts) -> bool:
    return f.busy is None


def _stop(_: State, f: Facts) -> bool:
    return f.desired is not None and f.desired.want is Want.STOP


def _asked(s: State, f: Facts) -> bool:
    return f.desired is not None and f.desired.want is Want.DRAIN and f.desired.sequence != s.drain_failed


def _drain(s: State, f: Facts) -> bool:
    return f.interrupted or _asked(s, f)


def _lost_it(_: State, f: Facts) -> bool:
    return f.head is not None and not f.mine


def _exited(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.workload is W.EXITED


def _vanished(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.pending_final is None and f.workload in (W.LOST, W.ABSENT)


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
    return f.interrupted or _stop(s, f) or late or (f.mine and _asked(s, f))


def _never_needed(s: State, f: Facts) -> bool:
    return s.booted and _nothing(s, f) and _unneeded(s, f)


def _granted(_: State, f: Facts) -> bool:
    return f.mine and not f.lapsed


def _late(s: State, f: Facts) -> bool:
    if not f.interrupted or f.warning is None or f.warning.deadline_at is None:
        return False
    end = f.warning.deadline_at - f.rules.margin_seconds
    return f.now >= (end if _idle(s, f) else f.warning.deadline_at + OVERRUN_GRACE_SECONDS)


def _may_save(s: State, f: Facts) -> bool:
    return _idle(s, f) and s.held_since is None and not f.held and not f.lapsed and f.mine and f.now >= s.retry_at


def _save_due(s: State, f: Facts) -> bool:
    if not _may_save(s, f) or f.workload is not W.RUNNING or f.head is None:
        return False
    interval = f.rules.interval_seconds
    asked = f.desired is not None and f.desired.save_at_least > f.head.sequence
    return asked or (interval is not None and f.now - s.freeze_at >= interval)


def _final_saved(s: State, f: Facts) -> bool:
    return f.own_final and _idle(s, f)


def _withdrawn(s: State, f: Facts) -> bool:
    return _idle(s, f) and f.pending_final is None and not _drain(s, f)


_HOLDER = ((E.LOST_IT, _lost_it), (E.STOPPED, _stop))
GUARDS: dict[S, tuple[tuple[Event, Check], ...]] = {
    S.BOOT: (
        (E.REFUSED, _both(_refused, _nothing)),
        (E.REFUSED, _ended(Task.BOOT, well=False)),
        (E.UNNEEDED, _never_needed),
        (E.FINAL_SAVED, _both(_looked, lambda _, f: f.own_final)),
        (E.PUBLISHED, _both(_looked, lambda _, f: f.own_done)),
        (E.LOST_IT, _both(_looked, _lost_it, lambda _, f: f.workload is not W.ABSENT or f.began_before)),
        (E.PENDING, _both(_looked, lambda _, f: f.pending_final is not None)),
        (E.ADOPTED, _both(_looked, lambda _, f: f.workload is W.RUNNING)),
        (E.EXITED, _both(_looked, lambda _, f: f.workload is W.EXITED)),
        (E.VANISHED, _both(_looked, lambda _, f: f.began_before)),
        (E.READY, _looked),
    ),
    S.STANDBY: ((E.REFUSED, _refused), (E.UNNEEDED, _unneeded), (E.GRANTED, _granted)),
    S.RESTORING: (*_HOLDER, (E.FAILED, _ended(Task.BEGIN, well=False)), (E.STARTED, _ended(Task.BEGIN, well=True))),
    S.RUNNING: (
        (E.FINAL_SAVED, _final_saved),
        *_HOLDER,
        (E.EXITED, _exited),
        (E.VANISHED, _vanished),
        (E.DRAIN, _drain),
        (E.SAVE_DUE, _save_due),
    ),
    S.SAVING: (*_HOLDER, (E.DRAIN, _drain), (E.SAVE_FAILED, _ended(Task.LIVE, well=False)), (E.SAVED, _idle)),
    S.DRAINING: (
        (E.FINAL_SAVED, _final_saved),
        *_HOLDER,
        (E.EXITED, _exited),
        (E.VANISHED, _vanished),
        (E.DRAIN_FAILED, _both(_ended(Task.FINAL, well=False), lambda _, f: not f.interrupted and f.pending_final is None)),
        (E.WITHDRAWN, _withdrawn),
        (E.LATE, _late),
    ),
    S.PUBLISHING: ((E.PUBLISHED, lambda _, f: f.own_done), *_HOLDER),
    **{s: () for s in TERMINAL},
}


# ---------------------------------------------------------------- what changes on the way


def _absorb(s: State, f: Facts) -> State:
    """Take in how a task ended, before any edge is looked at."""
    o = f.outcome
    if o is None:
        return s
    if o.error:
        return _failed(s, f, o)
    changes: dict[str, object] = {
        "failures": 0,
        "retry_at": float("-inf"),
        "error": o.note,
        "error_kind": "output" if o.note else "",
    }
    if o.task is Task.BOOT:
        changes |= {"booted": True, "freeze_at": o.at}
    elif o.task is Task.BEGIN:
        changes["freeze_at"] = o.at
    elif o.task is Task.KILL:
        changes = {"killed": True}
    elif o.save is not None:
        changes["freeze_at"] = o.at - o.save.durable_seconds
    return dataclasses.replace(s, **changes)  # type: ignore[arg-type]


def _failed(s: State, f: Facts, o: Outcome) -> State:
    overtaken = o.task is Task.LIVE and s.name is S.DRAINING  # the final save follows at once
    if overtaken or (s.name in TERMINAL and o.task is not Task.KILL):
        return s
    count = s.failures + 1
    wait = min(0.5 * 2 ** min(count, 10), BACKOFF_SECONDS.get(o.task, 0.0))
    changes: dict[str, object] = {"failures": count, "retry_at": f.now + wait}
    if s.name not in TERMINAL:
        changes |= {"error": o.error, "error_kind": o.kind}
    if o.task is Task.FINAL and not f.interrupted:
        changes |= {"drain_failed": s.drain_sequence, "retry_at": float("-inf")}
    return dataclasses.replace(s, **changes)  # type: ignore[arg-type]


def _enter(s: State, name: S, f: Facts) -> State:
    changes: dict[str, object] = {"name": name, "since": f.now}
    if name in TERMINAL or (name is S.DRAINING and s.name is S.RUNNING):
        changes |= {"retry_at": float("-inf"), "failures": 0}
    if name is S.BROKEN and f.refusal:
        changes |= {"error": f.refusal, "error_kind": "store"}
    elif name is S.BROKEN and not s.error:
        sentence = "the job's processes vanished without an exit status; the next attempt goes on from the last checkpoint"
        changes |= {"error": sentence, "error_kind": "lost"}
    elif name in (S.PUBLISHING, S.DRAINED):
        changes |= {"error": "", "error_kind": ""}
    elif name is S.RUNNING and s.name is S.BOOT:
        changes["freeze_at"] = f.now
    return dataclasses.replace(s, **changes)  # type: ignore[arg-type]


def _keep(s: State, f: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The lease: hold the job while somebody else might own it, let it go on when that is ruled out."""
    if f.workload is not W.RUNNING:
        return dataclasses.replace(s, held_since=None), ()
    if s.name in TERMINAL:
        return s, () if f.held or s.killed else (Hold(),)
    if s.held_since is None:
        if not f.lapsed and not f.held:
            return s, ()
        return dataclasses.replace(s, held_since=f.now), (Hold(),)
    if f.lapsed or not f.mine:
        return s, () if f.held else (Hold(),)
    if f.proved_at > s.held_since:
        return dataclasses.replace(s, held_since=None), (Release(),)
    return s, (Renew(),) if f.held else (Hold(), Renew())


def _work(s: State, f: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The task that the state wants, if none is under way; the end of the machine when all is said."""
    if s.name in TERMINAL:
        return s, _last(s, f)
    if f.busy is not None or f.now < s.retry_at:
        return s, ()
    if s.name is S.DRAINING and f.pending_final is None:
        if not _may_save(s, f):
            return s, ()
        sequence = f.desired.sequence if f.desired is not None and _asked(s, f) else 0
        return dataclasses.replace(s, drain_sequence=sequence), (Do(Task.FINAL),)
    task = _task(s)
    return s, (Do(task),) if task is not None else ()


def _task(s: State) -> Task | None:
    if s.name is S.BOOT:
        return None if s.booted else Task.BOOT
    return {S.RESTORING: Task.BEGIN, S.SAVING: Task.LIVE, S.DRAINING: Task.SETTLE, S.PUBLISHING: Task.PUBLISH}.get(s.name)


def _last(s: State, f: Facts) -> tuple[Effect, ...]:
    effects: list[Effect] = []
    if s.name not in (S.DRAINED, S.FINISHED):
        effects.append(Shut(f"the attempt is {s.name}"))
    if not s.killed and f.busy is None and f.now >= s.retry_at:
        effects.append(Do(Task.KILL))
    said = s.killed and s.shown is s.name and f.reported
    if said or f.now - s.since >= f.rules.last_words_seconds:
        effects.append(PowerOff())
    return tuple(effects)
