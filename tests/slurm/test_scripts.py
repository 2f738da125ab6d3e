"""The same client scripts as the real Slurm ran, with our commands: what they print, field by field."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm import transcripts
from slurm.differences import DIFFERENCES, unexplained
from support.tree import ROOT


@pytest.mark.real
@pytest.mark.parametrize("name", transcripts.names())
def test_a_script_prints_what_it_prints_with_the_real_slurm(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    printed = transcripts.run(name, tmp_path, environment, 200)
    truth = (transcripts.TRUTH / f"{name}.txt").read_text()
    assert unexplained(name, truth, printed) == [], printed


def test_the_page_lists_the_differences() -> None:
    page = (ROOT / "docs" / "slurm.md").read_text()
    listed = [line for line in page.splitlines() if "Slurm prints" in line]
    assert listed == [d.line() for d in DIFFERENCES]


def test_each_script_has_its_truth() -> None:
    assert [path.stem for path in sorted(transcripts.TRUTH.glob("*.txt"))] == transcripts.names()
