"""The users' commands on a job: each records a wish, guarded by the row's version, and wakes the next tick."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from sqlalchemy import Connection, Engine

from spotsurfer.common.input_errors import nearest
from spotsurfer.core.scheduling.placement import serves, too_little
from spotsurfer.jobspec.validate import INTEGER_MAX
from spotsurfer.model.errors import Conflict, NotFound, Unprotected, UsageError
from spotsurfer.model.job import (
    ASKED,
    ENDED,
    HOLDS,
    PRIORITY_MAX,
    SIGNALS,
    HeldBy,
    Job,
    JobId,
    JobSpec,
    JobState,
    MoveRequest,
    Rewind,
    Wish,
)
from spotsurfer.model.market import Market, Offer
from spotsurfer.model.money import usd
from spotsurfer.model.state_machine import JOB, JobEvent, advance
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment, Why
from spotsurfer.state import jobs as rows
from spotsurfer.state import many_tasks, timeline
from spotsurfer.state.jobs import Selection
from spotsurfer.store.head_logs import HeadLogs, chosen

TRIES = 5
SIGNAL = re.compile(r"(?:[BS]:)?(?:KILL|STOP|" + "|".join(SIGNALS) + ")")
AtOnce = Callable[[Connection, Selection, datetime], list[JobId]]
ENDINGS = {JobState.SUCCEEDED: "has succeeded", JobState.FAILED: "has failed", JobState.CANCELLED: "was cancelled"}
USER, FRONT = "its user", "a connection to its front"
NO_OUTPUTS = "name them in the job file (`outputs`) or with --out when you submit it"


class Commands:
    """Wishes of users."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        heads: HeadLogs,
        poke: Callable[[], None],
        has: Callable[[str, str], bool] = lambda _job, _checkpoint: True,
        offers: Callable[[], Sequence[Offer]] = tuple,
    ) -> None:
        """`has`: whether a checkpoint that the head log names is still in the store. `offers`: of the market; () = unknown."""
        self._has = has
        self._offers = offers
        self._engine = engine
        self._clock = clock
        self._heads = heads
        self.poke = poke

    def hold(self, job: str) -> Job:
        """Drain the job and keep it in storage until its user resumes it; of an array all its tasks."""
        return self._tasks(job, "suspend", many_tasks.hold, self._hold) or self._hold(job)

    def _hold(self, job: str) -> Job:
        hold = {"wish": Wish.HOLD, "held_by": HeldBy.USER, "reason": ASKED, "move": None}
        return self._change(job, "suspend", lambda j: replace(j, **hold))  # type: ignore[arg-type]

    def resume(self, job: str, who: str = USER) -> Job:
        """Undo a hold, of an array of all its tasks; see `_resume`."""
        return self._tasks(job, "resume", many_tasks.resume, lambda id: self._resume(id, who)) or self._resume(job, who)

    def _resume(self, job: str, who: str = USER) -> Job:
        """Undo a hold; earlier failures don't count any more. A connection wakes only an idle job.

        Conflict for one that a budget of several jobs holds: that ends by itself.
        """

        def change(row: Job) -> Job:
            if row.wish is not Wish.HOLD or (who == FRONT and row.held_by is not HeldBy.IDLE):
                raise Conflict(f"job {row.id} is not suspended: it is {row.state}")
            if row.held_by is HeldBy.BUDGET:
                raise Conflict(f"job {row.id} goes on by itself when there is money again: {row.reason}")
            return replace(row, wish=Wish.RUN, held_by=HeldBy.USER, reason="", resumed_at=self._clock.now())

        return self._change(job, "resume", change, who)

    def go_back(self, job: str, checkpoint: str) -> Job:
        """Go on from a checkpoint of the user's choice: a held, ended or running job. Conflict, NotFound."""
        return self._retried(lambda: self._go_back(job, checkpoint))

    def _go_back(self, name: str, wanted: str) -> Job:
        with self._engine.connect() as connection:
            job = rows.named_job(connection, name)
        if job.state not in ENDED and job.wish is Wish.CANCEL:
            raise Conflict(f"job {job.id} is being cancelled: go back when it has ended")
        head = self._heads.seen(job.id, self._clock.now(), fresh=True)
        checkpoint = chosen(wanted, self._heads.log(job.id).entries)
        if checkpoint is None or not self._has(job.id, checkpoint):
            raise NotFound(f"job {job.id} has no checkpoint {wanted!r}; `spotsurfer checkpoints {job.id}` lists them")
        state = advance(JOB, job.state, JobEvent.REOPENED) if job.state in ENDED else job.state
        changed = replace(
            job,
            state=state,
            wish=Wish.RUN,
            held_by=HeldBy.USER,
            reason="",
            move=None,
            exit_code=None,
            resumed_at=self._clock.now(),
            ended_at=None,
            ended_by="",
            rewind=Rewind(checkpoint, head.number),
        )
        with self._engine.begin() as connection:
            saved = rows.save_job(connection, changed)
            text = f"go back to checkpoint {checkpoint}, asked by its user"
            timeline.add(connection, Moment(self._clock.now(), job.id, None, str(Kind.WISH), text, {"checkpoint": checkpoint}))
        return saved

    def cancel(self, job: str) -> Job:
        """End it without results; of an array all its tasks."""
        return self._tasks(job, "cancel", many_tasks.cancel, self._cancel) or self._cancel(job)

    def _tasks(self, name: str, what: str, at_once: AtOnce, one: Callable[[str], Job]) -> Job | None:
        """Do it to all tasks that are meant; the answer stands for all: its id is the array's.

        A job that is no task, and waits for other jobs or a time, is handled so, too; None for any other job.
        """
        with self._engine.begin() as connection:
            wanted = rows.selected(connection, name)
            alone = wanted is None
            wanted = wanted or Selection(job=rows.named_job(connection, name).id)
            done = at_once(connection, wanted, self._clock.now())
            if alone and not done:
                return None
            others = [] if alone else many_tasks.left(connection, wanted, began=at_once is not many_tasks.cancel)
        why, last = f"no task of {wanted} can be asked to {what} any more", done[-1:]
        for job in others:
            try:
                last = [one(job).id]
            except Conflict as e:  # it has ended meanwhile
                why = str(e)
        if not last:
            raise Conflict(why)
        self.poke()
        with self._engine.connect() as connection:
            return replace(rows.load_job(connection, last[0]), id=JobId(str(wanted)))

    def _cancel(self, job: str) -> Job:
        return self._change(job, "cancel", lambda j: replace(j, wish=Wish.CANCEL, reason="cancelled by its user", move=None))

    def move(self, job: str, instance_type: str | None, market: Market | None) -> int:
        """Ask for another machine."""

        def change(row: Job) -> Job:
            self._running(row)
            number = row.moves_asked + 1
            request = MoveRequest(number, self._clock.now(), instance_type, market)
            self._can_be_had(row, request)
            return replace(row, move=request, moves_asked=number)

        what = f"move to {instance_type or 'another machine'}" + (f" ({market})" if market else "")
        return self._change(job, what, change).moves_asked

    def checkpoint(self, job: str) -> int:
        """Ask for a live checkpoint."""

        def change(row: Job) -> Job:
            self._running(row)
            if row.spec.engine == "none":
                raise Unprotected(f'job {row.id} is run without checkpoints (engine = "none"): it starts over elsewhere')
            sequence = self._heads.seen(row.id, self._clock.now(), fresh=True).sequence
            return replace(row, save_at_least=max(row.save_at_least, sequence + 1))

        return self._change(job, "checkpoint", change).save_at_least

    def ask_partial(self, job: str) -> int:
        """Ask for the present state of its outputs; returns the number of the request."""

        def change(row: Job) -> Job:
            self._running(row)
            if not row.spec.outputs:
                raise Conflict(f"job {row.id} names no outputs: {NO_OUTPUTS}")
            return replace(row, partials_asked=row.partials_asked + 1)

        return self._change(job, "outputs so far", change).partials_asked

    def signal(self, job: str, name: str) -> int:
        """Send a signal to its processes; of an array to those of all tasks that run. The number of the request."""
        if not SIGNAL.fullmatch(name):
            raise UsageError(f"the signal is {name!r}, expected one like USR1, or B:USR1 for its command alone")

        def one(id: str) -> Job:
            return self._change(id, f"signal {name}", change)

        def change(row: Job) -> Job:
            self._running(row)
            return replace(row, signals_asked=row.signals_asked + 1, signal=name)

        none: AtOnce = lambda *_: []  # noqa: E731
        return (self._tasks(job, f"signal {name}", none, one) or one(job)).signals_asked

    def prioritize(self, job: str, priority: int) -> Job:
        """Set its priority from now on, for when limits leave no room for all jobs. UsageError out of range."""
        if abs(priority) > PRIORITY_MAX:
            raise UsageError(f"priority is {priority}, expected -{PRIORITY_MAX} to {PRIORITY_MAX}")

        def text(spec: JobSpec) -> str:
            return f"priority {priority} instead of {spec.priority}"

        def one(id: str) -> Job:
            return self._retried(lambda: self._respecified(id, "another priority", text, priority=priority))

        return self._tasks(job, "another priority", partial(many_tasks.prioritize, priority=priority), one) or one(job)

    def set_budget(self, job: str, usd_micros: int | None) -> Job:
        """Set the limit of its total cost; None = no limit of its own. UsageError for an impossible amount."""
        if usd_micros is not None and not 0 < usd_micros <= INTEGER_MAX:
            raise UsageError(f"the budget is {usd(usd_micros)} USD, expected more than nothing")

        def text(spec: JobSpec) -> str:
            old, new = (f"{usd(x)} USD" if x is not None else "none" for x in (spec.budget_usd_micros, usd_micros))
            return f"budget {new} instead of {old}"

        return self._retried(lambda: self._respecified(job, "another budget", text, budget_usd_micros=usd_micros))

    def _respecified(self, name: str, what: str, said: Callable[[JobSpec], str], **changes: int | None) -> Job:
        """Change the job's specification, with a timeline event; a job with these values already stays unchanged."""
        job, now = self._open(name, what), self._clock.now()
        spec = replace(job.spec, **changes)  # type: ignore[arg-type]
        if spec == job.spec:
            return job
        text = f"{said(job.spec)}, asked by {USER}"
        with self._engine.begin() as connection:
            saved = rows.save_job(connection, replace(job, spec=spec))
            timeline.add(connection, Moment(now, job.id, None, str(Kind.WISH), text))
            # If there is room, no decision follows that `why` could show.
            timeline.add_decision(connection, job.id, Why(now, (text,), (), ""))
        return saved

    def _can_be_had(self, job: Job, move: MoveRequest) -> None:
        """Raise UsageError for a machine type that is not on offer, Conflict if no such machine fits the job."""
        offers = self._offers()
        kinds = {o.pool.instance_type for o in offers}
        if kinds and move.instance_type not in {None, *kinds}:
            near = nearest(str(move.instance_type), kinds)
            hint = f"did you mean {near!r}?" if near else "`spotsurfer submit --dry-run` lists what there is"
            raise UsageError(f"no machine type {move.instance_type!r} is on offer: {hint}")
        asked = [o for o in offers if serves(move, o)]
        if asked and all(too_little(job, o) for o in asked):
            raise Conflict(f"{asked[0].pool.instance_type} can't have job {job.id}: {too_little(job, asked[0])}")

    def _running(self, job: Job) -> None:
        with self._engine.connect() as connection:
            attempts = rows.attempts(connection, [job.id])[job.id]
        if job.state is not JobState.ACTIVE or not any(a.state in HOLDS for a in attempts):
            raise Conflict(f"job {job.id} is not on a machine now ({job.state}): try again when it runs")

    def _change(self, name: str, what: str, change: Callable[[Job], Job], who: str = USER) -> Job:
        def once() -> Job:
            job = self._open(name, what)
            changed = change(job)
            with self._engine.begin() as connection:
                saved = rows.save_job(connection, changed)
                moment = Moment(self._clock.now(), job.id, None, str(Kind.WISH), f"{what}, asked by {who}")
                timeline.add(connection, moment)
            return saved

        return self._retried(once)

    def _retried(self, once: Callable[[], Job]) -> Job:
        """Retry if another writer changed the row meanwhile; then wake the loop."""
        for left in reversed(range(TRIES)):
            try:
                saved = once()
            except rows.Stale:
                if not left:
                    raise
                continue
            self.poke()
            return saved
        raise AssertionError("unreachable")

    def _open(self, name: str, what: str) -> Job:
        """The job, if it has not ended; else Conflict, which names the impossible command."""
        with self._engine.connect() as connection:
            job = rows.named_job(connection, name)
        if job.state in ENDED or job.wish is Wish.CANCEL:
            raise Conflict(f"job {job.id} {ENDINGS.get(job.state, 'is being cancelled')} already: {what} comes too late")
        return job
