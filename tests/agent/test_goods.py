"""When the agent brings inputs and shared file systems, and what it says where it can't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent.files import FilesError
from spotsurfer_agent.protocol import AgentState, Share, Spec
from spotsurfer_agent.store import StoreUnreachable
from support.agent_world import World, commits, running


class Goods:
    """Notes what was asked of it; `fails` is raised."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: Exception | None = None
        self.delivery = self

    def ready(self, spec: Spec, store: object, scratch: str, halt: Callable[[], None], tell: Callable[[str], None]) -> None:
        halt()
        self.asked.append("ready")
        if self.fails is not None:
            raise self.fails

    def ahead(self, spec: Spec, store: object, scratch: str, halt: Callable[[], None]) -> None:
        halt()
        self.asked.append("ahead")
        if self.fails is not None:
            raise self.fails

    def place(self, spec: Spec, scratch: str) -> None:
        self.asked.append("place")

    def drop(self) -> None:
        self.asked.append("drop")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, checkpoint_interval_seconds=10.0, shares=[Share("d", "nfs4", "h:/x", "/data")])
    made.settings = {"warm_wait_seconds": 60.0}
    return made


def boot(world: World, attempt: int, goods: Goods) -> Any:
    machine = world.machine(attempt)
    machine.boot().work.goods = goods  # type: ignore[assignment]
    world.until(lambda: machine.state is AgentState.STANDBY)
    return machine


def test_all_is_there_before_the_start_and_given_back_at_the_end(world: World) -> None:
    goods = Goods()
    machine = boot(world, 1, goods)
    assert goods.asked == []
    world.grant(1)
    world.until(lambda: machine.state is AgentState.RUNNING)
    assert goods.asked == ["ready", "place"]
    world.cancel()
    world.until(lambda: machine.state is AgentState.FENCED and "drop" in goods.asked)


@pytest.mark.parametrize(
    ("fails", "kind"),
    [
        (FilesError("input", "it changed"), "input"),
        (FilesError("refused", "no room"), "refused"),
        (StoreUnreachable("x"), "store"),
    ],
)
def test_what_can_t_be_had_is_said_and_nothing_starts(world: World, fails: Exception, kind: str) -> None:
    goods = Goods()
    goods.fails = fails
    machine = boot(world, 1, goods)
    world.grant(1)
    world.until(lambda: machine.state is AgentState.BROKEN)
    world.until(lambda: world.report(1).state is AgentState.BROKEN)
    assert (world.report(1).error, world.report(1).error_kind) == (str(fails), kind)
    assert "start" not in world.trail


def test_a_waiting_machine_brings_it_ahead_and_says_what_it_lacks(world: World) -> None:
    running(world, 1)
    world.until(lambda: len(commits(world)) > 0)
    goods = Goods()
    goods.fails = FilesError("input", "input x is not what the job started with")
    machine = boot(world, 2, goods)
    world.until(lambda: world.report(2).unfit == "input x is not what the job started with", 5)
    assert world.report(2).unfit_kind == "input"
    warm = world.report(2).warm
    assert warm is None or warm.checkpoint is None, "who lacks an input is not ready"
    goods.fails = None
    world.until(lambda: (world.report(2).warm or warm) is not None and world.report(2).warm.checkpoint is not None, 60)  # type: ignore[union-attr]
    assert machine.state is AgentState.STANDBY
    world.until(lambda: (world.report(2).unfit, world.report(2).unfit_kind) == ("", ""), 5)
    assert goods.asked[0] == "ahead"
