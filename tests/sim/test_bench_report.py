"""How benchmarks of policies tell what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report import Part, percent, table, write


def test_keys_go_into_the_json_and_tables_between_their_markers(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "build" / "out.json"
    page.write_text("before\n<!-- a -->\nold\n<!-- /a -->\nafter\n")
    parts = {"one": lambda: Part({"x": 1}, {"a": table(["p", "q"], [["r", "1"]])}), "two": lambda: Part({"y": 2})}
    write(parts, ["one"], out, page)
    write(parts, ["two"], out, None)
    assert json.loads(out.read_text()) == {"x": 1, "y": 2}  # what was measured before is kept
    assert page.read_text() == "before\n<!-- a -->\n| p | q |\n|---|---:|\n| r | 1 |\n<!-- /a -->\nafter\n"


def test_a_page_without_the_markers_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="markers a"):
        write({"one": lambda: Part({}, {"a": "t"})}, ["one"], tmp_path / "out.json", tmp_path / "page.md")


def test_shares_for_people() -> None:
    assert (percent(0.123), percent(-0.00001), percent(0.05, signed=True)) == ("12.3", "0.0", "+5.0")
