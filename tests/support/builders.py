"""Worlds for `decide`: valid by default, one thing changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from spotsurfer.model.job import HOLDS, Attempt, AttemptNumber, AttemptState, InstanceId, Job, JobId, JobSpec, JobState
from spotsurfer.model.market import Cooldown, Market, Offer, Pool
from spotsurfer.model.snapshot import AgentSeen, HeadSeen, InstanceSeen, JobSeen, Limits, Snapshot

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = Pool("virtual", "r", "a", "small")
IN_PART = {POOL.provider: None}  # the cloud could not be listed as a whole
JOB = JobId("job")
NO_HEAD = HeadSeen(0, AttemptNumber(0), None, 0, final=False, done=False)
# What an agent says when its attempt is in a state, unless a test wants something else.
SAYS = {
    AttemptState.READY: "standby",
    AttemptState.RESTORING: "restoring",
    AttemptState.RUNNING: "running",
    AttemptState.DRAINING: "draining",
    AttemptState.DRAINED: "drained",
    AttemptState.FINISHED: "finished",
}


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def an_offer(market: Market = Market.SPOT, price: int = 30_000, pool: Pool = POOL) -> Offer:
    return Offer(pool, market, price, 100_000, 4, 8 << 30)


def a_job(spec: dict[str, Any] | None = None, **changes: Any) -> Job:
    base = JobSpec(name="job", command=("work",), **(spec or {}))
    return replace(Job(JOB, base, JobState.ACTIVE, 1, ago(1000)), **changes)


def an_attempt(number: int = 1, state: AttemptState = AttemptState.RUNNING, **changes: Any) -> Attempt:
    owned = state in HOLDS or state in (AttemptState.DRAINED, AttemptState.FINISHED)
    launched = state not in (AttemptState.PLANNED, AttemptState.REFUSED)
    made = Attempt(
        job=JOB,
        number=AttemptNumber(number),
        state=state,
        since=ago(100),
        pool=POOL,
        market=Market.SPOT,
        price_usd_micros_per_hour=30_000,
        list_price_usd_micros_per_hour=100_000,
        token=f"token-{number}",
        planned_at=ago(300),
        purpose="the job needs a machine",
        instance=InstanceId(f"i-{number}") if launched else None,
        launched_at=ago(290) if launched else None,
        granted_at=ago(200) if owned else None,
        head_number=1 if owned else 0,
    )
    return replace(made, **changes)


def an_instance(number: int = 1, gone: bool = False, reclaimed: bool = False) -> InstanceSeen:
    ended = ago(1) if gone else None
    return InstanceSeen(InstanceId(f"i-{number}"), f"token-{number}", gone, reclaimed, ago(290), ended)


def an_agent(state: str = "running", silent: float = 1.0, **changes: Any) -> AgentSeen:
    dead = state in ("drained", "finished", "fenced", "broken", "halted")
    made = AgentSeen(state, 10, ago(silent), head=1, desired=0, workload_dead=dead)
    return replace(made, **changes)


def noticed(**changes: Any) -> AgentSeen:
    deadline = NOW + timedelta(seconds=90)
    return an_agent(notice_id="n", notice_kind="interruption", notice_deadline_at=deadline, **changes)


def a_head(epoch: int = 1, number: int = 1, **changes: Any) -> HeadSeen:
    return replace(HeadSeen(number, AttemptNumber(epoch), None, 0, final=False, done=False), **changes)


def seen(attempts: Sequence[Attempt] = (), head: HeadSeen | None = NO_HEAD, **changes: Any) -> JobSeen:
    """Every attempt with a machine has an instance, and an agent once it could speak."""
    instances = {a.number: an_instance(a.number) for a in attempts if a.instance and a.state is not AttemptState.RELEASED}
    agents = {a.number: an_agent(SAYS[a.state]) for a in attempts if a.state in SAYS}
    values: dict[str, Any] = {"job": a_job(), "instances": instances, "agents": agents, **changes}
    return JobSeen(attempts=attempts, head=head, **values)


def a_snapshot(
    *jobs: JobSeen, offers: Sequence[Offer] | None = None, cooldowns: Sequence[Cooldown] = (), **changes: Any
) -> Snapshot:
    values: dict[str, Any] = {"listings": {POOL.provider: NOW}, "spent_usd_micros": 0, "limits": Limits(), **changes}
    chosen = offers if offers is not None else [an_offer(), an_offer(Market.ON_DEMAND, 100_000)]
    return Snapshot(jobs=jobs, offers=chosen, cooldowns=cooldowns, orphans=values.pop("orphans", ()), **values)
