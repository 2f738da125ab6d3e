"""kill -9 of the agent at every point: the next one on the same machine goes on."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
from __future__ import annotations

import dataclasses

import pytest
from spotsurfer_agent.ports.engine import WorkloadState
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import Want
from support.agent_world import JOB, AgentKilled, World, commits, cut, mend, running


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# ---------------------------------------------------------------- restarts of the agent


def killed():
    raise AgentKilled


POINTS = ["start", "started", "freeze", "upload", "manifest", "commit", "committed"]


@pytest.mark.parametrize("drain", [True, False], ids=["final", "live"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_point_the_next_agent_goes_on(world, point, drain):
    machine = world.machine(1)
    machine.boot()
    world.turn()
    world.trips[point] = killed
    world.grant(1)
    if point not in ("start", "started"):
        world.until(lambda: machine.state is S.RUNNING)
        if drain:
            world.want(1, Want.DRAIN, 1)
        else:
            world.want(1, Want.RUN, 1, save_at_least=1)
    with pytest.raises(AgentKilled):
        world.until(lambda: False, 20)
    if point in ("start", "started"):
        world.want(1, Want.DRAIN if drain else Want.RUN, 1, save_at_least=0 if drain else 1)
    del world.trips[point]
    worked, sequence = machine.shim.worked, world.report(1).sequence
    machine.boot()
    if drain:
        world.until(lambda: machine.agent.over)
        assert world.report(1).state in (S.DRAINED, S.HALTED)
        assert sum(h.final for h in world.heads()) == (world.report(1).state is S.DRAINED)
        assert machine.shim.phase == "absent"
        second = running(world, 2, length=80.0)
        world.until(lambda: second.agent.over)
        begin, rest = world.log(2)
        assert world.log(1)[1][:begin] + rest == second.shim.output()
    else:
        world.until(lambda: len(commits(world)) >= 1)
        world.turn()
        assert machine.state is S.RUNNING
        assert not machine.shim.held
        assert machine.shim.worked >= worked
        assert machine.shim.output().startswith(world.log(1)[1])
    assert world.report(1).sequence > sequence


@pytest.mark.parametrize("verb", ["create", "put"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 40, 3))
def test_killed_at_any_write_nothing_is_lost_or_said_twice(world, number, when, verb):
    """kill -9 around the n-th write of the whole life of a job with three live saves."""
    world.spec = dataclasses.replace(world.spec, checkpoint_interval_seconds=5.0, outputs=["*"])
    world.store.objects[object_keys.spec_key(JOB)] = json_codec.encode(world.spec)
    machine = world.machine(1, length=18.0, exit_code=3)
    count = [0]

    def maybe(said, key):
        if said == verb:
            count[0] += 1
            if count[0] == number:
                raise AgentKilled

    setattr(world.store, when, maybe)
    machine.boot()
    world.grant(1)
    for _ in range(200):
        try:
            world.turn()
        except AgentKilled:
            machine.boot()
        if machine.agent.over:
            break
    assert machine.agent.over
    assert world.report(1).state is S.FINISHED
    assert world.log(1) == (0, b"".join(b"%08d\n" % i for i in range(18)))
    assert [h.done.exit_code for h in world.heads() if h.done] == [3]
    checkpoints = [h.checkpoint for h in commits(world)]
    assert len(set(checkpoints)) == len(checkpoints)


def test_the_next_agent_knows_how_old_the_last_save_is(world):
    """Or it would forecast too short a final save, and answer a notice too late."""
    machine = running(world)
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.until(lambda: len(commits(world)) == 1)
    saved = world.now
    world.turn(50.0)
    machine.boot()
    world.turn()
    assert machine.state is S.RUNNING
    assert world.now - saved <= world.report(1).save_age_seconds <= world.now - saved + 2


def test_before_any_save_it_is_as_old_as_the_job(world):
    machine = world.machine(1)
    machine.boot()
    world.turn(1000.0)  # it stands by
    machine.boot()
    world.turn()
    world.grant(1)
    world.until(lambda: machine.state is S.RUNNING)
    began = world.now
    world.turn(50.0)
    machine.boot()
    world.turn()
    assert world.now - began <= world.report(1).save_age_seconds <= world.now - began + 2


@pytest.mark.parametrize("point", ["manifest", "commit", "committed", "kill"])
def test_a_final_save_counts_whichever_agent_ends_it(world, point):
    """Killed in it, and, while the head can't be read, stopped for a while; `kill`: when it is dead and not reported yet."""
    machine = running(world)
    world.turn(20.0)
    world.trips[point] = killed
    world.want(1, Want.DRAIN, 1)
    with pytest.raises(AgentKilled):
        world.until(lambda: False, 10)
    del world.trips[point]
    done, worked = bool(commits(world)), machine.shim.worked
    machine.boot()
    if not done:
        cut(world)
        world.turn(40.0)
        mend(world)
    world.until(lambda: machine.agent.over)
    report, head = world.report(1), world.heads()[-1]
    assert (report.state, report.saves, report.cpu_seconds) == (S.DRAINED, 1, pytest.approx(worked, abs=1.1))
    assert report.last_save.checkpoint == head.checkpoint
    assert report.frozen_seconds > (35.0 if point == "commit" else 0.0)


@pytest.mark.parametrize("point", ["kill", "dead"])
def test_what_a_job_used_is_known_after_its_end_whichever_agent_tells_it(world, point):
    machine = running(world, length=30.0)
    world.turn(40.0)

    def end(verb, key):
        if key == object_keys.live_key(JOB, 1) and world.heads()[-1].done:
            raise AgentKilled

    if point == "kill":
        world.trips["kill"] = killed
    else:
        world.store.before = end
    with pytest.raises(AgentKilled):
        world.until(lambda: False, 10)
    world.trips.clear()
    mend(world)
    machine.shim.phase = WorkloadState.ABSENT
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert (world.report(1).state, world.report(1).cpu_seconds) == (S.FINISHED, 30.0)
    assert world.heads()[-1].cpu_seconds == 30.0


def test_a_pending_final_save_stays_frozen_until_the_head_can_be_read(world):
    machine = running(world)
    world.trips["committed"] = killed
    world.want(1, Want.DRAIN, 1)
    with pytest.raises(AgentKilled):
        world.until(lambda: False, 5)
    assert machine.shim.pending
    worked = machine.shim.worked
    cut(world)
    machine.boot()
    for _ in range(100):
        world.turn()
    assert machine.shim.pending
    assert machine.shim.worked == worked
    mend(world)
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.DRAINED
    assert machine.shim.worked == worked


def test_a_restart_keeps_the_lease(world):
    """The job's lease goes on across agents: a store that is away when the new one comes up is no fresh start."""
    machine = running(world)
    cut_at = world.now
    cut(world)
    for _ in range(30):
        world.turn()
    machine.boot()
    world.until(lambda: machine.shim.held)
    assert 55 <= world.now - cut_at <= 61


def test_a_restart_under_a_running_job_does_not_hold_it(world):
    machine = running(world)
    for _ in range(5):
        world.turn()
        machine.boot()
        world.turn()
        assert not machine.shim.held
        assert machine.state is S.RUNNING


def test_a_restart_after_the_job_was_given_away_kills_it(world):
    machine = running(world)
    world.grant(2)
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert machine.shim.phase == "absent"
    assert world.report(1).state is S.FENCED


def test_a_job_that_vanished_with_its_shim_is_not_started_over_in_secret(world):
    machine = running(world)
    machine.shim.phase = WorkloadState.LOST
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert (world.report(1).state, world.report(1).error_kind) == (S.BROKEN, "lost")
    assert world.trail.count("start") == 1
