"""Agents whose job is run without checkpoints, or whose machine can't go on with one: told honestly, nothing lost silently."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import pytest
from spotsurfer_agent.ports.engine import EngineError, Protection
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import HeadKind, Want
from spotsurfer_wire.store.port import StoreError
from support.agent_world import ACTION, World, commits, running


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, engine="none", checkpoint_interval_seconds=10.0)


@pytest.mark.parametrize("why", ["asked", "notice"])
def test_a_job_without_checkpoints_is_drained_unsaved_and_begins_again(world, why):
    """The same tables: final entry, drained, granted elsewhere; no checkpoint, no retry used, every step from the beginning."""
    machine = running(world)
    for _ in range(40):
        world.turn()
    assert "upload" not in world.trail, "no periodic save is begun"
    if why == "asked":
        world.want(1, Want.DRAIN, 3)
    else:
        machine.service.said = ACTION
    world.until(lambda: machine.agent.over)
    final = world.heads()[-1]
    assert (final.kind, final.final, final.checkpoint, final.sequence) == (HeadKind.COMMIT, True, None, 0)
    assert world.report(1).state is S.DRAINED
    assert world.log(1)[1] == machine.shim.output()[: len(world.log(1)[1])]
    second = running(world, 2)
    assert second.shim.worked < machine.shim.worked


def test_a_store_that_fails_first_leaves_it_running(world):
    machine = running(world)
    machine.agent.logs.flush = lambda _: (_ for _ in ()).throw(StoreError("no space left"))  # pyright: ignore[reportAttributeAccessIssue]
    world.want(1, Want.DRAIN, 3)
    world.until(lambda: world.report(1).drain_failed == 3)
    assert world.report(1).state is S.RUNNING
    assert not commits(world)


@pytest.mark.parametrize("kind", ["refused", "restore", "start"])
def test_what_failed_reaches_the_report_by_its_name(tmp_path, kind):
    """From the engine's kind to the report: the controller decides by it."""
    world = World(tmp_path)

    def fail() -> None:
        raise EngineError(kind, f"{kind}: because")

    world.trips["start"] = fail
    machine = world.machine(1)
    machine.boot()
    world.until(lambda: machine.state is S.STANDBY)
    world.grant(1)
    world.until(lambda: machine.agent.over)
    report = world.report(1)
    assert (report.state, report.error_kind, report.error) == (S.BROKEN, kind, f"{kind}: because")


def test_the_report_says_on_which_rung_the_job_stands(world, monkeypatch):
    machine = running(world)
    monkeypatch.setattr(machine.agent.engine, "protection", lambda: Protection("none", "a ring"))
    world.until(lambda: world.report(1).unprotected == "a ring")
    assert world.report(1).protection == "none"
    assert world.report(1).processor
