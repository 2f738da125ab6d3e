"""Every bill in `bills/`, to the micro-dollar and line by line; and what must hold of any bill."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bill_check import check
from support.bill_stories import FOLDER, Bill, load, names, text_of

from spotsurfer.ledger import bill
from spotsurfer.ledger.facts import Facts
from spotsurfer.model.charges import ChargeLine

NAMES = names()
T = TypeVar("T")


def lines_of(told: Bill) -> list[ChargeLine]:
    return bill.lines(told.facts, told.rules, told.now)


@pytest.mark.parametrize("name", NAMES)
def test_a_bill_made_by_hand(name: str) -> None:
    told = load(name)
    found = lines_of(told)
    assert sorted(text_of(found)) == sorted(told.lines)
    assert sum(x.usd_micros for x in found) == told.total
    assert check(found, told.facts, told.rules, told.now) == []
    assert all(x.ends <= bill.day_of(x.begins) + bill.DAY and x.begins <= x.ends for x in found), "a line is of one UTC day"


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) >= 25
    assert {name.partition("/")[0] for name in NAMES} == {"aws", "gcp", "boxes", "sky"}
    assert all("total" in (Path(FOLDER) / f"{name}.toml").read_text() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_line_is_named(name: str) -> None:
    """Each line is left out once: the check names that one, by its day, its kind and whose it is."""
    told = load(name)
    whole = lines_of(told)
    for n, lost in enumerate(whole):
        if not lost.quantity:
            continue
        (said,) = check([*whole[:n], *whole[n + 1 :]], told.facts, told.rules, told.now)
        assert said.startswith(f"{lost.begins:%Y-%m-%d}: the line {lost.kind}")
        assert said.endswith("is missing")
        assert (f"attempt {lost.attempt} of {lost.job}" if lost.attempt else lost.job or lost.resource or "controller") in said


def test_a_line_that_is_too_much_or_wrong_is_named() -> None:
    told = load("aws/minimum")
    first, *others = lines_of(told)
    again = replace(first, begins=first.begins + timedelta(days=1))
    assert check([first, *others, again], told.facts, told.rules, told.now) == [
        f"{again.begins:%Y-%m-%d}: the line machine of attempt 1 of a has no fact"
    ]
    assert check([replace(first, quantity=5.0), *others], told.facts, told.rules, told.now) == [
        f"{first.begins:%Y-%m-%d}: the line machine of attempt 1 of a has 5 instead of 12"
    ]


@given(st.sampled_from(NAMES), st.randoms(use_true_random=False))
def test_facts_in_any_order_make_the_same_bill(name: str, chance: random.Random) -> None:
    told = load(name)

    def mixed(some: list[T]) -> list[T]:
        return chance.sample(some, len(some))

    machines = [replace(m, steps=mixed(list(m.steps)), counts=mixed(list(m.counts))) for m in told.facts.machines]
    stored = [replace(s, levels=mixed(list(s.levels))) for s in told.facts.stored]
    facts = Facts(mixed(machines), mixed(stored), mixed(list(told.facts.images)), told.facts.controller_since)
    assert bill.lines(facts, told.rules, told.now) == lines_of(told)


@given(st.sampled_from(NAMES), st.lists(st.integers(1, 3 * 86400 * 1_000_000), max_size=6))
def test_any_split_into_days_has_the_same_total(name: str, lengths: list[int]) -> None:
    """Days of other lengths, with ends at any microsecond: what the charges come to stays the same."""
    told = load(name)
    ends, end = list[datetime](), min((x.begins for x in lines_of(told)), default=told.now)
    for length in lengths:
        end += timedelta(microseconds=length)
        ends.append(end)

    def end_of_day(moment: datetime) -> datetime:
        return next((x for x in ends if x > moment), datetime.max.replace(tzinfo=UTC))

    for charge in bill.charges(told.facts, told.rules, told.now):
        for lines in (list(charge.lines()), list(charge.lines(end_of_day))):
            assert sum(x.usd_micros for x in lines) == charge.usd_micros
            assert sum(x.usd_micros_on_demand for x in lines) == charge.usd_micros_on_demand
            assert sum(x.quantity for x in lines) == pytest.approx(float(sum(p.quantity for p in charge.parts)))
            assert all(x.usd_micros >= 0 for x in lines)
