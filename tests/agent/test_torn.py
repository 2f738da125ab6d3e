"""Streamed images are whole and of one instant, however late their receiver is; and this test would see it if they were not."""

from __future__ import annotations

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("kind", "wait", "way"),
    [
        *((kind, "yes", "stream") for kind in ("slow", "paused", "starved")),
        *((kind, "yes", "ahead") for kind in ("slow", "starved")),
        *((kind, "no", "stream") for kind in ("slow", "paused")),
        ("slow", "no", "ahead"),
    ],
)
def test_live_images_are_of_one_instant_because_the_job_waits_for_its_receiver(tmp_path, kind, wait, way):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.torn_scenes") as box:
        told = box.run("torn", kind, 2, wait, way)
    torn = int(told.split()[-1])
    assert torn == 0 if wait == "yes" else torn > 0


@pytest.mark.parametrize(
    "scene", ["forking", "short_of_memory", pytest.param("memory_missing", marks=pytest.mark.always), "receiver_fails"]
)
def test_streamed_saves(tmp_path, scene):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.stream_scenes") as box:
        box.run(scene)
