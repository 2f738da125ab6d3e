"""The agent's loop and its threads: gathers facts, steps the state machine and carries out the effects.

The loop is the only place that waits. Everything that may hang runs beside it: reading the store, writing reports, uploading
output, asking the metadata service, and the long tasks. So the agent judges the lease and holds the job, whatever the store
does.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spotsurfer_wire import clock
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.final_save_forecast import Fit
from spotsurfer_wire.linux import memory
from spotsurfer_wire.messages import AgentConfig, AgentState, NearMiss, Want
from spotsurfer_wire.store.port import FileStore

from spotsurfer_agent.control.facts import (
    ABSENT,
    INTERRUPTION,
    AgentRules,
    Do,
    Effect,
    Facts,
    Hold,
    Outcome,
    PowerOff,
    Release,
    Renew,
    Shut,
    Task,
    Unguard,
)
from spotsurfer_agent.control.final_save_timing import Measures, Window
from spotsurfer_agent.control.log_upload import FIRST_LOG_SECONDS, LOG_SECONDS, Logs
from spotsurfer_agent.control.mailbox import Heads, Mailbox
from spotsurfer_agent.control.notices import Watcher
from spotsurfer_agent.control.partial_results import Partials
from spotsurfer_agent.control.reports import Extras, Reporter, build
from spotsurfer_agent.control.standby import Readiness, Standby, Standing
from spotsurfer_agent.control.state_file import StateFile
from spotsurfer_agent.control.state_machine import State, step
from spotsurfer_agent.control.tasks import Work
from spotsurfer_agent.control.time_limit import due
from spotsurfer_agent.host.hints import Told
from spotsurfer_agent.host.usage import Sampler
from spotsurfer_agent.ports.engine import Engine, EngineError, Protection, WorkloadState
from spotsurfer_agent.prepare.inputs.delivery import JobInputs
from spotsurfer_agent.store.cache import DiskCache
from spotsurfer_agent.store.layers import CachedStore, FenceClosed, WriteFence
from spotsurfer_agent.store.traffic import Traffic

log = logging.getLogger(__name__)
REST_SECONDS = 20.0  # between looks for memory that can be given back, which take some milliseconds


class Ticker:
    """Calls `look` every `seconds()`, or at once when poked, in a thread of its own. A failed look is logged and repeated."""

    def __init__(
        self, name: str, look: Callable[[], object], seconds: float | Callable[[], float], after: Callable[[], None]
    ) -> None:
        self._name, self._look, self._after = name, look, after
        self._seconds: Callable[[], float] = seconds if callable(seconds) else lambda: seconds
        self._poked, self._over = threading.Event(), threading.Event()

    def start(self) -> None:
        """Begin; a daemon thread, because a store that hangs must not keep the process alive."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def poke(self) -> None:
        """Look now."""
        self._poked.set()

    def stop(self) -> None:
        """No further look begins."""
        self._over.set()
        self._poked.set()

    @property
    def poked(self) -> bool:
        """A look is due at once."""
        return self._poked.is_set()

    def turn(self) -> float:
        """Look once; returns the seconds until the next look is due, unless somebody pokes earlier."""
        self._poked.clear()
        try:
            self._look()
        except Exception:
            log.exception("%s failed; it is repeated", self._name)
        self._after()
        return self._seconds()

    def _run(self) -> None:
        while not self._over.is_set():
            self._poked.wait(self.turn())


class Worker:
    """One long task at a time. `look` and `give` are for the loop; `run_one` is what the thread repeats."""

    def __init__(self, do: Callable[[Task], Outcome], after: Callable[[], None]) -> None:
        self._do, self._after = do, after
        self._lock, self._given = threading.Lock(), threading.Event()
        self._task: Task | None = None
        self._outcome: Outcome | None = None

    def look(self) -> tuple[Task | None, Outcome | None]:
        """The task under way, and the outcome of the last one (returned once): both of the same instant."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return self._task, outcome

    @property
    def busy(self) -> bool:
        """A task is under way."""
        return self._task is not None

    def give(self, task: Task) -> None:
        """Begin a task; none may be under way."""
        with self._lock:
            assert self._task is None, f"{task} while {self._task} is under way"
            self._task = task
        self._given.set()

    def start(self) -> None:
        """Begin to work in a daemon thread."""
        threading.Thread(target=self._run, name="worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            while not self._given.wait(REST_SECONDS):
                memory.trim_memory()  # what other threads left
            self.run_one()
            memory.trim_memory()  # only now nothing of the task is in use any more

    def run_one(self) -> None:
        """Do the task that was given, if any."""
        with self._lock:
            task = self._task
            self._given.clear()
        if task is None:
            return
        try:
            outcome = self._do(task)
        except Exception as e:
            log.exception("%s failed in a way that nobody foresaw", task)
            outcome = Outcome(
                task, clock.monotonic(), f"{task} failed: {e}" if str(e) else f"{task} failed: {type(e).__name__}"
            )
        with self._lock:
            self._task, self._outcome = None, outcome
        self._after()


TICK_SECONDS = 0.25
END_SECONDS = 60.0  # of one wait for the end of the command
QUIET_SECONDS = 1.0  # between looks at a job of which nothing is expected: each look takes a millisecond of processor
PARTIAL_SECONDS = 1.0  # between looks whether somebody asked for outputs
PROTECTION_SECONDS = 1.0  # between looks whether a look at the job's processes is due
SAVES_STILL = ("", "criu")  # rungs that can save a frozen job; "" = not looked at yet
SAVE_EVERY_SECONDS_MIN = 1.0  # whatever the controller says: as short as a job file may ask for
STEPS_MAX = 8  # of one tick: edges that follow each other at once
STIR_SECONDS = 30.0  # on standby, the agent reads the head often for so long after something happened


@dataclass
class Surroundings:
    """What the agent gets besides its configuration. `make_engine` gets the fenced store."""

    store: FileStore
    make_engine: Callable[[WriteFence], Engine]
    watcher: Watcher
    state: StateFile
    keys: Keys
    cache: DiskCache | None = None  # where a standby machine keeps what it fetched ahead
    goods: JobInputs | None = None  # inputs and shared file systems
    usage: Sampler | None = None  # None: the job's use is not measured
    now: Callable[[], float] = clock.monotonic
    wait: Callable[[float], None] = time.sleep
    beat: Callable[[], None] = field(default=lambda: None)  # tells the respawner that we are alive
    reported: Callable[[], None] = field(default=lambda: None)  # the first report is in the store
    traffic: Callable[[], Traffic] = field(default=lambda: Traffic())  # of this attempt with the store, so far


class Agent:
    """One attempt on one machine. `run` is the loop and starts the threads; `turn` is one pass of it and never waits.

    A caller with a clock of its own calls `turn`, the `turn` of each of `tickers`, and `worker.run_one` instead of `run`.
    """

    def __init__(self, config: AgentConfig, given: Surroundings) -> None:
        self.config, self._given, self._now = config, given, given.now
        cached = CachedStore(given.store, given.cache) if given.cache is not None and config.warm_wait_seconds > 0 else None
        self.gate = WriteFence(given.store if cached is None else cached)
        self.engine = given.make_engine(self.gate)
        self.heads = Heads(self.gate, config.job, config.attempt, given.now, self.gate.check, given.wait)
        self.mailbox = Mailbox(given.store, self.heads, config.job, config.attempt, given.now)
        self.standby = (
            Standby(cached, config.job, given.keys, lambda: self.heads.newest, prepare=lambda: self.readiness.check())
            if cached is not None
            else None
        )
        self.measures = Measures(given.state, given.now)
        self.logs = Logs(self.gate, self.engine.read_log, config.job, config.attempt)
        self.work = Work(
            config.job,
            config.attempt,
            self.engine,
            self.gate,
            self.heads,
            self.mailbox,
            self.logs,
            given.state,
            given.keys,
            given.now,
            given.wait,
            self._urgent,
            self._keeps,
            given.goods,
        )
        self.partials = Partials(config.job, config.attempt, self.gate, self.engine, self.mailbox, given.state, self._leaving)
        unchanged = min(config.report_seconds, config.lease_seconds / 3)
        self.reporter = Reporter(
            given.store,
            given.state,
            (config.poll_seconds, unchanged),
            given.now,
            given.reported,
            lambda: given.usage.told() if given.usage is not None else None,
        )
        self.readiness = Readiness(self.work, self._still_comes, config.ready_limit_seconds)
        self.worker = Worker(self.work.do, self.wake)
        memory, now = given.state.memory, given.now()
        freeze_at = now if memory.freeze_at is None else memory.freeze_at
        self.state = State(since=now, drain_failed=memory.drain_failed, save_tried=memory.save_sequence, freeze_at=freeze_at)
        self._stirred_at, self._stirred_by = given.now(), (AgentState.BOOT, 0, "")
        self._born = given.now()
        self._is_quiet, self._printed = False, False
        self.over = False  # everything is said: the machine may go
        self._status, self._woken, self._stopped = ABSENT, threading.Event(), False
        self.tickers = self._make_tickers()

    def _make_tickers(self) -> dict[str, Ticker]:
        c, poll = self.config, min(self.config.poll_seconds, self.config.lease_seconds / 4)
        hurry = min(c.hurry_seconds, poll)
        standby, watcher, state = self.standby, self._given.watcher, self._given.state
        return {
            "mailbox": Ticker(
                "mailbox",
                lambda: self.mailbox.poll(poll if self.hurries else 0.0),
                lambda: hurry if self.hurries else poll,
                self.wake,
            ),
            "warm": Ticker(
                "warm",
                self.look_ahead,
                poll,
                self._wake_for(lambda: (self.readiness.standing, standby.warm if standby else None)),
            ),
            "reporter": Ticker(
                "reporter",
                self.reporter.send,
                min(1.0, poll),
                self._wake_for(lambda: (self.state.shown, self.reporter.is_out(self.state.shown))),
            ),
            "logs": Ticker("logs", self.push_logs, lambda: LOG_SECONDS if self._printed else FIRST_LOG_SECONDS, lambda: None),
            "partials": Ticker("partials", self.partials.look, PARTIAL_SECONDS, self._wake_for(lambda: state.memory.partial)),
            "protection": Ticker("protection", self._examine, PROTECTION_SECONDS, self._wake_for(self.engine.protection)),
            "notices": Ticker("notices", watcher.look, c.notice_seconds, self._wake_for(lambda: watcher.notice)),
        }

    def _wake_for(self, seen: Callable[[], object]) -> Callable[[], None]:
        """Wakes the loop if this value changed: a look that found nothing new is no reason to look at the job."""
        last: list[object] = [None]

        def after() -> None:
            now = seen()
            if now != last[0]:
                last[0] = now
                self.wake()

        return after

    def _urgent(self) -> bool:
        """The cloud takes the machine."""
        notice = self._given.watcher.notice
        return notice is not None and notice.kind == INTERRUPTION

    def _keeps(self) -> bool:
        """The final save is for a move: the controller says so, or nobody does and the cloud takes the machine."""
        desired = self.mailbox.mail.desired
        asked = desired is not None and desired.want is Want.DRAIN
        return self.config.keep_seconds > 0 and (desired.keep if asked and desired is not None else self._urgent())

    def _leaving(self) -> bool:
        """The machine goes, or the job does."""
        return self._urgent() or self.state.name not in (AgentState.RUNNING, AgentState.SAVING, AgentState.STEPPING)

    @property
    def hurries(self) -> bool:
        """The job may be ours at any moment: it stands still until we see that it is."""
        desired = self.mailbox.mail.desired
        told = desired is not None and desired.want is Want.HURRY
        stirred = told or self._now() - self._stirred_at < STIR_SECONDS
        return self.state.name is AgentState.KEEPING or (self.state.name is AgentState.STANDBY and stirred)

    def wake(self) -> None:
        """Make the loop look now."""
        self._woken.set()

    def look_now(self) -> None:
        """Read the mailbox now, because somebody reported news in the store; the other tickers keep their pace."""
        self.tickers["mailbox"].poke()

    def stop(self) -> None:
        """Leave the loop, the job and its shim as they are: another agent process takes over."""
        self._stopped = True
        self.wake()

    def run(self) -> bool:
        """Until the attempt is over (True) or `stop` was called (False)."""
        self.worker.start()
        threading.Thread(target=self.hear_end, name="end", daemon=True).start()
        for ticker in self.tickers.values():
            ticker.start()
        while not self.over and not self._stopped:
            rest = self.turn()
            if not self.over:
                self._woken.wait(rest)
        for ticker in self.tickers.values():
            ticker.stop()
        return self.over

    def hear_end(self) -> None:
        """Wake the loop when the command has ended: a job of which nothing is expected is seldom looked at."""
        while not (self.over or self._stopped):
            if self.state.name is AgentState.RUNNING and self.engine.await_end(END_SECONDS):
                self.wake()
            time.sleep(TICK_SECONDS)  # its last output may still be on its way to the disk: then the loop is woken again

    @property
    def woken(self) -> bool:
        """A turn is due at once."""
        return self._woken.is_set()

    def turn(self) -> float:
        """One pass of the loop; returns the seconds until the next is due, unless something wakes the loop earlier."""
        self._woken.clear()
        self.tick()
        if 0 < self.config.life_seconds <= self._now() - self._born:  # whatever is going on; the job dies with the machine
            log.warning("this machine's time is over: it is ended")
            self.gate.shut("this machine's time is over")
            self.over = True
        if self.state.booted:  # only an agent that sees the job can hold it: a beat means that it judges the lease
            self._given.beat()
        return QUIET_SECONDS if self._is_quiet else TICK_SECONDS

    def _examine(self) -> None:
        """Whether the job can be saved here."""
        if self.state.name not in (AgentState.STANDBY, AgentState.KEEPING):
            self.engine.look()

    def look_ahead(self) -> None:
        """While we stand by: whether the job could come, then what it will fetch. May take long."""
        if self.state.name is AgentState.STANDBY:
            self.readiness.look()
        if self.standby is not None:
            self.standby.look()

    def _still_comes(self) -> None:
        if self.state.name not in (AgentState.STANDBY, AgentState.RESTORING):
            raise FenceClosed("the job does not come any more")

    def push_logs(self) -> None:
        """Upload new output, unless nothing may be written any more."""
        if not self.gate.is_shut:
            self._printed |= self.logs.push()

    def tick(self) -> None:
        """Look, step, act; again while edges follow each other."""
        for _ in range(STEPS_MAX):
            before, facts = self.state.name, self._gather()
            self._learn(facts)
            self.state, effects = step(self.state, facts)
            self._stand_by(facts)
            if self.state.name is not before:
                log.info("%s -> %s%s", before, self.state.name, f": {self.state.error}" if self.state.error else "")
            for effect in effects:
                self._perform(effect)
            self._signal(facts)
            freeze_at = self.state.freeze_at if self._given.state.memory.began else None
            self._given.state.update(drain_failed=self.state.drain_failed, freeze_at=freeze_at)
            self._report(facts)
            if self.state.name is before:
                self._is_quiet = _is_quiet(self.state, facts)
                return

    def _learn(self, facts: Facts) -> None:
        """Measure a save that ended, before the state forgets the age of its base; between saves, also the job's memory."""
        if facts.outcome is not None and facts.outcome.save is not None:
            save = facts.outcome.save
            self.measures.note(save, facts.outcome.at - save.durable_seconds - self.state.freeze_at)
        if self._given.usage is not None and self.state.name not in (AgentState.SAVING, AgentState.DRAINING):
            self.measures.resident_bytes = self._given.usage.resident_bytes

    def _stand_by(self, facts: Facts) -> None:
        """Fetch ahead while we wait, and give the disk back when the job has all that it needs."""
        warm = self.standby.warm.checkpoint if self.standby is not None else None
        by = (self.state.name, facts.head.number if facts.head else 0, warm or "")
        if by != self._stirred_by:
            self._stirred_at, self._stirred_by = facts.now, by
            self.tickers["warm"].poke()
            if self.hurries:
                self.tickers["mailbox"].poke()  # else its last look, made before, sets the pace of the next one
        if self.standby is None:
            return
        if self.state.name is AgentState.STANDBY:
            self.standby.resume()
        elif self.state.name is AgentState.RUNNING and self._status.arriving_bytes is None:
            self.standby.clear()
        else:
            self.standby.stop()

    def _gather(self) -> Facts:
        """In this order, so that what a task changed is seen no later than its end."""
        busy, outcome = self.worker.look()
        if self.state.booted or (outcome is not None and not outcome.error):
            self._look_at_job()
        mail, memory, now = self.mailbox.mail, self._given.state.memory, self._now()
        heads = self.heads.view  # of one instant: our own entry must not look like somebody else's
        miss, fit = self._missed(), self._fit(now)
        head_at, report_at = max(mail.head_at, memory.head_at), max(self.reporter.sent_at, memory.report_at)
        self._given.state.update(head_at=head_at, report_at=report_at)
        return Facts(
            now=now,
            rules=self._rules(fit),
            head=heads.newest,
            head_read=mail.spec is not None and mail.head_at > float("-inf"),
            own_final=heads.own_final,
            own_done=heads.own_done,
            proved_at=heads.proved_at,
            desired=mail.desired,
            notice=self._given.watcher.notice,
            status=self._status,
            began_before=memory.began,
            step_due=memory.time_up is None and self.work.steps.due(mail.spec, self._status) is not None,
            unprotected=bool(self.work.unprotected) or (miss is not None and self._protection().rung not in SAVES_STILL),
            pressed=miss is not None,
            wishes_save=self._interval() is not None and self.work.hints.wants_checkpoint(),
            busy=busy,
            outcome=outcome,
            lease_age_seconds=now - min(head_at, report_at),
            fit=fit,
            reported=self.reporter.is_out(self.state.shown),
            refusal=mail.refusal,
        )

    def _rules(self, fit: Fit | None) -> AgentRules:
        c, interval = self.config, self._interval()
        interval = fit.interval_seconds if fit is not None and interval is not None else interval
        return AgentRules(
            c.attempt,
            interval,
            c.lease_seconds,
            c.limit_seconds,
            c.drain_margin_seconds,
            c.keep_seconds,
            patient=c.warm_wait_seconds > 0,
        )

    def _interval(self) -> float | None:
        spec, desired = self.mailbox.mail.spec, self.mailbox.mail.desired
        if spec is None or spec.engine == "none" or self.work.unprotected:
            return None
        told = desired.save_every_seconds if desired is not None else None
        return spec.checkpoint_interval_seconds if told is None else max(told, SAVE_EVERY_SECONDS_MIN)

    def _fit(self, now: float) -> Fit | None:
        window = Window(self.config.notice_window_seconds, self.config.drain_margin_seconds, self._interval())
        return self.measures.fit(now - self.state.freeze_at, window)

    def _look_at_job(self) -> None:
        try:
            self._status = self.engine.status()
        except (EngineError, OSError) as e:
            log.warning("the job's state can't be seen: %s", e)
        self.work.ran.look(self._now(), self._status)
        if (usage := self._given.usage) is not None:
            runs = self._status.state is WorkloadState.RUNNING
            usage.look(self._status.arriving_bytes) if runs else usage.rest()

    def _missed(self) -> NearMiss | None:
        """The near miss of a job that stands still for want of memory. It is remembered, because reports show it long after.

        If the kernel killed the job, it is only remembered: nothing stands still then.
        """
        miss = self._status.near_miss
        if miss is not None:
            self._given.state.update(near_miss=dataclasses.asdict(miss))
            miss = None if miss.killed else miss
        self.work.pressed = miss is not None
        return miss

    def _signal(self, facts: Facts) -> None:
        """What the job's time limit or its user wants its processes to be told. A save that freezes them comes first."""
        spec, runs = self.mailbox.mail.spec, facts.status.state is WorkloadState.RUNNING and not facts.status.held
        if spec is None or not runs or self.state.name is not AgentState.RUNNING or self.worker.busy:
            return
        send = due(spec, self.work.ran.seconds, self._given.state.memory, facts.desired)
        if send is None:
            return
        log.info("SIG%s for the job: %s", send.signal, send.why)
        self._given.state.update(**send.remember)
        try:
            self.engine.signal(send.signal)
        except (EngineError, OSError):
            log.exception("the job can't be sent SIG%s", send.signal)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Do(task=task):
                self.worker.give(task)
            case Hold() | Release():
                try:
                    (self.engine.hold if isinstance(effect, Hold) else self.engine.release)()
                except (EngineError, OSError):
                    log.exception("the job can't follow %s; it is tried again", effect)
            case Unguard():
                self.engine.unguard()
            case Renew():
                self.mailbox.renew()
            case Shut(reason=reason):
                self.gate.shut(reason)
            case PowerOff():
                self.over = True

    def _report(self, facts: Facts) -> None:
        extras = Extras(
            self.config.job,
            self._given.watcher.instance,
            self._given.state.memory,
            self.work.stage,
            self.standby.warm if self.standby is not None and self.state.name is AgentState.STANDBY else None,
            self._protection() if facts.status.state is WorkloadState.RUNNING else Protection(),
            self.readiness.told if self.state.name is AgentState.STANDBY else Standing(self.work.waits),
            self.work.hints.told() if facts.status.state is WorkloadState.RUNNING else Told(),
            self._given.traffic(),
            self.engine.shared(),
            self.config.machine,
        )
        if self.reporter.want(build(self.state, facts, extras)):
            self.tickers["reporter"].poke()

    def _protection(self) -> Protection:
        why = self.work.unprotected
        return Protection("none", why) if why else self.engine.protection()


def _is_quiet(state: State, facts: Facts) -> bool:
    """Whether nothing is under way and nothing is due, except that the job ends some time."""
    calm = facts.busy is None and facts.notice is None and not facts.arriving and not facts.status.held and not facts.pressed
    fresh = facts.lease_age_seconds < facts.rules.lease_seconds / 2
    return state.name is AgentState.RUNNING and facts.status.state is WorkloadState.RUNNING and calm and fresh
