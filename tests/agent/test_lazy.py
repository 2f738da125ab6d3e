"""Memory that comes behind the running job: every page right, whatever the job or anybody else does meanwhile."""

from __future__ import annotations

import pytest
from support.minibox import Minibox, minibox

pytestmark = pytest.mark.real


@pytest.fixture
def box(tmp_path):
    made = Minibox(tmp_path / "box", tmp_path / "store", module="support.lazy_scenes")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("user", "words"), [("-", "fork"), ("-", "dontneed"), ("-", "remap"), ("nobody", "remap fork dontneed"), ("-", "")]
)
def test_every_page_is_right_though_the_job(box, user, words):
    box.run("stamped", user, *words.split())


@pytest.mark.parametrize(
    "scene",
    [
        "waits",
        "server_killed",
        "holders_killed",
        "damaged",
        "stumbling_store",
        "agent_killed",
        "held",
        "early",
        "tiny",
        "aligned",
    ],
)
def test_scene(box, scene):
    box.run(scene)


@pytest.mark.parametrize(
    ("module", "scene"),
    [
        ("prints_scenes", "store_hangs"),
        ("prints_scenes", "disk_full"),
        ("whole_scenes", "held_until_whole"),
        ("whole_scenes", "keeps_ready"),
        ("whole_scenes", "by_hands"),
        ("whole_scenes", "a_hand_fails"),
        ("whole_scenes", "server_killed"),
        ("whole_scenes", "damaged"),
        ("whole_scenes", "store_fails"),
        ("whole_scenes", "stands_by"),
        ("whole_scenes", "falls_behind"),
    ],
)
def test_around_a_restore(tmp_path, module, scene):
    with minibox(tmp_path / "box", tmp_path / "store", module=f"support.{module}") as machine:
        machine.run(scene)
