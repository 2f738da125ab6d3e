"""The controller's implementation of `ports.service.Service`, which the HTTP API calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from spotsurfer_wire.final_save_forecast import say
from spotsurfer_wire.home_tree import HomeChanges
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Head, Report, StepRun
from spotsurfer_wire.store.port import StoreError
from sqlalchemy import Connection, Engine

from spotsurfer import __version__
from spotsurfer.config.settings import FrontSection
from spotsurfer.controller.checkpoints.checkpoint_api import CheckpointApi
from spotsurfer.controller.history import cost_reports
from spotsurfer.controller.history.spot_availability import KEPT
from spotsurfer.controller.history.usage import lately
from spotsurfer.controller.jobs.brief import hopeless, jobs_brief, why_it_waits
from spotsurfer.controller.jobs.commands import NO_OUTPUTS, Commands
from spotsurfer.controller.jobs.exposed_ports import port_statuses
from spotsurfer.controller.jobs.home_folders import HomeFolders
from spotsurfer.controller.jobs.licences import LicencePools
from spotsurfer.controller.jobs.partial_outputs import Partials
from spotsurfer.controller.jobs.scope_budgets import ScopeBudgets
from spotsurfer.controller.jobs.submission import Submission
from spotsurfer.controller.loop import Loop
from spotsurfer.controller.machines.ssh_access import Logins
from spotsurfer.controller.observe import Observer
from spotsurfer.controller.reload import Reloader
from spotsurfer.core.facts.attempt_view import moves, phase
from spotsurfer.core.facts.notice_prospects import foretold
from spotsurfer.core.facts.ownership import tried_in_vain
from spotsurfer.core.scheduling import capacity
from spotsurfer.ledger.cost_report import Period
from spotsurfer.model.actions import Preview
from spotsurfer.model.charges import ChargeLine
from spotsurfer.model.cost_report import CostReport
from spotsurfer.model.errors import Conflict, NotFound, StoreUnwritable
from spotsurfer.model.figures import Figures
from spotsurfer.model.job import ENDED, OVER, Attempt, Job, JobId, JobSpec, JobState, rehearses
from spotsurfer.model.market import Market
from spotsurfer.model.snapshot import HeadSeen, Limits, SpotSeen
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import (
    AttemptStatus,
    CostLine,
    Info,
    JobBrief,
    JobStatus,
    LogAsk,
    LogFound,
    Moment,
    NewJob,
    OutputFile,
    Submitted,
    UsageSeen,
    Why,
)
from spotsurfer.state import exposed_ports, figures, observations, timeline, usage_history
from spotsurfer.state import jobs as rows
from spotsurfer.state.brief import Which, with_machines
from spotsurfer.state.remembered_rows import RememberedRows
from spotsurfer.store import job_output
from spotsurfer.store.agent_reports import ImageDigests
from spotsurfer.store.head_logs import NONE, HeadLogs
from spotsurfer.store.job_output import Output, Printed, attempts_with_output, chain, earlier_runs, published


@dataclass
class ControllerService:
    """Queries and commands; may be called from several threads."""

    family: str
    generation: int
    provider: str
    store_url: str
    limits: Limits
    front: FrontSection
    engine: Engine
    clock: Clock
    loop: Loop
    observer: Observer
    heads: HeadLogs
    stored_output: Output
    commands: Commands
    submission: Submission
    checkpoint_api: CheckpointApi
    partials: Partials
    homes: HomeFolders
    images: ImageDigests
    logins: Logins
    scope_budgets: ScopeBudgets
    licence_pools: LicencePools
    reloader: Reloader

    def __post_init__(self) -> None:
        self._known = RememberedRows()
        self.new_job_id = self.submission.new_job_id
        self.upload = self.submission.upload
        self.discard = self.submission.discard
        self.hold = self.commands.hold
        self.resume = self.commands.resume
        self.cancel = self.commands.cancel
        self.move = self.commands.move
        self.signal = self.commands.signal
        self.checkpoint = self.commands.checkpoint
        self.go_back = self.commands.go_back
        self.prioritize = self.commands.prioritize
        self.set_budget = self.commands.set_budget
        self.budgets = self.scope_budgets.budgets
        self.set_scope_budget = self.scope_budgets.set_scope_budget
        self.remove_scope_budget = self.scope_budgets.remove_scope_budget
        self.licences = self.licence_pools.licences
        self.reload = self.reloader.reload
        self.ask_partial = self.commands.ask_partial
        self.machine = self.logins.machine
        self.partial = self.partials.seen
        self.partial_output = self.partials.file
        self.shares_home = self.homes.shares_home
        self.home_lacks = self.homes.home_lacks
        self.upload_home = self.homes.upload_home
        self.checkpoints = self.checkpoint_api.checkpoints
        self.protect = self.checkpoint_api.protect
        self.fork = self.checkpoint_api.fork
        self.rehearse = self.checkpoint_api.rehearse
        self.store_work = self.checkpoint_api.store_work
        self.progress = self.checkpoint_api.progress
        self.call_off = self.checkpoint_api.call_off

    def submit(
        self,
        job: JobId,
        spec: JobSpec,
        modes: dict[str, int],
        secrets: Mapping[str, bytes] | None = None,
        owner: str = "",
        within: str | None = None,
    ) -> Job:
        """Make the job and wake the loop."""
        made = self.submission.submit(job, spec, modes, dict(secrets or {}), owner, within)
        self.commands.poke()
        return made

    def submit_many(self, jobs: Sequence[NewJob], owner: str = "", within: str | None = None) -> Sequence[Submitted]:
        """Make the jobs and wake the loop."""
        made = self.submission.submit_many(jobs, owner, within) if jobs else []
        self.commands.poke()
        return [
            Submitted(JobId(some[0].array) or some[0].id, some[0].number, len(some) if some[0].array else 0) for some in made
        ]

    def preview(self, spec: JobSpec) -> Preview:
        """A dry run of the launch of such a job now."""
        return self.loop.preview(Job(JobId("preview"), spec, JobState.QUEUED, 1, self.clock.now()))

    def info(self) -> Info:
        """The controller itself."""
        with self.engine.connect() as connection:
            jobs = with_machines(connection)
            found = self._known.attempts(connection, [j.id for j in jobs])
            ports = exposed_ports.taken(connection)
        limits = self.limits
        use = capacity.together(capacity.of_job(j, found[j.id], limits) for j in jobs)
        return Info(
            version=__version__,
            family=self.family,
            generation=self.generation,
            provider=self.provider,
            store_url=self.store_url,
            instances=use.machines,
            instances_max=limits.instances_max,
            gpus=use.gpus,
            gpus_max=limits.gpus_max,
            hourly_usd_micros=use.usd_micros_per_hour,
            hourly_max_usd_micros=limits.hourly_max_usd_micros,
            spent_usd_micros=self.observer.costs.total(),
            budget_usd_micros=limits.budget_usd_micros,
            price_max_usd_micros=limits.price_max_usd_micros,
            instance_types=limits.instance_types,
            ageing_seconds=limits.ageing_seconds,
            stay_seconds=limits.stay_seconds,
            front_address=self.front.address,
            front_ports=len(ports),
            front_ports_max=len(self.front.range),
            last_tick_at=self.loop.last_tick_at,
            last_error=self.loop.last_error,
        )

    def figures(self) -> Figures:
        """Counts over everything."""
        with self.engine.connect() as connection:
            found = figures.figures(connection, self.clock.now())
        return replace(found, licences={s.kind: (s.total, s.used, s.waiting_jobs) for s in self.licences()})

    def resolve(self, job: str, owner: str | None = None, whole: bool = True) -> JobId:
        """The id of a job by its id or name."""
        with self.engine.connect() as connection:
            if (tasks := rows.selected(connection, job, owner)) is not None:
                return JobId(str(tasks))
            return (rows.named_job if whole else rows.find_job)(connection, job, owner).id

    def jobs(self, include_ended: bool = True, owner: str | None = None, tasks: bool = True) -> Sequence[JobStatus]:
        """All jobs, or those of an owner, newest first, without rehearsals; without `tasks` those that are in no array."""
        with self.engine.connect() as connection:
            jobs = [j for j in self._known.jobs(connection, owner, tasks) if include_ended or j.state not in ENDED]
            jobs = [j for j in jobs if not rehearses(j)]
            found = self._known.attempts(connection, [j.id for j in jobs])
            reports = self._known.reports(connection, [j.id for j in jobs])
            ports, never = exposed_ports.all_listens(connection), hopeless(connection)
        return [self._status(j, found[j.id], reports, ports, waits=never.get(j.id, "")) for j in jobs]

    def jobs_brief(
        self, include_ended: bool = True, owner: str | None = None, only_tasks: bool = False, folded: bool = False
    ) -> Sequence[JobBrief]:
        """All jobs, or those of an owner, newest first, without rehearsals, in short."""
        with self.engine.connect() as connection:
            return jobs_brief(connection, Which(include_ended, owner, only_tasks, folded), self.loop.told)

    def job(self, job: str) -> JobStatus:
        """One job."""
        with self.engine.connect() as connection:
            one = rows.find_job(connection, job)
            found = rows.attempts(connection, [one.id])[one.id]
            reports = observations.last_reports(connection, [one.id])
            ports = exposed_ports.all_listens(connection)
            waits = "" if self.loop.note_of(one.id) else why_it_waits(connection, one)
        return self._status(one, found, reports, ports, self._head(one.id), waits)

    def _head(self, job: str, *, fresh: bool = True) -> HeadSeen:
        try:
            return self.heads.seen(job, self.clock.now(), fresh=fresh)
        except (StoreError, ProtocolError) as e:
            raise StoreUnwritable(f"the head of {job} can't be read: {e}") from e

    def _status(
        self,
        job: Job,
        attempts: list[Attempt],
        reports: dict[tuple[str, int], Report],
        ports: Mapping[tuple[str, str], int],
        head: HeadSeen | None = None,
        waits: str = "",
    ) -> JobStatus:
        """Asks neither database nor store, because a list calls it for every job. `head`: given for a single job."""
        costs = [self.observer.costs.of((a.job, a.number)) for a in attempts]
        seen = head or NONE
        return JobStatus(
            job=job,
            phase=phase(job, attempts),
            note=self.loop.note_of(job.id) or waits or job.reason,
            level=job.spec.priority if job.state in ENDED else self.loop.level_of(job),
            attempts=[self._attempt(a, reports.get((a.job, a.number))) for a in attempts],
            checkpoint=seen.checkpoint,
            checkpoints=seen.checkpoints,
            usd_micros=self.observer.costs.of_job(job.id),
            usd_micros_on_demand=sum(c.usd_micros_on_demand for c in costs),
            moves=moves(attempts),
            steps=self._steps(job, attempts, reports, single=head is not None),
            forecast=None if head is None or job.state in ENDED else self.loop.forecast(job.id),
            ports=() if job.state in ENDED else port_statuses(job, ports, self.front.address),
            size=self.loop.size_of(job.id),
            checkpoint_failed=tried_in_vain(attempts, seen.checkpoint),
            image_digest="" if head is None else self.images.of(job.id, job.spec.image),
        )

    def _steps(
        self, job: Job, attempts: list[Attempt], reports: dict[tuple[str, int], Report], single: bool
    ) -> Sequence[StepRun]:
        """The steps from the newest machine that told them; of a single job that is over, from the head log."""
        entries = self.heads.log(job.id).entries if single else []
        done = entries[-1].done if entries else None
        if done is not None and done.steps:
            return done.steps
        told = [reports.get((job.id, a.number)) for a in reversed(attempts)]
        return next((r.steps for r in told if r is not None and r.steps), [])

    def _attempt(self, a: Attempt, report: Report | None) -> AttemptStatus:
        word = self.observer.reports.word(a.job, a.number)
        silent = (self.clock.now() - word.at).total_seconds() if word else None
        r = report
        return AttemptStatus(
            attempt=a,
            agent_state=str(r.state) if r else None,
            silent_seconds=silent,
            frozen=bool(r and r.frozen and a.state not in OVER),
            cpu_seconds=r.cpu_seconds if r else 0.0,
            memory_bytes=r.memory_bytes if r else 0,
            saves=r.saves if r else 0,
            frozen_seconds=r.frozen_seconds if r else 0.0,
            save_stage=r.save_stage if r else "",
            unsaved_seconds=r.save_age_seconds if r else None,
            fit=r.fit if r else None,
            fit_text=say(r.fit) if r and r.fit else "",
            warm=r.warm if r else None,
            error=r.error if r else "",
            protection=r.protection if r else "",
            unprotected=(r.unprotected or r.unfit) if r else "",
            processor=r.processor if r else "",
            stage=r.hint if r else "",
            usage=lately(r),
            foretold=foretold(r) if r and a.state not in OVER else (),
            usd_micros=self.observer.costs.of((a.job, a.number)).usd_micros,
        )

    def timeline(
        self,
        job: str | None,
        after: int = 0,
        since: datetime | None = None,
        last: int | None = None,
        owner: str | None = None,
    ) -> Sequence[tuple[int, Moment]]:
        """Numbered moments."""
        with self.engine.connect() as connection:
            one = rows.find_job(connection, job).id if job is not None else None
            return timeline.read(connection, one, after, since, last, owner)

    def why(self, job: str, last: int = 10) -> Sequence[Why]:
        """The last decisions about a job."""
        with self.engine.connect() as connection:
            return timeline.decisions(connection, rows.find_job(connection, job).id, last)

    def log(self, job: str, stream: str, offset: int, limit: int, attempt: int | None = None) -> bytes:
        """One stream from an absolute offset."""
        one, entries = self._entries(job)
        try:
            return self.stored_output.read(one.id, stream, _lives(one, entries, attempt), offset, limit)
        except StoreError as e:
            raise StoreUnwritable(f"the output of {one.id} can't be read: {e}") from e

    def printed(self, job: str, ask: LogAsk) -> LogFound:
        """Both streams in the order in which they were printed. `ask.old_seconds` serves repeated calls."""
        one, entries = self._entries(job, fresh=not ask.old_seconds)
        ended = one.state in ENDED  # read before the store: then all output is there
        if ended:
            ask = replace(ask, in_order=False, old_seconds=0.0)

        def use(printed: Printed) -> LogFound:
            begun = replace(ask, place=job_output.begin(printed, ask))
            parts, place = job_output.pick(printed, begun)
            earlier = earlier_runs(entries) & printed.holders if ask.attempt is None else set()
            return LogFound(parts, place, ended, sorted(earlier))

        try:
            return self.stored_output.with_look(one.id, _lives(one, entries, ask.attempt), use, ask.old_seconds)
        except StoreError as e:
            raise StoreUnwritable(f"the output of {one.id} can't be read: {e}") from e

    def _entries(self, job: str, *, fresh: bool = True) -> tuple[Job, list[Head]]:
        with self.engine.connect() as connection:
            one = rows.find_job(connection, job)
        self._head(one.id, fresh=fresh)
        return one, self.heads.log(one.id).entries

    def outputs(self, job: str) -> Sequence[OutputFile]:
        """Published results."""
        one, entries = self._entries(job)
        end = published(entries)
        if end is None and not (entries and entries[-1].done):
            if not one.spec.outputs:
                raise Conflict(f"job {one.id} names no outputs: {NO_OUTPUTS}")
            so_far = "`outputs --partial` has what it wrote so far"
            raise Conflict(f"job {one.id} has not ended: its results appear all at once when it does; {so_far}")
        done = end.done if end is not None else None
        files = done.outputs if done is not None else {}
        return [OutputFile(path, size, done.digests.get(path, "") if done else "") for path, size in sorted(files.items())]

    def output(self, job: str, path: str) -> Iterator[bytes]:
        """One published result."""
        one, entries = self._entries(job)
        end = published(entries)
        if end is None or end.done is None or path not in end.done.outputs:
            raise NotFound(f"job {one.id} has no result {path!r}; `spotsurfer outputs {one.id}` lists them")
        return self.stored_output.result(one.id, end.epoch, path)

    def settle_home(self, job: JobId, tree: str) -> Job:
        """Another tree to begin with, and the job may begin."""
        with self.engine.connect() as connection:
            one = rows.find_job(connection, job)
            began = bool(rows.attempts(connection, [one.id])[one.id])
        self.homes.settle(one, tree, began=began)
        return self.resume(one.id)

    def home_changes(self, job: str) -> HomeChanges:
        """What comes home of an ended job."""
        return self.homes.changes(*self._entries(job))

    def home_result(self, job: str, sha256: str) -> Iterator[bytes]:
        """One file of that."""
        return self.stored_output.fetched(self.homes.result_key(*self._entries(job), sha256))

    def usage(self, job: str, since: datetime | None = None) -> Sequence[UsageSeen]:
        """A job's usage."""
        with self.engine.connect() as connection:
            return usage_history.read(connection, rows.find_job(connection, job).id, since)

    def spots(self) -> Mapping[str, Sequence[SpotSeen]]:
        """When spot was available, by pool."""
        with self.engine.connect() as connection:
            return observations.spot_seen_since(connection, self.clock.now() - KEPT)

    def charges(
        self, job: str | None, since: datetime | None = None, until: datetime | None = None, owner: str | None = None
    ) -> Sequence[ChargeLine]:
        """The lines of the bill."""
        with self.engine.connect() as connection:
            jobs = None if owner is None else self._known.jobs(connection, owner)
            jobs = jobs if job is None else self._with_rehearsals(connection, job)
            return self.observer.costs.lines(connection, jobs, self.clock.now(), since, until)

    def report(
        self,
        jobs: Sequence[str],
        since: datetime | None = None,
        until: datetime | None = None,
        by: str = "",
        owner: str | None = None,
    ) -> CostReport:
        """The cost report."""
        period = Period(since, until, self.clock.now())
        with self.engine.connect() as connection:
            theirs = None if owner is None else self._known.jobs(connection, owner)
            wanted = [j for one in jobs for j in self._with_rehearsals(connection, one)] if jobs else theirs
            return cost_reports.report(connection, self.observer.costs, self.observer.offers(), wanted, period, by)

    def costs(self, job: str | None, since: datetime | None = None, owner: str | None = None) -> Sequence[CostLine]:
        """The costs by attempt; `since`: of machines launched then or later."""
        with self.engine.connect() as connection:
            jobs = self._known.jobs(connection, owner) if job is None else self._with_rehearsals(connection, job)
            found = rows.attempts(connection, [j.id for j in jobs])
            reports = self._known.reports(connection, [j.id for j in jobs])
            self.observer.costs.refresh(connection, found, self.clock.now())
        of = [(j, a) for j in jobs for a in found[j.id] if a.launched_at and (since is None or a.launched_at >= since)]
        return [self._cost(j, a, reports.get((a.job, a.number))) for j, a in of]

    def _with_rehearsals(self, connection: Connection, job: str) -> list[Job]:
        """A job and its rehearsals, for which it pays."""
        one = rows.find_job(connection, job)
        others = self._known.jobs(connection)
        return [one, *(j for j in others if rehearses(j) and j.parent is not None and j.parent.job == one.id)]

    def _cost(self, job: Job, a: Attempt, r: Report | None) -> CostLine:
        cost = self.observer.costs.of((a.job, a.number))
        payer = job.parent.job if rehearses(job) and job.parent is not None else job.id
        rehearsal = "a rehearsal: " if payer != a.job else ""
        return CostLine(
            job=payer,
            attempt=a.number,
            pool=str(a.pool),
            market=Market(a.market),
            seconds=cost.seconds,
            usd_micros=cost.usd_micros,
            usd_micros_on_demand=cost.usd_micros_on_demand,
            cpu_seconds=r.cpu_seconds if r else 0.0,
            frozen_seconds=r.frozen_seconds if r else 0.0,
            ended=rehearsal + (a.reason if a.state in OVER else str(a.state)),
            began_at=a.launched_at,
            ended_at=a.released_at,
            name=job.spec.name,
            user=job.spec.user,
            tags=job.spec.tags,
            owner=job.owner,
            project=job.spec.project,
            transfer_bytes=cost.transfer_bytes,
            transfer_usd_micros=cost.transfer_usd_micros,
        )


def _lives(job: Job, entries: Sequence[Head], attempt: int | None) -> list[int]:
    """The attempts with the wanted output, oldest first. Raises NotFound for one that never had the job."""
    found = chain(entries, attempt)
    if attempt is not None and not found:
        there = ", ".join(map(str, attempts_with_output(entries)))
        remedy = f"there is output of {there}" if there else "no attempt of it has run yet"
        raise NotFound(f"Attempt {attempt} of {job.id} never had the job and printed nothing: {remedy}.")
    return found
