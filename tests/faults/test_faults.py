"""Every fault of the list, one row each: afterwards the job runs on or resumes from the last good image, and nothing is left.

Rows that other tests have already are named in ELSEWHERE instead of being repeated; a test here checks that those exist.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from support.agent_world import ACTION, AgentKilled, World, running
from support.minibox import Minibox, minibox
from support.tree import ROOT

# Name of the row, scene, arguments. A scene ends well only when the job is unharmed and the machine as empty as before.
ENGINE = [
    ("the store refuses", "save_fails", ["refuses"]),
    ("the store times out", "save_fails", ["times_out"]),
    ("the store is read-only", "save_fails", ["read_only"]),
    ("the store is full", "save_fails", ["full"]),
    ("the machine's disk is full", "save_fails", ["disk_full"]),
    ("the network is cut in a save and comes back", "network_cut", ["live_save", "silence"]),
    ("connections are reset in a final save, later they are not", "network_cut", ["final_save", "reset"]),
    ("the network is cut in a restore and comes back", "network_cut", ["lazy_restore", "silence"]),
    ("connections are reset in a restore, later they are not", "network_cut", ["plain_restore", "reset"]),
    ("memory is short: the agent may hold little", "memory_short", ["setting"]),
    ("memory is short: the machine has little left", "memory_short", ["group"]),
    ("the store flipped bits", "store_lies", ["bits_flipped"]),
    ("the store cut objects short", "store_lies", ["cut_short"]),
    ("the store emptied objects", "store_lies", ["empty"]),
    ("the store lost objects", "store_lies", ["missing"]),
    ("the store gives another object", "store_lies", ["another_object"]),
    ("the store says yes and keeps nothing", "store_said_yes", []),
    ("the key is wrong", "wrong_key", []),
    ("the manifest is forged", "forged_manifest", []),
    *[(f"a path that plays a trick: {name}", "path_tricks", [name]) for name in ("up", "through_a_link", "repeats_outside")],
    *[(f"the agent is killed {s} s into a restore", "killed_in_restore", [s]) for s in ("0.05", "0.3", "0.6")],
]
# Fault -> test file and the name in it.
ELSEWHERE = {
    "the agent is killed at each step of a live save": ("agent/test_engine_criu.py", "test_kill_the_agent_in_a_live_save_at"),
    "the agent is killed at each step of a final save": ("agent/test_engine_criu.py", "test_kill_the_agent_in_a_final_save_at"),
    "the agent is killed at each step of a move": ("boxes/test_kills.py", "MOVE"),
    "any write of a save fails": ("support/engine_failures.py", "failing_store"),
    "the answer to a commit is lost": ("support/engine_failures.py", "unclear_commit"),
    "a machine is cut off for good": ("boxes/test_lease.py", "test_a_cut_off_machine_is_frozen_before_its_successor_starts"),
    "a short cut of the network": ("boxes/test_lease.py", "test_a_short_cut_freezes_and_thaws_and_nobody_else_starts"),
    "a notice in the middle of a periodic save": (
        "agent/test_machine.py", "test_a_live_save_under_way_is_overtaken_by_the_final_one_at_once",
    ),
    "a window that is too short": ("agent/test_loop.py", "test_final_save_that_fails_under_a_notice_is_repeated_then_overrun"),
}  # fmt: skip


@pytest.fixture
def box(tmp_path: Path):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.fault_scenes") as made:
        yield made


@pytest.mark.real
@pytest.mark.parametrize(("scene", "arguments"), [pytest.param(s, a, id=name) for name, s, a in ENGINE])
def test_fault(box: Minibox, scene: str, arguments: list[str]) -> None:
    box.run(scene, *arguments)


def _finals(world: World) -> list[str | None]:
    return [h.checkpoint for h in world.heads() if h.final]


@pytest.mark.parametrize("second", ["at the freeze", "while it is sent", "after the end"])
def test_two_notices_make_one_final_checkpoint(tmp_path: Path, second: str) -> None:
    world = World(tmp_path)
    machine = running(world)
    world.turn(5)
    point = {"at the freeze": "freeze", "while it is sent": "upload", "after the end": "kill"}[second]
    machine.service.said = ACTION
    world.trips[point] = lambda: setattr(machine.service, "said", dataclasses.replace(ACTION, kind="termination"))
    world.until(lambda: bool(_finals(world)))
    for _ in range(10):
        world.turn()
    assert len(_finals(world)) == 1
    again = running(world, 2)
    assert again.shim.worked >= 5, "the successor goes on where the first stopped"


def test_a_notice_in_the_middle_of_a_periodic_save(tmp_path: Path) -> None:
    world = World(tmp_path, checkpoint_interval_seconds=20)
    machine = running(world)
    world.trips["upload"] = lambda: setattr(machine.service, "said", ACTION)
    world.until(lambda: bool(_finals(world)))
    live, final = [h for h in world.heads() if h.checkpoint][-2:]
    assert not live.final and final.final
    assert live.checkpoint != final.checkpoint
    assert running(world, 2).shim.worked >= 20


def test_a_window_that_is_too_short_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path, checkpoint_interval_seconds=20)
    machine = running(world)
    world.until(lambda: any(h.checkpoint for h in world.heads()))
    last = [h.checkpoint for h in world.heads()][-1]

    def gone() -> None:
        raise AgentKilled

    machine.service.said, world.trips["upload"] = ACTION, gone
    with pytest.raises(AgentKilled):
        world.until(lambda: False, 60)
    machine.agent, world.trips = None, {}
    assert _finals(world) == []
    again = running(world, 2)
    assert [h.checkpoint for h in world.heads()][-1] == last
    assert again.shim.worked >= 20


@pytest.mark.parametrize("fault", ELSEWHERE)
def test_what_is_tried_elsewhere_is_there(fault: str) -> None:
    file, name = ELSEWHERE[fault]
    assert re.search(rf"^(def )?{name}\b", (ROOT / "tests" / file).read_text(), re.MULTILINE)
