"""Costs of all attempts: ended ones are computed once, running ones up to now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from spotsurfer.ledger.billing import Charge, charge
from spotsurfer.model.ids import AttemptNumber, JobId
from spotsurfer.model.job import OVER, Attempt, Job
from spotsurfer.ports.provider import BillingRule
from spotsurfer.state import jobs as rows
from spotsurfer.state import market

Key = tuple[JobId, AttemptNumber]


class Costs:
    """What was spent, by attempt. `refresh` reads only what can still change."""

    def __init__(self, rule: BillingRule) -> None:
        self._rule = rule
        self._bills: tuple[dict[Key, Charge], dict[Key, Charge]] = {}, {}  # settled, running; replaced as one: others read it
        self._spent: dict[JobId, int] = {}  # by job, of both
        self._loaded = False
        self._payer: dict[JobId, JobId] = {}  # of rehearsals: their parents

    def refresh(self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], now: datetime) -> None:
        """Bring the figures up to `now`; `attempts` is what was just read of open jobs, so that it is not read twice."""
        settled, running = self._bills
        more = {job for job, _ in running}  # those that ended since: their last bill is still to be settled
        if not self._loaded:
            everybody = rows.all_jobs(connection)
            self.pay_for(everybody)
            more = {j.id for j in everybody}
        missing = sorted(more - set(attempts))
        found = {**attempts, **(rows.attempts(connection, missing) if missing else {})}
        steps = market.prices(connection, sorted(found))
        known = [((a.job, a.number), a) for some in found.values() for a in some if (a.job, a.number) not in settled]
        bills = {key: charge(a, steps.get(key, []), self._rule, now, a.reclaimed) for key, a in known}
        over = {key: bills.pop(key) for key, a in known if a.state in OVER}
        settled = self._bills[0]  # as it is now: somebody else may have asked meanwhile
        self._bills = ({**settled, **over} if over else settled), {k: c for k, c in bills.items() if k not in settled}
        self._spent = self._by_job()
        self._loaded = True

    def _by_job(self) -> dict[JobId, int]:
        """A job's bill, and a rehearsal's once more as its parent's: asked for each job of a list, so added up once a look."""
        spent: defaultdict[JobId, int] = defaultdict(int)
        for bills in self._bills:
            for (job, _), one in bills.items():
                for payer in {job, self._payer.get(job, job)}:
                    spent[payer] += one.usd_micros
        return dict(spent)

    def pay_for(self, jobs: Iterable[Job]) -> None:
        """Rehearsals among these jobs are counted for their parents."""
        self._payer |= {j.id: j.parent.job for j in jobs if j.parent is not None and j.parent.rehearsal}

    def of(self, key: Key) -> Charge:
        """One attempt's bill so far."""
        settled, running = self._bills
        return settled.get(key) or running.get(key) or Charge(0.0, 0, 0)

    def of_job(self, job: JobId) -> int:
        """A job's bill so far, its rehearsals included, micro-dollars."""
        return self._spent.get(job, 0)

    def total(self) -> int:
        """Everything ever spent, micro-dollars."""
        return sum(c.usd_micros for d in self._bills for c in d.values())
