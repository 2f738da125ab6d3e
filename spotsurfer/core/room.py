"""What machines take of the operator's limits on machines, GPUs and money an hour, and whether one more has room. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spotsurfer.core.gpus import asked
from spotsurfer.model.job import OVER, Attempt, JobSpec
from spotsurfer.model.market import Offer
from spotsurfer.model.money import usd
from spotsurfer.model.snapshot import JobSeen, Limits, Snapshot


@dataclass(frozen=True, slots=True)
class Use:
    """Of some machines together. Money as they were bought: a price that rises later moves nobody."""

    machines: int = 0
    gpus: int = 0
    usd_micros_per_hour: int = 0

    def __add__(self, other: Use) -> Use:
        """Both together."""
        money = self.usd_micros_per_hour + other.usd_micros_per_hour
        return Use(self.machines + other.machines, self.gpus + other.gpus, money)


NOTHING = Use()


def of_attempt(attempt: Attempt, spec: JobSpec) -> Use:
    """Of the machine of one attempt, also of one that is being released; nothing when that is confirmed."""
    if attempt.state in OVER:
        return NOTHING
    return Use(1, max(attempt.gpus, asked(spec)), attempt.price_usd_micros_per_hour)


def of_offer(offer: Offer) -> Use:
    """Of a machine that could be bought."""
    return Use(1, offer.gpus.count, offer.price_usd_micros_per_hour)


def together(some: Iterable[Use]) -> Use:
    """The sum."""
    return sum(some, NOTHING)


def in_use(jobs: Iterable[JobSeen]) -> Use:
    """Of all machines that there may be, those still being released included."""
    return together(of_attempt(a, seen.job.spec) for seen in jobs for a in seen.attempts)


def strangers(snapshot: Snapshot) -> Use:
    """Of machines that belong to no attempt and are about to be ended; what they cost and hold nobody knows."""
    return Use(len(snapshot.orphans))


def lacking(used: Use, more: Use, limits: Limits) -> str | None:
    """The limit that would be passed if `more` came to what is used, or None. A limit that `more` adds nothing to does not
    count: who needs no GPU does not wait for one."""
    if used.machines + more.machines > limits.instances_max and more.machines:
        return f"limits.instances_max = {limits.instances_max} machines are in use, those still being released included"
    if limits.gpus_max is not None and used.gpus + more.gpus > limits.gpus_max and more.gpus:
        return f"limits.gpus_max is {limits.gpus_max}: {used.gpus} are in use, and its machine has {more.gpus}"
    most, here, cost = limits.hourly_max_usd_micros, used.usd_micros_per_hour, more.usd_micros_per_hour
    if most is not None and here + cost > most and cost:
        return f"limits.hourly_max_usd is {usd(most)}: machines cost {usd(here)} an hour, and its machine {usd(cost)} more"
    return None
