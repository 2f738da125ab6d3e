"""A job is frozen before its machine's memory ends, saved, and goes on where there is more; with real programs."""

from __future__ import annotations

import hashlib

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.real
BLOCK = 4 << 20


@pytest.fixture
def box(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.memory_scenes") as made:
        yield made


def expected(mebibytes: int) -> bytes:
    digest = hashlib.blake2b()
    for i in range(mebibytes // 4):
        digest.update(bytes([i % 256]) * BLOCK)
    return b"".join(b"%d\n" % n for n in range(16, mebibytes // 4 + 1, 16)) + digest.hexdigest().encode() + b"\n"


@pytest.mark.parametrize("words", [("0",), ("0", "read"), ("50", "read")])
def test_it_is_frozen_before_the_kernel_kills(box, words):
    box.run("frozen_in_time", 1 if words[0] != "0" else 3, *words)


@pytest.mark.slow
def test_fifty_times_out_of_fifty(box):
    said = box.run("frozen_in_time", 50, timeout_seconds=600.0)
    print(said)
    assert said.count("still after") == 50


def test_it_goes_on_elsewhere_as_if_nothing_had_been(tmp_path):
    for scene, words in (("saved", (1024,)), ("goes_on", ())):
        with minibox(tmp_path / scene, tmp_path / "store", module="support.memory_scenes") as machine:
            machine.run(scene, *words)
    assert (tmp_path / "store/said").read_bytes() == expected(1024)


@pytest.mark.parametrize("scene", ["failing_save", "page_cache", "too_little_to_go_on"])
def test_scene(box, scene):
    box.run(scene)
