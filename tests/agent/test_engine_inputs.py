"""Jobs with inputs from buckets and shared file systems, with the real engine on miniboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.boxes
MODULE = "support.input_scenes"


def test_a_job_with_inputs_moves_and_what_changed_is_said_before(tmp_path: Path) -> None:
    for scene in ("begins", "is_refused", "goes_on"):
        with minibox(tmp_path / scene, tmp_path / "store", module=MODULE) as machine:
            machine.run(scene)


def test_declared_file_systems_stand_in_nobodys_way(tmp_path: Path) -> None:
    with minibox(tmp_path / "box", tmp_path / "store", module=MODULE) as machine:
        machine.run("ladder_sees")
