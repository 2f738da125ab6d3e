"""The rungs of the ladder: which one is taken and why, and each of them with real programs."""

from __future__ import annotations

import pytest
from spotsurfer_agent.engines.choice import choose
from spotsurfer_wire.messages import SelfSave, Spec
from support.minibox import minibox

OWN = SelfSave(signal="USR1", done_file="state")


@pytest.mark.parametrize(
    ("engine", "app", "found", "rung", "told"),
    [
        ("auto", None, [], "criu", ""),
        ("auto", OWN, [], "criu", ""),
        ("criu", OWN, [], "criu", ""),
        ("auto", None, ["a ring"], "none", "a ring"),
        ("auto", OWN, ["a ring"], "app", "a ring"),
        ("criu", OWN, ["a ring"], "none", "a ring"),
        ("app", OWN, [], "app", "its user chose"),
        ("app", OWN, ["a ring"], "app", "its user chose"),
        ("none", None, [], "none", "its user chose"),
    ],
)
def test_the_best_rung_that_works_is_taken_and_the_reason_told(engine, app, found, rung, told):
    got = choose(Spec("j", ["x"], engine=engine, app=app), found)
    assert got.rung == rung
    assert told in got.reason
    assert bool(told) == bool(got.reason)


@pytest.mark.real
@pytest.mark.parametrize(
    "scene",
    [
        "app signal",
        "app output",
        "app file",
        "app command",
        "app exit",
        "deaf",
        "rungs",
        "connections",
        "made_inside",
        "hooks",
        "thaw",
    ],
)
def test_scene(tmp_path, scene):
    name, *rest = scene.split()
    with minibox(tmp_path / "box", tmp_path / "store", module="support.ladder_scenes") as box:
        box.run(name, *rest)


@pytest.mark.real
@pytest.mark.parametrize(
    "scene",
    [
        "lease file",
        "lease exit",
        "counts file",
        "counts exit",
        "killed_as_it_ends live",
        "killed_as_it_ends final",
        "killed_as_it_starts_again before",
        "killed_as_it_starts_again after",
        "early",
        "late",
        "agent_killed exit app told",
        "in_doubt file",
        "in_doubt exit",
        "agent_killed file app upload",
        "agent_killed file auto upload",
        "agent_killed exit auto upload",
        "agent_killed file auto commit",
    ],
)
def test_a_program_that_saves_itself(tmp_path, scene):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.app_scenes") as box:
        box.run(*scene.split())
