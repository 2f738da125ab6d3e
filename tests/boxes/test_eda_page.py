"""docs/eda-in-ten-minutes.md, as it stands: a shell runs all of its blocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support import levels
from support.page_runs import reader
from support.tree import ROOT

PAGE = ROOT / "docs" / "eda-in-ten-minutes.md"
SECONDS = 600  # as the page says


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(SECONDS + 60)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    levels.only_for_real_tests("boxes")
    data = tmp_path / "data"
    try:
        with reader(tmp_path / "shell", tmp_path) as person:
            person.places = {"/var/tmp/eda": str(data)}
            said = person.follow(PAGE)
    finally:
        manual_control.clean(data, end_living=True)
    said = " ".join(said.split())  # `why` breaks its lines
    assert all(f"task {task} is right" in said for task in (1, 2))
    assert all(f"seed {task} after 5000000 cycles: " in said for task in range(1, 7))
    assert "It waits for 1 of 2 licences sim: held by" in said
    assert "no licence was asked for in vain" in said
    assert max(int(n) for n in re.findall(r"yes, (\d+) out", said)) == 2
    assert re.search(r"take sim-\w+-\d restore: yes", said), said
    assert "nightly" in said.rpartition("no licence was asked for in vain")[2], "the bill"
