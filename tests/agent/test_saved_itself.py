"""A program that ends as it saves itself is started again, wherever its agent or the store fails; it is no end of the job."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import dataclasses

import pytest
from spotsurfer_agent.control.facts import Do, Renew, Task
from spotsurfer_agent.control.state_machine import step
from spotsurfer_agent.ports.engine import EngineError, WorkloadState
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import Want
from spotsurfer_wire.store.port import StoreError
from support.agent_facts import NOTICE, desired, ended, facts, state
from support.agent_world import ACTION, AgentKilled, World, commits, cut, mend, running


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def ends_by_it(machine):
    machine.shim.advance()
    machine.shim.phase, machine.shim.saved_itself = WorkloadState.EXITED, True


def saving(world, machine, also=lambda: None):
    """A live save begins, which ends the program; `also` happens then."""

    def commit():
        ends_by_it(machine)
        also()

    world.trips["commit"] = commit
    world.want(1, Want.RUN, 1, save_at_least=1)


def test_it_goes_on_after_a_live_save_and_what_it_stood_still_counts(world):
    machine = running(world)
    saving(world, machine)
    world.trips["go on"] = lambda: world.sleep(3.0)
    world.until(lambda: commits(world))
    world.turn()
    assert (machine.state, machine.shim.phase) == (S.RUNNING, WorkloadState.RUNNING)
    assert world.trail.count("go on") == 1
    world.turn(10.0)
    assert world.report(1).frozen_seconds >= 3.0
    del world.trips["commit"]
    world.want(1, Want.DRAIN, 2)
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.DRAINED


@pytest.mark.parametrize("when", ["running", "no agent", "killed as it is started"])
def test_late_it_goes_on_all_the_same(world, when):
    machine = running(world)
    if when == "killed as it is started":
        world.trips["go on"] = killed
        ends_by_it(machine)
        with pytest.raises(AgentKilled):
            world.until(lambda: False, 5)
        del world.trips["go on"]
        machine.boot()
    elif when == "no agent":
        ends_by_it(machine)
        world.turn(0)
        machine.boot()
    else:
        ends_by_it(machine)
    world.until(lambda: machine.state is S.RUNNING and machine.shim.phase is WorkloadState.RUNNING)
    world.turn(10.0)
    assert machine.state is S.RUNNING
    assert not [h for h in world.heads() if h.done]


def killed():
    raise AgentKilled


def test_it_is_not_started_while_somebody_else_may_own_the_job(world):
    """The store is away since the middle of a save, and the lease lapses meanwhile."""
    machine = running(world)

    def away():
        cut(world)
        world.sleep(70.0)
        raise StoreError("the store does not answer")

    saving(world, machine, also=away)
    world.until(lambda: "commit" in world.trail)
    for _ in range(30):
        world.turn()
    assert (machine.shim.phase, machine.state) == (WorkloadState.EXITED, S.STEPPING)
    del world.trips["commit"]
    mend(world)
    world.until(lambda: machine.shim.phase is WorkloadState.RUNNING)
    assert "renew" in [h.kind for h in world.heads()]


def test_a_lease_that_lapsed_during_the_save_and_looks_fresh_again_is_proved_first():
    ended_by_it = facts(workload=WorkloadState.EXITED)
    lapsed = dataclasses.replace(ended_by_it, busy=Task.LIVE, lease_age_seconds=61.0)
    now, _ = step(state(S.SAVING), lapsed)
    fresh = dataclasses.replace(ended_by_it, now=1001.0, step_due=True)
    now, effects = step(now, dataclasses.replace(fresh, outcome=ended(Task.LIVE, "the store is away")))
    for _ in range(3):
        now, effects = step(now, fresh)
        assert effects == (Renew(),)
    assert now.name is S.STEPPING
    assert step(now, dataclasses.replace(fresh, proved_at=1001.0))[1] == (Do(Task.STEP),)


def test_where_its_saves_fail_it_works_on_between_them_and_the_reason_stays(world):
    machine = running(world)

    def refuses():
        raise EngineError("save", "the disk is full")

    saving(world, machine, also=refuses)
    began, worked = world.now, machine.shim.worked
    world.until(lambda: world.now - began >= 300, 400)
    assert 6 <= world.trail.count("commit") <= 12, "ever later, up to a minute"
    assert machine.shim.worked - worked > 200
    assert "the disk is full" in world.report(1).error


def test_a_drain_that_fails_so_is_told_and_not_begun_again_until_it_is_asked_anew(world):
    machine = running(world)

    def refuses():
        ends_by_it(machine)
        raise EngineError("save", "the disk is full")

    world.trips["commit"] = refuses
    world.want(1, Want.DRAIN, 3)
    world.until(lambda: world.report(1).drain_failed == 3)
    world.turn(30.0)
    assert (machine.state, world.trail.count("commit")) == (S.RUNNING, 1)
    assert world.report(1).error == "the disk is full"


def test_what_its_save_failed_of_is_told_again_after_a_start_that_failed_too():
    now, _ = step(state(S.DRAINING, drain_sequence=4), itself(outcome=ended(Task.FINAL, "the disk is full", kind="save")))
    now, _ = step(now, itself(outcome=ended(Task.STEP, "the store is away", kind="store")))
    assert (now.name, now.error) == (S.STEPPING, "the store is away")
    now, _ = step(now, facts(outcome=ended(Task.STEP)))
    assert (now.name, now.error, now.error_kind, now.drain_failed) == (S.RUNNING, "the disk is full", "save", 4)
    now, _ = step(now, facts(workload=WorkloadState.EXITED, step_due=True))
    now, _ = step(now, facts(outcome=ended(Task.STEP, "the store is away", kind="store")))
    now, _ = step(now, facts(outcome=ended(Task.STEP)))
    assert (now.name, now.error) == (S.RUNNING, ""), "another step: that save is no concern of it"


def test_at_the_end_of_a_notice_it_is_not_started_any_more():
    now, _ = step(state(S.DRAINING), itself(now=1119.0, notice=NOTICE, outcome=ended(Task.FINAL, "no room", kind="save")))
    assert now.name is S.OVERRUN


def itself(**changes):
    return facts(workload=WorkloadState.EXITED, step_due=True, saved_itself=True, **changes)


def test_an_agent_that_died_in_a_save_which_ended_the_program_waits_too():
    found = itself(desired=desired(save_at_least=9))
    now, _ = step(state(S.BOOT, save_tried=4), found)
    now, effects = step(now, found)
    assert effects == (Do(Task.STEP),)
    now, _ = step(now, facts(outcome=ended(Task.STEP), desired=desired(save_at_least=9)))
    assert step(now, facts(now=1059.0, desired=desired(save_at_least=9)))[0].name is S.RUNNING
    assert step(now, facts(now=1060.0, desired=desired(save_at_least=9)))[0].name is S.SAVING


def test_a_notice_meanwhile_saves_it_once_it_is_back(world):
    machine = running(world)
    ends_by_it(machine)
    machine.service.said = ACTION
    world.until(lambda: machine.agent.over, 400)
    assert world.report(1).state is S.DRAINED
    assert world.trail.count("go on") == 1


def test_what_may_have_killed_the_agent_is_not_tried_again_at_once(world):
    """A live save that the kernel killed the agent in, for want of memory."""
    machine = running(world)
    world.trips["upload"] = killed
    world.want(1, Want.RUN, 1, save_at_least=1)
    began = world.now
    for _ in range(3):
        with pytest.raises(AgentKilled):
            world.until(lambda: False, 100)
        machine.boot()
    assert world.now - began >= 120
    del world.trips["upload"]
    world.want(1, Want.DRAIN, 2)
    world.until(lambda: machine.agent.over, 10)  # a last save is made at once
    assert world.report(1).state is S.DRAINED
