"""`spotsurfer local`: found by entry point, options checked before anything is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Call
from spotsurfer_providers.local import manual_control
from support.closed import close


def test_the_plugins_commands_are_there(call: Call) -> None:
    assert "local" in call("--help").out
    assert "reclaim" in call("local", "--help").out


def test_an_empty_home(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(folder))
    assert call("local", "list").out == "No boxes.\n"
    assert json.loads(call("local", "list", "--json").out) == []
    assert list(folder.iterdir()) == []


def test_the_configuration_that_the_command_line_names_says_where_the_boxes_are(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPOTSURFER_CONTROLLER__DATA_DIR", raising=False)
    (tmp_path / "fleet.toml").write_text(f'[controller]\ndata_dir = "{tmp_path / "elsewhere"}"\n')
    asked: list[Path] = []
    monkeypatch.setattr(manual_control, "clean", lambda home, end_living: asked.append(home) or [])
    call("--config", str(tmp_path / "fleet.toml"), "local", "clean")
    call("--config", str(tmp_path / "fleet.toml"), "local", "clean", "--data-dir", str(tmp_path))
    assert asked == [tmp_path / "elsewhere", tmp_path]


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["reclaim", "box-1"], 13, "box-1"),
        (["reclaim", "box-1", "--notice", "soon"], 2, "--notice"),
        (["reclaim", "../x"], 13, "../x"),
        (["cut", "box-1"], 13, "box-1"),
        (["sweep"], 2, "sweep"),
        (["clean", "--everything"], 2, "--everything"),
    ],
)
def test_mistakes(call: Call, folder: Path, arguments: list[str], code: int, part: str) -> None:
    result = call("local", *arguments, *(["--data-dir", str(folder)] if code == 13 else []))
    assert result.code == code, result.err
    assert part in result.err


def test_orders_go_to_the_right_box(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(manual_control, "reclaim", lambda *a: seen.append(a) or {"ok": True})
    monkeypatch.setattr(manual_control, "clean", lambda home, end_living: seen.append((home, end_living)) or ["mount x"])
    assert json.loads(call("local", "reclaim", "b", "--notice", "30s", "--data-dir", str(folder), "--json").out) == {"ok": True}
    assert call("local", "clean", "--all", "--data-dir", str(folder)).out == "removed mount x\n"
    assert seen == [(folder, "b", 30.0), (folder, True)]


@pytest.mark.parametrize(
    ("states", "code", "part"), [([], 2, "No box runs"), (["running"], 0, ""), (["running"] * 2, 2, "b0, b1")]
)
def test_the_only_box_needs_no_name(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], code: int, part: str
) -> None:
    seen: list[str] = []
    rows = [{"id": "old", "state": "ended"}, *({"id": f"b{i}", "state": state} for i, state in enumerate(states))]
    monkeypatch.setattr(manual_control, "list_boxes", lambda _: rows)
    monkeypatch.setattr(manual_control, "reclaim", lambda _, box, __: seen.append(box) or {"ok": True})
    result = call("local", "reclaim", "--data-dir", str(folder))
    assert (result.code, seen) == (code, ["b0"] if code == 0 else [])
    assert part in result.err


@pytest.mark.parametrize("words", [["list"], ["reclaim", "box-1"], ["cut", "box-1"]])
def test_boxes_of_root(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    (tmp_path / "local" / "boxes").mkdir(parents=True)
    close(tmp_path / "local", monkeypatch)
    result = call("local", *words, "--data-dir", str(tmp_path))
    said = f"You may not look at the boxes in {tmp_path}: run as root (sudo). See docs/access.md.\n"
    assert (result.code, result.err) == (12, said)
