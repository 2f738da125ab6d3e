"""A machine that several attempts lived on is paid by all of them together, to the micro-dollar."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, an_attempt

from spotsurfer.ledger import bill
from spotsurfer.ledger.facts import MachineFacts, Rules
from spotsurfer.model.charges import Stay
from spotsurfer.model.job import AttemptNumber, AttemptState, JobId
from spotsurfer.model.machine import MachineState, machine_of

BORN = NOW
RULES = Rules()


def at(seconds: float) -> datetime:
    return BORN + timedelta(seconds=seconds)


def stay(name: str, begins: float, ends: float | None, weight: int = 1) -> Stay:
    return Stay(at(begins), JobId(name), AttemptNumber(1), None if ends is None else at(ends), weight)


def facts(stays: list[Stay], died: float | None, price: int = 30_000) -> list[MachineFacts]:
    found = []
    for s in stays:
        state = AttemptState.RUNNING if s.ends is None else AttemptState.RELEASED
        a = an_attempt(
            1, state, job=s.job, token="m", launched_at=s.begins, released_at=s.ends, price_usd_micros_per_hour=price
        )
        m = replace(machine_of(a), state=MachineState.UP if died is None else MachineState.RELEASED, launched_at=BORN)
        m = replace(m, released_at=None if died is None else at(died), keep_seconds=60.0)
        seen = [o for o in stays if o.ends is None or o.ends >= s.begins]
        found.append(MachineFacts(a, a.job, ((BORN, price), (at(40), 2 * price)), (), m, seen))
    return found


def costs(stays: list[Stay], died: float | None, now: float, price: int = 30_000) -> dict[str, int]:
    return {f.attempt.job: sum(c.usd_micros for c in bill.of_machine(f, RULES, at(now))) for f in facts(stays, died, price)}


def alone(died: float, price: int = 30_000) -> int:
    """What a machine costs that one attempt has for itself all the time."""
    return costs([stay("x", 0, died)], died, died, price)["x"]


def test_one_after_the_other_pays_its_own_time_and_the_last_one_the_idle_time() -> None:
    found = costs([stay("a", 0, 100), stay("b", 150, 200)], 260, 1000, price=3_600_000_000)
    second = 2_000_000  # micro-dollars, after the price was doubled at 40
    assert found == {"a": 40 * 1_000_000 + 110 * second, "b": 110 * second}


def test_two_at_once_share_by_processors() -> None:
    found = costs([stay("a", 0, 100, 3), stay("b", 50, 100, 1)], 100, 1000, price=3_600_000_000)
    assert found["b"] == 50 * 2_000_000 // 4
    assert sum(found.values()) == alone(100, 3_600_000_000)


def test_the_minimum_belongs_to_the_last_one() -> None:
    found = costs([stay("a", 0, 10), stay("b", 10, 20)], 20, 1000, price=3_600_000_000)
    assert found == {"a": 10_000_000, "b": 30_000_000 + 20_000_000 * 2}


times = st.integers(0, 200_000)


@given(
    st.lists(st.tuples(times, times, st.integers(1, 64)), min_size=1, max_size=7),
    times,
    st.integers(1, 10_000_000),
)
def test_the_sum_is_the_machines_bill(spans: list[tuple[int, int, int]], idle: int, price: int) -> None:
    """With any stays, over several midnights; also the lines, day by day."""
    stays = [stay(f"j{i}", min(a, b), max(a, b) + 1, w) for i, (a, b, w) in enumerate(spans)]
    stays[0] = replace(stays[0], begins=BORN)
    died = max((s.ends - BORN).total_seconds() for s in stays if s.ends) + idle
    assert sum(costs(stays, died, died, price).values()) == alone(died, price)
    every = [line for f in facts(stays, died, price) for c in bill.of_machine(f, RULES, at(died)) for line in c.lines()]
    assert sum(x.usd_micros for x in every) == alone(died, price)
    assert sum(Fraction(x.quantity) for x in every) >= 0


@given(st.lists(st.tuples(times, times), min_size=2, max_size=5), times)
def test_what_is_settled_never_changes(spans: list[tuple[int, int]], later: int) -> None:
    stays = [stay(f"j{i}", min(a, b), max(a, b) + 1) for i, (a, b) in enumerate(spans)]
    stays[0] = replace(stays[0], begins=BORN)
    now = max((s.ends - BORN).total_seconds() for s in stays if s.ends)
    first, then = costs(stays, None, now), costs(stays, None, now + later)
    for f in facts(stays, None):
        if f.settled:
            assert first[f.attempt.job] == then[f.attempt.job]
