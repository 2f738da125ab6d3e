"""What a machine lacks is said before anything of a checkpoint is fetched, and before the job leaves its machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from spotsurfer_agent.host import preflight
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.restore import compatibility
from spotsurfer_wire.messages import AgentState
from support.agent_world import World, commits, running

LIBRARY = str(Path("/bin/sh").resolve())
REAL = compatibility.file_fact(LIBRARY)
OTHER = REAL.partition(", build-id")[0] + ", build-id 00ff"
FIRST, SECOND = "sha256:" + "aa" * 32, "sha256:" + "bb" * 32
CANT = "this machine can't continue the image: "
# What was saved, what is here, what is said.
TABLE = {
    "a mapped library's build-id": (
        {f"file {LIBRARY}": OTHER},
        {},
        f"{CANT}file {LIBRARY} was {OTHER!r} where it was made and is {REAL!r} here",
    ),
    "the image's digest": (
        {"container image": FIRST},
        {"container image": SECOND},
        f"{CANT}container image was {FIRST!r} where it was made and is {SECOND!r} here",
    ),
    "an instruction of the processor": (
        {"cpu instructions": "avx avx2 sse2"},
        {"cpu instructions": "avx sse2 sse4a"},
        f"{CANT}cpu instructions that it needs are missing here: avx2",
    ),
    "a way to inode numbers": (
        {"inode numbers": "btrfs"},
        {"inode numbers": "any, on xfs"},
        f"{CANT}inode numbers was 'btrfs' where it was made and is 'any, on xfs' here",
    ),
    "an order of folders": (
        {"order of folders": "ext4 24aeed8d57e8"},
        {"order of folders": "ext4 adcbf56a128a"},
        f"{CANT}order of folders was 'ext4 24aeed8d57e8' where it was made and is 'ext4 adcbf56a128a' here",
    ),
    "a mount": (
        {"mounts": "/ /data"},
        {"mounts": "/"},
        f"{CANT}mounts was '/ /data' where it was made and is '/' here",
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, checkpoint_interval_seconds=10.0)
    made.settings = {"warm_wait_seconds": 60.0}
    return made


def watched(world: World) -> list[str]:
    """What is read of the job's checkpoints from now on, by the machine that comes next: the one that saved it is gone."""
    world.machines[0].agent = None
    read: list[str] = []

    def note(verb: str, key: str) -> None:
        if verb == "get" and any(part in key for part in ("/checkpoints/", "/chunks/", "/packs/")):
            read.append(key)

    world.store.before = note
    return read


def saved(world: World, facts: dict[str, str]) -> None:
    world.facts_there = facts
    running(world, 1)
    world.until(lambda: len(commits(world)) > 0)


def facing(world: World, row: str) -> tuple[str, list[str]]:
    """A saved job, and a next machine that a row of the table speaks against: what it should say, and what it reads."""
    there, here, sentence = TABLE[row]
    saved(world, there)
    world.facts_here = here
    return sentence, watched(world)


def test_the_library_is_one_that_has_a_build_id() -> None:
    assert ", build-id " in REAL


@pytest.mark.parametrize("row", TABLE)
def test_a_machine_that_waits_says_so_and_fetches_nothing(world: World, row: str) -> None:
    sentence, read = facing(world, row)
    machine = world.machine(2)
    machine.boot()
    world.until(lambda: machine.state is AgentState.STANDBY and world.report(2).unfit != "", 10)
    for _ in range(3):
        world.turn()
    assert world.report(2).unfit == sentence
    assert len(read) == 1, "nothing but the manifest, once"


@pytest.mark.parametrize("row", TABLE)
def test_a_machine_that_was_given_the_job_at_once_says_so_and_fetches_nothing(world: World, row: str) -> None:
    sentence, read = facing(world, row)
    world.settings["warm_wait_seconds"] = 0.0
    machine = world.machine(2)
    machine.boot()
    world.grant(2)
    world.until(lambda: machine.state is AgentState.BROKEN, 10)
    world.until(lambda: world.report(2).state is AgentState.BROKEN, 10)
    assert (world.report(2).error, world.report(2).error_kind) == (sentence, "refused")
    assert set(read) == {read[0]}, "nothing but the manifest"


def test_a_kernel_that_lacks_a_feature_is_said_before_anything_is_read(world: World, tmp_path: Path) -> None:
    program = tmp_path / "criu"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo Version: 4.2 || { echo 'Error: no userfaultfd' >&2; exit 1; }\n")
    program.chmod(0o755)
    sentence = preflight._criu(Tools((str(program),), (), (), (), "", ()))
    now_and_then = tmp_path / "now-and-then"
    tried = tmp_path / "tried"
    now_and_then.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && exec echo Version: 4.2\n[ -e {tried} ] || {{ touch {tried}; exit 1; }}\n"
    )
    now_and_then.chmod(0o755)
    assert preflight._criu(Tools((str(now_and_then),), (), (), (), "", ())) is None and tried.exists()
    expected = (
        f"The kernel {os.uname().release} lacks what CRIU needs (Error: no userfaultfd): use an image with a stock "
        "distribution kernel."
    )
    assert sentence == expected
    saved(world, {})
    world.unfit = [expected]
    read = watched(world)
    machine = world.machine(2)
    machine.boot()
    world.until(lambda: machine.state is AgentState.BROKEN, 10)
    world.until(lambda: world.report(2).state is AgentState.BROKEN, 10)
    assert (world.report(2).error, read) == (expected, [])
