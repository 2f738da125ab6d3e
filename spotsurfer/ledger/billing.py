"""What a machine costs: one function for real and simulated bills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotsurfer.model.job import OVER, Attempt
from spotsurfer.model.market import Market
from spotsurfer.model.money import for_seconds
from spotsurfer.ports.provider import BillingRule

Steps = Sequence[tuple[datetime, int]]


@dataclass(frozen=True, slots=True)
class Charge:
    """What an attempt's machine cost, and what it would have cost at list price. Micro-dollars."""

    seconds: float
    usd_micros: int
    usd_micros_on_demand: int


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
