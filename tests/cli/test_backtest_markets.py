"""`spotsurfer backtest placement` and `backtest interval`, as a user calls them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotsurfer.cli.main import app

TERMS = "--tick-seconds 600 --job-hours 4 --deadline-hours 7 --restart-hours 0.1 --on-demand 3"


@pytest.fixture
def market(tmp_path: Path) -> Path:
    rng = random.Random(1)
    rows = [f"{t},{','.join(str(int(rng.random() < 0.8)) for _ in 'abc')}" for t in range(300)]
    (tmp_path / "up.csv").write_text("\n".join(["tick,a,b,c", *rows]) + "\n")
    (tmp_path / "windows.csv").write_text("start_tick\n0\n100\n200\n")
    (tmp_path / "prices.csv").write_text("tick,c,b,a\n0,1.0,0.9,0.8\n150,0.5,0.9,0.8\n")
    (tmp_path / "lives.csv").write_text("lifetime_s,end\n" + "".join(f"{600 * i},preempted\n" for i in range(1, 40)))
    return tmp_path


def answer(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(app, ["backtest", *words, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)["policies"]
    return found


def placed(market: Path, more: str) -> list[str]:
    files = f"--availability {market}/up.csv --windows {market}/windows.csv"
    return ["placement", *files.split(), *TERMS.split(), *more.split()]


def test_placement_tells_figures_of_each_policy(market: Path) -> None:
    found = answer(*placed(market, f"--prices {market}/prices.csv --state-gb 5 --policy surf,best-single-zone,optimum"))
    assert list(found) == ["surf", "best-single-zone", "optimum"]
    surf = found["surf"]
    assert isinstance(surf, dict)
    assert surf["gap_to_optimum"] >= -1e-9
    assert surf["deadline_misses"] == 0
    assert {"mean_usd", "p99_usd", "moves", "launches", "wasted_hours", "aws_usd", "intervals_95"} <= set(surf)


def test_one_price_or_a_file_is_wanted(market: Path) -> None:
    for more in ("", f"--spot 1 --prices {market}/prices.csv"):
        result = CliRunner().invoke(app, ["backtest", *placed(market, more)])
        assert result.exit_code != 0
        assert "--spot" in str(result.exception) or "--spot" in result.output


@pytest.mark.parametrize(
    "text", ["tick,a\n0,1\n", "tick,a,b,c\n9,1,1,1\n", "tick,a,b,c\n0,1,1,-1\n", "tick,a,b,c\n0,1,x,1\n", "\n"]
)
def test_prices_that_are_none_are_refused(market: Path, text: str) -> None:
    (market / "prices.csv").write_text(text)
    result = CliRunner().invoke(app, ["backtest", *placed(market, f"--prices {market}/prices.csv")])
    assert result.exit_code != 0
    assert "prices.csv" in str(result.exception) + result.output


def test_interval_tells_points_over_the_optimum(market: Path) -> None:
    found = answer(
        "interval", "--lifetimes", f"{market}/lives.csv", *["--jobs", "10", "--fleets", "2", "--policy", "surf,never,optimum"]
    )
    never, optimum = found["never"], found["optimum"]
    assert isinstance(never, dict)
    assert isinstance(optimum, dict)
    assert never["points_over_optimum"] > 1
    assert optimum["points_over_optimum"] == 0


def test_a_page_shows_cost_and_gap_by_time_to_spare(market: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    answer(*placed(market, f"--spot 1 --policy history,optimum --html {page}"))
    text = page.read_text()
    for title in ("Cost by time to spare", "Gap to the optimum by time to spare", "Runs by cost", "One run"):
        assert f"<h2>{title}" in text


def test_a_page_that_cant_be_written_is_said(market: Path) -> None:
    result = CliRunner().invoke(app, ["backtest", *placed(market, f"--spot 1 --policy history --html {market}/no/page.html")])
    assert "can't be written" in str(result.exception)


@pytest.mark.parametrize("policies", ["", " , "])
def test_no_policy_at_all_is_refused(market: Path, policies: str) -> None:
    result = CliRunner().invoke(app, ["backtest", *placed(market, "--spot 1"), "--policy", policies])
    assert "--policy names none" in str(result.exception)
