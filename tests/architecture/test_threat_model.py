"""`docs/threat-model.md` promises nothing that no test tries."""

from __future__ import annotations

import re

import pytest
from support.tree import ROOT

PAGE = (ROOT / "docs/threat-model.md").read_text()
ROWS = [
    line
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| tries", "| writes", "| says"))
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_there_are_rows() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize("row", ROWS, ids=[str(n) for n in range(len(ROWS))])
def test_each_line_names_tests_that_there_are(row: str) -> None:
    last = row.strip("| ").rpartition("|")[2]
    named = NAMED.findall(last)
    assert named, f"no test stands behind: {row}"
    assert NAMED.sub("", last).strip(" ,") == "", f"something else than tests in the last column: {last}"
    for path, name in named:
        assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"
