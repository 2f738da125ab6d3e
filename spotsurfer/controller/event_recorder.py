"""Turns agents' reports and price changes into timeline events, progress and lasting figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import structlog
from spotsurfer_wire import object_keys
from spotsurfer_wire.final_save_forecast import Fit, say
from spotsurfer_wire.messages import MAIN, WORKLOAD_DEAD, NearMiss, Report, StepRun
from sqlalchemy import Connection, Engine

from spotsurfer.common.units import size
from spotsurfer.controller.history.usage import newest, windows
from spotsurfer.controller.isolation import NOBODYS
from spotsurfer.controller.machines.interruption_events import DatedNotice, InterruptionEvents
from spotsurfer.controller.observe import Observer
from spotsurfer.model.job import HOLDS, OVER, Attempt, AttemptNumber, AttemptState, JobId
from spotsurfer.model.market import Offer
from spotsurfer.model.money import usd
from spotsurfer.model.snapshot import HeadSeen, JobSeen, Snapshot
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline, usage_history

# ---- Progress: the time that a job ran, without work that was lost with a machine and must be repeated

KEPT_ALL = ("keeping", "drained", "finished")  # an agent's last state if nothing is lost with its machine


def done_seconds(attempts: Sequence[Attempt], told: Mapping[int, tuple[datetime, Report]], saved: bool, now: datetime) -> float:
    """Seconds of work that count, over all attempts. `told`: the last report of each, and when it came, on our clock.

    `saved` False: the job can't be saved, so that only the present run counts. All machines count as equally fast.
    """
    granted = [a for a in attempts if a.granted_at is not None]
    total = 0.0
    for a in granted:
        at, report = told.get(a.number, (a.granted_at, None))
        runs = a.state in HOLDS and a.state is not AttemptState.RESTORING
        ran = _ran(a, now if runs else at, report)
        if runs or (report is not None and str(report.state) in KEPT_ALL and saved):
            total += ran
        elif saved and report is not None and report.save_age_seconds is not None:
            total += max(0.0, ran - report.save_age_seconds)
    return total


def at_risk_seconds(
    attempts: Sequence[Attempt], told: Mapping[int, tuple[datetime, Report]], saved: bool, now: datetime
) -> float:
    """The part of `done_seconds` that must be repeated if the job's machine disappears now without notice."""
    holder = next((a for a in attempts if a.state in HOLDS and a.state is not AttemptState.RESTORING and a.granted_at), None)
    if holder is None or holder.granted_at is None:
        return 0.0
    at, report = told.get(holder.number, (holder.granted_at, None))
    ran = _ran(holder, now, report)
    if not saved or report is None or report.save_age_seconds is None:
        return ran
    return min(ran, report.save_age_seconds + max(0.0, (now - at).total_seconds()))


def _ran(a: Attempt, until: datetime | None, report: Report | None) -> float:
    """Seconds from the job's start under this attempt until `until`."""
    if a.granted_at is None or until is None:
        return 0.0
    restored = (report.restore_seconds or 0.0) if report is not None else 0.0
    return max(0.0, (until - a.granted_at).total_seconds() - restored)


# ---- Recorder: turns news in reports, and price changes, into timeline events and figures

log = structlog.get_logger()
FIT_DATA = (
    *("verdict", "durable_seconds", "send_bytes", "start_seconds", "frozen_seconds", "window_seconds"),
    *("base_age_seconds", "base_age_max_seconds", "interval_seconds"),
)
GROWTH = 1.5  # factor of memory that a machine needs after a near miss; the next size of most families has twice
Data = dict[str, str | int | float | bool | None]
Key = tuple[JobId, AttemptNumber]


class EventRecorder:
    """Remembers the last report and price of each attempt of open jobs, to find what is new.

    It reads the database for a job that it does not know: a new or reopened one, or any after a restart of the controller.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._prices: dict[Key, int] = {}
        self._floors: dict[str, int] = {}  # job -> bytes of memory that it needs, as near misses showed
        self._kills: dict[str, frozenset[AttemptNumber]] = {}  # job -> attempts that ran out of memory
        self._last: dict[tuple[str, int], tuple[datetime, Report]] = {}
        self._jobs: frozenset[JobId] = frozenset()

    def attend(self, jobs: Sequence[JobSeen]) -> None:
        """Set the open jobs: load the history of those not known yet, and forget all others."""
        now_open = frozenset(s.job.id for s in jobs)
        if gone := self._jobs - now_open:
            self._last = {k: said for k, said in self._last.items() if k[0] not in gone}
            self._prices = {k: price for k, price in self._prices.items() if k[0] not in gone}
            self._floors = {job: floor for job, floor in self._floors.items() if job not in gone}
            self._kills = {job: kills for job, kills in self._kills.items() if job not in gone}
        if come := now_open - self._jobs:
            with self._engine.connect() as connection:
                found = observations.last_words(connection, sorted(come))
            self._last |= found
            for _, report in found.values():
                self._learn(report)
        self._jobs = now_open

    def words(self, attempts: Sequence[Attempt]) -> dict[AttemptNumber, Report]:
        """The last report of each attempt of a job that ever reported."""
        return {a.number: self._last[a.job, a.number][1] for a in attempts if (a.job, a.number) in self._last}

    def reckoned(self, snapshot: Snapshot, now: datetime) -> Snapshot:
        """The snapshot with figures from earlier reports: the work done, and the cost of a save."""

        def reckoned(seen: JobSeen) -> JobSeen:
            words = {int(a.number): w for a in seen.attempts if (w := self._last.get((a.job, a.number))) is not None}
            reports = [report for _, (_, report) in sorted(words.items())]
            saves = [r.frozen_seconds / r.saves for r in reports if r.saves and r.frozen_seconds]
            known = replace(
                seen,
                save_seconds=saves[-1] if saves else None,
                image_bytes=next((r.last_save.image_bytes for r in reversed(reports) if r.last_save is not None), 0),
                image_processor=words[maker][1].processor if (maker := _maker(seen.head)) in words else "",
                sent_bytes_per_hour=self._sent_per_hour(seen.attempts),
            )
            if seen.job.spec.deadline_seconds is None:
                return known
            saved = seen.job.spec.engine != "none"
            done = done_seconds(seen.attempts, words, saved, now)
            return replace(known, done_seconds=done, at_risk_seconds=at_risk_seconds(seen.attempts, words, saved, now))

        known = sorted(
            (a for s in snapshot.jobs for a in s.attempts if (a.job, a.number) in self._last), key=lambda a: a.planned_at
        )
        told = ((a.pool, self._last[a.job, a.number][1].processor) for a in known)
        processors = {(pool.provider, pool.instance_type): processor for pool, processor in told if processor}
        return replace(snapshot, jobs=[reckoned(seen) for seen in snapshot.jobs], processors=processors)

    def _sent_per_hour(self, attempts: Sequence[Attempt]) -> float:
        """By the newest machine that had the job. One of minutes counts as one of an hour, because its first save sends all."""
        held = [a for a in attempts if a.granted_at is not None and (a.job, a.number) in self._last]
        if not held:
            return 0.0
        newest = max(held, key=lambda a: a.head_number)
        said_at, report = self._last[newest.job, newest.number]
        assert newest.granted_at is not None
        return report.store_sent_bytes / max((said_at - newest.granted_at).total_seconds() / 3600, 1.0)

    def record(self, observer: Observer, snapshot: Snapshot, now: datetime) -> None:
        """Write the changes since the last tick to the database."""
        known = {(s.job.id, a.number) for s in snapshot.jobs for a in s.attempts}
        changed = [h.report for k in sorted(observer.changed) if (h := observer.reports.heard(*k)) is not None]
        before = [self._last.get((r.job, r.attempt)) for r in changed]
        # The previous controller may have written the present report of an attempt already.
        news = [r for r, last in zip(changed, before, strict=True) if last is None or last[1].sequence != r.sequence]
        reports = [r for r in news if (r.job, r.attempt) in known]
        alive = [a for s in snapshot.jobs for a in s.attempts if a.state not in OVER and a.launched_at is not None]
        steps = list(self._price_steps(alive, snapshot.offers))
        if steps:
            with self._engine.begin() as connection:
                for (job, attempt), old, price in steps:
                    observations.add_price(connection, job, attempt, now, price)
                    prices: Data = {"usd_micros_per_hour_before": old, "usd_micros_per_hour": price}
                    text = f"{usd(old)} to {usd(price)} USD an hour"
                    timeline.add(connection, Moment(now, job, attempt, str(Kind.PRICE), text, prices))
        taken = self._taken(observer, reports, now)
        self._last.update({(r.job, r.attempt): (now, observations.kept(r)) for r in taken})
        observer.reports.noted(observer.changed)

    def _taken(self, observer: Observer, reports: Sequence[Report], now: datetime) -> Sequence[Report]:
        """Write the reports, all at once, or each by itself if that fails, and return those that were written.

        A report that can't be written counts as one that can't be read.
        """
        if not reports:
            return ()
        try:
            with self._engine.begin() as connection:
                for report in reports:
                    self._report(connection, observer.interruptions, report, now)
        except NOBODYS:
            raise
        except Exception as e:
            if len(reports) > 1:
                return [taken for report in reports for taken in self._taken(observer, [report], now)]
            (bad,) = reports
            log.exception("report.refused", job=bad.job, attempt=bad.attempt)
            observer.reports.refuse(bad.job, bad.attempt, f"{type(e).__name__}: {e}")
            return ()
        for report in reports:
            self._learn(report)
        return reports

    def sized(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with each job asking for at least the memory that it needs, as near misses showed."""

        def sized(seen: JobSeen) -> JobSeen:
            floor, spec = self._floors.get(seen.job.id, 0), seen.job.spec
            seen = replace(seen, memory_kills=self._kills.get(seen.job.id, frozenset()))
            if floor <= spec.memory_bytes:
                return seen
            return replace(seen, job=replace(seen.job, spec=replace(spec, memory_bytes=floor)), memory_floor_bytes=floor)

        return replace(snapshot, jobs=[sized(seen) for seen in snapshot.jobs])

    def _learn(self, r: Report) -> None:
        if r.near_miss is not None:
            self._floors[r.job] = max(self._floors.get(r.job, 0), floor_bytes(r.near_miss))
            if r.near_miss.killed:
                self._kills[r.job] = self._kills.get(r.job, frozenset()) | {AttemptNumber(r.attempt)}

    def _price_steps(self, alive: Sequence[Attempt], offers: Sequence[Offer]) -> Iterator[tuple[Key, int, int]]:
        """Attempts with a new price: theirs before, and now, micro-dollars an hour."""
        now_at = {(o.pool, o.market): o.price_usd_micros_per_hour for o in offers}
        for a in alive:
            key = (a.job, a.number)
            if key not in self._prices:
                with self._engine.connect() as connection:
                    steps = observations.prices(connection, [a.job]).get(key, [])
                self._prices[key] = steps[-1][1] if steps else a.price_usd_micros_per_hour
            price = now_at.get((a.pool, a.market), self._prices[key])
            if price != (before := self._prices[key]):
                self._prices[key] = price
                yield key, before, price

    def _report(self, c: Connection, interruptions: InterruptionEvents, r: Report, now: datetime) -> None:
        _, before = self._last.get((r.job, r.attempt), (now, None))
        usage_history.add(c, r.job, r.attempt, windows(r, now, newest(before)))
        observations.set_usage(c, r, now)
        for kind, text, data in news(before, r):
            if kind is Kind.NOTICE and r.notice is not None:
                said = DatedNotice(r.notice.kind, now, text, r.notice.seconds_left)
                interruptions.note(c, rows.load_attempt(c, JobId(r.job), AttemptNumber(r.attempt)), said, now)
                continue
            timeline.add(c, Moment(now, JobId(r.job), r.attempt, str(kind), text, data))


def news(before: Report | None, r: Report) -> Iterator[tuple[Kind, str, Data]]:
    """The news in a report, compared with the one before it."""
    if r.notice is not None and (before is None or before.notice is None or before.notice.id != r.notice.id):
        left = r.notice.seconds_left
        text = f"{r.notice.kind}: {left:.0f} s left" if left is not None else r.notice.kind
        yield Kind.NOTICE, text, {"kind": r.notice.kind, "seconds_left": left}
    yield from steps_news(before.steps if before is not None else [], r.steps)
    if r.hint and (before is None or _stage(before) != _stage(r)):
        yield Kind.STAGE, _stage(r), {"stage": r.hint, "memory_bytes": r.hint_memory_bytes, "cores": r.hint_cores}
    save = r.last_save
    if save is not None and (before is None or before.last_save is None or before.last_save.checkpoint != save.checkpoint):
        yield (
            Kind.SAVED,
            f"{save.kind} checkpoint {save.checkpoint}: {size(save.image_bytes)}, {size(save.new_bytes)} new, "
            f"frozen {save.frozen_seconds:.2f} s, durable after {save.durable_seconds:.1f} s",
            {
                "checkpoint": save.checkpoint,
                "kind": save.kind,
                "image_bytes": save.image_bytes,
                "new_bytes": save.new_bytes,
                "frozen_seconds": save.frozen_seconds,
                "durable_seconds": save.durable_seconds,
            },
        )
    fit, known = r.fit, before.fit if before is not None else None
    if fit is not None and (known is None or (fit.verdict, fit.hastened) != (known.verdict, known.hastened)):
        yield Kind.FIT, say(fit), fit_data(fit)
    if r.near_miss is not None and (before is None or before.near_miss != r.near_miss):
        kind = Kind.OUT_OF_MEMORY if r.near_miss.killed else Kind.NEAR_MISS
        yield kind, miss_text(r.near_miss), dataclasses.asdict(r.near_miss)
    if r.brought_back and (before is None or before.brought_back != r.brought_back):
        yield Kind.BROUGHT_BACK, r.brought_back, {}
    was_frozen = before is not None and before.frozen
    if r.frozen and not was_frozen:
        yield Kind.FROZEN, "held still: the agent can't be sure to own the job", {}
    if was_frozen and not r.frozen and r.state not in WORKLOAD_DEAD:
        yield Kind.THAWED, "goes on: the agent read that it still owns the job", {}
    if r.error and (before is None or before.error != r.error):
        yield Kind.ALERT, r.error, {"error_kind": r.error_kind}


def _maker(head: HeadSeen | None) -> int:
    """The attempt that made the newest checkpoint; 0 = there is none."""
    return 0 if head is None or head.checkpoint is None else object_keys.epoch_of(head.checkpoint)


def _stage(r: Report) -> str:
    """The stage that the job itself reports, in a few words."""
    memory = size(r.hint_memory_bytes) if r.hint_memory_bytes else ""
    cores = f"{r.hint_cores:g} processors" if r.hint_cores else ""
    needs = " and ".join(x for x in (memory, cores) if x)
    return f"{r.hint}: it will need {needs}" if needs else r.hint


def steps_news(before: Sequence[StepRun], now: Sequence[StepRun]) -> Iterator[tuple[Kind, str, Data]]:
    """Steps that ended or began under an attempt; nothing for a job with a single step."""
    known = {(run.number, run.exit_code) for run in before}
    told = bool(before) and (len(now) > 1 or now[0].name != MAIN)  # steps in the first report were taken over
    for run in [run for run in now if told and (run.number, run.exit_code) not in known]:
        data: Data = {"step": run.name, "exit_code": run.exit_code, "cpu_seconds": run.cpu_seconds}
        if run.exit_code is None:
            yield Kind.STEP, f"{run.name} began", data
        else:
            yield Kind.STEP, f"{run.name} ended with {run.exit_code} after {run.cpu_seconds:.1f} s of processor", data


def miss_text(miss: NearMiss) -> str:
    """A near miss or a kill for memory, in one sentence."""
    if miss.killed:
        return (
            f"the kernel killed it, because the {size(miss.machine_bytes)} of its machine ended; "
            f"the next one has at least {size(floor_bytes(miss))}"
        )
    return (
        f"frozen after {1e3 * miss.stop_seconds:.0f} ms, because its memory was about to end: it used {size(miss.used_bytes)}, "
        f"jobs are frozen at {size(miss.limit_bytes)} of this machine's {size(miss.machine_bytes)}"
    )


def floor_bytes(miss: NearMiss) -> int:
    """Bytes of memory that a machine must have after a near miss."""
    return int(miss.machine_bytes * GROWTH)


def fit_data(fit: Fit) -> Data:
    """A forecast for programs."""
    return {name: getattr(fit, name) for name in FIT_DATA}
