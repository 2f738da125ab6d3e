"""Back-tests and training on what the controller saw itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.model.snapshot import SpotSeen

JOB = "--job-hours 4 --deadline-hours 8 --restart-hours 0.1 --on-demand 3 --tick-seconds 600"
OWN = ("backtest", "deadline", *JOB.split(), "--spot", "1", "--own-history")


def seen(*signs: tuple[float, bool | None]) -> list[SpotSeen]:
    now = datetime.now(UTC)  # noqa: TID251 - the command looks back from now
    return [SpotSeen(now - timedelta(hours=hours), up) for hours, up in signs]


@pytest.fixture
def watched(controller: FakeService, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    spots = {
        "busy": seen((60, True), (50, False), (47, None), (40, True), (30, False), (26, True)),
        "strange": seen((60, None), (2, True)),
    }
    monkeypatch.setattr(controller, "spots", lambda: spots)
    return controller


def test_a_back_test_plays_what_was_seen_and_says_how_much_is_a_guess(watched: FakeService, call: Call) -> None:
    result = call(*OWN, "2", "--policy", "greedy,on-demand,optimum", "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    about = told["settings"]
    assert about["own_history_days"] == pytest.approx(2.0, abs=0.01)
    assert about["pools_left_out"] == 1
    assert about["known_share"] == pytest.approx(1 - 7 / 48, abs=0.01)
    assert "nobody knew" in result.err
    assert "Left out, for too little is known of them: strange" in result.err
    assert told["policies"]["optimum"]["mean_usd"] < told["policies"]["on-demand"]["mean_usd"]


def test_bounds_bound(watched: FakeService, call: Call) -> None:
    usd = {}
    for unknown in ("free", "last", "none"):
        result = call(*OWN, "2", "--unknown", unknown, "--policy", "optimum", "--json")
        usd[unknown] = json.loads(result.out)["policies"]["optimum"]["mean_usd"]
    assert usd["free"] < usd["none"]
    assert usd["free"] <= usd["last"] <= usd["none"]


def test_several_pools_at_once(watched: FakeService, call: Call) -> None:
    words = ("backtest", "placement", *JOB.split(), "--spot", "1", "--own-history", "2", "--policy", "surf,optimum", "--json")
    result = call(*words)
    assert result.code == 0, result.err
    assert json.loads(result.out)["policies"]["surf"]["deadline_misses"] == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("2", "--availability", "a.csv"), "either --own-history"),
        (("2", "--unknown", "maybe"), "none of last, free, none"),
        (("0.2",), "No window of 48 ticks"),
    ],
)
def test_what_makes_no_sense_is_refused(watched: FakeService, call: Call, more: tuple[str, ...], said: str) -> None:
    result = call(*OWN, *more)
    assert result.code != 0
    assert said in result.err


def test_neither_files_nor_history_is_said(call: Call) -> None:
    result = call(*OWN[:-1])
    assert result.code != 0
    assert "--own-history DAYS" in result.err


def test_a_bank_is_trained_of_what_was_seen(watched: FakeService, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "bank.json"
    result = call("policies", "train", "--own-history", "2.5", "--states", "2", "--out", str(out), "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["markets"] == ["busy"]
    result = call(*OWN, "2", "--policy", "surf,optimum", "--set", f'surf.bank="{out}"', "--json")
    assert result.code == 0, result.err


def test_a_bank_of_nothing_is_refused(watched: FakeService, call: Call, tmp_path: Path) -> None:
    assert "either --availability" in call("policies", "train", "--out", str(tmp_path / "x")).err
    result = call("policies", "train", "--own-history", "0.05", "--out", str(tmp_path / "x"))
    assert result.code != 0
    assert "Nothing could be learned" in result.err
