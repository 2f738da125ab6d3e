"""Budgets of scopes: what they hold, when they warn, and whether there is money for one more machine. Pure.

A job's own budget and `limits.budget_usd` are in `capacity`. Those hold a job until somebody resumes it; a budget here lets
its jobs go on by itself, in its next period or when it is raised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING

from spotsurfer.core.scheduling.capacity import reserve
from spotsurfer.model.actions import SetWish, TellBudget
from spotsurfer.model.budgets import USED_UP, BudgetSeen, scopes_of
from spotsurfer.model.job import HeldBy, Job, JobId, JobState, Wish
from spotsurfer.model.market import Offer
from spotsurfer.model.money import for_seconds, usd
from spotsurfer.model.snapshot import JobSeen, Snapshot


class Purse:
    """The budgets of one decision: what was planned for earlier jobs counts for later ones."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._limits = snapshot.limits
        self._of: defaultdict[str, list[BudgetSeen]] = defaultdict(list)
        for seen in snapshot.budgets:
            self._of[seen.budget.scope].append(seen)
        self._reserved: defaultdict[str, int] = defaultdict(int)  # by scope, micro-dollars
        if self._of:
            for one in snapshot.jobs:
                if kept := reserve(one.attempts, self._limits):
                    self._keep(one.job, kept)
        self._used_up = {(s.budget.scope, s.budget.per): s for s in snapshot.budgets if self._is_used_up(s)}
        self._seen = snapshot.budgets

    def _keep(self, job: Job, usd_micros: int) -> None:
        for scope in scopes_of(job):
            self._reserved[scope] += usd_micros

    def _over(self, job: Job) -> Iterator[BudgetSeen]:
        """The budgets that a job counts for."""
        if self._of:
            for scope in scopes_of(job):
                yield from self._of.get(scope, ())

    def _is_used_up(self, seen: BudgetSeen) -> bool:
        """Once it was, it stays so: what was kept for the release of its machines does not start them anew."""
        return USED_UP in seen.told or self._committed(seen) >= seen.budget.usd_micros

    def _committed(self, seen: BudgetSeen) -> int:
        """What was spent, and what its machines will cost until they could be drained and released. Micro-dollars."""
        return seen.spent_usd_micros + self._reserved[seen.budget.scope]

    def tell(self) -> Iterator[TellBudget]:
        """What is to be told of the budgets now: of several shares that were passed, the highest."""
        for seen in self._seen:
            budget, spent = seen.budget, seen.spent_usd_micros
            passed = {s for s in budget.warn_at if spent * 100 >= s * budget.usd_micros}
            if (budget.scope, budget.per) in self._used_up:
                passed |= {USED_UP, *budget.warn_at}
            if not passed - seen.told:
                continue
            if USED_UP in passed - seen.told:
                text = f"{self._why(seen)}. Its jobs are held"
            else:
                text = f"{max(passed)} % of {budget} are spent: {usd(spent)} USD"
            yield TellBudget(budget, seen.begins, tuple(sorted(passed - seen.told)), max(passed), spent, text)

    def _why(self, seen: BudgetSeen) -> str:
        budget, kept = seen.budget, self._reserved[seen.budget.scope]
        spent = f"{usd(seen.spent_usd_micros)} USD were spent"
        if kept and seen.spent_usd_micros < budget.usd_micros:
            spent += f", {usd(kept)} USD are kept for saving and releasing its machines"
        until = "" if seen.ends is None else f", or wait until {seen.ends:%Y-%m-%d} UTC"
        return f"{budget}, is used up: {spent}; raise it with {budget.remedy(self._committed(seen))}{until}"

    def held(self, seen: JobSeen) -> SetWish | None:
        """The suspension of a job for which a budget has no money left, or its end; None if nothing changes."""
        job = seen.job
        why = next((found for s in self._over(job) if (found := self._used_up.get((s.budget.scope, s.budget.per)))), None)
        if job.wish is Wish.HOLD and job.held_by is HeldBy.BUDGET:
            if why is None:
                return SetWish(job.id, Wish.RUN, "its budget has money again")
            return None if str(why.budget) in job.reason else self._hold(job.id, why)
        if why is None or job.wish is not Wish.RUN or job.state not in (JobState.QUEUED, JobState.ACTIVE):
            return None
        return self._hold(job.id, why)

    def _hold(self, job: JobId, why: BudgetSeen) -> SetWish:
        return SetWish(job, Wish.HOLD, self._why(why), held_by=HeldBy.BUDGET)

    def lacks(self, job: Job, offer: Offer) -> str | None:
        """Why the money of a budget would not last to start this machine, save the job and release it again, or None."""
        cost = for_seconds(offer.price_usd_micros_per_hour, self._limits.drain_reserve_seconds)
        for seen in self._over(job):
            if (seen.budget.scope, seen.budget.per) in self._used_up:
                return self._why(seen)
            budget, total = seen.budget, self._committed(seen) + cost
            if total > budget.usd_micros:
                needs = f"{offer.pool}, which needs at least {usd(total - budget.usd_micros, ROUND_CEILING)} USD more"
                return f"{budget}, leaves no room for {needs}; raise it with {budget.remedy(total)}"
        return None

    def take(self, job: Job, offer: Offer) -> None:
        """Count a machine that was planned."""
        if self._of:
            self._keep(job, for_seconds(offer.price_usd_micros_per_hour, self._limits.drain_reserve_seconds))


def held_by(seen: BudgetSeen, jobs: Sequence[Job]) -> list[Job]:
    """The jobs that this budget holds."""
    if USED_UP not in seen.told:
        return []
    return [j for j in jobs if j.held_by is HeldBy.BUDGET and j.wish is Wish.HOLD and seen.budget.scope in scopes_of(j)]
