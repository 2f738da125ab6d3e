"""A controller in memory: what the API and the command line are tested against."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from spotsurfer_wire import object_keys
from spotsurfer_wire.home_tree import HomeChange, HomeChanges, HomeEntry
from support.dict_store import DictStore

from spotsurfer.common.units import ranges
from spotsurfer.controller.history.cost_reports import check
from spotsurfer.controller.jobs.batches import rows_of
from spotsurfer.ledger.cost_report import Period, cost_report
from spotsurfer.ledger.time_by_use import AttemptFacts, JobFacts
from spotsurfer.model.actions import Preview
from spotsurfer.model.budgets import WARN_AT, Budget, BudgetStatus, Per
from spotsurfer.model.charges import ChargeLine
from spotsurfer.model.cost_report import CostReport
from spotsurfer.model.errors import Conflict, InputMissing, NotFound
from spotsurfer.model.figures import Figures
from spotsurfer.model.job import (
    ENDED,
    Attempt,
    AttemptNumber,
    AttemptState,
    InstanceId,
    Job,
    JobId,
    JobSpec,
    JobState,
    MoveRequest,
    Rewind,
    Wish,
)
from spotsurfer.model.licences import LicenceStatus
from spotsurfer.model.market import Market, Pool
from spotsurfer.model.queueing.arrays import limit_of
from spotsurfer.model.snapshot import SpotSeen
from spotsurfer.ports.service import (
    AttemptStatus,
    Checkpoint,
    CostLine,
    Info,
    JobBrief,
    JobStatus,
    LogAsk,
    LogFound,
    Machine,
    Moment,
    NewJob,
    OutputFile,
    PartialSeen,
    Progress,
    Reloaded,
    Submitted,
    UsageSeen,
    Why,
)
from spotsurfer.store import job_output
from spotsurfer.store.job_output import Printed

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POOL = Pool("local", "local", "local-a", "m6i.large")


def an_attempt(job: JobId, number: int = 1, state: AttemptState = AttemptState.RUNNING, for_move: int = 0) -> Attempt:
    return Attempt(
        job=job,
        number=AttemptNumber(number),
        state=state,
        since=START,
        pool=POOL,
        market=Market.SPOT,
        price_usd_micros_per_hour=30_000,
        list_price_usd_micros_per_hour=96_000,
        token=f"token-{number}",
        planned_at=START,
        granted_at=START,
        launched_at=START,
        instance=InstanceId(f"i-{number}"),
        for_move=for_move,
        pace_seconds=720.0,
        pace_saves=2,
        pace_why="saved every 12 min: for a reason",
    )


def _brief(status: JobStatus) -> JobBrief:
    job, spec = status.job, status.job.spec
    here = status.attempts[-1].attempt if status.attempts else None
    return JobBrief(
        *(job.id, job.number, job.array, job.task, spec.name, job.owner, spec.project, status.phase, str(job.state)),
        *(str(job.wish), status.note, job.exit_code, job.ended_by, job.submitted_at, here and here.granted_at, job.ended_at),
        *(spec.cpus, spec.memory_bytes, spec.gpus, spec.time_limit_seconds, limit_of(spec.array), spec.after),
        *(str((here and here.instance) or ""), "", str(spec.market), "", spec.priority, status.level),
    )


def _folded(briefs: Sequence[JobBrief]) -> Sequence[JobBrief]:
    """Tasks without a machine that are alike in one row."""
    alike: dict[object, list[JobBrief]] = {}
    for b in briefs:
        alike.setdefault(b.id if b.machine or not b.array else (b.array, b.phase, b.reason, b.exit_code), []).append(b)
    found = [(some[0], ranges(b.task for b in some if b.task is not None)) for some in alike.values()]
    return [replace(b, tasks=tasks if b.array and not tasks.isdecimal() else "") for b, tasks in found]


class FakeService:
    """Keeps what it is told; tests change `statuses`, `logs`, `results`, or set `fail` to raise from every method."""

    def __init__(self) -> None:
        self.statuses: dict[str, JobStatus] = {}
        self.uploads: dict[str, dict[str, bytes]] = {}
        self.modes: dict[str, dict[str, int]] = {}
        self.secrets: dict[str, dict[str, bytes]] = {}
        self.logs: dict[tuple[str, str], bytes] = {}  # by job and stream: "out", "err", "times"
        self.earlier: list[int] = []  # runs
        self.results: dict[str, dict[str, bytes]] = {}
        self.home_files: dict[tuple[str, str, str], bytes] = {}  # by owner, folder, SHA-256
        self.home_settled: dict[str, str] = {}  # by job: the tree
        self.home_made: dict[str, dict[HomeEntry, bytes]] = {}  # by job
        self.moments: list[Moment] = []
        self.digests: dict[str, str] = {}  # of results, where they shall be wrong
        self.machines: Machine | None = None
        self.used: list[UsageSeen] = []
        self.charged: list[ChargeLine] = []
        self.now = START + timedelta(days=20)  # of reports
        self.partials_asked = 0
        self.partial_fails: Exception | None = None
        self.fail: Exception | None = None
        self.previewed = Preview((), (), "")
        self.discarded: list[str] = []
        self.launched: dict[str, datetime] = {}  # machines, where not at START
        self.on_move: Callable[[str, int], None] = lambda _job, _number: None
        self.on_checkpoint: Callable[[str, int], None] = lambda _job, _number: None
        self.protected: set[tuple[str, str]] = set()
        self.work: dict[str, dict[str, object]] = {}
        self.work_fails: dict[str, Exception] = {}
        self.store_results: dict[str, dict[str, object]] = {}
        self.group_budgets: dict[tuple[str, Per], BudgetStatus] = {}
        self.licence_pools: list[LicenceStatus] = []
        self.reloaded = Reloaded(["limits.budget_usd"], ["store.url"])
        self.looks, self.looks_needed = 0, 1
        self.called_off: list[str] = []
        self.lock = threading.Lock()

    def say(self, job: str | None, kind: str, text: str, **data: str | int | float | bool | None) -> None:
        with self.lock:
            at = START + timedelta(seconds=len(self.moments))
            self.moments.append(Moment(at, JobId(job) if job else None, 1 if job else None, kind, text, data))

    def change(self, job: str, **values: object) -> None:
        """Set fields of the job's row."""
        status = self.statuses[job]
        self.statuses[job] = replace(status, job=replace(status.job, **values))  # type: ignore[arg-type]

    def end(self, job: str, state: JobState, exit_code: int | None, reason: str = "") -> None:
        self.change(job, state=state, exit_code=exit_code, reason=reason, ended_at=START + timedelta(hours=1))
        self.statuses[job] = replace(self.statuses[job], phase=str(state))
        self.say(job, "ended", f"{state}: {reason}")

    def _find(self, name: str) -> JobStatus:
        if self.fail is not None:
            raise self.fail
        found = [s for s in self.statuses.values() if name in (s.job.id, s.job.spec.name)]
        found = found or [s for s in self.statuses.values() if s.job.array == name][:1]
        if len(found) != 1:
            raise NotFound(f"There is no job {name!r}; `spotsurfer list` shows them.")
        return found[0]

    def _open(self, name: str) -> Job:
        job = self._find(name).job
        if job.state in ENDED:
            raise Conflict(f"Job {job.id} has ended ({job.state}).")
        return job

    # ---- the port

    def preview(self, spec: JobSpec) -> Preview:
        if self.fail is not None:
            raise self.fail
        return self.previewed

    def info(self) -> Info:
        if self.fail is not None:
            raise self.fail
        return Info(
            version="0.1.0",
            family="family",
            generation=1,
            provider="local",
            store_url="file:///store",
            instances=1,
            instances_max=20,
            gpus=0,
            gpus_max=None,
            hourly_usd_micros=96_000,
            hourly_max_usd_micros=10_000_000,
            spent_usd_micros=1_234,
            budget_usd_micros=None,
            price_max_usd_micros=None,
            instance_types=("m6i.*",),
            ageing_seconds=600.0,
            stay_seconds=120.0,
            front_address="127.0.0.1",
            front_ports=0,
            front_ports_max=500,
            last_tick_at=START,
            last_error="",
        )

    def figures(self) -> Figures:
        jobs = Counter(str(s.job.state) for s in self.statuses.values())
        return Figures(START, jobs, {("local", "spot", "running"): 1})

    def new_job_id(self, name: str) -> JobId:
        if self.fail is not None:
            raise self.fail
        return JobId(f"{name.lower()}-{len(self.uploads) + len(self.statuses):06d}")

    def upload(self, job: JobId, path: str, data: Iterator[bytes], size: int) -> None:
        if self.fail is not None:
            raise self.fail
        body = b"".join(data)
        if len(body) != size:
            raise InputMissing(f"Input {path!r} came with {len(body)} bytes instead of {size}.")
        self.uploads.setdefault(job, {})[path] = body

    def discard(self, job: JobId) -> None:
        self.discarded.append(job)
        self.uploads.pop(job, None)

    def submit(
        self,
        job: JobId,
        spec: JobSpec,
        modes: dict[str, int],
        secrets: Mapping[str, bytes] | None = None,
        owner: str = "",
        within: str | None = None,
    ) -> Job:
        if self.fail is not None:
            raise self.fail
        missing = set(modes) - set(self.uploads.get(job, {}))
        if missing:
            raise InputMissing(f"Input {min(missing)!r} was not uploaded.")
        made = Job(job, spec, JobState.ACTIVE, 1, START, owner=owner, number=len(self.statuses) + 1)
        for task in rows_of(job, spec, START, owner) if spec.array else ():
            task = replace(task, number=made.number)
            self.statuses[task.id] = JobStatus(task, "queued", "no room", [], None, [], 0, 0, 0)
            made = self.statuses[task.id].job
        if spec.array:
            return made
        self.modes[job] = modes
        self.secrets[job] = dict(secrets or {})
        self.statuses[job] = JobStatus(
            made, "running", "runs", [self.status(an_attempt(job))], "000001-000003", [], 12_345, 45_678, 1
        )
        self.say(job, "submitted", spec.name)
        return made

    def submit_many(self, jobs: Sequence[NewJob], owner: str = "", within: str | None = None) -> Sequence[Submitted]:
        made = [
            self.submit(new.id or self.new_job_id(new.spec.name), new.spec, dict(new.modes), new.secrets, owner) for new in jobs
        ]
        return [Submitted(job.id, job.number, 0) for job in made]

    def jobs_brief(
        self, include_ended: bool = True, owner: str | None = None, only_tasks: bool = False, folded: bool = False
    ) -> Sequence[JobBrief]:
        found = [_brief(s) for s in self.jobs(include_ended, owner) if s.job.array or not only_tasks]
        return _folded(found) if folded else found

    def status(self, attempt: Attempt) -> AttemptStatus:
        return AttemptStatus(attempt, "running", 1.0, False, 61.5, 3 << 20, 2, 0.4, "", 42.0, None, "", None, "", 12_345)

    def resolve(self, job: JobId, owner: str | None = None, whole: bool = True) -> JobId:
        found = self._find(job).job
        if owner not in (None, found.owner):
            raise NotFound(f"there is no job {job!r}")
        return found.id

    def jobs(self, include_ended: bool = True, owner: str | None = None, tasks: bool = True) -> Sequence[JobStatus]:
        if self.fail is not None:
            raise self.fail
        wanted = [s for s in reversed(self.statuses.values()) if owner in (None, s.job.owner)]
        return [s for s in wanted if (include_ended or s.job.state not in ENDED) and (tasks or not s.job.array)]

    def job(self, job: JobId) -> JobStatus:
        return self._find(job)

    def timeline(
        self,
        job: JobId | None,
        after: int = 0,
        since: datetime | None = None,
        last: int | None = None,
        owner: str | None = None,
    ) -> Sequence[tuple[int, Moment]]:
        wanted = self._find(job).job.id if job is not None else None
        with self.lock:
            found = [(n, m) for n, m in enumerate(self.moments, 1) if n > after and wanted in (None, m.job)]
        if owner is not None:
            found = [(n, m) for n, m in found if m.job in self.statuses and self.statuses[m.job].job.owner == owner]
        return [(n, m) for n, m in found if since is None or m.at >= since][-(last or len(found)) :]

    def why(self, job: JobId, last: int = 10) -> Sequence[Why]:
        self._find(job)
        return [Why(START, ["plan #1 on m6i.large"], [("c6i.large", "4 GiB is too little")], "needs a machine")][:last]

    def hold(self, job: JobId) -> Job:
        found = self._open(job)
        self.change(found.id, wish=Wish.HOLD, state=JobState.HELD)
        return self.statuses[found.id].job

    def resume(self, job: JobId) -> Job:
        found = self._open(job)
        if found.wish is not Wish.HOLD:
            raise Conflict(f"Job {found.id} is not held.")
        self.change(found.id, wish=Wish.RUN, state=JobState.ACTIVE)
        return self.statuses[found.id].job

    def cancel(self, job: JobId) -> Job:
        found = self._open(job)
        self.change(found.id, wish=Wish.CANCEL)
        self.end(found.id, JobState.CANCELLED, None, "cancelled by its user")
        return self.statuses[found.id].job

    def move(self, job: JobId, instance_type: str | None, market: Market | None) -> int:
        found = self._open(job)
        number = found.moves_asked + 1
        self.change(found.id, move=MoveRequest(number, START, instance_type, market), moves_asked=number)
        self.on_move(found.id, number)
        return number

    def signal(self, job: JobId, name: str) -> int:
        self.change(self._open(job).id, signal=name)
        return 1

    def checkpoint(self, job: JobId) -> int:
        found = self._open(job)
        self.on_checkpoint(found.id, 4)
        return 4

    def prioritize(self, job: JobId, priority: int) -> Job:
        found = self._open(job)
        self.change(found.id, spec=replace(found.spec, priority=priority))
        return self.statuses[found.id].job

    def set_budget(self, job: JobId, usd_micros: int | None) -> Job:
        found = self._open(job)
        self.change(found.id, spec=replace(found.spec, budget_usd_micros=usd_micros))
        return self.statuses[found.id].job

    def budgets(self, owner: str | None = None) -> Sequence[BudgetStatus]:
        return [b for b in self.group_budgets.values() if owner is None or b.scope in ("all", f"owner:{owner}")]

    def set_scope_budget(
        self, scope: str, usd_micros: int, per: Per = Per.TOTAL, warn_at: Sequence[int] | None = None, who: str = ""
    ) -> Budget:
        made = Budget(scope, usd_micros, per, warn_at if warn_at is not None else WARN_AT)
        self.group_budgets[scope, per] = BudgetStatus(
            *(scope, per, usd_micros, made.warn_at, usd_micros // 2, 50.0, None, None, False, False), set_by=who
        )
        return made

    def remove_scope_budget(self, scope: str, per: Per = Per.TOTAL, who: str = "") -> Budget | None:
        if self.group_budgets.pop((scope, per), None) is None:
            raise NotFound(f"No budget of {scope} was set.")
        return None

    def licences(self, owner: str | None = None) -> Sequence[LicenceStatus]:
        return self.licence_pools

    def reload(self) -> Reloaded:
        return self.reloaded

    def go_back(self, job: JobId, checkpoint: str) -> Job:
        found = self._find(job).job
        if checkpoint not in ("3", "000001-000003"):
            raise NotFound(f"Job {found.id} has no checkpoint {checkpoint!r}.")
        self.change(found.id, wish=Wish.RUN, state=JobState.ACTIVE, rewind=Rewind("000001-000003", 1))
        return self.statuses[found.id].job

    def checkpoints(self, job: JobId) -> Sequence[Checkpoint]:
        self._find(job)
        return [
            Checkpoint("000001-000002", START.isoformat(), "live", 5_000_000, None, None, True, False, True, False, "old"),
            Checkpoint(
                "000001-000003",
                "",
                "",
                None,
                7,
                "000001-000002",
                False,
                True,
                False,
                True,
                "kept",
                "torn",
                "attempt 2 could not restore it",
            ),
        ]

    def protect(self, job: JobId, checkpoint: str, wanted: bool) -> str:
        found = self._find(job).job
        (self.protected.add if wanted else self.protected.discard)((found.id, checkpoint))
        return f"000001-{int(checkpoint):06d}"

    def fork(self, job: JobId, checkpoint: str | None, name: str | None) -> Progress:
        found = self._find(job).job
        made = {"job": "copy-1", "name": name or found.spec.name, "parent": found.id, "checkpoint": checkpoint or "newest"}
        return self._begin("fork", made)

    def rehearse(self, job: JobId) -> Progress:
        figures = {"machine_seconds": 3.0, "restore_seconds": 1.0, "alive_seconds": 5.0, "watched_seconds": 5.0}
        seen = {"cpu_seconds": 4.5, "printed_bytes": 12, "memory_bytes": 9_000_000}
        found = self._find(job).job
        return self._begin("rehearse", {"job": found.id, "rehearsal": "r", "checkpoint": "000001-000003", **figures, **seen})

    def store_work(self, what: str, job: JobId | None, read: bool, dry_run: bool) -> Progress:
        if job is not None:
            self._find(job)
        return self._begin(what, {**self.store_results[what], "read": read, "dry_run": dry_run})

    def _begin(self, what: str, result: dict[str, object]) -> Progress:
        self.work[what] = result
        return Progress(what, what, False, "beginning", 0, 0, None)

    def progress(self, number: str, wait_seconds: float) -> Progress:
        if number in self.work_fails:
            raise self.work_fails[number]
        self.looks += 1
        done = self.looks > self.looks_needed
        return Progress(number, number, done, "reading", self.looks, 9, self.work[number] if done else None)

    def call_off(self, number: str) -> None:
        self.called_off.append(number)

    def log(self, job: JobId, stream: str, offset: int, limit: int, attempt: int | None = None) -> bytes:
        found = self._find(job).job
        return self.logs.get((found.id, stream), b"")[offset : offset + limit]

    def printed(self, job: JobId, ask: LogAsk) -> LogFound:
        found = self._find(job).job
        store = DictStore()
        for (of, stream), data in self.logs.items():
            if of == found.id and data:
                store.objects[object_keys.log_key(of, 1, stream, 0, len(data))] = data
        if ask.attempt not in (None, 1):
            raise NotFound(f"Attempt {ask.attempt} of {found.id} never had the job.")
        seen = Printed(store, store.list(""), [1])
        parts, place = job_output.pick(seen, replace(ask, place=job_output.begin(seen, ask)))
        return LogFound(parts, place, found.state in ENDED, self.earlier)

    def outputs(self, job: JobId) -> Sequence[OutputFile]:
        found = self._find(job).job
        if found.state not in ENDED:
            raise Conflict(f"Job {found.id} has not ended yet.")
        return self._files(self.results.get(found.id, {}))

    def _files(self, results: Mapping[str, bytes]) -> list[OutputFile]:
        told = {path: hashlib.sha256(data).hexdigest() for path, data in results.items()} | self.digests
        return [OutputFile(path, len(data), told[path]) for path, data in sorted(results.items())]

    def shares_home(self, home: str) -> bool:
        return home.startswith("/shared/")

    def home_lacks(self, home: str, digests: Sequence[str], owner: str = "") -> Sequence[str]:
        return [d for d in digests if (owner, home, d) not in self.home_files]

    def upload_home(self, home: str, sha256: str, data: Iterator[bytes], size: int, owner: str = "") -> None:
        self.home_files[owner, home, sha256] = b"".join(data)

    def settle_home(self, job: JobId, tree: str) -> Job:
        self.home_settled[self._find(job).job.id] = tree
        return self.resume(job)

    def home_changes(self, job: JobId) -> HomeChanges:
        found = self._find(job).job
        if found.state not in ENDED:
            raise Conflict(f"Job {found.id} has not ended yet.")
        return HomeChanges([HomeChange(e) for e in self.home_made.get(found.id, {})])

    def home_result(self, job: JobId, sha256: str) -> Iterator[bytes]:
        made = self.home_made.get(self._find(job).job.id, {})
        yield next((data for e, data in made.items() if e.sha256 == sha256), b"")

    def ask_partial(self, job: JobId) -> int:
        found = self._find(job).job
        if found.state in ENDED:
            raise Conflict(f"Job {found.id} has ended.")
        self.partials_asked += 1
        return self.partials_asked

    def partial(self, job: JobId, number: int) -> PartialSeen:
        found = self._find(job).job
        self.looks += 1
        if self.looks < self.looks_needed:
            return PartialSeen(number, False, 1, "", "", [], [])
        if self.partial_fails is not None:
            raise self.partial_fails
        return PartialSeen(number, True, 1, "main", START.isoformat(), self._files(self.results.get(found.id, {})), ["*.log"])

    def partial_output(self, job: JobId, number: int, path: str) -> Iterator[bytes]:
        assert number == self.partials_asked
        return self.output(job, path)

    def output(self, job: JobId, path: str) -> Iterator[bytes]:
        found = self._find(job).job
        if path not in self.results.get(found.id, {}):
            raise NotFound(f"Job {found.id} has no output {path!r}.")
        data = self.results[found.id][path]
        return iter([data[:3], data[3:]])

    def machine(self, job: JobId) -> Machine:
        self._find(job)
        if self.machines is None:
            raise Conflict("it has no machine now")
        return self.machines

    def usage(self, job: JobId, since: datetime | None = None) -> Sequence[UsageSeen]:
        self._find(job)
        return [u for u in self.used if since is None or u.at >= since]

    def spots(self) -> Mapping[str, Sequence[SpotSeen]]:
        return {str(POOL): [SpotSeen(datetime(2026, 1, 1, tzinfo=UTC), True)]}

    def charges(
        self, job: JobId | None, since: datetime | None = None, until: datetime | None = None, owner: str | None = None
    ) -> Sequence[ChargeLine]:
        wanted = self._find(job).job.id if job is not None else None
        days = since.replace(hour=0, minute=0, second=0, microsecond=0) if since else None, until
        return [
            x
            for x in self.charged
            if wanted in (None, x.job, x.payer)
            and (owner is None or (x.job in self.statuses and self.statuses[x.job].job.owner == owner))
            and (days[0] is None or x.begins >= days[0])
            and (days[1] is None or x.begins < days[1])
        ]

    def report(
        self,
        jobs: Sequence[JobId],
        since: datetime | None = None,
        until: datetime | None = None,
        by: str = "",
        owner: str | None = None,
    ) -> CostReport:
        period = Period(since, until, self.now)
        check(period, by)
        wanted = [self._find(j).job.id for j in jobs]
        lines = [x for j in wanted or [None] for x in self.charges(j, since, until, owner)]
        facts = [
            JobFacts(
                s.job,
                [
                    AttemptFacts(a.attempt, a.agent_state or "", a.frozen_seconds, 0.0, a.unsaved_seconds or 0.0)
                    for a in s.attempts
                ],
            )
            for s in self.statuses.values()
            if (not wanted or s.job.id in wanted) and owner in (None, s.job.owner)
        ]
        return cost_report(lines, facts, period, by=by, month=None if wanted else self.charges(None, owner=owner))

    def costs(self, job: JobId | None, since: datetime | None = None, owner: str | None = None) -> Sequence[CostLine]:
        wanted = self._find(job).job.id if job is not None else None
        found = [s.job for s in self.statuses.values() if wanted in (None, s.job.id) and owner in (None, s.job.owner)]
        figures = (1, str(POOL), Market.SPOT, 3600.0, 30_000, 96_000, 3500.0, 1.5, "finished")
        whose = [(j, (self.launched.get(j.id, START), None, j.spec.name, j.spec.user, j.spec.tags)) for j in found]
        return [CostLine(j.id, *figures, *more) for j, more in whose if since is None or more[0] >= since]
