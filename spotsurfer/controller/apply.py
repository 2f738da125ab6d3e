"""Carries out the actions that `decide` chose: journal, act, record. It decides nothing itself.

For each action it writes the intent to the journal, performs the effect, and then writes the new row, the timeline event and
the end of the journal entry in one transaction. A crash in between leaves the row unchanged, so the next tick wants the same
action again, and a token or nonce makes the second time harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from spotsurfer_wire import head_log, json_codec, object_keys
from spotsurfer_wire.head_log import Appended
from spotsurfer_wire.messages import Desired, Head, HeadKind, Want
from spotsurfer_wire.store.port import ObjectStore, StoreError
from sqlalchemy import Connection, Engine

from spotsurfer.controller import effects
from spotsurfer.controller.history import past_attempts
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.core.scheduling.placement import REFUSALS, cooled
from spotsurfer.model.actions import (
    Action,
    Ask,
    Close,
    EndJob,
    EndMachine,
    GiveBack,
    Grant,
    Launch,
    Leave,
    MachineGone,
    Mark,
    Pace,
    Plan,
    Recall,
    Rejected,
    Retry,
    SetStuck,
    SetWish,
    Sweep,
    TellBudget,
    Terminate,
    action_id,
)
from spotsurfer.model.budgets import USED_UP
from spotsurfer.model.errors import CredentialsExpired, ProviderError, Throttled
from spotsurfer.model.job import (
    ASKED,
    Attempt,
    AttemptNumber,
    AttemptState,
    HeldBy,
    InstanceId,
    Job,
    JobId,
    JobState,
    Wish,
    launch_token,
)
from spotsurfer.model.machine import MachineState
from spotsurfer.model.state_machine import ATTEMPT, MACHINE, AttemptEvent, JobEvent, MachineEvent
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.provider import KEPT_TAG, InstanceView, LaunchPlan
from spotsurfer.ports.service import Moment
from spotsurfer.state import budgets, dependencies, journal, observations, timeline
from spotsurfer.state import jobs as rows
from spotsurfer.store.head_logs import HeadLogs, written_at

UNKNOWN_MAX = 5  # inconclusive answers before an order is given up
Effect = Callable[[Connection], tuple[str, Callable[[], None] | None]]  # writes rows; its second result runs after the commit
InstanceOf = Callable[[str, InstanceId | None], InstanceView | None]
UserData = Callable[[Attempt], str]


class Orders(Protocol):
    """Sealed orders for one more agent on a machine that is kept."""

    def of(self, attempt: Attempt) -> bytes:
        """The order for this attempt."""
        ...

    def void(self, attempt: Attempt) -> bytes:
        """The order by which nothing comes in this attempt's slot."""
        ...


# Called inside the transaction that ends or holds a job; the function it returns runs after the commit.
OnEnd = Callable[[Connection, Job], Callable[[], None] | None]


class NoOrders:
    """For a controller that keeps no machine."""

    def of(self, attempt: Attempt) -> bytes:
        """Never asked for."""
        raise NotImplementedError(attempt.token)

    void = of


@dataclass
class Apply:
    """One action at a time; `instance_of` finds the machine of a token in the last listing, see Observer."""

    engine: Engine
    clouds: Clouds
    store: ObjectStore
    heads: HeadLogs
    clock: Clock
    family: str
    user_data: UserData
    on_end: OnEnd
    instance_of: InstanceOf
    ready: Callable[[Job], None] = lambda _: None  # what its machines are told lies in the store
    orders: Orders = field(default_factory=NoOrders)
    launched: Callable[[], None] = lambda: None  # a machine was ordered, and its row says so
    spent: Callable[[JobId], int | None] = lambda _: None  # cost of a job so far, micro-dollars; None = not known
    nudge: Callable[[Attempt], None] = lambda _: None  # something new lies in the store for its agent
    follow: Callable[[Job], None] = lambda _: None  # before its first start: its folder after jobs that came before it
    first_cooldown_seconds: float | None = None
    lease_seconds: float = 60.0  # of machines that are ordered from now on
    _unknown: dict[str, int] = field(default_factory=dict)  # launch token -> number of inconclusive answers

    def carry_out(self, action: Action, rejected: Sequence[Rejected] = ()) -> str:
        """Carry out the action and return a sentence about the outcome. `rejected`: the alternatives to what it chose.

        Raises Stale if a row moved on, StoreError or ProviderError if the outcome is unknown. Then only the journal records
        the failure, and the next tick decides anew.
        """
        now = self.clock.now()
        with self.engine.begin() as connection:
            entry = journal.begin(connection, action_id(action), now)
        after: Callable[[], None] | None = None
        try:
            effect = self._effect(action, rejected)
            with self.engine.begin() as connection:
                outcome, after = effect(connection)
                journal.finish(connection, entry, outcome, self.clock.now())
        except Exception as e:
            with self.engine.begin() as connection:
                journal.finish(connection, entry, f"not done: {e}", self.clock.now())
            raise
        if after is not None:
            after()
        return outcome

    def _effect(self, action: Action, rejected: Sequence[Rejected]) -> Effect:
        """Perform the external effect and return the function that records it."""
        handlers: dict[type, Callable[[Any], Effect]] = {
            Plan: lambda a: self._planned(a, rejected),
            Launch: self._launch,
            Grant: self._grant,
            GiveBack: self._give_back,
            Ask: self._ask,
            Pace: self._pace,
            Mark: lambda a: lambda c: (self._mark(c, a), None),
            Terminate: self._terminate,
            Leave: self._leave,
            EndMachine: self._end_machine,
            MachineGone: lambda a: lambda c: (self._machine_gone(c, a), None),
            Recall: lambda a: lambda c: (self._recall(c, a), None),
            Close: self._close,
            EndJob: lambda a: lambda c: self._end(c, a),
            Retry: lambda a: lambda c: (self._retry(c, a), None),
            SetWish: lambda a: lambda c: (self._wish(c, a), None),
            SetStuck: lambda a: lambda c: (self._stuck(c, a), None),
            Sweep: self._sweep,
            TellBudget: lambda a: lambda c: (self._tell_budget(c, a), None),
        }
        return handlers[type(action)](action)

    def _load(self, job: JobId, number: AttemptNumber) -> Attempt:
        with self.engine.connect() as connection:
            return rows.load_attempt(connection, job, number)

    def _say(self, c: Connection, kind: Kind, a: Attempt | Job | None, text: str, **data: str | float | None) -> str:
        job = a.job if isinstance(a, Attempt) else a.id if a is not None else None
        number = a.number if isinstance(a, Attempt) else None
        timeline.add(c, Moment(self.clock.now(), job, number, str(kind), text, dict(data)))
        return text

    def _step(self, c: Connection, before: Attempt, event: AttemptEvent, reason: str, **changes: object) -> Attempt:
        """Record an edge, and what it means for the machine."""
        saved = self._edge(c, before, event, reason, changes)
        self._of_machine(c, saved, event)
        return saved

    def _edge(self, c: Connection, before: Attempt, event: AttemptEvent, reason: str, changes: Mapping[str, object]) -> Attempt:
        view = self.instance_of(before.token, before.instance)
        seen = None if view is None else effects.machine_seen(view)
        now = self.clock.now()
        moved = effects.after(before, event, reason, now, seen)
        saved = rows.save_attempt(c, replace(moved, **changes))  # type: ignore[arg-type]
        data: dict[str, str | float | None] = {"from": str(before.state), "to": str(saved.state), "event": str(event)}
        if event is AttemptEvent.WORKLOAD_STARTED and saved.from_checkpoint is not None and saved.granted_at is not None:
            data["restore_seconds"] = max((now - saved.granted_at).total_seconds(), 0.0)
            data["pause_seconds"] = saved.pause_seconds
        if saved.state is AttemptState.RELEASED:
            data["usd_micros"] = self.spent(saved.job)
        self._say(c, Kind.ATTEMPT, saved, f"{event}: {reason}" if reason else str(event), **data)
        return saved

    def _of_machine(self, c: Connection, attempt: Attempt, event: AttemptEvent) -> None:
        """Record what an attempt's event means for its machine."""
        machine, now = rows.load_machine(c, attempt.token), attempt.since
        after = effects.machine_after(machine, attempt, event, now)
        if event is AttemptEvent.SLOT_EMPTY and not rows.is_used(c, machine.token):
            after = replace(after, idle_since=now)
        if after != machine:
            rows.save_machine(c, after)

    def _planned(self, action: Plan, rejected: Sequence[Rejected]) -> Effect:
        with self.engine.connect() as connection:
            self.ready(rows.load_job(connection, action.job))
        return lambda c: (self._plan(c, action, rejected), None)

    def _plan(self, c: Connection, action: Plan, rejected: Sequence[Rejected]) -> str:
        now, job = self.clock.now(), rows.load_job(c, action.job)
        if job.state not in (JobState.QUEUED, JobState.ACTIVE):
            raise rows.Stale(f"job {job.id} was ended or suspended with others of its array meanwhile")
        machine = rows.load_machine(c, action.machine) if action.machine else None
        attempt = effects.planned(action, self.family, self.lease_seconds, now, machine)
        owner = self._begin(c, action).owner
        if machine is None:
            rows.add_machine(c, effects.bought(action, attempt, owner))
        elif machine.state is not MachineState.UP:
            raise rows.Stale(f"machine {machine.token} is {machine.state} by now")
        else:
            rows.save_machine(c, replace(machine, slots=machine.slots + 1, idle_since=None))
        rows.add_attempt(c, attempt)
        price = attempt.price_usd_micros_per_hour
        text = f"{attempt.market} {attempt.pool}: {action.reason}"
        others = effects.passed_over(rejected) or None
        return self._say(c, Kind.PLANNED, attempt, text, usd_micros_per_hour=price, market=str(attempt.market), rejected=others)

    def _begin(self, c: Connection, action: Plan | Recall) -> Job:
        """The job has an attempt now."""
        job = rows.load_job(c, action.job)
        if job.state is JobState.QUEUED:
            rows.save_job(c, effects.job_after(job, JobEvent.ATTEMPT_PLANNED, action.reason, None, self.clock.now()))
        return job

    def _launch(self, action: Launch) -> Effect:
        a = attempt = self._load(action.job, action.attempt)
        if attempt.slot:
            return self._order(attempt)
        tags = {  # the same for every controller of the family: a repeated order may not differ from the first
            "spotsurfer:family": self.family,
            "spotsurfer:job": a.job,
            "spotsurfer:attempt": str(a.number),
            **({KEPT_TAG: "yes"} if self.is_kept(a) else {}),
        }
        try:
            view = self.clouds.at(a.pool.provider).launch(LaunchPlan(a.token, a.pool, a.market, self.user_data(a), tags))
        except ProviderError as e:
            error = e
            if type(e) in REFUSALS:
                return lambda c: (self._refused(c, attempt, error), None)
            if not self._given_up(attempt, e):
                raise
            # If a machine was started all the same, it belongs to no attempt and is ended when a listing shows it.
            why = f"ordered {UNKNOWN_MAX} times without an answer that says anything: {e}"
            return lambda c: (self._refused(c, attempt, error, why), None)
        self._unknown.pop(attempt.token, None)
        return lambda c: (self._launched(c, attempt, view), self.launched)

    def _order(self, attempt: Attempt) -> Effect:
        """Order one more agent on a machine that runs. An order that is there already is this one, before a crash."""
        self.store.create(object_keys.order_slot_key(attempt.token, attempt.slot), self.orders.of(attempt))

        def record(c: Connection) -> tuple[str, Callable[[], None]]:
            saved = self._step(c, attempt, AttemptEvent.LAUNCH_ACCEPTED, "", launched_at=self.clock.now())
            said = self._say(c, Kind.LAUNCHED, saved, f"{saved.instance}, which is kept, in slot {saved.slot}")
            return said, self.launched

        return record

    def is_kept(self, attempt: Attempt) -> bool:
        """Whether the attempt's machine takes further jobs."""
        with self.engine.connect() as c:
            return rows.is_kept(c, attempt.token)

    def _given_up(self, attempt: Attempt, error: ProviderError) -> bool:
        """Whether the order was repeated often enough. Throttling and bad credentials say nothing about the order itself."""
        if not isinstance(error, Throttled | CredentialsExpired):
            self._unknown[attempt.token] = self._unknown.get(attempt.token, 0) + 1
        if self._unknown.get(attempt.token, 0) < UNKNOWN_MAX:
            return False
        del self._unknown[attempt.token]
        return True

    def _refused(self, c: Connection, attempt: Attempt, error: ProviderError, why: str = "") -> str:
        known = {(k.pool, k.market): k for k in observations.cooldowns(c)}
        before, now = known.get((attempt.pool, attempt.market)), self.clock.now()
        cool = cooled(attempt, error, before, now, self.first_cooldown_seconds)
        observations.set_cooldown(c, cool)
        why = why or str(error)
        self._step(c, attempt, AttemptEvent.LAUNCH_REFUSED, why)
        wait = (cool.until - now).total_seconds()
        return self._say(c, Kind.REFUSED, attempt, f"{why}; {attempt.pool} is left alone for {wait:.0f} s", wait_seconds=wait)

    def _launched(self, c: Connection, attempt: Attempt, view: InstanceView) -> str:
        observations.clear_cooldown(c, attempt.pool, attempt.market)
        saved = self._step(c, attempt, AttemptEvent.LAUNCH_ACCEPTED, "", instance=view.id, launched_at=view.launched_at)
        observations.add_price(c, saved.job, saved.number, view.launched_at, saved.price_usd_micros_per_hour)
        return self._say(c, Kind.LAUNCHED, saved, f"{view.id} on {saved.pool} ({saved.market})", instance=view.id)

    def _grant(self, action: Grant) -> Effect:
        attempt = self._load(action.job, action.attempt)
        log = self.heads.log(action.job)
        if action.checkpoint is None:
            with self.engine.connect() as connection:
                job = rows.load_job(connection, action.job)
            self.follow(job)
        head = self._granting(action, f"grant-{self._own_token(attempt)}")
        if log.append(head) is Appended.LOST:
            return lambda _: ("the head moved meanwhile: decided again", None)

        def record(c: Connection) -> tuple[str, Callable[[], None]]:
            job = rows.load_job(c, action.job)
            asked = job.signals_asked  # those were for processes that do not run here
            changes = {"from_checkpoint": head.checkpoint, "head_number": head.number, "signals_told": asked}
            saved = self._step(c, attempt, AttemptEvent.EPOCH_GRANTED, action.reason, **changes)
            dependencies.began(c, job)
            said = self._say(c, Kind.GRANTED, saved, f"owns the job, {action.reason}", checkpoint=head.checkpoint)
            return said, lambda: self.nudge(attempt)

        return record

    def _own_token(self, attempt: Attempt) -> str:
        """The attempt's own, whatever machine it is on: by it an entry of the head log is recognised when it is repeated."""
        return launch_token(self.family, attempt.job, attempt.number)

    def _granting(self, action: Grant | GiveBack, nonce: str) -> Head:
        made = head_log.commit_of(self.heads.log(action.job).entries, action.checkpoint)
        place = head_log.Place(action.after + 1, nonce, self.clock.now().isoformat())
        return head_log.granted(place, action.attempt, action.checkpoint, action.sequence, made)

    def _give_back(self, action: GiveBack) -> Effect:
        """Withdraw the order to drain first: otherwise the attempt drains again as soon as it has the job."""
        attempt = self._load(action.job, action.attempt)
        asked = replace(attempt, desired_want=str(Want.RUN), desired_sequence=attempt.desired_sequence + 1)
        self._tell(asked, Want.RUN, action.reason)
        head = self._granting(action, f"back-{self._own_token(attempt)}")
        if self.heads.log(action.job).append(head) is Appended.LOST:
            return lambda _: ("the head moved meanwhile: decided again", None)

        def record(c: Connection) -> tuple[str, Callable[[], None]]:
            changes = {"head_number": head.number, "desired_want": asked.desired_want}
            changes |= {"desired_sequence": asked.desired_sequence}
            saved = self._step(c, attempt, AttemptEvent.GIVEN_BACK, action.reason, **changes)
            said = self._say(c, Kind.GRANTED, saved, f"has the job again: {action.reason}", checkpoint=head.checkpoint)
            return said, lambda: self.nudge(attempt)

        return record

    def _ask(self, action: Ask) -> Effect:
        attempt = self._load(action.job, action.attempt)
        partial = max(action.partial, attempt.desired_partial)
        changes = {"desired_want": action.want, "desired_save": action.save_at_least, "desired_partial": partial}
        changes |= {"desired_sequence": attempt.desired_sequence + 1, "gave_way_to": action.gives_way_to}
        if action.signal:
            changes |= {"signals_told": action.signal_number, "signal": action.signal}
        told = replace(attempt, **changes)  # type: ignore[arg-type]
        self._tell(told, Want(action.want), action.reason, action.seconds_left, keep=action.keep)

        def record(c: Connection) -> tuple[str, Callable[[], None]]:
            if action.event is None:
                saved = rows.save_attempt(c, replace(attempt, **changes))  # type: ignore[arg-type]
            else:
                saved = self._step(c, attempt, action.event, action.reason, **changes)
            text, left = f"{action.want}: {action.reason}", action.seconds_left
            said = self._say(c, Kind.ASKED, saved, text, want=action.want, seconds_left=left)
            return said, lambda: self.nudge(attempt)

        return record

    def _pace(self, action: Pace) -> Effect:
        """Tell the agent if the interval changes; the row records the policy's answer in any case."""
        attempt = self._load(action.job, action.attempt)
        changed = action.seconds != attempt.pace_seconds
        after = replace(attempt, pace_seconds=action.seconds, pace_saves=action.saves, pace_why=action.reason)
        if changed:
            after = replace(after, desired_sequence=attempt.desired_sequence + 1)
            self._tell(after, Want.RUN, action.reason)

        def record(c: Connection) -> tuple[str, Callable[[], None] | None]:
            saved = rows.save_attempt(c, after)
            if not changed:
                return action.reason, None
            said = self._say(c, Kind.PACED, saved, action.reason, interval_seconds=action.seconds)
            return said, lambda: self.nudge(attempt)

        return record

    def _tell(self, a: Attempt, want: Want, why: str, seconds_left: float | None = None, *, keep: bool = False) -> None:
        """Write the agent's orders to its desired object in the store."""
        told = Desired(
            *(a.desired_sequence, want, a.desired_save, seconds_left, why, a.desired_partial, a.pace_seconds, keep),
            *(a.signals_told, a.signal),
        )
        self.store.put(object_keys.desired_key(a.job, a.number), json_codec.encode(told))

    def _mark(self, c: Connection, action: Mark) -> str:
        attempt = rows.load_attempt(c, action.job, action.attempt)
        changes: dict[str, object] = {}
        if action.event in (AttemptEvent.EPOCH_GRANTED, AttemptEvent.GIVEN_BACK):
            grant = _grant_of(self.heads.log(action.job).entries, action.attempt)
            changes = {"head_number": grant.number}
            if action.event is AttemptEvent.EPOCH_GRANTED:
                changes |= {"from_checkpoint": grant.checkpoint}
        pause = None
        if action.event is AttemptEvent.WORKLOAD_STARTED:
            now, entries = self.clock.now(), self.heads.log(attempt.job).entries
            final = next((e for e in reversed(entries) if e.final and e.checkpoint == attempt.from_checkpoint), None)
            pause = past_attempts.measure(c, attempt, written_at(final, now) if final is not None else None, now)
        if pause is not None:
            changes = {"pause_seconds": pause.seconds}
        saved = self._step(c, attempt, action.event, action.reason, **changes)
        if pause is not None:
            data = {"pause_seconds": pause.seconds, "usd_micros": self.spent(saved.job), **asdict(pause)}
            self._say(c, Kind.MOVED, saved, str(pause), **data)
        if saved.state is AttemptState.RELEASED:  # no listing is to show its objects any more
            keys = [object_keys.live_key(saved.job, saved.number), object_keys.desired_key(saved.job, saved.number)]
            with suppress(StoreError):  # a leftover report costs a line in a listing: it is ignored as its attempt is over
                self.store.delete(keys)
        return f"{action.event}: {action.reason}"

    def _terminate(self, action: Terminate) -> Effect:
        attempt = self._load(action.job, action.attempt)
        view = self.instance_of(attempt.token, attempt.instance)
        instance = attempt.instance or (view.id if view else None)
        if instance is not None:
            pool = attempt.pool if view is None else view.pool
            self.clouds.at(pool.provider).terminate(InstanceId(instance))

        def record(c: Connection) -> tuple[str, None]:
            if AttemptEvent.TERMINATE_CALLED in ATTEMPT[attempt.state]:
                way = {"gave_way_to": action.gives_way_to} if action.gives_way_to else {}
                self._step(c, attempt, AttemptEvent.TERMINATE_CALLED, action.reason, **way)
            return f"terminate: {action.reason}", None

        return record

    def _leave(self, action: Leave) -> Effect:
        """Tell the agent to end, or have no agent come if its order was not written. The machine stays."""
        attempt = self._load(action.job, action.attempt)
        changes: dict[str, object] = {"gave_way_to": action.gives_way_to} if action.gives_way_to else {}
        if attempt.state is AttemptState.PLANNED:
            void = self.orders.void(attempt)
            if not self.store.create(object_keys.order_slot_key(attempt.token, attempt.slot), void):
                changes |= {"launched_at": self.clock.now()}  # a crash came between the order and its record
        if attempt.state not in (AttemptState.FINISHED, AttemptState.PLANNED) or "launched_at" in changes:
            told = replace(attempt, desired_want=str(Want.STOP), desired_sequence=attempt.desired_sequence + 1)
            self._tell(told, Want.STOP, action.reason)
            changes |= {"desired_want": told.desired_want, "desired_sequence": told.desired_sequence}

        def record(c: Connection) -> tuple[str, Callable[[], None]]:
            self._edge(c, attempt, AttemptEvent.TERMINATE_CALLED, action.reason, changes)
            return f"leave: {action.reason}", lambda: self.nudge(attempt)

        return record

    def _end_machine(self, action: EndMachine) -> Effect:
        with self.engine.connect() as connection:
            machine = rows.load_machine(connection, action.machine)
        if machine.instance is not None:
            self.clouds.at(machine.pool.provider).terminate(machine.instance)

        def record(c: Connection) -> tuple[str, None]:
            if MachineEvent.END_ORDERED in MACHINE[machine.state]:
                now = self.clock.now()
                rows.save_machine(c, effects.machine_moved(machine, MachineEvent.END_ORDERED, action.reason, now))
                self._say(c, Kind.MACHINE, None, f"{machine.instance} is ended: {action.reason}", instance=machine.instance)
            return f"end machine: {action.reason}", None

        return record

    def _machine_gone(self, c: Connection, action: MachineGone) -> str:
        machine = rows.load_machine(c, action.machine)
        view = self.instance_of(machine.token, machine.instance)
        ended = view.ended_at if view is not None else None
        rows.save_machine(c, effects.machine_moved(machine, MachineEvent.GONE, action.reason, self.clock.now(), at=ended))
        with suppress(StoreError):  # leftover orders open for nobody any more
            self.store.delete([x.key for x in self.store.list(object_keys.orders_prefix(machine.token))])
        return f"machine gone: {action.reason}"

    def _recall(self, c: Connection, action: Recall) -> str:
        log = self.heads.log(action.job)
        grant = _grant_of(log.entries, action.attempt)
        own = launch_token(self.family, action.job, action.attempt)
        token, now = action.machine or own, self.clock.now()
        attempt = effects.recalled(action, grant, token, self.instance_of(token, None), self.lease_seconds, now)
        if action.machine and not rows.is_kept(c, token):
            rows.add_machine(c, effects.machine_recalled(attempt))
        rows.add_attempt(c, attempt)
        dependencies.began(c, rows.load_job(c, action.job))
        self._begin(c, action)
        return self._say(c, Kind.PLANNED, attempt, action.reason, market=str(attempt.market))

    def _close(self, action: Close) -> Effect:
        log = self.heads.log(action.job)
        place = head_log.Place(action.after + 1, f"close-{action.job}", self.clock.now().isoformat())
        head = head_log.closed(place, log.newest, action.ended_by)
        ours = log.append(head) is Appended.OURS
        return lambda _: ("closed" if ours else "the head moved meanwhile: decided again", None)

    def _end(self, c: Connection, action: EndJob) -> tuple[str, Callable[[], None] | None]:
        job = rows.load_job(c, action.job)
        saved = rows.save_job(
            c,
            replace(
                effects.job_after(job, action.event, action.reason, action.exit_code, self.clock.now()),
                ended_by=action.ended_by,
            ),
        )
        data = {"state": str(saved.state), "exit_code": saved.exit_code, "usd_micros": self.spent(saved.id)}
        if saved.state is JobState.HELD:  # by its user, or for them: nobody needs to be told
            data["asked"] = saved.reason == ASKED or saved.held_by is HeldBy.IDLE
        self._say(c, Kind.ENDED, saved, f"{saved.state}: {action.reason}", **data)
        over = saved.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.HELD)
        return f"{action.event}: {action.reason}", self.on_end(c, saved) if over else None

    def _retry(self, c: Connection, action: Retry) -> str:
        job = rows.load_job(c, action.job)
        saved = rows.save_job(c, replace(job, failures=job.failures + 1, exit_code=action.exit_code))
        return self._say(c, Kind.RETRY, saved, action.reason, exit_code=action.exit_code)

    def _wish(self, c: Connection, action: SetWish) -> str:
        job = rows.load_job(c, action.job)
        changed = replace(job, move=None) if action.clear_move or action.wish is Wish.HOLD else job
        changed = replace(changed, rewind=None) if action.clear_rewind else changed
        if action.wish is not None:
            changed = replace(changed, wish=action.wish, reason=action.reason, held_by=action.held_by)
        saved = rows.save_job(c, changed)
        held_by = {"held_by": str(saved.held_by)} if action.wish is Wish.HOLD else {}
        return self._say(c, Kind.WISH, saved, action.reason, wish=str(action.wish) if action.wish else None, **held_by)

    def _stuck(self, c: Connection, action: SetStuck) -> str:
        saved = rows.save_job(c, replace(rows.load_job(c, action.job), stuck_since=action.since))
        return self._say(c, Kind.STUCK, saved, action.reason, stuck=action.since is not None)

    def _tell_budget(self, c: Connection, action: TellBudget) -> str:
        b = action.budget
        budgets.tell(c, b, action.begins, action.shares, self.clock.now())
        amounts = {"share": action.share, "spent_usd_micros": action.spent_usd_micros, "usd_micros": b.usd_micros}
        used_up = USED_UP in action.shares
        return self._say(c, Kind.BUDGET, None, action.reason, scope=b.scope, per=str(b.per), used_up=used_up, **amounts)

    def _sweep(self, action: Sweep) -> Effect:
        self.clouds.at(action.provider).terminate(action.instance)
        return lambda c: (self._say(c, Kind.SWEPT, None, f"{action.instance}: {action.reason}"), None)


def _grant_of(entries: list[Head], attempt: AttemptNumber) -> Head:
    """The newest grant of an attempt, which has one."""
    return next(e for e in reversed(entries) if e.kind is HeadKind.GRANT and e.epoch == attempt)
