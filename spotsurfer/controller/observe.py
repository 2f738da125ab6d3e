"""Builds the Snapshot from ports and database. It marks stale or incomplete facts and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta

from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import WORKLOAD_DEAD, AgentState
from spotsurfer_wire.store.port import StoreError
from sqlalchemy import Engine

from spotsurfer.controller.effects import UNKNOWN_POOL, machine_seen
from spotsurfer.controller.history.past_attempts import AttemptOutcomes, PastTenancies
from spotsurfer.controller.history.usage import resident_bytes
from spotsurfer.controller.isolation import NOBODYS, set_aside
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.controller.machines.gpu_facts import GpuWatch
from spotsurfer.controller.machines.interruption_events import InterruptionEvents
from spotsurfer.controller.machines.listings import Listings
from spotsurfer.core.facts.attempt_view import holder_of
from spotsurfer.ledger.costs import Costs
from spotsurfer.model.budgets import BudgetSeen
from spotsurfer.model.errors import ProviderError
from spotsurfer.model.job import HOLDS, OVER, Attempt, AttemptNumber, AttemptState, Job, JobId, Wish
from spotsurfer.model.licences import LicencePool
from spotsurfer.model.machine import Machine
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import (
    AgentSeen,
    FitSeen,
    HeadSeen,
    InstanceSeen,
    JobSeen,
    Limits,
    MachineSeen,
    NoticeSeen,
    Snapshot,
    UnreadSeen,
)
from spotsurfer.ports.provider import NoticeKind, Provider
from spotsurfer.state import jobs as rows
from spotsurfer.state import many_tasks, observations, queue
from spotsurfer.state.observations import NoticeRow
from spotsurfer.store.agent_reports import Heard, Reports
from spotsurfer.store.head_logs import HeadLogs

Signs = dict[str, list[NoticeRow]]  # by instance
RECENT = timedelta(days=1)
AWAITED_SECONDS = 0.5  # between two listings while a job waits for the room of a machine that is being ended
# In these states the head decides what comes next, so it is read at every tick.
CURIOUS = frozenset(
    {AttemptState.READY, AttemptState.RESTORING, AttemptState.DRAINING, AttemptState.LOST, AttemptState.RELEASING}
)


@dataclass
class Trouble:
    """Failures of the last look, for people."""

    clouds: dict[str, str] = field(default_factory=dict)  # by provider
    store: str = ""
    host: str = ""
    heads: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        clouds = (f"{name}: {why}" if name else why for name, why in self.clouds.items())
        return "; ".join(x for x in (*clouds, self.store, self.host, *self.heads.values()) if x)


class Observer:
    """Looks at the whole world once a tick."""

    def __init__(
        self, engine: Engine, clouds: Clouds, reports: Reports, heads: HeadLogs, limits: Limits, pace: tuple[float, float]
    ) -> None:
        """`pace`: seconds between questions for prices, and at least between listings of a cloud, however often one looks."""
        offers_seconds, listing_seconds = pace
        self._engine = engine
        self._clouds = clouds
        self.reports = reports
        self.heads = heads
        self.limits = limits
        self.gpus = GpuWatch(None, limits.refusal_seconds)
        self.costs = Costs(clouds.rules())
        self._offers: dict[str, tuple[datetime, tuple[Offer, ...]]] = {}  # by provider, and when they were asked for
        self._offers_every = timedelta(seconds=offers_seconds)
        self._listings = Listings(timedelta(seconds=listing_seconds))
        self.instance_of = self._listings.instance_of
        self._awaited = False
        self._annals, self._turns = AttemptOutcomes(), PastTenancies()
        self.interruptions = InterruptionEvents(engine, clouds, heads)
        self.changed: set[tuple[str, int]] = set()
        self.silent_from: Callable[[str, int, datetime], datetime | None] = lambda *_: None  # see Renewals
        self.budgets: Callable[[datetime], Sequence[BudgetSeen]] = lambda _: ()
        self.licences: Callable[[datetime], Mapping[str, LicencePool]] = lambda _: {}
        self._writes: dict[JobId, tuple[str, ...]] = {}
        self.trouble = Trouble()

    def look(self, now: datetime) -> Snapshot:
        """The world at `now`."""
        self.trouble = Trouble()
        self._listen(now)  # first: time spent waiting for the cloud must not count as silence of agents
        for provider in self._clouds:
            self._look_at(provider, now)
        spoilt = dict[JobId, str]()
        with self._engine.begin() as connection:  # short: nobody else may write meanwhile
            queue.let_begin(connection, now)
            if self.limits.cancel_never_satisfied:
                many_tasks.cancel_hopeless(connection, now)
        with self._engine.connect() as connection:
            jobs = rows.jobs_of(connection, queue.to_look_at(connection), spoilt)
            attempts = rows.attempts(connection, [j.id for j in jobs], spoilt)
            tokens = rows.tokens(connection)
            cools = observations.cooldowns(connection)
            kept = {m.token: m for m in rows.living_machines(connection)}
            waiting = rows.waiting(connection) if any(m.keep_seconds > 0 for m in kept.values()) else []
            signs = observations.notices_of(connection, {m.instance for m in kept.values() if m.instance})
            self.costs.pay_for(jobs)
            self.costs.refresh(connection, attempts, now)
            past = self._annals.past(connection, attempts, now)
            held = self._turns.held(connection, jobs)
        self._miss_clouds(a for some in attempts.values() for a in some if a.state not in OVER)
        self.heads.keep([j.id for j in jobs], now)
        self.reports.keep({(str(a.job), int(a.number)) for some in attempts.values() for a in some if a.state not in OVER})
        self.gpus.keep([j.id for j in jobs])
        self._writes = {job: some for job, some in self._writes.items() if some and job in attempts}
        self._awaited = any(a.gave_way_to and a.state is AttemptState.RELEASING for some in attempts.values() for a in some)
        seen = [self._seen(j, attempts[j.id], signs, now, spoilt.get(j.id)) for j in jobs]
        ahead = self._ahead(attempts, now)
        mine = {m.token: m.instance for m in kept.values() if m.instance}
        there = self._listings.living()
        orphans = [machine_seen(v) for v in there if v.token not in tokens or mine.get(v.token, v.id) != v.id]
        return Snapshot(
            jobs=seen,
            offers=self.offers(),
            cooldowns=cools,
            orphans=orphans,
            listings=self._listings.times(),
            spent_usd_micros=self.costs.total(),
            limits=self.limits,
            past=past,
            held=held,
            gpu_drivers=self.gpus.drivers(now),
            hearing=self.reports.hearing(now),
            ahead=ahead,
            tariff=self._clouds.tariff,
            budgets=self.budgets(now),
            licences=self.licences(now),
            waiting=waiting,
            machines={m.token: self._machine(m, signs) for m in kept.values() if m.keep_seconds > 0},
        )

    def _machine(self, m: Machine, signs: Signs) -> MachineSeen:
        view = self.instance_of(m.token, m.instance)
        noticed = any(row.sign == NoticeKind.INTERRUPTION for row in signs.get(m.instance or "", ()))
        return MachineSeen(m, None if view is None else machine_seen(view), noticed)

    def offers(self) -> tuple[Offer, ...]:
        """Offers as last asked for."""
        return tuple(o for _, some in self._offers.values() for o in some)

    def _look_at(self, provider: Provider, now: datetime) -> None:
        """One cloud: its witness, its machines, its prices. What fails there is noted, and the others are not affected.

        Looks in quick succession concern the store: a cloud has its own pace.
        """
        sooner = timedelta(seconds=AWAITED_SECONDS) if self._awaited else timedelta.max
        if self._listings.due(provider.name, now, sooner):
            with self._noted(provider, "the queue of the cloud's events can't be read"):
                if self.interruptions.look(provider, now):
                    self._listings.spoil(provider.name)
        if self._listings.due(provider.name, now, sooner):
            with self._noted(provider, "the cloud's listing failed"):
                self._listings.ask(provider, now)
        asked_at = self._offers[provider.name][0] if provider.name in self._offers else None
        if asked_at is None or now - asked_at >= self._offers_every:
            with self._noted(provider, "the cloud's prices can't be read"):
                self._offers = {**self._offers, provider.name: (now, tuple(provider.offers()))}

    def _miss_clouds(self, living: Iterable[Attempt]) -> None:
        """Note providers that have machines of ours and that the settings no longer name."""
        for name in {a.pool.provider for a in living} - {p.name for p in self._clouds} - {UNKNOWN_POOL.provider}:
            try:
                self._clouds.at(name)
            except ProviderError as e:
                self.trouble.clouds[name] = str(e)

    @contextmanager
    def _noted(self, provider: Provider, what: str) -> Iterator[None]:
        try:
            yield
        except ProviderError as e:
            self.trouble.clouds[provider.name] = f"{what}: {e}"

    def _listen(self, now: datetime) -> None:
        try:
            self.changed = self.reports.listen(now)
        except StoreError as e:
            self.changed = set()
            self.trouble.store = f"the store can't be used: {e}"
            return
        if unread := self.reports.unread:
            (job, attempt), why = next(iter(unread.items()))
            self.trouble.store = f"{len(unread)} reports of agents can't be read; attempt {attempt} of {job}: {why}"

    def _seen(self, job: Job, attempts: list[Attempt], signs: Signs, now: datetime, spoilt: str | None) -> JobSeen:
        try:
            if spoilt is not None:
                raise ValueError(spoilt)
            return self._job(job, attempts, signs, now)
        except NOBODYS:
            raise
        except Exception as e:  # it parses untrusted bytes
            return set_aside(JobSeen(job, attempts, self._instances(attempts)), e)

    def _job(self, job: Job, attempts: list[Attempt], signs: Signs, now: datetime) -> JobSeen:
        alive = [a for a in attempts if a.state not in OVER]
        heard = {a.number: h for a in alive if (h := self.reports.heard(job.id, a.number)) is not None}
        words = {a.number: w for a in alive if (w := self.reports.word(job.id, a.number)) is not None}
        head = self._head(job, alive, now)
        self.gpus.hear(job, alive, heard, now)
        return JobSeen(
            job=job,
            attempts=attempts,
            instances=self._instances(alive),
            agents={n: _agent(h, words[n].at if n in words else h.changed_at) for n, h in heard.items()},
            silent_from={a.number: at for a in alive if (at := self.silent_from(job.id, a.number, now)) is not None},
            desired_heard=self.reports.desired(job.id),
            machines_heard=self.reports.machines(job.id),
            unread={n: UnreadSeen(w.at, w.unread, w.garbled) for n, w in words.items() if w.unread},
            head=head,
            image_gpus=self.gpus.image(job, head),
            spent_usd_micros=self.costs.of_job(job.id),
            signs={a.number: self._signs(a, signs[a.instance]) for a in alive if a.instance in signs},
            writes=self._written(job.id, alive),
        )

    def _written(self, job: JobId, alive: Sequence[Attempt]) -> tuple[str, ...]:
        """What its running machine says. What a machine that is gone had open will be open again when the job goes on."""
        holder = holder_of(alive)
        heard = self.reports.heard(job, holder.number) if holder is not None else None
        if heard is not None and heard.report.state is AgentState.RUNNING:
            self._writes[job] = tuple(heard.report.writes)
        return self._writes.get(job, ())

    def _instances(self, attempts: Iterable[Attempt]) -> dict[AttemptNumber, InstanceSeen]:
        living = (a for a in attempts if a.state not in OVER)
        return {a.number: machine_seen(v) for a in living if (v := self.instance_of(a.token, a.instance)) is not None}

    def _ahead(self, attempts: Mapping[JobId, Sequence[Attempt]], now: datetime) -> str:
        """Names reports of attempts that this database does not know, which shows that it is older than the store.

        Before this process has listed the reports, that is unknown.
        """
        if not self.reports.listed:
            return "the reports of agents were not listed yet"
        known = {(str(a.job), int(a.number)) for some in attempts.values() for a in some}
        lately = (k for k, w in self.reports.words().items() if w.version and k not in known and now - w.at < RECENT)
        with self._engine.connect() as connection:
            strange = [key for key in lately if not rows.has_attempt(connection, *key)]
        if not strange:
            return ""
        (job, number), more = strange[0], f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        self.trouble.store = why = (
            f"the store knows attempt {number} of {job}{more}, and this database does not: it is older than the store. "
            "Machines that it does not know are left alone"
        )
        return why

    def _signs(self, attempt: Attempt, some: Sequence[NoticeRow]) -> tuple[NoticeSeen, ...]:
        notice = timedelta(seconds=self._clouds.capabilities(attempt.pool).notice_seconds)
        ends = (row.at + notice if row.sign == NoticeKind.INTERRUPTION else None for row in some)
        return tuple(NoticeSeen(row.sign, row.at, end) for row, end in zip(some, ends, strict=True))

    def _head(self, job: Job, some: Sequence[Attempt], now: datetime) -> HeadSeen | None:
        silent = any(a.state in HOLDS and self.reports.heard(job.id, a.number) is None for a in some)
        spoke = any((job.id, a.number) in self.changed for a in some)
        fresh = spoke or silent or job.wish is not Wish.RUN or any(a.state in CURIOUS for a in some)
        try:
            return self.heads.seen(job.id, now, fresh)
        except (StoreError, ProtocolError) as e:
            self.trouble.heads[job.id] = f"the head of {job.id} can't be read: {e}"
            return None


def _agent(heard: Heard, spoke_at: datetime) -> AgentSeen:
    r = heard.report
    deadline, fit = None, r.fit
    if r.notice is not None and r.notice.seconds_left is not None:
        deadline = heard.changed_at + timedelta(seconds=r.notice.seconds_left)  # the time left counts from this report
    return AgentSeen(
        state=str(r.state),
        sequence=r.sequence,
        spoke_at=spoke_at,
        head=r.head,
        desired=r.desired,
        understood_at=heard.changed_at,
        drain_failed=r.drain_failed,
        frozen=r.frozen,
        lease_seconds=r.lease_seconds,
        pressed=r.pressed,
        workload_dead=r.state in WORKLOAD_DEAD,
        notice_id=r.notice.id if r.notice else None,
        notice_deadline_at=deadline,
        notice_kind=r.notice.kind if r.notice else "",
        warm_checkpoint=r.warm.checkpoint if r.warm else None,
        fit=None if fit is None else FitSeen(**{f.name: getattr(fit, f.name) for f in fields(FitSeen)}),
        protection=r.protection,
        error=r.error,
        error_kind=r.error_kind,
        unfit=r.unfit,
        unfit_kind=r.unfit_kind,
        waits=r.waits,
        arriving=r.arriving_bytes is not None,
        kept=r.kept,
        saves=r.saves,
        frozen_seconds=r.frozen_seconds,
        resident_bytes=resident_bytes(r),
    )
