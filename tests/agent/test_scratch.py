"""The job's files at one instant on disks without snapshots: ext4, and XFS, which shares blocks; and on btrfs."""

from __future__ import annotations

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.real

SCENES = {
    "ext4": ("ahead", "slowly", "flushed", "aside", "dirtied", "swapped", "many", "full"),
    "xfs": ("ahead", "shared"),
    "btrfs": ("subvolume",),
}


@pytest.mark.parametrize(("fs", "scene"), [(fs, scene) for fs, scenes in SCENES.items() for scene in scenes])
def test_scene(tmp_path, fs, scene):
    with minibox(tmp_path / "box", tmp_path / "store", fs, module="support.scratch_scenes") as box:
        box.run(scene)
