"""Who may run the job: fencing, the lease, and real threads against a store that hangs."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
from __future__ import annotations

import threading
import time

import pytest
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import HeadKind, Want
from support.agent_world import ACTION, World, commits, cut, mend, running


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# ---------------------------------------------------------------- fencing and lease


def test_another_owner_ends_it_at_once(world):
    machine = running(world)
    world.grant(2)
    world.turn()
    world.turn()
    assert machine.shim.phase == "absent"
    before = [w for w in world.store.writes if not w[1].startswith("live/")]
    world.until(lambda: machine.agent.over)
    assert [w for w in world.store.writes if not w[1].startswith("live/")] == before, "uploads nothing more"
    assert world.report(1).state is S.FENCED


def test_cancelled_by_the_controller(world):
    machine = running(world)
    world.cancel()
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.FENCED


def test_grant_to_another_while_committing_is_lost_by_the_agent(world):
    machine = running(world)
    world.trips["commit"] = lambda: world.grant(2)
    world.want(1, Want.DRAIN, 1)
    world.until(lambda: machine.agent.over)
    assert world.heads()[-1].epoch == 2
    assert not commits(world)
    assert world.report(1).state is S.FENCED


@pytest.mark.parametrize("part", ["", "/head/", "live/"])
def test_cut_off_it_holds_within_the_lease_and_thaws_when_it_still_owns_it(world, part):
    machine = running(world)
    cut_at = world.now
    cut(world, part)
    world.until(lambda: machine.shim.held)
    assert world.now - cut_at <= 61
    worked = machine.shim.worked
    for _ in range(100):
        world.turn()
    assert machine.shim.worked == worked, "held, not killed"
    mend(world)
    world.until(lambda: not machine.shim.held)
    assert machine.state is S.RUNNING
    assert world.heads()[-1].kind is HeadKind.RENEW
    world.until(lambda: not world.report(1).frozen)
    world.turn()
    assert machine.shim.worked > worked


def test_frozen_is_reported_as_soon_as_reports_work_again(world):
    machine = running(world)
    cut(world, "/head/")
    world.until(lambda: machine.shim.held)
    world.turn()
    assert world.report(1).frozen
    assert world.report(1).lease_seconds == 60.0, "who lost his database learns it from there"


def test_cut_off_and_replaced_it_never_runs_again(world):
    machine = running(world)
    cut(world)
    world.until(lambda: machine.shim.held)
    worked = machine.shim.worked
    world.grant(2)
    mend(world)
    world.until(lambda: machine.agent.over)
    assert machine.shim.worked == worked
    assert world.report(1).state is S.FENCED


def test_a_grant_on_its_way_beats_a_renewal_and_a_renewal_beats_a_grant(world):
    """The controller decided before we came back: whoever gets the number first owns the job."""
    machine = running(world)
    cut(world)
    world.until(lambda: machine.shim.held)
    worked = machine.shim.worked
    mend(world)
    granted = []

    def land_first(verb, key):
        if verb == "create" and "/head/" in key and not granted:
            granted.append(world.grant(2))

    world.store.before = land_first
    world.until(lambda: machine.agent.over)
    assert granted
    assert machine.shim.worked == worked, "it had read the head as its own a moment ago, and yet did not run"


def test_a_start_waits_for_the_first_report(world):
    machine = world.machine(1)
    cut(world, "live/")
    machine.boot()
    world.grant(1)
    for _ in range(20):
        world.turn()
    assert machine.state is S.STANDBY
    mend(world)
    world.until(lambda: machine.state is S.RUNNING)


def test_a_store_that_fails_at_once_is_not_asked_in_a_busy_loop(world):
    machine = running(world)
    cut(world, "live/")
    world.want(1, Want.RUN, 5)
    sequence = machine.agent._given.state.memory.report_sequence
    for _ in range(100):
        world.now += 0.1
        machine.round()
    assert machine.agent._given.state.memory.report_sequence - sequence <= 11


@pytest.mark.alone
def test_with_its_threads_on_a_folder_store_that_hangs(tmp_path):
    """The real threads: a store that answers no more does not keep the loop from holding the job."""
    world = World(tmp_path)
    world.settings = {"lease_seconds": 1.5, "poll_seconds": 0.1, "report_seconds": 0.3, "notice_seconds": 0.1}
    world.clock = time.monotonic
    machine = world.machine(1)
    machine.shim.now = time.monotonic
    agent = machine.boot()
    thread = threading.Thread(target=agent.run)
    thread.start()
    stuck = threading.Event()
    try:
        await_(lambda: agent.state.name is S.STANDBY)
        world.grant(1)
        await_(lambda: agent.state.name is S.RUNNING)

        def hang(verb, key):
            stuck.wait(30)

        world.store.before = hang
        began = time.monotonic()
        await_(lambda: machine.shim.held)
        assert time.monotonic() - began < 2.5
        world.store.before = lambda verb, key: None
        stuck.set()
        await_(lambda: not machine.shim.held)
        machine.service.said = ACTION
        await_(lambda: agent.over)
        assert world.report(1).state is S.DRAINED
    finally:
        stuck.set()
        agent.stop()
        thread.join(5)
    assert not thread.is_alive()


@pytest.mark.alone
def test_a_life_with_a_limit_ends_although_a_task_hangs(tmp_path):
    """A rehearsal's machine: its restore never returns, nobody is there to end it, and its own clock does."""
    world = World(tmp_path)
    world.settings = {"life_seconds": 1.5, "poll_seconds": 0.1, "report_seconds": 0.3, "notice_seconds": 0.1}
    world.clock = time.monotonic
    stuck, hangs = threading.Event(), threading.Event()

    def hang():
        hangs.set()
        stuck.wait(30)

    world.trips["start"] = hang
    agent = world.machine(1).boot()
    ended, began = [], time.monotonic()
    thread = threading.Thread(target=lambda: ended.append(agent.run()), daemon=True)
    thread.start()
    try:
        world.grant(1)
        await_(hangs.is_set)
        thread.join(10)
        assert ended == [True], "over: the machine goes"
        assert 1.5 <= time.monotonic() - began < 4.0
        assert agent.gate.is_shut, "what still hangs writes nothing more"
    finally:
        stuck.set()
        agent.stop()
        thread.join(5)


def await_(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("saved", [False, True], ids=["from the beginning", "from a checkpoint"])
def test_who_is_fenced_while_the_job_is_prepared_does_not_start_it(tmp_path, saved):
    """An image or inputs may take an hour to come; the job began, printed and was killed."""
    world = World(tmp_path, checkpoint_interval_seconds=10.0)
    if saved:
        running(world, 1)
        world.until(lambda: len(commits(world)) > 0)
        world.machines = []
    attempt = 2 if saved else 1
    machine = world.machine(attempt)
    agent = machine.boot()
    world.until(lambda: machine.state is S.STANDBY)

    def somebody_else_gets_it() -> None:
        world.trips.clear()
        world.grant(attempt + 1)
        agent.mailbox.poll()
        agent.tick()

    world.trips["prepare"] = somebody_else_gets_it
    world.trail = []
    world.grant(attempt)
    world.until(lambda: machine.state is S.FENCED)
    assert "prepare" in world.trail
    assert not {"start", "restore"} & set(world.trail)
