"""The drawn pictures of the documentation are those of what was recorded and measured."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
import savings_picture
import terminal_picture
from support.tree import ROOT

SVG = "{http://www.w3.org/2000/svg}"
LARGEST_BYTES = 20_000


@pytest.mark.parametrize(
    ("picture", "drawn"),
    [
        (terminal_picture.PICTURE, lambda: terminal_picture.drawn(terminal_picture.CAST.read_text())),
        (savings_picture.PICTURE, lambda: savings_picture.drawn(savings_picture.PAGE.read_text())),
    ],
    ids=["session", "savings"],
)
def test_a_picture_is_fresh_and_small(picture, drawn) -> None:  # type: ignore[no-untyped-def]
    assert picture.read_text() == drawn(), "call make docs"
    assert len(picture.read_bytes()) < LARGEST_BYTES
    assert "prefers-color-scheme:dark" in picture.read_text()


def test_the_session_shows_a_move_and_its_end() -> None:
    shown = "\n".join(terminal_picture.screen(terminal_picture.CAST.read_text()))
    assert "$ spotsurfer submit" in shown
    assert "#2" in shown and "Finished well" in shown


def test_a_terminal_writes_over_its_lines() -> None:
    cast = "\n".join(
        ['{"version": 2}', '[0.1, "o", "sent 1 %\\rsent 99 %\\r\\n"]', '[0.2, "o", "\\u001b[1mbold\\u001b[0m & <b>\\r\\n"]']
    )
    assert terminal_picture.screen(cast) == ["sent 99 %", "bold & <b>"]
    texts = [t.text for t in ET.fromstring(terminal_picture.drawn(cast)).iter(f"{SVG}text")]
    assert texts == ["sent 99 %", "bold & <b>"]


def test_all_policies_are_drawn_and_a_table_without_one_is_refused() -> None:
    page = savings_picture.PAGE.read_text()
    assert savings_picture.figures(page)["surf"].keys() == savings_picture.figures(page)["on-demand"].keys() == {52, 60, 70, 92}
    with pytest.raises(SystemExit, match="greedy"):
        savings_picture.figures(page.replace("| greedy |", "| other |"))


def test_the_pictures_lie_where_pages_show_them() -> None:
    for name in ("session.svg", "savings.svg"):
        assert f"(docs/images/{name})" in (ROOT / "README.md").read_text()
