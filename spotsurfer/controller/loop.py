"""One tick: observe, decide, apply, record."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from spotsurfer_wire.store.port import StoreError
from sqlalchemy import Engine

from spotsurfer.common.timeline_words import outcome as in_words
from spotsurfer.controller.apply import Apply
from spotsurfer.controller.event_recorder import EventRecorder
from spotsurfer.controller.history.spot_availability import SpotAvailability
from spotsurfer.controller.history.usage import Idleness
from spotsurfer.controller.isolation import NOBODYS, Aside, isolated
from spotsurfer.controller.jobs.brief import Told
from spotsurfer.controller.jobs.rightsizing import Rightsizing, Sizes
from spotsurfer.controller.observe import Observer
from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.deadline import view_of
from spotsurfer.core.scheduling.deadline_simulation import forecast
from spotsurfer.core.scheduling.launch import preview
from spotsurfer.model.actions import Action, Decision, EndJob, Grant, Launch, Mark, Plan, Preview, Rejected, Sweep, Terminate
from spotsurfer.model.errors import Conflict, ProviderError, SpotsurferError, Superseded
from spotsurfer.model.job import Job, JobId
from spotsurfer.model.snapshot import Snapshot
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.policies import Forecast, Interval, Policy, Purchase
from spotsurfer.ports.service import Moment, Why
from spotsurfer.state import timeline
from spotsurfer.state.jobs import Stale
from spotsurfer.store.leadership import Leadership

log = structlog.get_logger()
TOLD_AGAIN = timedelta(hours=1)
CHANGES_CLOUD = (Launch, Terminate, Sweep)


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies: which machine to use, what to buy for deadlines, how often to save jobs, and their size."""

    placement: Policy
    purchase: Purchase | None = None
    interval: Interval | None = None
    sizes: Sizes | None = None


class Loop:
    """The controller's loop. One scheduler calls `tick`, never twice at once."""

    def __init__(
        self, engine: Engine, observer: Observer, apply: Apply, policies: Policies, clock: Clock, leadership: Leadership
    ) -> None:
        self._engine = engine
        self._observer = observer
        self.apply = apply
        self._policies = policies
        self._spot_availability = SpotAvailability(engine)
        self._alarms: dict[str, datetime] = {}  # alarm -> when it was last reported
        self._clock = clock
        self._leadership = leadership
        self._recorder = EventRecorder(engine)
        self._aside = Aside()
        self.idleness = Idleness(engine)
        self._rightsizing = None if policies.sizes is None else Rightsizing(engine, policies.sizes)
        self._notes: dict[JobId, str] = {}
        self._levels: dict[JobId, int] = {}
        self._one_at_a_time = threading.Lock()
        self.last_tick_at: datetime | None = None
        self.last_error = ""
        self.last_seen: Snapshot | None = None

    def tick(self) -> Decision:
        """Look at the whole world once and act on it. Raises Superseded when a newer controller leads."""
        with self._one_at_a_time:
            now = self._clock.now()
            try:
                self._leadership.check()
            except StoreError:  # actions that change the cloud check again
                self._observer.reports.lost()
            observed = self._spot_availability.noted(self._observer.look(now), now)
            self._recorder.attend(observed.jobs)
            observed = replace(observed, jobs=self._aside.of(observed.jobs))
            snapshot = isolated(lambda s: self._recorder.reckoned(s, now), observed)
            self._recorder.record(self._observer, snapshot, now)
            snapshot = isolated(lambda s: self._sized(s, now), snapshot)
            snapshot = isolated(lambda s: self.idleness.noted(s, self._observer.changed, now), snapshot)
            self.last_seen = snapshot
            chosen = self._policies
            decision = isolated(lambda s: decide(s, chosen.placement, now, chosen.purchase, chosen.interval), snapshot)
            self._alert(decision.alarms, now)
            done, advanced = self._carry_out(decision)
            self._explain(decision, done, now)
            self._levels = dict(decision.levels)
            self._note(now)
            return replace(decision, advanced=advanced)

    def _sized(self, snapshot: Snapshot, now: datetime) -> Snapshot:
        """The snapshot with each job asking for the size that it needs: from its size policy, else from near misses."""
        floored = self._recorder.sized(snapshot)
        if self._rightsizing is None:
            return floored
        return self._rightsizing.sized(snapshot, lambda seen: self._recorder.words(seen.attempts), floored.jobs, now)

    def _carry_out(self, decision: Decision) -> tuple[dict[JobId, list[str]], bool]:
        """Carry out the actions; returns their outcomes by job, and whether a state moved on."""
        done: dict[JobId, list[str]] = defaultdict(list)
        unmarked: set[JobId] = set()
        advanced = False
        for action in decision.actions:
            job = getattr(action, "job", None)
            if isinstance(action, Grant) and job in unmarked:
                continue  # this action relied on a mark that was not recorded
            rejected = [r for r in decision.rejected if r.job == job] if isinstance(action, Plan) else []
            outcome = self._try(action, rejected)
            if outcome is not None and job is not None:
                done[job].append(outcome)
                advanced |= isinstance(action, Plan | Mark | EndJob)
            if outcome is None and isinstance(action, Mark):
                unmarked.add(action.job)
        return done, advanced

    def _try(self, action: Action, rejected: Sequence[Rejected]) -> str | None:
        """Carry out one action; its errors affect no other job."""
        name = type(action).__name__
        try:
            if isinstance(action, CHANGES_CLOUD):
                self._leadership.check()
            outcome = self.apply.carry_out(action, rejected)
        except Superseded:
            raise
        except Stale as e:
            log.info("action.stale", action=name, error=str(e))
            return None
        except (StoreError, ProviderError) as e:
            log.warning("action.failed", action=name, error=str(e), job=getattr(action, "job", None))
            self._observer.trouble.clouds[""] = f"{name}: {e}"
            return None
        except SpotsurferError as e:
            log.error("action.refused", action=name, error=str(e), job=getattr(action, "job", None))
            return None
        except NOBODYS as e:
            log.error("action.failed", action=name, error=str(e), job=getattr(action, "job", None))
            self._observer.trouble.host = f"{name}: {e}"
            return None
        except Exception as e:  # its machines' data may cause it: no other job may suffer
            log.exception("action.refused", action=name, error=str(e), job=getattr(action, "job", None))
            self._aside.add(getattr(action, "job", None), e, self._clock.now())
            return None
        log.info("action.done", action=name, job=getattr(action, "job", None), outcome=outcome, said=in_words(outcome).text)
        return outcome

    def _explain(self, decision: Decision, done: dict[JobId, list[str]], now: datetime) -> None:
        """Record the decision for each job with an action or a changed reason for waiting."""
        jobs = set(done) | {j for j, note in decision.notes.items() if self._notes.get(j) != note}
        self._notes = dict(decision.notes)
        if not jobs:
            return
        with self._engine.begin() as connection:
            for job in sorted(jobs):
                rejected = tuple((r.what, r.why) for r in decision.rejected if r.job == job)
                why = Why(now, tuple(done.get(job, ())), rejected, decision.notes.get(job, ""))
                timeline.add_decision(connection, job, why)

    def _alert(self, alarms: tuple[str, ...], now: datetime) -> None:
        """Report a failing policy in the log and in the timeline: at once, and again each hour while it fails."""
        self._alarms = {alarm: at for alarm, at in self._alarms.items() if now - at < TOLD_AGAIN}
        for alarm in (a for a in alarms if a not in self._alarms):
            self._alarms[alarm] = now
            log.error("policy.failed", error=alarm)
            with self._engine.begin() as connection:
                timeline.add(connection, Moment(now, None, None, str(Kind.ALERT), f"{alarm}; a plain rule stands in", {}))

    def _note(self, now: datetime) -> None:
        self.last_tick_at = now
        trouble = str(self._observer.trouble)
        if trouble and trouble != self.last_error:
            log.warning("observe.trouble", trouble=trouble)
        self.last_error = trouble

    def preview(self, job: Job) -> Preview:
        """A dry run of the launch for a job, on the last snapshot. Raises Conflict before the first look."""
        seen = self.last_seen
        if seen is None:
            raise Conflict("the controller has not looked at the cloud yet: ask again in some seconds")
        return preview(job, seen, self._policies.placement, self._clock.now())

    def forecast(self, job: JobId) -> Forecast | None:
        """The forecast for an open job with a deadline, on the last snapshot; None if there is none."""
        snapshot, purchase = self.last_seen, self._policies.purchase
        seen = next((s for s in snapshot.jobs if s.job.id == job), None) if snapshot is not None else None
        if snapshot is None or seen is None or purchase is None:
            return None
        try:
            view = view_of(snapshot, seen, self._clock.now())
            return None if view is None else forecast(purchase, view)
        except Exception as e:  # a policy is third-party code: a query about a job must not fail because of it
            log.error("policy.failed", error=f"{type(e).__name__}: {e}", job=job)
            return None

    def level_of(self, job: Job) -> int:
        """Its priority with what it gained by waiting, from the last decision."""
        return self._levels.get(job.id, job.spec.priority)

    def size_of(self, job: JobId) -> str:
        """The explanation of a job's size policy, with the numbers; "" if the job has none."""
        return "" if self._rightsizing is None else self._rightsizing.said(job)

    def note_of(self, job: JobId) -> str:
        """Why a job waits, from the last decision."""
        return self._notes.get(job, "")

    @property
    def told(self) -> Told:
        """The same of all jobs, with their levels."""
        return Told(self._notes, self._levels)
