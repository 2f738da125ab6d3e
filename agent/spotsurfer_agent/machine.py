"""One look at the world: which edge of the table is taken, and what is to be done. Pure; whoever acts is elsewhere."""

from __future__ import annotations

import dataclasses

from spotsurfer_agent.engines.port import WorkloadState as W
from spotsurfer_agent.facts import Do, Effect, Facts, Hold, Outcome, PowerOff, Release, Renew, Shut, Task, Unguard
from spotsurfer_agent.guards import asked, happened, may_save
from spotsurfer_agent.protocol import AgentState as S
from spotsurfer_agent.protocol import Want
from spotsurfer_agent.table import TABLE, TERMINAL, Event, State

VANISHED = "the job's processes vanished without an exit status"
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
    S.RESTORING: Task.BEGIN,
    S.STEPPING: Task.STEP,
    S.SAVING: Task.LIVE,
    S.DRAINING: Task.SETTLE,
    S.RETURNING: Task.THAW,
    S.PUBLISHING: Task.PUBLISH,
}


def step(state: State, facts: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The state after one look at the facts (at most one edge), and what to do now. Pure."""
    state = _absorb(state, facts)
    event = happened(state, facts)
    if event is not None:
        state = _enter(state, event, facts)
    state, keeping = _keep(state, facts)
    state, doing = (state, (Unguard(),)) if _hopeless(state, facts) else _work(state, facts)
    if state.name not in TERMINAL or state.killed:
        state = dataclasses.replace(state, shown=state.name)
    return state, (*keeping, *doing)


def _hopeless(s: State, f: Facts) -> bool:
    """It stands still for want of memory, and can never be saved: better to let it try than to wait for ever."""
    return f.pressed and f.busy is None and s.name is S.DRAINING and f.unprotected


# ---------------------------------------------------------------- what changes on the way


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
    another = f.step_due and not f.saved_itself  # that step is saved instead
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
        changes |= {"error": f.lost_because or VANISHED, "error_kind": "restore" if f.image_is_bad else "lost"}
    elif name is S.STEPPING and f.saved_itself:
        changes["behind"] = (s.error, s.error_kind)
    elif name in (S.PUBLISHING, S.DRAINED, S.KEEPING, S.RETURNING, S.STEPPING):
        changes["behind"] = ("", "")
        changes |= {"error": "", "error_kind": ""}
    if name is S.RETURNING and f.desired is not None and f.desired.want is Want.DRAIN:
        changes["drain_failed"] = f.desired.sequence  # that drain is over; the next one has another number
    return dataclasses.replace(s, **changes)  # type: ignore[arg-type]


def _keep(s: State, f: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The lease: hold the job while somebody else might own it, let it go on when that is ruled out."""
    if f.workload is not W.RUNNING:
        return _keep_between(s, f) if _comes_back(s, f) else (dataclasses.replace(s, held_since=None), ())
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


def _comes_back(s: State, f: Facts) -> bool:
    """Nothing runs, and something will: the next step, or a program that ended as it saved itself."""
    ended = f.workload is W.EXITED and (f.step_due or s.name in (S.SAVING, S.DRAINING))
    return s.name is S.STEPPING or ended


def _keep_between(s: State, f: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The lease between two steps: there is nothing to hold, and nothing may be started."""
    if s.held_since is None:
        return (dataclasses.replace(s, held_since=f.now) if f.lapsed else s), ()
    if f.lapsed or not f.mine:
        return s, ()
    if f.proved_at > s.held_since:
        return dataclasses.replace(s, held_since=None), ()
    return s, (Renew(),)


def _work(s: State, f: Facts) -> tuple[State, tuple[Effect, ...]]:
    """The task that the state wants, if none is under way; the end of the machine when all is said."""
    if s.name in TERMINAL:
        return s, _last(s, f)
    if f.busy is not None or f.now < s.retry_at:
        return s, ()
    if s.name is S.DRAINING and f.pending_final is None:
        if not may_save(s, f):
            return s, ()
        sequence = f.desired.sequence if f.desired is not None and asked(s, f) else 0
        return dataclasses.replace(s, drain_sequence=sequence), (Do(Task.FINAL),)
    if s.name in (S.STEPPING, S.RETURNING) and (s.held_since is not None or f.lapsed or not f.mine):
        return s, ()
    task = _task(s)
    return s, (Do(task),) if task is not None else ()


def _task(s: State) -> Task | None:
    if s.name is S.BOOT:
        return None if s.booted else Task.BOOT
    return TASKS.get(s.name)


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
