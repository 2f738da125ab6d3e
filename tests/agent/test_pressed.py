"""A job that stands still because its memory was about to end: what the agent does about it, in values and in virtual time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.control.facts import Do, Task, Unguard
from spotsurfer_agent.control.state_machine import PRESSED_TRIES, STARVED, step
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.shim import oom_guard
from spotsurfer_agent.shim.oom_guard import Guard, judge, kernel_guard
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import NearMiss
from spotsurfer_wire.oom_freeze_levels import Levels
from support import usage_trees
from support.agent_facts import ended, facts, state
from support.agent_world import World, running

MISS = NearMiss(1 << 30, 832 << 20, 835 << 20, 0.01)


def test_it_is_saved_for_the_last_time_whoever_asks_for_it():
    after, effects = step(state(S.RUNNING), facts(pressed=True))
    assert after.name is S.DRAINING
    assert effects == (Do(Task.FINAL),)


def test_a_save_that_fails_is_tried_again_and_never_lets_it_run_half_saved():
    now = state(S.DRAINING)
    for count in range(1, PRESSED_TRIES):
        now, effects = step(now, facts(pressed=True, outcome=ended(Task.FINAL, "no")))
        assert (now.name, now.failures, effects) == (S.DRAINING, count, ())
        now, effects = step(now, facts(pressed=True, now=now.retry_at + 1))
        assert effects == (Do(Task.FINAL),)
    now, effects = step(now, facts(pressed=True, outcome=ended(Task.FINAL, "no")))
    assert (now.name, now.error_kind) == (S.BROKEN, "lost")
    assert now.error == f"{STARVED}: no"
    assert Do(Task.KILL) in effects


def test_one_whose_memory_finds_no_room_is_lost_here():
    """Its memory arrives behind it and can't: it can't be saved either, and it waited for ever."""
    now, effects = step(state(S.DRAINING), facts(pressed=True, arriving_bytes=9, now=1000.0))
    for at, missing in ((1029.0, 9), (1031.0, 5), (1060.0, 5)):
        now, effects = step(now, facts(pressed=True, arriving_bytes=missing, now=at if at < 1031 else at + 0.5))
        assert (now.name, effects) == (S.DRAINING, ()), at
    assert step(now, facts(arriving_bytes=5, now=1070.0))[0].name is not S.BROKEN, "it does not stand still for that"
    now, effects = step(now, facts(pressed=True, arriving_bytes=5, now=1070.0))
    assert (now.name, now.error_kind) == (S.BROKEN, "lost")
    assert Do(Task.KILL) in effects


def test_one_that_cannot_be_saved_is_let_go():
    now, effects = step(state(S.RUNNING), facts(pressed=True, unprotected=True))
    assert (now.name, effects) == (S.DRAINING, (Unguard(),))


def test_a_save_under_way_is_waited_for():
    now, effects = step(state(S.SAVING), facts(pressed=True, busy=Task.LIVE))
    assert (now.name, effects) == (S.DRAINING, ())


def test_the_report_says_so_and_the_head_is_final(tmp_path):
    world = World(tmp_path)
    machine = running(world)
    world.until(lambda: machine.shim.worked > 5)
    machine.shim.near_miss = MISS
    agent = machine.agent
    assert agent is not None
    world.until(lambda: agent.over)
    assert world.report(1).near_miss == MISS
    assert world.report(1).state is S.DRAINED
    assert world.heads()[-1].final


def test_where_every_save_fails_the_last_checkpoint_counts(tmp_path):
    world = World(tmp_path)
    machine = running(world)
    agent = machine.agent
    assert agent is not None
    machine.shim.near_miss = MISS

    def fails() -> None:
        raise EngineError("save", "no room")

    world.trips["freeze"] = fails
    world.until(lambda: agent.over)
    assert (world.report(1).state, world.report(1).near_miss) == (S.BROKEN, MISS)
    assert world.report(1).error == f"{STARVED}: no room"
    assert not world.heads()[-1].final


# ---------------------------------------------------------------- the guard itself


@given(st.integers(64 << 20, 1 << 45))
def test_levels_leave_room_for_the_save(machine):
    levels = Levels.of(machine)
    assert 0 < levels.press < levels.wall < machine
    assert levels.press <= 0.95 * machine
    assert machine - levels.press >= min(320 << 20, machine * 5 // 16)


@given(st.integers(0, 1 << 40), st.integers(64 << 20, 1 << 40))
def test_page_cache_is_looked_at_again_before_the_fastest_job_is_there(need, machine):
    levels = Levels.of(machine)
    wait = judge(need, levels, at_wall=False)
    assert (wait is None) == (need >= 0.99 * levels.press)
    assert wait is None or wait == 0.01 or wait * (4 << 30) <= levels.press - need
    assert judge(need, levels, at_wall=True) is None


@pytest.mark.parametrize(("used", "pressed"), [(300 << 20, False), (900 << 20, True)])
def test_v2_is_guarded_by_its_files(tmp_path, used, pressed):
    stat = "anon 1\ninactive_file 1048576\nactive_file 0\n"
    folders = usage_trees.write(tmp_path, "v2", memory_current=f"{used}\n", memory_stat=stat)
    made = kernel_guard(folders)
    assert made is not None
    levels = Levels.of(1 << 30)
    made.arm(levels)
    limits = ["memory.high", "memory.max"]
    assert [(tmp_path / "g" / name).read_text() for name in limits] == [str(levels.press), str(levels.machine)]
    assert (judge(made.need(), levels, made.at_wall()) is None) == pressed
    made.lift()
    made.close()
    assert [(tmp_path / "g" / name).read_text() for name in limits] == ["max", "max"]


@pytest.mark.parametrize(("version", "name"), [("v1", "memory.limit_in_bytes"), ("v2", "memory.max")])
def test_a_job_that_can_not_be_frozen_is_kept_below_its_wall(tmp_path, version, name):
    folders = usage_trees.write(tmp_path, version)
    (tmp_path / "memory").mkdir(exist_ok=True)
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill_disable 0\n")
    guard, levels = Guard(lambda _fd, _call: None, lambda _fd: None, lambda: pytest.fail("frozen")), Levels.of(1 << 30)
    guard.begin(JobCgroup(folders), list(dataclasses.astuple(levels)), freezes=False)
    assert next(tmp_path.rglob(name)).read_text() == str(levels.wall)
    guard.end()
    assert next(tmp_path.rglob(name)).read_text() == {"v1": "-1", "v2": "max"}[version]


def test_a_kernel_that_counts_no_memory_guards_nothing(tmp_path):
    assert kernel_guard({"": str(tmp_path)}) is None
    assert kernel_guard({"freezer": str(tmp_path), "cpuacct": str(tmp_path)}) is None
    guard = Guard(lambda _fd, _call: None, lambda _fd: None, lambda: None)
    guard.begin(None, list(dataclasses.astuple(Levels.of(1 << 30))))
    guard.look()
    guard.grip()
    guard.end()
    assert (guard.pressed, guard.seconds, guard.freezer()) == (None, None, [])


class Group:
    """A control group that remembers what was done to it."""

    folders: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.done: list[str] = []

    def ask_to_freeze(self) -> None:
        self.done.append("asked")

    def freeze(self) -> None:
        self.done.append("frozen")

    @property
    def freezer(self) -> str:
        return "/freezer"


class Pressing:
    """A kernel that says at once that it is time."""

    def arm(self, levels: Levels) -> tuple[list[int], list[int]]:
        self.levels = levels
        return [7], [8]

    def hush(self) -> None: ...

    def used(self) -> int:
        return self.levels.press

    need = used

    def at_wall(self) -> bool:
        return False

    def lift(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.setattr(oom_guard, "kernel_guard", lambda _folders: Pressing())
    made = Guard(lambda _fd, _call: None, lambda _fd: None, lambda: made.grip())
    return made


LEVELS = list(dataclasses.astuple(Levels.of(1 << 30)))


def test_the_freezer_is_told_before_the_wall_is_lifted(guard):
    group = Group()
    guard.begin(group, LEVELS)
    assert group.done == ["asked", "frozen"]
    assert guard.pressed["limit_bytes"] == LEVELS[1]
    assert guard.freezer() == ["--freeze-cgroup", "/freezer"]
    assert guard.lead("agent") == {"still": True}
    guard.end()
    assert (guard.pressed, guard.freezer()) == (None, [])


def test_who_leads_its_threads_is_waited_for(guard):
    group = Group()
    assert guard.lead("agent") == {"still": False}
    guard.begin(group, LEVELS)
    assert guard.pressed is not None
    assert group.done == []
    guard.left("somebody")
    assert group.done == []
    guard.left("agent")
    assert group.done == ["asked", "frozen"]
