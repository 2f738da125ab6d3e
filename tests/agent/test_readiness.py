"""A machine that stands by says whether the job could come before anybody drains it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_wire import messages, object_keys
from spotsurfer_wire.messages import AgentState
from support.agent_world import JOB, World, commits, cut, mend, running

IMAGE = "docker://registry/tool:1"
DOWN = "the registry can't be reached"


def made(folder: Path, *, warm: float = 60.0, limit: float = 3600.0, **spec: Any) -> World:
    world = World(folder, checkpoint_interval_seconds=10.0, **spec)
    world.settings = {"warm_wait_seconds": warm, "ready_limit_seconds": limit}
    return world


def saved(world: World) -> None:
    """A machine runs the job and has saved it."""
    running(world, 1)
    world.until(lambda: len(commits(world)) > 0)


def stands_by(world: World, attempt: int) -> Any:
    machine = world.machine(attempt)
    machine.boot()
    world.until(lambda: machine.state is AgentState.STANDBY)
    world.turn()
    return machine


def reports(world: World, attempt: int) -> list[messages.Report]:
    """Every report of an attempt from now on."""
    found: list[messages.Report] = []
    before = world.store.before

    def put(verb: str, key: str) -> None:
        before(verb, key)
        if key == object_keys.live_key(JOB, attempt) and key in world.store.objects:
            found.append(world.report(attempt))

    world.store.before = put
    return found


@pytest.mark.parametrize("warm", [60.0, 0.0])
def test_it_says_that_it_is_ready_only_after_it_was_compared(tmp_path: Path, warm: float) -> None:
    world = made(tmp_path, warm=warm, command=["count"])
    saved(world)
    world.speaks_against = "build-id abc where it was made, def here"
    told = reports(world, 2)
    stands_by(world, 2)
    world.until(lambda: world.report(2).unfit != "", 5)
    assert world.report(2).unfit == world.speaks_against
    assert all(r.waits or r.unfit for r in told if r.state is AgentState.STANDBY), "ready before it was compared"


def test_nothing_is_fetched_for_a_job_that_could_not_come(tmp_path: Path) -> None:
    world = made(tmp_path)
    saved(world)
    world.speaks_against = "another build-id"
    asked: list[str] = []
    machine = stands_by(world, 2)
    world.machines = [machine]
    world.store.before = lambda verb, key: asked.append(key) if verb == "get" and "/chunks/" in key else None
    world.turn()
    world.turn()
    assert (asked, world.report(2).warm.checkpoint) == ([], None)  # type: ignore[union-attr]
    assert world.report(2).unfit == "another build-id"


def test_what_must_be_here_is_brought_before_it_is_ready_at_a_first_start_too(tmp_path: Path) -> None:
    world = made(tmp_path, warm=0.0, image=IMAGE)
    world.trips["prepare"] = lambda: (_ for _ in ()).throw(EngineError("store", DOWN))
    stands_by(world, 1)
    world.until(lambda: world.report(1).waits == f"{DOWN}; it is asked again", 5)
    del world.trips["prepare"]
    world.until(lambda: world.report(1).waits == "", 30)
    assert world.report(1).unfit == ""


def test_a_simple_job_is_ready_with_the_first_word(tmp_path: Path) -> None:
    world = made(tmp_path)
    told = reports(world, 1)
    stands_by(world, 1)
    told.append(world.report(1))
    assert [r.waits for r in told if r.state is AgentState.STANDBY] != []
    assert [r.waits for r in told if r.state is AgentState.STANDBY and r.waits] == []


def test_a_restore_is_expected_before_the_first_checkpoint_if_the_job_runs_elsewhere_and_not_at_a_first_start(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, checkpoint_interval_seconds=3600.0)
    running(world, 1)
    assert (commits(world), "expected" in world.trail) == ([], False)
    stands_by(world, 2)
    world.until(lambda: "expected" in world.trail, 5)
    assert world.report(2).waits == ""


def test_what_a_start_needs_stands_by_before_the_job_comes(tmp_path: Path) -> None:
    world = World(tmp_path)
    running(world)
    assert world.trail.index("start expected") < world.trail.index("start")
    assert "expected" not in world.trail


def test_a_job_that_was_over_and_goes_back_finds_its_machine_ready(tmp_path: Path) -> None:
    world = made(tmp_path)
    saved(world)
    world.cancel()
    stands_by(world, 2)
    world.until(lambda: world.report(2).waits == "", 30)
    assert world.report(2).unfit == ""


def test_who_does_not_answer_is_asked_ever_more_seldom_and_then_given_up(tmp_path: Path) -> None:
    world = made(tmp_path, image=IMAGE, limit=600.0)
    saved(world)
    world.trips["prepare"] = lambda: (_ for _ in ()).throw(EngineError("store", DOWN))
    machine = stands_by(world, 2)
    world.machines, world.trail = [machine], []
    for _ in range(300):
        world.turn()
    assert 5 <= world.trail.count("prepare") <= 12
    assert (world.report(2).waits, world.report(2).unfit) == (f"{DOWN}; it is asked again", "")
    for _ in range(360):
        world.turn()
    assert (world.report(2).waits, world.report(2).unfit, world.report(2).unfit_kind) == ("", DOWN, "image")


def test_a_store_that_stumbles_while_it_compares_is_no_verdict(tmp_path: Path) -> None:
    world = made(tmp_path)
    saved(world)
    machine = world.machine(2)
    machine.boot()
    cut(world, object_keys.manifest_key(JOB, str(commits(world)[-1].checkpoint)))
    world.until(lambda: machine.state is AgentState.STANDBY)
    world.until(lambda: "the store does not answer" in world.report(2).waits, 10)
    mend(world)
    world.until(lambda: world.report(2).waits == "", 90)
    assert world.report(2).unfit == ""


def test_a_manifest_that_can_not_be_read_does_not_keep_the_job_waiting(tmp_path: Path) -> None:
    world = made(tmp_path)
    saved(world)
    world.machines[0].agent = None
    key = object_keys.manifest_key(JOB, str(commits(world)[-1].checkpoint))
    world.store.objects[key] = b"rubbish"
    stands_by(world, 2)
    world.until(lambda: world.report(2).waits == "", 10)


def test_the_newest_checkpoint_is_compared_anew_and_the_verdict_follows(tmp_path: Path) -> None:
    world = made(tmp_path)
    saved(world)
    world.speaks_against = "another build-id"
    stands_by(world, 2)
    world.until(lambda: world.report(2).unfit != "", 5)
    world.speaks_against = ""
    world.until(lambda: world.report(2).unfit == "", 60)


def test_an_error_that_only_the_start_can_explain_is_left_to_it(tmp_path: Path) -> None:
    world = made(tmp_path, image=IMAGE)
    saved(world)
    world.trips["prepare"] = lambda: (_ for _ in ()).throw(EngineError("start", "odd"))
    stands_by(world, 2)
    world.until(lambda: (world.report(2).waits, world.report(2).unfit) == ("", ""), 10)
