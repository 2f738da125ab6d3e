"""Nextflow and Cromwell wait for one file of a task, and then read all others: these must be there first."""

from __future__ import annotations

import time
from pathlib import Path

from spotsurfer_agent.files.home_folder import changes
from spotsurfer_wire.home_tree import FILE, HomeEntry, HomeTree


def test_what_came_to_its_name_last_comes_home_last(tmp_path: Path) -> None:
    """As Cromwell's `rc`, which is written before the lists of results, and renamed after them."""
    for name in ("rc.tmp", "out/deep/a", "glob.list"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        time.sleep(0.02)
    (tmp_path / "rc.tmp").rename(tmp_path / "rc")
    found = changes(HomeTree([HomeEntry("old", FILE)]), tmp_path, [], set(), "/nothing")
    assert [c.now.path for c in found.changes] == ["old", "out", "out/deep", "out/deep/a", "glob.list", "rc"]
