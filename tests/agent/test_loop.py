"""The agent as a whole, with a store that fails and a job that counts, in virtual time."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest
from spotsurfer_agent import protocol
from spotsurfer_agent.notices.port import Said
from spotsurfer_agent.protocol import AgentState as S
from spotsurfer_agent.protocol import HeadKind, Want
from spotsurfer_agent.store import StoreError
from support.agent_world import JOB, LINE_BYTES, AgentKilled, World

ACTION = Said("interruption", "2026-01-01T00:02:00Z", 120.0)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def running(world: World, attempt: int = 1, **shim):
    """A machine whose attempt was granted and runs."""
    machine = world.machine(attempt, **shim)
    machine.boot()
    world.until(lambda: machine.state is S.STANDBY)
    world.turn()
    world.grant(attempt)
    world.until(lambda: machine.state is S.RUNNING)
    return machine


def cut(world: World, part: str = ""):
    """The store can't be reached any more for keys that contain `part`."""

    def fail(verb, key):
        if part in key:
            raise StoreError(f"{key}: unreachable")

    world.store.before = fail


def mend(world: World):
    world.store.before = lambda verb, key: None


def commits(world: World):
    return [h for h in world.heads() if h.kind is HeadKind.COMMIT]


# ---------------------------------------------------------------- the road


def test_from_boot_to_done(world, tmp_path):
    world.spec = dataclasses.replace(
        world.spec, inputs={"in/a.txt": 3}, input_modes={"in/a.txt": 0o640}, outputs=["in/*", "no/*"]
    )
    world.store.objects[protocol.spec_key(JOB)] = protocol.encode(world.spec)
    world.store.objects[protocol.input_key(JOB, "in/a.txt")] = b"abc"
    machine = running(world, length=30.0, exit_code=0)
    assert world.report(1).instance == "i-1"
    assert (machine.folder / "scratch/work/in/a.txt").stat().st_mode & 0o777 == 0o640
    world.until(lambda: machine.agent.over)
    done = world.heads()[-1]
    assert done.done.exit_code == 0
    assert done.done.outputs == {"in/a.txt": 3}
    assert done.done.log["out"] == 30 * LINE_BYTES
    assert world.log(1) == (0, machine.shim.output())
    assert world.store.objects[protocol.output_prefix(JOB, 1) + "in/a.txt"] == b"abc"
    report = world.report(1)
    assert (report.state, report.error_kind) == (S.FINISHED, "output")
    assert "no/*" in report.error


def test_a_failing_command_keeps_its_exit_code(world):
    machine = running(world, length=5.0, exit_code=42)
    world.until(lambda: machine.agent.over)
    assert world.heads()[-1].done.exit_code == 42
    assert world.report(1).error == ""


def test_outputs_and_log_are_there_before_the_entry_that_speaks_of_them(world):
    machine = running(world, length=5.0)
    world.until(lambda: machine.agent.over)
    keys = [key for _, key in world.store.writes]
    done = keys.index(protocol.head_key(JOB, world.heads()[-1].number))
    assert max(i for i, k in enumerate(keys) if "/log/" in k) < done


def test_live_saves_come_each_interval_and_hold_the_log_first(tmp_path):
    world = World(tmp_path, checkpoint_interval_seconds=20.0)
    running(world)
    world.until(lambda: len(commits(world)) == 3)
    assert 60 <= world.now - 10_000 < 75
    assert [h.sequence for h in commits(world)] == [1, 2, 3]
    keys = [key for _, key in world.store.writes]
    for head in commits(world):
        at = keys.index(protocol.head_key(JOB, head.number))
        manifest_at = keys.index(protocol.manifest_key(JOB, head.checkpoint))
        logged = max(int(k.rpartition("-")[2]) + len(world.store.objects[k]) for k in keys[:at] if "/log/000001/out" in k)
        assert manifest_at < at
        assert logged >= int(head.cpu_seconds) * LINE_BYTES
    assert world.report(1).saves == 3


def test_asked_for_checkpoint_comes_once(world):
    running(world)
    world.want(1, Want.RUN, 1, save_at_least=1)
    for _ in range(20):
        world.turn()
    assert [h.sequence for h in commits(world)] == [1]
    assert world.report(1).last_save.checkpoint == "000001-000001"


def test_a_move_loses_nothing_and_counts_cpu_once(world):
    first = running(world)
    for _ in range(10):
        world.turn()
    world.want(1, Want.DRAIN, 1)
    world.until(lambda: first.agent.over)
    assert world.report(1).state is S.DRAINED
    assert world.heads()[-1].final
    worked = first.shim.worked
    second = running(world, 2, length=60.0)
    assert second.shim.worked - worked < 2
    world.until(lambda: second.agent.over)
    begin, rest = world.log(2)
    assert world.log(1)[1][:begin] + rest == second.shim.output()
    assert begin == int(worked) * LINE_BYTES
    assert world.heads()[-1].cpu_seconds == pytest.approx(60.0)


# ---------------------------------------------------------------- notices


def test_notice_drains_with_the_controller_dead(world):
    machine = running(world)
    machine.service.said = ACTION
    world.until(lambda: machine.agent.over)
    assert world.heads()[-1].final
    report = world.report(1)
    assert (report.state, report.notice.kind) == (S.DRAINED, "interruption")
    assert report.notice.seconds_left <= 120


def test_notice_before_the_grant_gives_the_machine_back(world):
    machine = world.machine(1)
    machine.boot()
    machine.service.said = ACTION
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.HALTED


def test_a_metadata_service_that_fails_disturbs_nothing(world):
    machine = running(world)
    machine.service.down = True
    for _ in range(20):
        world.turn()
    assert machine.state is S.RUNNING


def test_rebalance_is_told_and_nothing_else(world):
    machine = running(world)
    machine.service.said = Said("rebalance", "{}", None)
    for _ in range(5):
        world.turn()
    assert machine.state is S.RUNNING
    assert world.report(1).notice.kind == "rebalance"


def test_final_save_that_fails_under_a_notice_is_repeated_then_overrun(world):
    machine = running(world)
    for _ in range(3):
        world.turn()
    cut(world, "/chunks/")
    machine.service.said = ACTION
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.OVERRUN
    assert world.trail.count("upload") > 20
    assert not commits(world)


def test_final_save_under_a_notice_succeeds_as_soon_as_the_store_is_back(world):
    machine = running(world)
    cut(world, "/chunks/")
    machine.service.said = ACTION
    for _ in range(30):
        world.turn()
    mend(world)
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.DRAINED


# ---------------------------------------------------------------- drains that fail


def test_failed_drain_leaves_the_job_running_and_is_not_repeated(world):
    machine = running(world)

    def fail():
        raise StoreError("no space left in the store")

    world.trips["manifest"] = fail
    world.want(1, Want.DRAIN, 7)
    world.until(lambda: world.report(1).drain_failed == 7)
    report, worked = world.report(1), machine.shim.worked
    assert (report.state, report.error_kind) == (S.RUNNING, "save")
    assert "no space" in report.error
    for _ in range(20):
        world.turn()
    assert machine.shim.worked >= worked + 19, "it runs on"
    assert world.trail.count("upload") == 1
    del world.trips["manifest"]
    world.want(1, Want.DRAIN, 8)
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.DRAINED


def test_withdrawn_before_it_began(world):
    machine = running(world)
    machine.agent.worker.run_one = lambda: None  # the worker is slow
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.turn()
    world.want(1, Want.DRAIN, 2)
    world.turn()
    assert machine.state is S.DRAINING
    world.want(1, Want.RUN, 3)
    world.turn()
    del machine.agent.worker.run_one
    world.until(lambda: machine.state is S.RUNNING)
    world.turn()
    assert [h.final for h in commits(world)] == [False]


def test_stop_kills(world):
    machine = running(world)
    world.want(1, Want.STOP, 1)
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.HALTED


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


# ---------------------------------------------------------------- refusals


def test_unfit_machine_says_why(world):
    world.unfit = ["this kernel has no checkpoint support."]
    machine = world.machine(1)
    machine.boot()
    world.until(lambda: machine.agent.over)
    report = world.report(1)
    assert (report.state, report.error) == (S.BROKEN, "this kernel has no checkpoint support.")


def test_a_newer_protocol_is_refused_with_a_sentence(world):
    machine = world.machine(1)
    machine.boot()
    newer = protocol.encode(world.grant(1)).replace(b'"protocol": 1', b'"protocol": 9')
    world.store.objects[protocol.head_key(JOB, 1)] = newer
    world.until(lambda: machine.agent.over)
    report = world.report(1)
    assert report.state is S.BROKEN
    assert "upgrade spotsurfer" in report.error


def test_a_newer_desired_does_not_disturb_a_running_job(world):
    machine = running(world)
    world.store.objects[protocol.desired_key(JOB, 1)] = b'{"protocol": 9}'
    for _ in range(100):
        world.turn()
    assert machine.state is S.RUNNING
    assert not machine.shim.held
    assert "upgrade" in world.report(1).error


def test_a_newer_head_holds_a_running_job(world):
    machine = running(world)
    world.store.objects[protocol.head_key(JOB, 2)] = b'{"protocol": 9}'
    world.until(lambda: machine.shim.held)
    assert machine.state is S.RUNNING
    assert "upgrade" in world.report(1).error


@pytest.mark.parametrize(
    ("inputs", "stored", "sentence"),
    [
        ({"a": 3}, {}, "is not in the store"),
        ({"a": 3}, {"a": b"ab"}, "has 2 bytes"),
        ({"../a": 1}, {"../a": b"a"}, "below the job's folder"),
        ({"/etc/x": 1}, {"/etc/x": b"a"}, "below the job's folder"),
        ({"a": 1 << 60}, {"a": b"a"}, "disk is full"),
    ],
)
def test_inputs_that_cannot_be_placed(tmp_path, inputs, stored, sentence):
    world = World(tmp_path, inputs=inputs)
    for name, data in stored.items():
        world.store.objects[protocol.input_key(JOB, name)] = data
    machine = world.machine(1)
    machine.boot()
    world.turn()
    world.grant(1)
    world.until(lambda: machine.agent.over)
    report = world.report(1)
    assert (report.state, report.error_kind) == (S.BROKEN, "input")
    assert sentence in report.error


def test_a_checkpoint_without_manifest_is_a_failed_restore(world):
    world.head(HeadKind.GRANT, 1, checkpoint="000000-000001", sequence=1)
    machine = world.machine(1)
    machine.boot()
    world.until(lambda: machine.agent.over)
    report = world.report(1)
    assert (report.state, report.error_kind) == (S.BROKEN, "restore")
    assert "000000-000001" in report.error


def test_the_power_limit_of_a_machine_that_nobody_grants(world):
    world.settings["limit_seconds"] = 100.0
    machine = world.machine(1)
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert 100 <= world.now - 10_000 < 110


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
    world.store.objects[protocol.spec_key(JOB)] = protocol.encode(world.spec)
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
    machine.shim.phase = "lost"
    machine.boot()
    world.until(lambda: machine.agent.over)
    assert (world.report(1).state, world.report(1).error_kind) == (S.BROKEN, "lost")
    assert world.trail.count("start") == 1


def test_a_store_that_fails_at_once_is_not_asked_in_a_busy_loop(world):
    machine = running(world)
    cut(world, "live/")
    world.want(1, Want.RUN, 5)
    sequence = machine.agent._given.state.memory.report_sequence
    for _ in range(100):
        world.now += 0.1
        machine.round()
    assert machine.agent._given.state.memory.report_sequence - sequence <= 11


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
        world.store.before = lambda verb, key: stuck.wait(30) and None
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


def await_(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
