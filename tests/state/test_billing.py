"""What a machine costs, to the micro-dollar."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_wire.messages import AgentState, Report
from support.builders import JOB, NOW, a_job, an_attempt

from spotsurfer.ledger.costs import AttemptCost, Costs, cost
from spotsurfer.ledger.facts import Counts, MachineFacts, Rules
from spotsurfer.model.job import Attempt, AttemptNumber
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Pool
from spotsurfer.model.money import for_seconds, from_usd, usd
from spotsurfer.model.prices import GIB, EgressPrices, Place, Steps, Tariff
from spotsurfer.ports.provider import BillingRule
from spotsurfer.state import jobs, observations
from spotsurfer.state.db import open_database

RULE = BillingRule(60.0)
HOUR = 3600


def charge(attempt: Attempt, steps: Steps, rule: BillingRule, now: datetime) -> AttemptCost:
    return cost(MachineFacts(attempt, attempt.job, steps), Rules({attempt.pool.provider: (rule,)}), now)


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
    assert charge(used(HOUR - 1, reclaimed=True), [], free, NOW).usd_micros == 0
    assert charge(used(HOUR + 1, reclaimed=True), [], free, NOW).usd_micros > 30_000
    assert charge(used(HOUR - 1, reclaimed=True), [], RULE, NOW).usd_micros > 0


def test_money_is_exact() -> None:
    assert from_usd("0.096") == 96_000
    assert usd(96_000) == "0.0960"
    assert for_seconds(96_000, 0.5) == 14
    small = (0, 4, 40, 449, 1_234, -449, 12_340_000)
    assert [usd(m) for m in small] == ["0.0000", "0.000004", "0.000040", "0.00045", "0.0012", "-0.00045", "12.3400"]


# ---- Transfer


HERE, THERE = Place("one", "east"), Place("two", "east")
TARIFF = Tariff(HERE, {"one": EgressPrices(20_000, 90_000), "two": EgressPrices(20_000, 120_000)})


def counted(read: int, sent: int) -> Report:
    return Report("j", 1, "i", "0", 1, AgentState.RUNNING, 1, store_read_bytes=read, store_sent_bytes=sent)


def moved(place: Place, read: int, sent: int) -> AttemptCost:
    attempt = used(HOUR, pool=Pool(place.provider, place.region, "a", "large"))
    return cost(MachineFacts(attempt, attempt.job, counts=[Counts(NOW, read, sent)]), Rules(tariff=TARIFF), NOW)


def test_transfer_is_part_of_the_bill() -> None:
    assert moved(THERE, GIB, 0) == AttemptCost(3600.0, 120_000, 100_000, GIB, 90_000)
    assert moved(THERE, 0, GIB // 2) == AttemptCost(3600.0, 90_000, 100_000, GIB // 2, 60_000)


@given(st.sampled_from([HERE, THERE, Place("one", "west")]), st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_each_direction_is_rounded_up_on_its_own(place: Place, read: int, sent: int) -> None:
    bill = moved(place, read, sent)
    assert bill.usd_micros - bill.transfer_usd_micros == 30_000
    out, back = {HERE: (0, 0), THERE: (90_000, 120_000)}.get(place, (20_000, 20_000))
    assert bill.transfer_usd_micros == ceil(Fraction(read * out, GIB)) + ceil(Fraction(sent * back, GIB))


def test_transfer_is_counted_while_a_machine_runs_and_stays_when_it_has_ended() -> None:
    engine, far = open_database(None), Pool("two", "east", "a", "large")
    ends = an_attempt(1, A.RELEASED, launched_at=NOW, released_at=NOW + timedelta(hours=1), pool=far)
    runs = an_attempt(2, launched_at=NOW, pool=far)
    near = an_attempt(3, launched_at=NOW, pool=Pool("one", "east", "a", "large"))
    with engine.begin() as c:
        jobs.add_job(c, a_job())
        for a in (ends, runs, near):
            jobs.add_attempt(c, a)
            observations.set_usage(c, replace(counted(GIB, 0), job=JOB, attempt=int(a.number)), NOW)
        for costs in (Costs(Rules(tariff=TARIFF)), Costs(Rules(tariff=TARIFF))):
            for _ in range(2):
                costs.refresh(c, {JOB: [ends, runs, near]}, NOW + timedelta(hours=1))
                each = [costs.of((JOB, AttemptNumber(n))) for n in (1, 2, 3)]
                assert [b.transfer_usd_micros for b in each] == [90_000, 90_000, 0]
                assert costs.total() == costs.of_job(JOB) == sum(b.usd_micros for b in each) == 3 * 30_000 + 2 * 90_000
