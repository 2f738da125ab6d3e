"""What was spent, by attempt and job: bills of ended machines are computed once, the others up to now.

`bill` says what there is to pay; this cache adds it up for budgets, `show` and the limits, and `lines` has it by days.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from math import ceil
from sys import intern

from sqlalchemy import Connection

from spotsurfer.ledger import bill
from spotsurfer.ledger.charge import DAY, day_of
from spotsurfer.ledger.facts import Counts, Facts, MachineFacts, Rules, StoredFacts
from spotsurfer.model.budgets import EVERYTHING, scopes_of
from spotsurfer.model.charges import ChargeKind, ChargeLine, KeptImage
from spotsurfer.model.job import OVER, Attempt, AttemptNumber, Job, JobId
from spotsurfer.model.prices import Steps
from spotsurfer.state import jobs as rows
from spotsurfer.state import ledger_facts, observations

Key = tuple[JobId, AttemptNumber]
LATE = timedelta(minutes=10)  # so long after its time a fact may come into the database unseen: it is looked for again
OF_MACHINE = frozenset({ChargeKind.MACHINE, ChargeKind.MINIMUM, ChargeKind.GPU})  # of these there is a price on demand


@dataclass(frozen=True, slots=True)
class AttemptCost:
    """The cost of an attempt: the sum of its lines. Micro-dollars."""

    seconds: float = 0.0  # from launch to end
    usd_micros: int = 0  # of everything
    usd_micros_on_demand: int = 0  # the same machine-hours at list price
    transfer_bytes: int = 0  # between the machine and a store elsewhere
    transfer_usd_micros: int = 0  # of `usd_micros`


def cost(facts: MachineFacts, rules: Rules, now: datetime) -> AttemptCost:
    """What an attempt costs up to `now`, or to its end."""
    a = facts.attempt
    if a.launched_at is None:
        return AttemptCost()
    found = list(bill.of_machine(facts, rules, now))
    moved = [c for c in found if c.parts[:1] and c.parts[0].kind is ChargeKind.TRANSFER]
    end = a.released_at if a.state in OVER and a.released_at else now
    return AttemptCost(
        seconds=max((end - a.launched_at).total_seconds(), 0.0),
        usd_micros=sum(c.usd_micros for c in found),
        usd_micros_on_demand=sum(c.usd_micros_on_demand for c in found if c.parts and c.parts[0].kind in OF_MACHINE),
        transfer_bytes=int(sum(p.quantity for c in moved for p in c.parts)),
        transfer_usd_micros=sum(c.usd_micros for c in moved),
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the store took for a job until its bytes changed last, micro-dollars; and the bytes since then."""

    paid: Fraction
    level: tuple[datetime, int]

    @property
    def closed_micros(self) -> int:
        """All of it, if nothing is in the store any more; else 0."""
        return 0 if self.level[1] else ceil(self.paid)


NO_COST = AttemptCost()


class Costs:
    """Spending by attempt and job. `refresh` reads only what can still change."""

    def __init__(self, rules: Rules, images: Sequence[KeptImage] = (), controller_since: datetime | None = None) -> None:
        """`controller_since`: when the controller's host began to cost; None = it is not billed."""
        self._rules, self._images, self._controller_since = rules, images, controller_since
        # Settled and running ones; replaced as one for other readers.
        self._bills: tuple[dict[Key, AttemptCost], dict[Key, AttemptCost]] = {}, {}
        self._stored: dict[JobId, int] = {}  # micro-dollars
        self._kept: dict[JobId, _Kept] = {}
        self._nobodys = 0  # micro-dollars
        self._spent: dict[JobId, int] = {}  # by job, of all
        self._loaded_at: datetime | None = None
        self._counted: dict[Key, int] = {}  # by attempts that counted lately: all counts together, which only grow
        self._payer: dict[JobId, JobId] = {}  # of rehearsals: their parents
        self._scopes: dict[JobId, tuple[str, ...]] = {}  # of all jobs, for budgets
        self._closed = Counter[str]()  # by scope: what can't change any more, each attempt added once; micro-dollars
        self._before: dict[tuple[str, datetime | None], int] = {}  # scope, moment -> what it had spent by then, micro-dollars
        self._lock = threading.Lock()

    def refresh(self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], now: datetime) -> None:
        """Bring the figures up to `now`; `attempts` are those just read of open jobs, so that they are not read twice."""
        settled, running = self._bills
        more = {job for job, _ in running}  # jobs that ended since: their last bill is still to be settled
        late = set[Key]()  # settled ones of which a report came since
        if self._loaded_at is None:
            everybody = rows.all_jobs(connection)
            self.pay_for(everybody)
            more = {j.id for j in everybody}
        else:
            late = self._counted_anew(connection, self._loaded_at)
            more |= {job for job, _ in late}
        missing = sorted(more - set(attempts))
        found = {**attempts, **(rows.attempts(connection, missing) if missing else {})}
        anew = [a for some in found.values() for a in some if (a.job, a.number) not in settled or (a.job, a.number) in late]
        machines = {(m.attempt.job, m.attempt.number): m for m in self._machines(connection, anew)}
        bills = {key: cost(m, self._rules, now) for key, m in machines.items()}
        over = {key: bills.pop(key) for key, m in machines.items() if m.settled}
        kept = self._keep(connection)
        with self._lock:
            settled = self._bills[0]  # the current one: another thread may have asked meanwhile
            for key, one in over.items():
                self._close(key[0], one.usd_micros - settled.get(key, NO_COST).usd_micros)
            for job, one_kept in kept.items():
                if one_kept is not (old := self._kept.get(job)):
                    self._close(job, one_kept.closed_micros - (old.closed_micros if old is not None else 0))
            self._bills = ({**settled, **over} if over else settled), {k: c for k, c in bills.items() if k not in settled}
            self._kept, self._stored = kept, {job: k.closed_micros or self._stored_by(job, k, now) for job, k in kept.items()}
            self._nobodys = sum(c.usd_micros for c in bill.of_nobody(self._of_nobody(), self._rules, now))
            self._spent = self._by_job()
            self._loaded_at = now

    def _counted_anew(self, connection: Connection, since: datetime) -> set[Key]:
        """Attempts with other counts than at the last look. Those of the last minutes are read each time, and most are as they
        were: a bill of a shared machine, for one, is not made again for nothing."""
        late = ledger_facts.counted_since(connection, since - LATE)
        counts = ledger_facts.counts(connection, sorted({job for job, _ in late}))
        before, self._counted = self._counted, {key: sum(sum(day[1:]) for day in counts.get(key, ())) for key in late}
        return {key for key in late if self._counted[key] != before.get(key)}

    def _stored_by(self, job: JobId, kept: _Kept, now: datetime) -> int:
        return ceil(kept.paid + self._due(job, kept.level, now))

    def _close(self, job: JobId, usd_micros: int) -> None:
        for scope in self._scopes_of(job):
            self._closed[scope] += usd_micros

    def _scopes_of(self, job: JobId | None) -> tuple[str, ...]:
        """A rehearsal counts for its parent. What is no job's own counts for everything alone."""
        return (EVERYTHING,) if job is None else self._scopes.get(self._payer.get(job, job), (EVERYTHING,))

    def spent(
        self, connection: Connection, wanted: Collection[tuple[str, datetime | None]]
    ) -> dict[tuple[str, datetime | None], int]:
        """What these scopes spent since the beginning of a UTC day (None: ever), up to the last `refresh`. Micro-dollars.

        It is all that they ever spent less what they had spent by then, which is read from the bill's lines once.
        """
        if self._loaded_at is None:
            return dict.fromkeys(wanted, 0)
        with self._lock:
            total = self._by_scope({scope for scope, _ in wanted})
            before = {key: self._before[key] for key in wanted if key in self._before}
            missing = {(scope, at) for scope, at in wanted if at is not None and (scope, at) not in before}
            later = self._since(connection, {at for _, at in missing})
            before |= {(scope, at): total[scope] - later[at][scope] for scope, at in missing}
            self._before = before
            return {(scope, at): total[scope] - before.get((scope, at), 0) for scope, at in wanted}

    def _by_scope(self, scopes: Collection[str]) -> dict[str, int]:
        found = {scope: self._closed[scope] for scope in scopes}
        running = [(job, one.usd_micros) for (job, _), one in self._bills[1].items()]
        stored = [(job, self._stored[job]) for job, kept in self._kept.items() if not kept.closed_micros]
        for job, micros in (*running, *stored, (None, self._nobodys)):
            for scope in self._scopes_of(job):
                if scope in found:
                    found[scope] += micros
        return found

    def _since(self, connection: Connection, times: Collection[datetime]) -> dict[datetime, Counter[str]]:
        """By scope, the sum of the lines of the days from each of these on. The bill is read once for all of them."""
        found = {since: Counter[str]() for since in times}
        if not found:
            return found
        assert self._loaded_at is not None
        since = min(found)
        jobs = ledger_facts.billed_since(connection, since - DAY)  # a minimum may reach into the day after the end
        jobs |= {job for job, kept in self._kept.items() if kept.level[1]} | set(ledger_facts.stored_since(connection, since))
        for line in self._lines(connection, sorted(jobs), self._of_nobody(), self._loaded_at, (since, None)):
            for sums in (sums for at, sums in found.items() if line.begins >= at):
                for scope in self._scopes_of(line.payer or line.job):
                    sums[scope] += line.usd_micros
        return found

    def lines(
        self,
        connection: Connection,
        jobs: Sequence[Job] | None,
        now: datetime,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[ChargeLine]:
        """The bill of these jobs, or of everything; of the UTC days from that of `since` on that begin before `until`."""
        everybody = rows.all_jobs(connection) if jobs is None else jobs
        self.pay_for(everybody)
        nobodys = self._of_nobody() if jobs is None else Facts()
        return self._lines(connection, [j.id for j in everybody], nobodys, now, (since, until))

    def _lines(
        self,
        connection: Connection,
        wanted: Sequence[JobId],
        nobodys: Facts,
        now: datetime,
        period: tuple[datetime | None, datetime | None],
    ) -> list[ChargeLine]:
        since, until = period
        earliest = None if since is None else day_of(since) - DAY  # a minimum may reach into the day after the end
        attempts = [
            a
            for some in rows.attempts(connection, wanted).values()
            for a in some
            if earliest is None or a.released_at is None or a.released_at >= earliest
        ]
        machines = self._machines(connection, attempts)
        stored = ledger_facts.stored(connection, wanted)
        kept = [StoredFacts(job, self._payer.get(job, job), levels) for job, levels in stored.items()]
        facts = Facts(machines, kept, nobodys.images, nobodys.controller_since)
        return [x for x in bill.lines(facts, self._rules, now) if _within(day_of(x.begins), since, until)]

    def _keep(self, connection: Connection) -> dict[JobId, _Kept]:
        """What the store took up to each job's last change; only jobs that changed are read again."""
        changed = None if self._loaded_at is None else ledger_facts.stored_since(connection, self._loaded_at - LATE)
        kept = dict(self._kept)
        for job, levels in ledger_facts.stored(connection, changed).items():
            *_, last = levels
            kept[job] = _Kept(sum((self._due(job, a, b[0]) for a, b in pairwise(levels)), Fraction(0)), last)
        return kept

    def _due(self, job: JobId, level: tuple[datetime, int], until: datetime) -> Fraction:
        facts = StoredFacts(job, job, [level])
        return sum((c.exact_micros for c in bill.of_stored(facts, self._rules, until)), Fraction(0))

    def _machines(self, connection: Connection, attempts: Sequence[Attempt]) -> list[MachineFacts]:
        jobs = sorted({a.job for a in attempts})
        steps: Mapping[Key, Steps] = observations.prices(connection, jobs)
        counts = ledger_facts.counts(connection, jobs)
        shared = ledger_facts.shared(connection, attempts)
        found = []
        for a in attempts:
            key, payer = (a.job, a.number), self._payer.get(a.job, a.job)
            counted = [Counts(*c) for c in counts.get(key, ())]
            if a.token in shared:
                machine, prices, stays = shared[a.token]
                found.append(MachineFacts(a, payer, prices, counted, machine, stays))
            else:
                found.append(MachineFacts(a, payer, steps.get(key, ()), counted))
        return found

    def _of_nobody(self) -> Facts:
        return Facts(images=self._images, controller_since=self._controller_since)

    def _by_job(self) -> dict[JobId, int]:
        """A job's bill; a rehearsal's counts for its parent, too. Lists ask for each job, so it is added up once a look."""
        spent: defaultdict[JobId, int] = defaultdict(int)
        each = [(job, one.usd_micros) for bills in self._bills for (job, _), one in bills.items()]
        for job, micros in (*each, *self._stored.items()):
            for payer in {job, self._payer.get(job, job)}:
                spent[payer] += micros
        return dict(spent)

    def pay_for(self, jobs: Iterable[Job]) -> None:
        """Count rehearsals among these jobs for their parents, and all of them for their scopes."""
        jobs = list(jobs)
        self._scopes |= {
            j.id: tuple(map(intern, scopes_of(j))) for j in jobs if j.id not in self._scopes
        }  # kept of ended ones, too
        self._payer |= {j.id: j.parent.job for j in jobs if j.parent is not None and j.parent.rehearsal}

    def of(self, key: Key) -> AttemptCost:
        """One attempt's bill so far."""
        settled, running = self._bills
        return settled.get(key) or running.get(key) or NO_COST

    def of_job(self, job: JobId) -> int:
        """A job's bill so far, its rehearsals included, micro-dollars."""
        return self._spent.get(job, 0)

    def total(self) -> int:
        """All spending ever, micro-dollars: of jobs, and what is nobody's own."""
        return sum(c.usd_micros for d in self._bills for c in d.values()) + sum(self._stored.values()) + self._nobodys


def _within(day: datetime, since: datetime | None, until: datetime | None) -> bool:
    return (since is None or day >= day_of(since)) and (until is None or day < until)
