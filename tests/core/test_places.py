"""Who gives way to whom: tables on plain values, and what holds of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, ago

from spotsurfer.core.scheduling.capacity import NOTHING, Use, lacking, together
from spotsurfer.core.scheduling.preemption import Claim, Seat, giving_way, in_order
from spotsurfer.model.job import JobId
from spotsurfer.model.snapshot import Limits

ONE = Use(1, 0, 100)
FULL = Limits(instances_max=1)


def claim(job: str = "new", priority: int = 10, level: int | None = None, use: Use = ONE, waits: float = 0.0) -> Claim:
    return Claim(JobId(job), priority, priority if level is None else level, ago(waits), use)


def seat(job: str = "old", priority: int = 0, level: int | None = None, use: Use = ONE, **changes: Any) -> Seat:
    return Seat(JobId(job), priority, priority if level is None else level, use, **changes)


def told(claims: list[Claim], seats: list[Seat], limits: Limits = FULL, others: Use = NOTHING) -> dict[str, str]:
    return {victim: c.job for victim, c in giving_way(claims, seats, others, limits).items()}


@pytest.mark.parametrize(
    ("given", "victims"),
    [
        ((claim(), seat()), {"old": "new"}),
        ((claim(priority=0), seat()), {}),
        ((claim(priority=-10), seat()), {}),
        ((claim(priority=0, level=99), seat()), {}),  # its equal has waited for long: one after the other
        ((claim(priority=-10, level=1), seat()), {"old": "new"}),  # it is starved
        ((claim(priority=10), seat(level=10)), {}),  # the other was starved, and has just got its machine
        ((claim(), seat(kept="nothing of it can be saved now")), {}),
        ((claim(use=Use(1, 8, 1)), seat(use=Use(1, 4, 1))), {"old": "new"}),  # nobody limits GPUs
    ],
)
def test_one_against_one(given: tuple[Claim, Seat], victims: dict[str, str]) -> None:
    assert told([given[0]], [given[1]]) == victims


def test_the_cheapest_goes_and_who_began_just_now_only_where_nobody_else_may() -> None:
    dear, cheap, young = seat("dear", cost_seconds=90), seat("cheap", cost_seconds=3), seat("young", young=True)
    two, three = Limits(instances_max=2), Limits(instances_max=3)
    assert told([claim()], [dear, cheap, young], three) == {"cheap": "new"}
    assert told([claim()], [dear, young], two) == {"dear": "new"}
    assert told([claim()], [young]) == {"young": "new"}


def test_who_gives_way_already_goes_on_with_it_until_the_room_is_not_needed() -> None:
    going = seat("going", cost_seconds=90, giving=True)
    assert told([claim()], [going, seat("cheap", cost_seconds=3)], Limits(instances_max=2)) == {"going": "new"}
    assert told([claim()], [going], Limits(instances_max=2)) == {}
    assert told([], [going]) == {}


def test_nobody_is_suspended_in_vain() -> None:
    gpus = Limits(gpus_max=8)
    large, small = claim(use=Use(1, 8, 0)), seat("small", use=Use(1, 4, 0))
    assert told([large], [small, seat("equal", 10, use=Use(1, 4, 0))], gpus) == {}
    assert told([large], [small, seat("cpu", use=Use(1, 0, 0), cost_seconds=0), seat("half", use=Use(1, 4, 0))], gpus) == {
        "small": "new",
        "half": "new",
    }


def test_money_an_hour_counts_as_it_was_bought() -> None:
    most = Limits(hourly_max_usd_micros=250)
    assert told([claim()], [seat("a"), seat("b", cost_seconds=1)], most) == {"a": "new"}
    assert told([claim(use=Use(1, 0, 50))], [seat("a"), seat("b")], most) == {}


def test_the_most_urgent_is_served_first_and_what_it_waits_for_is_not_given_to_others() -> None:
    late, soon = claim("late", 5, waits=100), claim("soon", 20)
    assert [c.job for c in in_order([late, soon, claim("later", 5)])] == ["soon", "late", "later"]
    assert told([late, soon], [seat()]) == {"old": "soon"}
    assert told([late, soon], [seat(priority=6)]) == {"old": "soon"}
    assert told([late, claim("soon", 20, use=Use(1, 0, 100))], [seat(priority=20)]) == {}


uses = st.builds(Use, st.just(1), st.integers(0, 8), st.integers(1, 9))
numbers = st.integers(-3, 3)
flags = st.booleans()
seats = st.lists(
    st.builds(
        Seat,
        st.just(JobId("")),
        numbers,
        numbers,
        uses,
        st.floats(0, 9),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "x"]),
    ),
    max_size=6,
).map(lambda found: [replace(s, job=JobId(f"s{i}")) for i, s in enumerate(found)])
claims = st.lists(st.builds(Claim, st.just(JobId("")), numbers, numbers, st.just(NOW), uses), max_size=4).map(
    lambda found: [replace(c, job=JobId(f"c{i}")) for i, c in enumerate(found)]
)
limits = st.builds(
    Limits,
    instances_max=st.integers(1, 6),
    gpus_max=st.none() | st.integers(0, 16),
    hourly_max_usd_micros=st.none() | st.integers(1, 30),
)


@given(claims, seats, limits)
def test_whoever_goes_is_lower_and_makes_room_for_its_claim(found: list[Claim], taken: list[Seat], most: Limits) -> None:
    given_up = giving_way(found, taken, NOTHING, most)
    by_job = {s.job: s for s in taken}
    for victim, winner in given_up.items():
        assert not by_job[victim].kept
        assert by_job[victim].level < winner.level
        assert by_job[victim].priority != winner.priority
    winners = {c.job: c for c in given_up.values()}
    stay = together(s.use for s in taken if s.job not in given_up)
    first = next((c for c in in_order(found) if c.job in winners), None)
    assert first is None or lacking(stay, first.use, most) is None
    if winners:
        assert lacking(stay, together(c.use for c in winners.values()), most) is None, "all who win have room together"


@given(claims, seats, limits)
def test_nobody_goes_who_is_not_needed(found: list[Claim], taken: list[Seat], most: Limits) -> None:
    given_up = giving_way(found, taken, NOTHING, most)
    for victim, winner in given_up.items():
        order = in_order(found)
        earlier = order[: order.index(winner)]
        gone = {v for v, c in given_up.items() if c in earlier or c is winner} - {victim}
        stay = together([*(s.use for s in taken if s.job not in gone), *(c.use for c in earlier)])
        assert lacking(stay, winner.use, most) is not None
