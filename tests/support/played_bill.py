"""A job that lived on three machines, as facts and as the lines that the ledger makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from spotsurfer.ledger import bill
from spotsurfer.ledger.facts import Facts, MachineFacts, Rules
from spotsurfer.ledger.time_by_use import AttemptFacts, JobFacts
from spotsurfer.model.charges import ChargeLine
from spotsurfer.model.job import Attempt, AttemptNumber, AttemptState, InstanceId, Job, JobId, JobSpec, JobState
from spotsurfer.model.market import Market, Pool

NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)
NOW = datetime(2026, 11, 20, tzinfo=UTC)
JOB = JobId("asm-1")


def at(minutes: float) -> datetime:
    """So long after noon of the day."""
    return NOON + timedelta(minutes=minutes)


def attempt(number: int, launched: float, granted: float | None, released: float, **more: object) -> Attempt:
    """A machine that was launched, got the job and was given back so many minutes after noon; spot of 96,000 a list hour."""
    values: dict[str, object] = {
        "state": AttemptState.RELEASED,
        "since": at(released),
        "pool": Pool("aws", "us-east-2", "us-east-2a", "m6i.large"),
        "market": Market.SPOT,
        "price_usd_micros_per_hour": 30_000,
        "list_price_usd_micros_per_hour": 96_000,
        "token": f"token-{number}",
        "planned_at": at(launched),
        "granted_at": at(granted) if granted is not None else None,
        "launched_at": at(launched),
        "released_at": at(released),
        "instance": InstanceId(f"i-0000000000000000{number}"),
        "from_checkpoint": "000001-000001" if number > 1 else None,
    }
    return Attempt(job=JOB, number=AttemptNumber(number), **{**values, **more})  # type: ignore[arg-type]


def played() -> JobFacts:
    """A spot machine that is taken away with 5 minutes of work unsaved; one on demand; and back to spot, on a larger type."""
    larger = Pool("aws", "us-east-2", "us-east-2b", "m6i.xlarge")
    first = attempt(1, 0, 2, 60, reclaimed=True, reason="reclaimed")
    second = attempt(2, 61, 63, 125, market=Market.ON_DEMAND, price_usd_micros_per_hour=96_000, reason="moved")
    third = attempt(
        *(3, 120, 123, 183),
        pool=larger,
        price_usd_micros_per_hour=61_000,
        list_price_usd_micros_per_hour=192_000,
        reason="done",
    )
    spec = JobSpec("asm", ("prog",), tags={"lab": "a"}, project="genome")
    job = Job(JOB, spec, JobState.SUCCEEDED, 1, NOON, owner="ann")
    return JobFacts(
        job,
        [
            AttemptFacts(first, "running", frozen_seconds=12.0, unsaved_seconds=300.0),
            AttemptFacts(second, "drained", frozen_seconds=6.0, restore_seconds=30.0),
            AttemptFacts(third, "finished", restore_seconds=60.0),
        ],
        peak_memory_bytes=3 << 30,
        peak_cpus=1.6,
    )


def lines_of(facts: Sequence[JobFacts], now: datetime = NOW) -> list[ChargeLine]:
    """The bill of these jobs, each of which pays for itself."""
    machines = [MachineFacts(a.attempt, f.job.parent.job if f.job.parent else f.job.id) for f in facts for a in f.attempts]
    return list(bill.lines(Facts(machines), Rules(), now))
