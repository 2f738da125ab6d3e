"""Jobs with container images, from the job's specification to machines that never had the image."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet import MARKS, Fleet
from support.registry import push, times_fetched
from support.tools import PYTHON, fleet_with_images, image

pytestmark = [*MARKS]


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def world(top: Path) -> Iterator[Fleet]:
    with fleet_with_images(top / "world", {"tool:1": PYTHON}) as made:
        yield made


def test_a_job_with_an_image_moves_although_the_tag_does(world: Fleet, top: Path) -> None:
    job = world.submit(350, image=image("tool:1"))
    world.wait_line(job, 20)
    moved = dataclasses.replace(PYTHON, files={"/etc/mark": "two\n"})
    push(moved, top / "world/registry", "tool:1", top / "world/made/tool")
    world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait_state(job, "running", 2)
    roots = list((world.root(world.box(job, 2)) / "var/lib/spotsurfer/images").glob("*/root/etc/mark"))
    assert [x.read_text() for x in roots] == ["one\n"]
    assert world.wait_end(job)["moves"] == 1
    assert times_fetched(top / "world/registry", "tool") == 2, "once a box"
    world.assert_identical(job)
    world.assert_one_owner(job)


@pytest.mark.slow
def test_an_unknown_image_holds_the_job_after_one_machine_with_a_sentence(world: Fleet) -> None:
    job = world.submit(20, image=image("nothing:1"))
    world.wait(lambda: world.show(job)["state"] == "held", "the hold")
    assert "has no image 10.77.0.1:5000/nothing:1" in world.show(job)["reason"]
    assert len(world.show(job)["attempts"]) == 1
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.wait_end(job)
