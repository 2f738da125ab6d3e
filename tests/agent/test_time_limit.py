"""A job's time limit: what counts, what its processes are told, and how it ends; with no controller there."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import pytest
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import HeadKind, Step, Want
from support.agent_world import World, cut, mend, running


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, time_limit_seconds=60.0, kill_wait_seconds=10.0, warn_signal="USR1", warn_seconds=20.0)


def ended(world, machine):
    """How it ended, and after how many seconds of work."""
    world.until(lambda: machine.agent.over)
    done = next(h.done for h in reversed(world.heads()) if h.done)
    return done.ended_by, done.exit_code, machine.shim.worked


def test_it_is_warned_told_to_end_and_killed(world):
    machine = running(world, stubborn=True)
    ended_by, code, worked = ended(world, machine)
    assert (ended_by, code) == ("time limit", 137)
    assert machine.shim.signals == ["USR1", "TERM", "KILL"]
    assert worked == pytest.approx(70, abs=3)
    assert world.log(1) == (0, machine.shim.output())


def test_a_job_that_ends_when_told_is_ended_by_its_limit_all_the_same(world):
    machine = running(world)
    assert ended(world, machine)[:2] == ("time limit", 143)


def test_a_job_that_ends_before_is_not(world):
    machine = running(world, length=50.0)
    assert ended(world, machine)[:2] == ("", 0)
    assert machine.shim.signals == ["USR1"]


def test_no_further_step_begins(tmp_path):
    steps = [Step("main", ["work"]), Step("finish", ["tidy"], always=True)]
    world = World(tmp_path, time_limit_seconds=60.0, steps=steps, command=[])
    machine = running(world)
    assert ended(world, machine)[0] == "time limit"
    assert machine.shim.step == 0


def test_time_counts_over_machines_and_repeated_work_once(world):
    """The first machine saves after 30 seconds and is lost after 50: the second goes on at 30."""
    first = running(world)
    world.until(lambda: first.shim.worked >= 30)
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.until(lambda: world.heads()[-1].checkpoint is not None)
    world.until(lambda: first.shim.worked >= 50)
    assert first.shim.signals == ["USR1"]
    world.machines.remove(first)
    saved = world.heads()[-1]
    second = world.machine(2, worked=0.0)
    second.boot()
    world.until(lambda: second.state is S.STANDBY)
    world.turn(500.0)  # nothing of this counts
    world.head(HeadKind.GRANT, 2, ran_seconds=saved.ran_seconds)
    _, _, worked = ended(world, second)
    assert saved.ran_seconds == pytest.approx(30, abs=3)
    assert second.shim.signals == ["USR1", "TERM"]
    assert worked == pytest.approx(60, abs=4)


def test_an_agent_that_takes_over_counts_on(world):
    machine = running(world)
    world.until(lambda: machine.shim.worked >= 45)
    machine.boot()
    assert ended(world, machine)[2] == pytest.approx(60, abs=7)
    assert machine.shim.signals == ["USR1", "TERM"]


def test_a_job_that_stands_still_does_not_use_its_time_up(world):
    world.settings["lease_seconds"] = 9.0
    machine = running(world)
    world.until(lambda: machine.shim.worked >= 20)
    cut(world)
    for _ in range(200):
        world.turn()
    assert machine.shim.held
    mend(world)
    assert machine.shim.signals == []
    assert ended(world, machine)[2] == pytest.approx(60, abs=4)


def test_signals_of_its_user_are_sent_once(world):
    machine = running(world)
    world.want(1, Want.RUN, 1, signal_number=3, signal="HUP")
    for _ in range(5):
        world.turn()
    machine.boot()
    world.want(1, Want.RUN, 2, signal_number=3, signal="HUP")
    for _ in range(5):
        world.turn()
    assert machine.shim.signals == ["HUP"]
