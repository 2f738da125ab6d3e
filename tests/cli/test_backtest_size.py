"""`spotsurfer backtest size`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tree import ROOT
from typer.testing import CliRunner, Result

from spotsurfer.cli.main import app

USAGE = ROOT / "bench/usage/megahit.csv.gz"
SCALE = ["--scale-memory", "60GiB", "--scale-cores", "8", "--hours", "24", "--move-seconds", "60"]
TYPES = ["--types", "c6i.*,m6i.*,r6i.*", "--request", "r6i.4xlarge"]


def call(*words: str, usage: Path = USAGE) -> Result:
    return CliRunner().invoke(app, ["backtest", "size", "--usage", str(usage), *words])


def test_each_policy_tells_its_figures() -> None:
    result = call(*SCALE, *TYPES, "--policy", "surf,threshold,best-fixed,optimum", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["policies"]
    assert list(found) == ["surf", "threshold", "best-fixed", "optimum"]
    for one in found.values():
        assert {"usd", "moves", "oom", "stretch", "near_misses"} <= set(one)
        assert one["oom"] == 0
    assert found["best-fixed"]["usd"] == pytest.approx(24 * 0.504)
    assert found["optimum"]["usd"] < found["surf"]["usd"] < found["best-fixed"]["usd"] < found["threshold"]["usd"]


def test_people_get_a_table() -> None:
    result = call("--types", "m6i.*", "--request", "m6i.xlarge", "--set", "surf.stretch=1.3")
    assert result.exit_code == 0, result.output
    assert "NEAR MISSES" in result.stdout
    assert "optimum" in result.stdout


def test_the_page_has_the_table_and_a_timeline_for_each_policy(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    words = ("--hours", "6", "--policy", "surf,best-fixed,optimum", "--html", str(page))
    result = call(*SCALE[:4], *words, *TYPES)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    for policy in ("surf", "best-fixed", "optimum"):
        assert f"<td>{policy}</td>" in text
        assert f"<h2>{policy}: memory</h2><svg" in text
        assert f"<h2>{policy}: cores</h2><svg" in text
    assert "bootstrap" not in text
    assert "nan" not in text


def test_without_the_guard_jobs_are_killed() -> None:
    result = call(*SCALE, *TYPES, "--no-guard", "--policy", "surf", "--json")
    assert json.loads(result.stdout)["policies"]["surf"]["oom"] > 0


def test_an_earlier_run_is_used() -> None:
    words = [
        "--hours",
        "2",
        "--move-seconds",
        "5",
        "--scale-memory",
        "60GiB",
        "--scale-cores",
        "8",
        *TYPES,
        "--policy",
        "surf",
        "--json",
    ]
    first, after = (
        json.loads(call(*words, *more).stdout)["policies"]["surf"]["usd"] for more in ([], ["--history", str(USAGE)])
    )
    assert after < first


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--types", "z9.*", "--request", "z9.large"], "z9"),
        (["--types", "c6i.*", "--request", "r6i.large"], "--request"),
        (["--types", "c6i.large", "--request", "c6i.large", "--scale-memory", "60GiB"], "fits none"),
        ([*TYPES, "--scale-memory", "much"], "--scale-memory"),
        ([*TYPES, "--policy", "nobody"], "surf"),
        ([*TYPES, "--policy", ","], "--policy"),
        ([*TYPES, "--catalog", "moon"], "aws-us-east-1"),
        ([*TYPES, "--set", "surf.stretch=0.3"], "stretch"),
    ],
)
def test_what_can_not_be_is_refused_with_a_remedy(words: list[str], told: str) -> None:
    result = call(*words)
    assert result.exit_code != 0
    assert told in str(result.exception) + result.output


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = call(*TYPES, usage=tmp_path / "none.csv")
    assert result.exit_code != 0
    assert "check the path" in str(result.exception) + result.output
