"""A job of several commands: one after the other, whatever happens to the agent, the machine or the command."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
from __future__ import annotations

import dataclasses

import pytest
from spotsurfer_agent.host import steps
from spotsurfer_agent.ports.engine import WorkloadState
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import SelfSave, Spec, Step, StepRun, Want
from spotsurfer_wire.store.port import StoreError
from support.agent_world import ACTION, JOB, LINE_BYTES, AgentKilled, World, commits, cut, mend, running

SETUP, MAIN, FINISH = Step("setup", ["get"], protect=False), Step("main", ["work"]), Step("finish", ["tidy"], always=True)
STEPS = [SETUP, MAIN, FINISH]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, steps=STEPS, command=[])


def done(world):
    found = [h.done for h in world.heads() if h.done]
    assert len(found) == 1
    return found[0]


def in_step(world, machine, number):
    world.until(lambda: machine.shim.step == number and machine.state is S.RUNNING)
    world.turn()


def told(world, attempt=1):
    return [(r.name, r.exit_code) for r in world.report(attempt).steps]


# ---------------------------------------------------------------- one after the other


def test_one_after_the_other_with_code_positions_and_times_of_each(world):
    machine = running(world, 1, length=20.0)
    world.until(lambda: machine.agent.over)
    runs, line = done(world).steps, LINE_BYTES
    assert [(r.name, r.number, r.exit_code) for r in runs] == [("setup", 0, 0), ("main", 1, 0), ("finish", 2, 0)]
    assert [(r.log["out"], r.log_end["out"]) for r in runs[1:]] == [(20 * line, 40 * line), (40 * line, 60 * line)]
    assert [r.cpu_seconds for r in runs] == [20.0, 20.0, 20.0]
    assert all(r.began and r.ended for r in runs)
    assert world.heads()[-1].cpu_seconds == 60.0
    assert world.report(1).cpu_seconds == 60.0
    assert world.log(1) == (0, machine.shim.output())


def test_a_job_without_steps_is_one_step(tmp_path):
    world = World(tmp_path)
    machine = running(world, 1, length=20.0, exit_code=4)
    assert told(world) == [("main", None)]
    world.until(lambda: machine.agent.over)
    assert [(r.name, r.exit_code) for r in done(world).steps] == [("main", 4)]


@pytest.mark.parametrize(
    ("codes", "ran", "code"),
    [
        ([0, 0, 0], ["setup", "main", "finish"], 0),
        ([3, 0, 0], ["setup", "finish"], 3),
        ([0, 5, 0], ["setup", "main", "finish"], 5),
        ([0, 0, 6], ["setup", "main", "finish"], 6),
        ([0, 5, 6], ["setup", "main", "finish"], 5),
    ],
)
def test_a_step_that_fails_ends_the_job_but_for_steps_that_always_run(world, codes, ran, code):
    machine = running(world, 1, length=10.0, codes=codes)
    world.until(lambda: machine.agent.over)
    assert [r.name for r in done(world).steps] == ran
    assert done(world).exit_code == code


def test_a_step_that_fails_ends_a_job_without_such_steps(world):
    world.spec = dataclasses.replace(world.spec, steps=[SETUP, MAIN, dataclasses.replace(FINISH, always=False)])
    world.store.objects[object_keys.spec_key(JOB)] = json_codec.encode(world.spec)
    machine = running(world, 1, length=10.0, codes=[0, 9])
    world.until(lambda: machine.agent.over)
    assert [r.name for r in done(world).steps] == ["setup", "main"]
    assert done(world).exit_code == 9


# ---------------------------------------------------------------- what is saved of which step


def test_a_reclaim_during_setup_starts_again_elsewhere(world):
    machine = running(world, 1, length=50.0)
    in_step(world, machine, 0)
    machine.service.said = ACTION
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.DRAINED
    head = world.heads()[-1]
    assert (head.final, head.checkpoint, head.cpu_seconds) == (True, None, 0.0)
    assert "freeze" not in world.trail
    second = running(world, 2, length=50.0)
    assert second.shim.worked < 5
    world.until(lambda: second.agent.over)
    assert [r.name for r in done(world).steps] == ["setup", "main", "finish"]
    assert world.log(2) == (0, second.shim.output())


def test_nothing_is_saved_in_setup_and_what_was_asked_for_comes_with_main(world):
    world.spec = dataclasses.replace(world.spec, checkpoint_interval_seconds=5.0)
    world.store.objects[object_keys.spec_key(JOB)] = json_codec.encode(world.spec)
    machine = running(world, 1, length=40.0)
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.until(lambda: machine.shim.worked >= 39)
    assert commits(world) == []
    assert world.report(1).protection == "none"
    assert "'setup' is not protected" in world.report(1).unprotected
    world.until(lambda: commits(world) != [])
    assert machine.shim.step == 1
    assert world.report(1).protection == "criu"


def test_a_save_in_main_goes_on_in_main_and_then_to_finish(world):
    first = running(world, 1, length=40.0)
    in_step(world, first, 1)
    assert told(world) == [("setup", 0), ("main", None)]
    first.service.said = ACTION
    world.until(lambda: first.agent.over)
    second = running(world, 2, length=40.0)
    assert world.trail.count("start") == 1
    assert (second.shim.step, told(world, 2)) == (1, [("setup", 0), ("main", None)])
    world.until(lambda: second.agent.over)
    assert [(r.name, r.exit_code, r.cpu_seconds) for r in done(world).steps] == [
        ("setup", 0, 40.0), ("main", 0, 40.0), ("finish", 0, 40.0),
    ]  # fmt: skip
    begin, rest = world.log(2)
    assert world.log(1)[1][:begin] + rest == second.shim.output()
    assert world.heads()[-1].cpu_seconds == 120.0


def test_a_reclaim_in_a_later_step_that_is_not_protected_goes_back_to_the_newest_checkpoint(world):
    world.spec = dataclasses.replace(world.spec, steps=[MAIN, dataclasses.replace(SETUP, name="pack")])
    world.store.objects[object_keys.spec_key(JOB)] = json_codec.encode(world.spec)
    first = running(world, 1, length=40.0)
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.until(lambda: commits(world) != [])
    saved = commits(world)[0]
    in_step(world, first, 1)
    first.service.said = ACTION
    world.until(lambda: first.agent.over)
    assert (world.heads()[-1].final, world.heads()[-1].checkpoint) == (True, saved.checkpoint)
    second = running(world, 2, length=40.0)
    assert (second.shim.step, second.shim.cpu_from) == (0, saved.cpu_seconds)
    world.until(lambda: second.agent.over)
    assert [r.name for r in done(world).steps] == ["main", "pack"]


def test_a_drain_between_two_steps_saves_the_next_one(world):
    machine = running(world, 1, length=20.0)
    in_step(world, machine, 1)
    world.until(lambda: machine.shim.worked >= 38)

    def ends():
        machine.shim.worked, machine.shim.phase = 40.0, WorkloadState.EXITED
        del world.trips["freeze"]

    world.trips["freeze"] = ends
    world.want(1, Want.DRAIN, 1)
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.DRAINED
    assert told(world) == [("setup", 0), ("main", 0), ("finish", None)]
    second = running(world, 2, length=20.0)
    assert second.shim.step == 2
    world.until(lambda: second.agent.over)
    assert done(world).exit_code == 0


# ---------------------------------------------------------------- the agent's own deaths


def killed():
    raise AgentKilled


@pytest.mark.parametrize("point", ["step 1", "between 1", "stepped 1", "step 2", "between 2", "stepped 2"])
def test_killed_between_two_steps_the_next_agent_goes_on(world, point):
    machine = running(world, 1, length=10.0, codes=[0, 7, 0])
    world.trips[point] = killed
    with pytest.raises(AgentKilled):
        world.until(lambda: False, 40)
    del world.trips[point]
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert [(r.name, r.exit_code, r.cpu_seconds) for r in done(world).steps] == [
        ("setup", 0, 10.0), ("main", 7, 10.0), ("finish", 0, 10.0),
    ]  # fmt: skip
    assert done(world).exit_code == 7
    assert world.report(1).cpu_seconds == 30.0
    assert world.log(1) == (0, machine.shim.output())
    assert world.trail.count("start") == 1


def test_a_step_that_ended_while_no_agent_was_there_is_followed_by_the_next(world):
    machine = running(world, 1, length=10.0)
    world.now += 30
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert [r.name for r in done(world).steps] == ["setup", "main", "finish"]


def test_a_store_that_is_away_when_a_step_is_to_start_is_waited_for(world):
    machine = running(world, 1, length=10.0)
    tries = []

    def away():
        tries.append(world.now)
        if len(tries) < 4:
            raise StoreError("the store does not answer")

    world.trips["step 1"] = away
    world.until(lambda: machine.agent.over)
    assert len(tries) == 4
    assert done(world).exit_code == 0


def test_a_job_that_an_agent_without_steps_had_started_comes_to_its_end(tmp_path):
    world = World(tmp_path)
    machine = running(world, 1, length=20.0, exit_code=4)
    machine.agent._given.state.update(steps=[])
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert (done(world).exit_code, [(r.name, r.exit_code) for r in done(world).steps]) == (4, [("main", 4)])


# ---------------------------------------------------------------- the lease between two steps


def test_nothing_starts_while_the_lease_lapsed_between_two_steps(world):
    machine = running(world, 1, length=30.0)
    world.until(lambda: machine.shim.worked >= 20)
    machine.agent.tick()
    cut(world)

    def away():
        raise StoreError("the store does not answer")

    world.trips["step 1"] = away  # so that it is still between the two
    for _ in range(90):
        world.turn()
    assert machine.state is S.STEPPING
    tries = world.trail.count("step 1")
    del world.trips["step 1"]
    for _ in range(30):
        world.turn()
    assert world.trail.count("step 1") == tries, "the lease has lapsed: somebody else may be granted the job"
    mend(world)
    world.until(lambda: machine.shim.step == 1)
    assert "renew" in [h.kind for h in world.heads()]


# ---------------------------------------------------------------- pure parts


def test_what_a_step_is_given():
    spec = Spec("j", [], environment={"A": "1"}, app=SelfSave(signal="USR1"), steps=STEPS)
    runs = [StepRun("setup", 0, exit_code=0), StepRun("main", 1, exit_code=3), StepRun("finish", 2)]
    assert steps.at(spec, 0).environment == {"A": "1", "SPOTSURFER_STEP": "setup"}
    last = steps.at(spec, 2, runs)
    assert (last.command, last.step, last.app) == (["tidy"], 2, None)
    assert last.environment["SPOTSURFER_EXIT_CODE"] == "3"
    assert steps.at(spec, 1).app == SelfSave(signal="USR1")


def test_only_main_saves_itself():
    spec = Spec("j", [], engine="app", app=SelfSave(signal="USR1"), steps=STEPS)
    assert steps.unprotected(spec, 1) == ""
    assert "does not save itself" in steps.unprotected(spec, 2)
    assert "not protected" in steps.unprotected(spec, 0)
    assert steps.unprotected(dataclasses.replace(spec, steps=[]), 0) == ""
