"""What a machine costs, to the micro-dollar."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from support.builders import NOW, an_attempt

from spotsurfer.ledger.costs import charge
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.money import for_seconds, from_usd, usd
from spotsurfer.ports.provider import BillingRule

RULE = BillingRule(60.0)
HOUR = 3600


def used(seconds: float, **changes: object):  # type: ignore[no-untyped-def]
    end = NOW + timedelta(seconds=seconds)
    return an_attempt(1, A.RELEASED, launched_at=NOW, released_at=end, **changes)


@pytest.mark.parametrize(("seconds", "expected"), [(HOUR, 30_000), (60, 500), (61, 509), (3, 500), (0, 500)])
def test_by_the_second_with_a_minimum_rounded_up(seconds: float, expected: int) -> None:
    assert charge(used(seconds), [], RULE, NOW).usd_micros == expected


def test_what_was_never_launched_costs_nothing() -> None:
    assert charge(replace(used(9), launched_at=None), [], RULE, NOW).usd_micros == 0


def test_a_running_machine_costs_up_to_now() -> None:
    running = an_attempt(1, launched_at=NOW)
    assert charge(running, [], RULE, NOW + timedelta(seconds=HOUR)).usd_micros == 30_000


def test_each_second_at_its_price() -> None:
    steps = [(NOW, 30_000), (NOW + timedelta(seconds=HOUR), 60_000)]
    assert charge(used(2 * HOUR), steps, RULE, NOW).usd_micros == 90_000


def test_list_price_beside_it() -> None:
    assert charge(used(HOUR), [], RULE, NOW).usd_micros_on_demand == 100_000


def test_a_free_first_hour_only_where_the_rule_has_it() -> None:
    free = BillingRule(60.0, reclaimed_first_hour_free=True)
    assert charge(used(HOUR - 1), [], free, NOW, reclaimed=True).usd_micros == 0
    assert charge(used(HOUR + 1), [], free, NOW, reclaimed=True).usd_micros > 30_000
    assert charge(used(HOUR - 1), [], RULE, NOW, reclaimed=True).usd_micros > 0


def test_money_is_exact() -> None:
    assert from_usd("0.096") == 96_000
    assert usd(96_000) == "0.0960"
    assert for_seconds(96_000, 0.5) == 14
    small = (0, 4, 40, 449, 1_234, -449, 12_340_000)
    assert [usd(m) for m in small] == ["0.0000", "0.000004", "0.000040", "0.00045", "0.0012", "-0.00045", "12.3400"]
