"""Cost, and the gap to the optimum, by time to spare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from spotsurfer_lab.results import WINDOWS, Comparison, Outcome, plots

from spotsurfer.common.charts import Lines
from spotsurfer.ports.policies import Terms

TERMS = Terms(600.0, 10 * 3600.0, 20 * 3600.0, 600.0, 1.0, 3.0)


def contest(names: Sequence[str], played: list[tuple[float, list[int]]]) -> object:
    def play(terms: Terms, rows: Sequence[int]) -> Comparison:
        played.append((terms.deadline_seconds / 3600, list(rows)))
        cost = 300.0 / (terms.deadline_seconds / 3600)
        runs = [Outcome(n, np.full(len(rows), cost * (1 + 0.1 * i)), np.array(rows)) for i, n in enumerate(names)]
        return Comparison("made up", {}, runs)

    return play


def test_the_same_windows_are_played_at_each_deadline_and_gaps_are_drawn() -> None:
    played: list[tuple[float, list[int]]] = []
    steps: list[tuple[int, int]] = []
    starts = list(range(0, 1000, 10))
    found = plots(
        contest(["optimum", "greedy"], played),  # type: ignore[arg-type]
        lambda ticks: [s for s in starts if s + ticks <= 1000],
        TERMS,
        lambda a, b: steps.append((a, b)),
    )
    assert [hours for hours, _ in played] == [12.5, 15.0, 20.0, 25.0, 30.0]
    assert all(rows == played[0][1] for _, rows in played)
    assert 1 < len(played[0][1]) <= WINDOWS
    assert max(played[0][1]) + 180 <= 1000
    cost, gap = found
    assert isinstance(cost, Lines)
    assert isinstance(gap, Lines)
    assert [x for x, _ in cost.series[0].points] == [2.5, 5.0, 10.0, 15.0, 20.0]
    assert [s.name for s in gap.series] == ["greedy"]
    assert [y for _, y in gap.series[0].points] == pytest.approx([10.0] * 5)
    assert steps[-1] == (5, 5)


def test_deadlines_that_the_record_is_too_short_for_are_left_out() -> None:
    played: list[tuple[float, list[int]]] = []
    found = plots(contest(["greedy"], played), lambda ticks: [0] if ticks <= 120 else [], TERMS, lambda *_: None)  # type: ignore[arg-type]
    assert [hours for hours, _ in played] == [12.5, 15.0, 20.0]
    assert [p.title for p in found] == ["Cost by time to spare"]
    assert plots(contest(["greedy"], played), lambda ticks: [0] if ticks <= 75 else [], TERMS, lambda *_: None) == []  # type: ignore[arg-type]
