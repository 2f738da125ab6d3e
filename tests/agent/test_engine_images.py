"""Jobs that bring a container image, with a real registry and the real engine on miniboxes."""

from __future__ import annotations

import dataclasses

import pytest
from support.minibox import minibox
from support.registry import Recipe, push

pytestmark = pytest.mark.boxes
MODULE = "support.image_scenes"
TOOL = Recipe(["python3", "dash", "coreutils"], {"/etc/mark": "image one\n"}, environment={"WAVE": "big"})


@pytest.fixture
def store(tmp_path):
    push(TOOL, tmp_path / "store" / "registry", "tool:1", tmp_path / "made")
    return tmp_path / "store"


def test_a_job_brings_its_root_and_surfs_on_although_the_tag_moves(tmp_path, store):
    with minibox(tmp_path / "a", store, module=MODULE) as machine:
        machine.run("first")
    push(dataclasses.replace(TOOL, files={"/etc/mark": "image two\n"}), store / "registry", "tool:1", tmp_path / "made")
    with minibox(tmp_path / "b", store, module=MODULE) as machine:
        machine.run("last")
