"""Steps, snapshots for a look, and output over moves, with the real engine on a small machine of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.minibox import minibox

pytestmark = [pytest.mark.real]


@pytest.mark.parametrize("scene", ["steps", "still", "numbered"])
def test_scene(tmp_path: Path, scene: str) -> None:
    with minibox(tmp_path / "box", tmp_path / "store", module="support.step_scenes") as box:
        box.run(scene)
