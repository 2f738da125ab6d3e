"""The engine with real programs on miniboxes: nothing lost, nothing twice, whatever dies when."""

from __future__ import annotations

import pytest
from support.minibox import minibox

pytestmark = pytest.mark.real


@pytest.fixture
def box(tmp_path):
    with minibox(tmp_path / "box", tmp_path / "store") as made:
        yield made


@pytest.mark.parametrize(
    ("memory_bytes", "user", "fs"), [(300 << 20, "-", "btrfs"), (32 << 20, "nobody", "btrfs"), (32 << 20, "-", "ext4")]
)
def test_a_job_surfs_three_machines_and_ends_as_if_it_had_not(tmp_path, memory_bytes, user, fs):
    for scene in ("first_machine", "middle_machine", "last_machine"):
        with minibox(tmp_path / scene, tmp_path / "store", fs) as machine:
            machine.run(scene, memory_bytes, 400, user)


@pytest.mark.parametrize(
    "scene",
    [
        "shell",
        pytest.param("held", marks=pytest.mark.always),
        "group_goes_first",
        "scope_of_its_own",
        "agent_and_shim_go_after_the_end",
        "lost",
        "ends_meanwhile",
        "refusals",
        "fingerprints_lost",
        "fingerprints_of_old",
        "network",
        "terminal",
        "typed",
        "strict",
        "criu_killed",
        "criu_hangs",
        "criu_hangs_in_a_restore",
        "criu_killed_while_it_holds_connections hook",
        "criu_killed_while_it_holds_connections dump",
        "killed_at_the_hook",
    ],
)
def test_scene(box, scene):
    box.run(*scene.split())


@pytest.mark.parametrize("scene", ["guard_pages", "many_mappings"])
def test_memory_that_is_laid_out_as_few_are(tmp_path, scene):
    with minibox(tmp_path / "box", tmp_path / "store", module="support.odd_memory_scenes") as made:
        made.run(scene)


@pytest.mark.parametrize("scene", ["failing_store", pytest.param("unclear_commit", marks=pytest.mark.always), "settled_true"])
def test_a_save_that_fails_leaves_the_job_unharmed(box, scene):
    box.run(scene)


@pytest.mark.parametrize(
    "stage",
    ["sync", "ahead", "ahead+0.03", "freeze", "freeze+0.05", "snapshot", "resume", "upload", "manifest", "commit"],
)
def test_kill_the_agent_in_a_live_save_at(box, stage):
    name, _, delay = stage.partition("+")
    box.run("agent_killed", "live", name, delay or "0")


@pytest.mark.parametrize("stage", ["sync", "freeze", "freeze+0.05", "snapshot", "upload", "manifest", "commit"])
def test_kill_the_agent_in_a_final_save_at(box, stage):
    name, _, delay = stage.partition("+")
    box.run("agent_killed", "final", name, delay or "0")
