"""What holds for every size policy: the limit on moves, the guard, what a job foretold, and policies that go wrong."""

from __future__ import annotations

from typing import Any

import pytest

from spotsurfer.core.scheduling.rightsizing import ask_policy, begin, guard_rescue, moved
from spotsurfer.ports.policies import MachineKind, SizeChoice, SizeMoment, SizeTerms, cheapest_holding

GIB = float(1 << 30)
KINDS = tuple(MachineKind(f"a.{n}", "a", n, int(8 * n * GIB), 0.1 * n) for n in (1, 2, 4, 8))
TERMS = SizeTerms(KINDS, 3, 60.0)


TEXT: Any = "0"
NONSENSE = [SizeChoice(4), SizeChoice(-1), SizeChoice(TEXT), SizeChoice(True), 0, None, KeyError("x")]


class Says:
    """Always the same."""

    def __init__(self, answer: Any, start: Any = 3) -> None:
        self._answer, self._start = answer, start

    def begin(self, terms: SizeTerms) -> tuple[None, int]:
        return None, self._start

    def look(self, memory: None, moment: SizeMoment) -> tuple[None, SizeChoice]:
        if isinstance(self._answer, Exception):
            raise self._answer
        return None, self._answer


def moment(here: int, gib: float = 1.0, **more: Any) -> SizeMoment:
    return SizeMoment(here, 60.0, gib * GIB, gib * GIB, 1.0, **more)


def test_a_wish_is_let_through() -> None:
    policy = Says(SizeChoice(0, "cheaper"))
    course, choice = ask_policy(policy, begin(policy, TERMS), moment(3), 60.0)
    assert choice == SizeChoice(0, "cheaper")
    assert course.peak_bytes == GIB


@pytest.mark.parametrize("answer", NONSENSE)
def test_nonsense_moves_nobody_and_is_told(answer: Any) -> None:
    policy = Says(answer)
    course, choice = ask_policy(policy, begin(policy, TERMS), moment(3), 60.0)
    assert choice.to is None
    assert "size policy" in course.alarm


@pytest.mark.parametrize("start", [9, None, "a.1"])
def test_a_strange_beginning_is_what_was_asked_for(start: Any) -> None:
    course = begin(Says(SizeChoice(), start), TERMS)
    assert course.here == TERMS.start
    assert course.alarm


def test_too_small_a_type_is_never_gone_to() -> None:
    policy = Says(SizeChoice(0))
    _, choice = ask_policy(policy, begin(policy, TERMS), moment(3, gib=8.0), 60.0)
    assert choice.to == 1  # 8 GiB do not fit into 95 % of 8 GiB


def test_what_it_uses_already_must_fit_whatever_the_policy_says() -> None:
    policy = Says(SizeChoice())
    choice = ask_policy(policy, begin(policy, TERMS), moment(0, 12.0), 60.0)[1]
    assert choice == SizeChoice(1, "it uses more than that holds")


def test_what_the_job_foretold_is_honoured_before_it_is_used() -> None:
    policy = Says(SizeChoice(None), start=0)
    _, choice = ask_policy(policy, begin(policy, TERMS), moment(0, hinted_bytes=20 * GIB), 60.0)
    assert choice.to == 2
    assert "foretold" in choice.why


def test_a_rescue_goes_where_the_peak_so_far_has_room() -> None:
    policy = Says(SizeChoice())
    course, _ = ask_policy(policy, begin(policy, TERMS), moment(3, gib=29.0), 60.0)
    assert guard_rescue(moved(course, 0, 60.0), 7.7 * GIB, 120.0) == 2


def test_nothing_is_larger_than_the_largest() -> None:
    assert guard_rescue(begin(Says(SizeChoice()), TERMS), 64 * GIB, 0.0) is None


def test_the_last_move_of_an_hour_goes_to_the_largest() -> None:
    course = begin(Says(SizeChoice(), start=0), TERMS, moves_per_hour=3)
    course = moved(moved(course, 1, 10.0), 0, 20.0)
    assert guard_rescue(course, 8 * GIB, 30.0) == 3
    assert guard_rescue(course, 8 * GIB, 3700.0) == 1  # an hour later there is room again


def test_a_limit_without_a_way_up_is_refused() -> None:
    with pytest.raises(ValueError, match="moves_per_hour"):
        begin(Says(SizeChoice()), TERMS, moves_per_hour=2)


def test_the_cheapest_by_work_and_not_by_the_hour() -> None:
    assert cheapest_holding(KINDS, GIB, 1.0) == 0
    assert cheapest_holding(KINDS, GIB, 8.0) == 3  # all cost the same for the work; more cores are done sooner
    assert cheapest_holding(KINDS, 999 * GIB, 1.0) is None
