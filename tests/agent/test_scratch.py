"""The job's files at one instant on a disk without snapshots."""

from __future__ import annotations

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.boxes


@pytest.mark.parametrize("scene", ["ahead", "slowly"])
def test_scene(tmp_path, scene):
    with minibox(tmp_path / "box", tmp_path / "store", "ext4", module="support.scratch_scenes") as box:
        box.run(scene)
