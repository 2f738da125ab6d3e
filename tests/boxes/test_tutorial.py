"""docs/tutorial.md, as it stands: a shell types all of its blocks, and each prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support import levels
from support.page_runs import reader
from support.tree import ROOT

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(1500)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    levels.only_for_real_tests("boxes")
    try:
        with reader(tmp_path) as person:
            person.follow(PAGE)
        assert not (tmp_path / "tutorial").exists()
    finally:
        manual_control.clean(tmp_path / "tutorial" / "data", end_living=True)
