"""The cost of a machine, by one function for real and simulated bills, and the costs of all attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotsurfer_wire.messages import Report
from sqlalchemy import Connection

from spotsurfer.model.job import OVER, Attempt, AttemptNumber, Job, JobId
from spotsurfer.model.market import Market
from spotsurfer.model.money import for_seconds
from spotsurfer.model.transfer import FREE, Place, Tariff
from spotsurfer.ports.provider import BillingRule
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations

Steps = Sequence[tuple[datetime, int]]


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of an attempt: its machine and its transfer. Micro-dollars."""

    seconds: float
    usd_micros: int  # of both
    usd_micros_on_demand: int  # the same machine-hours at list price
    transfer_bytes: int = 0  # between the machine and a store elsewhere
    transfer_usd_micros: int = 0  # of `usd_micros`


def charge(attempt: Attempt, steps: Steps, rule: BillingRule, now: datetime, reclaimed: bool = False) -> Charge:
    """The bill of one attempt up to `now`, or to its end.

    Billed by the second from launch to end, at least `rule.minimum_seconds`, at the price in force at each second
    (`steps`, oldest first). Nothing is billed for a machine that was never launched.
    """
    if attempt.launched_at is None:
        return Charge(0.0, 0, 0)
    end = attempt.released_at if attempt.state in OVER and attempt.released_at else now
    seconds = max((end - attempt.launched_at).total_seconds(), 0.0)
    billed = max(seconds, rule.minimum_seconds)
    list_price = for_seconds(attempt.list_price_usd_micros_per_hour, billed)
    if reclaimed and rule.reclaimed_first_hour_free and seconds < 3600 and attempt.market is Market.SPOT:
        return Charge(seconds, 0, list_price)
    return Charge(seconds, _by_steps(attempt, steps, attempt.launched_at, billed), list_price)


def _by_steps(attempt: Attempt, steps: Steps, start: datetime, billed: float) -> int:
    end = start + timedelta(seconds=billed)
    prices = [(start, attempt.price_usd_micros_per_hour), *((max(at, start), p) for at, p in steps if at < end)]
    total = 0
    for (at, price), until in zip(prices, [*(at for at, _ in prices[1:]), end], strict=True):
        total += for_seconds(price, (until - at).total_seconds())
    return total


def with_transfer(machine: Charge, tariff: Tariff, place: Place, report: Report) -> Charge:
    """The bill with what the machine's agent counted between it and the store."""
    micros = tariff.usd_micros(place, report.store_read_bytes, report.store_sent_bytes)
    moved = report.store_read_bytes + report.store_sent_bytes
    return replace(machine, usd_micros=machine.usd_micros + micros, transfer_bytes=moved, transfer_usd_micros=micros)


# ---- All attempts: bills of ended ones are computed once, those of running ones up to now.

Key = tuple[JobId, AttemptNumber]


class Costs:
    """Spending by attempt. `refresh` reads only attempts that can still change."""

    def __init__(self, rules: Mapping[str, BillingRule], tariff: Tariff = FREE) -> None:
        """`rules`: by provider."""
        self._rules, self._tariff = rules, tariff
        self._bills: tuple[dict[Key, Charge], dict[Key, Charge]] = {}, {}  # settled, running; replaced as one for other readers
        self._spent: dict[JobId, int] = {}  # by job, of both
        self._loaded = False
        self._payer: dict[JobId, JobId] = {}  # of rehearsals: their parents

    def refresh(self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], now: datetime) -> None:
        """Bring the figures up to `now`; `attempts` are those just read of open jobs, so that they are not read twice."""
        settled, running = self._bills
        more = {job for job, _ in running}  # jobs that ended since: their last bill is still to be settled
        if not self._loaded:
            everybody = rows.all_jobs(connection)
            self.pay_for(everybody)
            more = {j.id for j in everybody}
        missing = sorted(more - set(attempts))
        found = {**attempts, **(rows.attempts(connection, missing) if missing else {})}
        steps = observations.prices(connection, sorted(found))
        known = [((a.job, a.number), a) for some in found.values() for a in some if (a.job, a.number) not in settled]
        bills = {key: charge(a, steps.get(key, []), self._rule(a), now, a.reclaimed) for key, a in known}
        bills |= self._with_transfer(connection, [a for _, a in known], bills)
        over = {key: bills.pop(key) for key, a in known if a.state in OVER}
        settled = self._bills[0]  # the current one: another thread may have asked meanwhile
        self._bills = ({**settled, **over} if over else settled), {k: c for k, c in bills.items() if k not in settled}
        self._spent = self._by_job()
        self._loaded = True

    def _with_transfer(
        self, connection: Connection, attempts: Iterable[Attempt], bills: Mapping[Key, Charge]
    ) -> dict[Key, Charge]:
        """The bills of machines to and from which transfer costs, as far as their agents counted it."""
        paid = {(a.job, a.number): p for a in attempts if not self._tariff.is_free(p := Place(a.pool.provider, a.pool.region))}
        reports = observations.last_reports(connection, sorted({job for job, _ in paid})) if paid else {}
        told = ((key, place, report) for key, place in paid.items() if (report := reports.get(key)) is not None)
        return {key: with_transfer(bills[key], self._tariff, place, report) for key, place, report in told}

    def _rule(self, attempt: Attempt) -> BillingRule:
        return self._rules.get(attempt.pool.provider, BillingRule())

    def _by_job(self) -> dict[JobId, int]:
        """A job's bill; a rehearsal's counts for its parent, too. Lists ask for each job, so it is added up once a look."""
        spent: defaultdict[JobId, int] = defaultdict(int)
        for bills in self._bills:
            for (job, _), one in bills.items():
                for payer in {job, self._payer.get(job, job)}:
                    spent[payer] += one.usd_micros
        return dict(spent)

    def pay_for(self, jobs: Iterable[Job]) -> None:
        """Count rehearsals among these jobs for their parents."""
        self._payer |= {j.id: j.parent.job for j in jobs if j.parent is not None and j.parent.rehearsal}

    def of(self, key: Key) -> Charge:
        """One attempt's bill so far."""
        settled, running = self._bills
        return settled.get(key) or running.get(key) or Charge(0.0, 0, 0)

    def of_job(self, job: JobId) -> int:
        """A job's bill so far, its rehearsals included, micro-dollars."""
        return self._spent.get(job, 0)

    def total(self) -> int:
        """All spending ever, micro-dollars."""
        return sum(c.usd_micros for d in self._bills for c in d.values())
