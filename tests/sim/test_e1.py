"""A few windows of the benchmark: enough to see that the policy is worth its money, and that it stopped to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tree import ROOT
from typer.testing import CliRunner

from spotsurfer.cli.main import app

DATA = ROOT / "bench" / "markets"
LINE = (
    "--tick-seconds 600 --job-hours 48 --on-demand 3.06 --spot 0.9731 --policy surf,uniform-progress,greedy,on-demand,optimum"
)


SCORED = {"greedy": 121.25, "uniform-progress": 119.46, "on-demand": 147.9, "optimum": 104.72}


def played(deadline: float, restart: float, *more: str) -> dict[str, Any]:
    given = ["--availability", str(DATA / "pools-2022.csv.gz"), "--windows", str(DATA / "pools-2022-windows.csv")]
    hours = ["--deadline-hours", str(deadline), "--restart-hours", str(restart)]
    done = CliRunner().invoke(app, ["backtest", "deadline", *given, *LINE.split(), *hours, "--every", "50", "--json", *more])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout)["policies"])


@pytest.mark.parametrize(("deadline", "restart", "most"), [(52, 0.05, 0.035), (70, 0.2, 0.085)])
def test_surf_is_near_the_optimum_and_cheaper_than_the_baselines(deadline: float, restart: float, most: float) -> None:
    found = played(deadline, restart)
    surf = found["surf"]
    assert surf["deadline_misses"] == 0
    assert surf["runs"] == 36
    assert 0.0 < surf["gap_to_optimum"] < most
    assert surf["mean_usd"] < min(found["greedy"]["mean_usd"], found["uniform-progress"]["mean_usd"])
    low, high = surf["intervals_95"]["mean_usd"]
    assert low < surf["mean_usd"] < high


def test_baselines_cost_what_an_independent_scorer_says() -> None:
    """36 runs at 52 h and 0.2 h, computed by a program that shares no line with this one."""
    found = played(52, 0.2)
    for policy, usd in SCORED.items():
        assert found[policy]["mean_usd"] == pytest.approx(usd, rel=0.002), policy


def test_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    played(52, 0.2, "--html", str(page))
    text = page.read_text()
    assert text.count("<svg") == 4
    assert "surf" in text
    assert "http" not in text
