"""Jobs with inputs from buckets and shared file systems, with the real engine on miniboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.minibox import minibox
from support.registry import Recipe, push

from bench import inputs as bench_inputs

pytestmark = pytest.mark.real
MODULE = "support.input_scenes"


def test_a_job_with_inputs_moves_and_what_changed_is_said_before(tmp_path: Path) -> None:
    for scene in ("begins", "is_refused", "goes_on"):
        with minibox(tmp_path / scene, tmp_path / "store", module=MODULE) as machine:
            machine.run(scene)


@pytest.mark.parametrize("scene", ["ladder_sees", "is_lost", "cut_midway"])
def test_scene(tmp_path: Path, scene: str) -> None:
    with minibox(tmp_path / "box", tmp_path / "store", module=MODULE) as machine:
        machine.run(scene)


def test_a_job_in_a_container_image_has_them_too(tmp_path: Path) -> None:
    push(Recipe(["dash", "coreutils"]), tmp_path / "store/registry", "small:1", tmp_path / "tree")
    with minibox(tmp_path / "box", tmp_path / "store", module=MODULE) as machine:
        machine.run("in_image")


def test_three_jobs_of_a_machine_fetch_once() -> None:
    told = bench_inputs.measured(20_000_000, 200, 200_000_000)
    assert told["files"] == 200
    assert told["wire_bytes"] < told["bytes"] * bench_inputs.ONCE


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_gigabytes_come_as_fast_as_the_link_lets_them() -> None:
    assert bench_inputs.main([]) == 0
