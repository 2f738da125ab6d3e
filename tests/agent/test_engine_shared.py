"""Jobs that write to shared file systems, with the real engine on miniboxes: a restore finds the files of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param("comes_back", marks=pytest.mark.always),
        "comes_back_from_the_next_machine",
        "unchanged_ones_cost_nothing",
        "is_refused",
        "rehearses",
        pytest.param("stands_still_for", marks=pytest.mark.slow),
    ],
)
def test_scene(tmp_path: Path, scene: str) -> None:
    with minibox(tmp_path / "box", tmp_path / "store", module="support.shared_scenes") as machine:
        print(machine.run(scene))
