"""Operator limits on machines, GPUs and spending: what is in use, and whether one more machine fits. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING

from spotsurfer.core.facts.ownership import tried_since
from spotsurfer.core.scheduling.machines import uncounted
from spotsurfer.core.scheduling.placement import GIB, asked
from spotsurfer.model.job import HOLDS, OVER, WAITS, Attempt, Job, JobId, JobSpec, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Offer
from spotsurfer.model.money import for_seconds, usd
from spotsurfer.model.snapshot import JobSeen, Limits, Snapshot


@dataclass(frozen=True, slots=True)
class Use:
    """What some machines take of the limits together. Money counts at the purchase price: a later rise moves no job."""

    machines: int = 0
    gpus: int = 0
    usd_micros_per_hour: int = 0

    def __add__(self, other: Use) -> Use:
        """Both together."""
        money = self.usd_micros_per_hour + other.usd_micros_per_hour
        return Use(self.machines + other.machines, self.gpus + other.gpus, money)


NOTHING = Use()


def gpus_of(attempts: Iterable[Attempt], spec: JobSpec, limits: Limits) -> int:
    """The GPUs of these machines of one job. If a provider's machines share their GPUs, the job has the same ones on each."""
    each = [(a.pool.provider, max(a.gpus, asked(spec))) for a in attempts]
    shared = (n for provider, n in each if provider in limits.gpus_shared)
    return max(shared, default=0) + sum(n for provider, n in each if provider not in limits.gpus_shared)


def of_job(job: Job, attempts: Iterable[Attempt], limits: Limits) -> Use:
    """The use of a job's machines, each until its release is confirmed.

    Shared GPUs are free as soon as the job leaves for another one or for a suspension, while its machine still sends what was
    saved. So the next job's machine is bought meanwhile: its agent waits for the memory of the GPUs.
    """
    there = [a for a in attempts if a.state not in OVER]
    apart = (a for a in there if a.pool.provider not in limits.gpus_shared)
    shared = (a for a in there if a.pool.provider in limits.gpus_shared and a.state in HOLDS | WAITS and not _leaves(job, a))
    has = [*apart, *shared]
    money = sum(a.price_usd_micros_per_hour for a in there)
    return Use(len(there), gpus_of(has, job.spec, limits), money)


def _leaves(job: Job, attempt: Attempt) -> bool:
    """Whether the job leaves this machine and is not to run on elsewhere at once."""
    return attempt.state is A.DRAINING and (bool(attempt.gave_way_to) or job.wish is not Wish.RUN)


def of_offer(offer: Offer) -> Use:
    """The use of a machine that could be bought."""
    return Use(1, offer.gpus.count, offer.price_usd_micros_per_hour)


def together(some: Iterable[Use]) -> Use:
    """The sum."""
    return sum(some, NOTHING)


def strangers(snapshot: Snapshot) -> Use:
    """The use of machines that belong to no attempt: orphans, about to be ended, with unknown price and GPUs, and kept ones
    without a job. A kept one with several jobs was counted too often."""
    machines, money = uncounted(snapshot)
    return Use(len(snapshot.orphans) + machines, 0, money)


def lacking(used: Use, more: Use, limits: Limits) -> str | None:
    """The limit that `used` and `more` together would exceed, or None. A limit to which `more` adds nothing does not count: a
    job without GPUs does not wait for one."""
    if used.machines + more.machines > limits.instances_max and more.machines:
        return f"limits.instances_max = {limits.instances_max} machines are in use, those still being released included"
    if limits.gpus_max is not None and used.gpus + more.gpus > limits.gpus_max and more.gpus:
        return f"limits.gpus_max is {limits.gpus_max}: {used.gpus} are in use, and its machine has {more.gpus}"
    most, here, cost = limits.hourly_max_usd_micros, used.usd_micros_per_hour, more.usd_micros_per_hour
    if most is not None and here + cost > most and cost:
        return f"limits.hourly_max_usd is {usd(most)}: machines cost {usd(here)} an hour, and its machine {usd(cost)} more"
    return None


# ---- Hard limits on money and machines: a job is held before it exceeds one, never after

MEMORY_KILLS_MAX = 3  # each time the next machine has one and a half times the memory
MORE_MONEY = "raise it with `spotsurfer budget`"
MORE = "submit it with more in [resources] memory, or allow larger machines and resume"


def reserve(attempts: Iterable[Attempt], limits: Limits) -> int:
    """The cost of the machines until they could be drained and released, in micro-dollars."""
    alive = (a for a in attempts if a.state not in OVER and a.state is not A.PLANNED)
    return sum(for_seconds(a.price_usd_micros_per_hour, limits.drain_reserve_seconds) for a in alive)


def _committed(snapshot: Snapshot) -> int:
    """What all machines cost so far, and will cost until they could be drained and released, in micro-dollars."""
    return snapshot.spent_usd_micros + sum(reserve(seen.attempts, snapshot.limits) for seen in snapshot.jobs)


def over_budget(snapshot: Snapshot, seen: JobSeen) -> str | None:
    """Why this job must be held for money, or None."""
    if seen.job.wish is not Wish.RUN or seen.job.state not in (JobState.QUEUED, JobState.ACTIVE):
        return None
    cap = snapshot.limits.budget_usd_micros
    if cap is not None and _committed(snapshot) >= cap:
        return f"the budget of {usd(cap)} USD would be passed; raise limits.budget_usd and resume"
    own, mine = seen.job.spec.budget_usd_micros, seen.spent_usd_micros + reserve(seen.attempts, snapshot.limits)
    if own is not None and mine >= own:
        return f"the job's budget of {usd(own)} USD would be passed; {MORE_MONEY} and resume"
    return None


def no_room_left(
    snapshot: Snapshot, seen: JobSeen, offer: Offer, planned: Iterable[Offer], giving: Container[JobId] = ()
) -> str | None:
    """Why this machine for this job would exceed the limits on machines, GPUs and money an hour, or None.

    `giving`: jobs that give way from now on. On shared GPUs, a job that moves needs no more GPUs than it has.
    """
    limits, more = snapshot.limits, of_offer(offer)
    uses = {s.job.id: of_job(s.job, s.attempts, limits) for s in snapshot.jobs}
    if offer.pool.provider in limits.gpus_shared:
        uses = {job: replace(use, gpus=0) if job in giving else use for job, use in uses.items()}
        more = replace(more, gpus=max(0, more.gpus - uses.get(seen.job.id, NOTHING).gpus))
    used = together(uses.values()) + strangers(snapshot) + together(of_offer(o) for o in planned)
    return lacking(used, more, limits)


def out_of_memory(snapshot: Snapshot, seen: JobSeen) -> str | None:
    """Why a job that the kernel killed for memory must be held: too often, or no larger machine exists. None = it goes on."""
    kills = [a for a in seen.attempts if a.number in seen.memory_kills and tried_since(seen.job, a)]
    last = max((a.number for a in kills), default=None)
    if last is None or any(a.number > last and (a.granted_at or a.state not in OVER) for a in seen.attempts):
        return None
    if len(kills) >= MEMORY_KILLS_MAX:
        return f"the kernel killed it {len(kills)} times because memory ended; {MORE}"
    most = max((o.memory_bytes for o in snapshot.offers), default=seen.memory_floor_bytes)
    if most >= seen.memory_floor_bytes:
        return None
    had = f"it needs {seen.memory_floor_bytes / GIB:.1f} GiB, and the largest machine on offer has {most / GIB:.1f}"
    return f"the kernel killed it because memory ended; {had}; {MORE}"


def no_money_left(snapshot: Snapshot, seen: JobSeen, offer: Offer, planned: Iterable[Offer]) -> str | None:
    """Why the money would not last to start this machine, save the job and release it again, with the amount needed and the
    setting to raise; or None."""
    limits = snapshot.limits
    costs = [for_seconds(o.price_usd_micros_per_hour, limits.drain_reserve_seconds) for o in (offer, *planned)]
    cap, own = limits.budget_usd_micros, seen.job.spec.budget_usd_micros
    total = _committed(snapshot) + sum(costs)
    if cap is not None and total > cap:
        needs = f"{offer.pool}, which needs at least {usd(total - cap, ROUND_CEILING)} USD more"
        return f"the budget of {usd(cap)} USD leaves no room for {needs}; raise limits.budget_usd"
    mine = seen.spent_usd_micros + reserve(seen.attempts, limits) + costs[0]
    if own is not None and mine > own:
        needs = f"{offer.pool}, which needs at least {usd(mine - own, ROUND_CEILING)} USD more"
        return f"the job's budget of {usd(own)} USD leaves no room for {needs}; {MORE_MONEY}"
    return None
