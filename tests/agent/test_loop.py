"""The agent as a whole: the road, notices, drains, refusals; in virtual time, with a store that fails and a job that counts."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
from __future__ import annotations

import dataclasses

import pytest
from spotsurfer_agent.control.metadata_service import ServiceNotice
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.manifest import Stored
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import HeadKind, Want
from spotsurfer_wire.store.port import StoreDenied, StoreError, StoreUnreachable
from support.agent_world import ACTION, JOB, LINE_BYTES, FakeEngine, World, commits, cut, mend, running


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# ---------------------------------------------------------------- the road


def test_a_save_is_told_what_the_store_is_about_to_lose(world, monkeypatch):
    """Or it would rely on that, and be refused as long as the collector's list stands."""
    machine, told, real = running(world), [], FakeEngine.save
    world.store.objects[object_keys.condemned_key(JOB)] = json_codec.encode(messages.Condemned(["aa", "bb"]))
    monkeypatch.setattr(FakeEngine, "save", lambda self, r: told.append(r.condemned) or real(self, r))
    world.want(1, Want.DRAIN, 1)
    world.until(lambda: machine.agent.over)
    assert told == [{"aa", "bb"}]


def test_a_checkpoint_of_which_a_chunk_was_condemned_meanwhile_is_not_committed(world, monkeypatch):
    """The collector wrote its list after the save had read it, and before it saw the manifest."""
    machine, chunk, real = running(world), Stored("ab" * 32, 5), FakeEngine.save

    def save(engine, request):
        with_chunk = lambda image: request.commit(dataclasses.replace(image, chunks=[chunk]))  # noqa: E731
        return real(engine, dataclasses.replace(request, commit=with_chunk))

    monkeypatch.setattr(FakeEngine, "save", save)
    listed = json_codec.encode(messages.Condemned([chunk.digest]))
    world.trips["commit"] = lambda: world.store.put(object_keys.condemned_key(JOB), listed)
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.until(lambda: bool(world.report(1).error))
    assert "the collector is removing 1 chunks" in world.report(1).error
    assert not commits(world)
    assert machine.state is S.RUNNING


def test_from_boot_to_done(world, tmp_path):
    world.spec = dataclasses.replace(
        world.spec, inputs={"in/a.txt": 3}, input_modes={"in/a.txt": 0o640}, outputs=["in/*", "no/*"]
    )
    world.store.objects[object_keys.spec_key(JOB)] = json_codec.encode(world.spec)
    world.store.objects[object_keys.input_key(JOB, "in/a.txt")] = b"abc"
    machine = running(world, length=30.0, exit_code=0)
    assert world.report(1).instance == "i-1"
    assert (machine.folder / "scratch/work/in/a.txt").stat().st_mode & 0o777 == 0o640
    world.until(lambda: machine.agent.over)
    done = world.heads()[-1]
    assert done.done.exit_code == 0
    assert done.done.outputs == {"in/a.txt": 3}
    assert done.done.log["out"] == 30 * LINE_BYTES
    assert world.log(1) == (0, machine.shim.output())
    assert world.store.objects[object_keys.output_prefix(JOB, 1) + "in/a.txt"] == b"abc"
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
    done = keys.index(object_keys.head_key(JOB, world.heads()[-1].number))
    assert max(i for i, k in enumerate(keys) if "/log/" in k) < done


def test_a_job_is_not_done_before_its_last_output_is_in_the_store(tmp_path):
    world = World(tmp_path, inputs={"a": 1, "b": 1}, outputs=["a", "b"])
    for name in ("a", "b"):
        world.store.objects[object_keys.input_key(JOB, name)] = name.encode()
    running(world, length=5.0)
    cut(world, f"{object_keys.output_prefix(JOB, 1)}b")
    world.until(lambda: bool(world.report(1).error))
    assert world.report(1).state is S.PUBLISHING
    assert world.heads()[-1].done is None
    mend(world)
    world.until(lambda: world.heads()[-1].done is not None)
    assert world.heads()[-1].done.outputs == {"a": 1, "b": 1}


def test_live_saves_come_each_interval_and_hold_the_log_first(tmp_path):
    world = World(tmp_path, checkpoint_interval_seconds=20.0)
    running(world)
    world.until(lambda: len(commits(world)) == 3)
    assert 60 <= world.now - 10_000 < 75
    assert [h.sequence for h in commits(world)] == [1, 2, 3]
    keys = [key for _, key in world.store.writes]
    for head in commits(world):
        at = keys.index(object_keys.head_key(JOB, head.number))
        manifest_at = keys.index(object_keys.manifest_key(JOB, head.checkpoint or ""))
        logged = max(int(k.rpartition("-")[2]) for k in keys[:at] if "/log/000001/out" in k)
        assert manifest_at < at
        assert logged >= int(head.cpu_seconds) * LINE_BYTES
    assert world.report(1).saves == 3


def test_a_checkpoint_that_the_job_asks_for_comes_once_and_its_stage_is_told(tmp_path):
    world = World(tmp_path, checkpoint_interval_seconds=3600.0)
    machine = running(world)
    folder = machine.folder / "scratch/hints"
    folder.mkdir(parents=True)
    (folder / "stage").write_text("align\n")
    (folder / "checkpoint").touch()
    world.until(lambda: len(commits(world)) == 1)
    assert not (folder / "checkpoint").exists()
    began = world.now
    world.until(lambda: world.now > began + 120)
    assert len(commits(world)) == 1
    assert world.report(1).hint == "align"


def test_an_interval_that_changes_is_obeyed_while_the_job_runs_on(tmp_path):
    world = World(tmp_path, checkpoint_interval_seconds=1000.0)
    machine = running(world)
    for _ in range(40):
        world.turn()
    assert commits(world) == []
    world.want(1, Want.RUN, 1, save_every_seconds=10.0)
    world.until(lambda: len(commits(world)) == 3)
    soon = world.now
    assert 40 <= soon - 10_000 < 85
    world.want(1, Want.RUN, 2, save_every_seconds=60.0)
    world.until(lambda: len(commits(world)) == 4)
    assert 55 <= world.now - soon < 75
    machine.boot()  # the agent alone: what it was told lies in the store
    again = world.now
    world.until(lambda: len(commits(world)) == 5)
    assert 45 <= world.now - again < 75
    assert machine.shim.output() == b"".join(b"%08d\n" % i for i in range(int(machine.shim.worked))), "it never began again"


@pytest.mark.parametrize("nonsense", [0.0, -7.0, 1e-9])
def test_a_wished_interval_is_never_so_short_that_nothing_else_is_done(tmp_path, nonsense):
    world = World(tmp_path, checkpoint_interval_seconds=1000.0)
    running(world)
    world.want(1, Want.RUN, 1, save_every_seconds=nonsense)
    begun = world.now
    world.until(lambda: len(commits(world)) == 5)
    assert world.now - begun >= 5.0


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
    machine.service.said = ServiceNotice("rebalance", "{}", None)
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


def test_a_final_save_of_which_the_head_entry_is_refused_leaves_the_job_running(world):
    machine = running(world)

    def deny(verb, key):
        if verb == "create" and "/head/" in key:
            raise StoreDenied("this machine may not write")

    world.store.before = deny
    world.want(1, Want.DRAIN, 7)
    world.until(lambda: world.report(1).drain_failed == 7)
    worked = machine.shim.worked
    assert "this machine may not write" in world.report(1).error
    for _ in range(5):
        world.turn()
    assert machine.shim.worked >= worked + 4, "it runs on"
    assert not commits(world)


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
    newer = json_codec.encode(world.grant(1)).replace(b'"protocol": 1', b'"protocol": 9')
    world.store.objects[object_keys.head_key(JOB, 1)] = newer
    world.until(lambda: machine.agent.over)
    report = world.report(1)
    assert report.state is S.BROKEN
    assert "upgrade spotsurfer" in report.error


def test_a_newer_desired_does_not_disturb_a_running_job(world):
    machine = running(world)
    world.store.objects[object_keys.desired_key(JOB, 1)] = b'{"protocol": 9}'
    for _ in range(100):
        world.turn()
    assert machine.state is S.RUNNING
    assert not machine.shim.held
    assert "upgrade" in world.report(1).error


def test_a_newer_head_holds_a_running_job(world):
    machine = running(world)
    world.store.objects[object_keys.head_key(JOB, 2)] = b'{"protocol": 9}'
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
        world.store.objects[object_keys.input_key(JOB, name)] = data
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


@pytest.mark.parametrize(
    ("spec", "undelivered"),
    [
        ({"outputs": ["a", "no/*.fa"]}, "no file matched the outputs no/*.fa"),
        ({"outputs": ["a", "no/*.fa"], "outputs_optional": True}, ""),
        ({"outputs": ["a"]}, ""),
    ],
)
def test_outputs_that_are_not_there_are_told_with_the_end(tmp_path, spec, undelivered):
    """`--out 'result/*.txt' -- true` counted as a success."""
    world = World(tmp_path, inputs={"a": 1}, **spec)
    world.store.objects[object_keys.input_key(JOB, "a")] = b"x"
    running(world, length=5.0)
    world.until(lambda: world.heads()[-1].done is not None)
    done = world.heads()[-1].done
    assert (done.exit_code, done.undelivered, done.outputs) == (0, undelivered, {"a": 1})


def test_a_link_to_an_input_that_an_output_matches_too_fails_no_job(tmp_path):
    """Fetched inputs are links in the job's folder, so `*.fa` matches them beside what the job wrote."""
    world = World(tmp_path, inputs={"a.fa": 1}, outputs=["*.fa"])
    world.store.objects[object_keys.input_key(JOB, "a.fa")] = b"x"
    machine = running(world, length=5.0)
    (machine.folder / "scratch/work/genome.fa").symlink_to("/etc/hostname")
    world.until(lambda: world.heads()[-1].done is not None)
    done = world.heads()[-1].done
    assert (done.exit_code, done.undelivered, done.outputs) == (0, "", {"a.fa": 1})


@pytest.mark.parametrize(("error", "stays"), [(StoreUnreachable, True), (StoreDenied, False)])
def test_the_intent_of_a_save_stays_while_its_head_entry_may_still_be_written(world, error, stays):
    """The answer was lost: the save has failed for its agent, and may count for all others. Nothing of it may be removed."""
    running(world)
    cut_off = [True]

    def lost(verb, key):
        if cut_off[0] and verb == "create" and "/head/" in key:
            raise error(key)

    world.store.before = lost
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.until(lambda: world.report(1).error)
    intents = lambda: [k for k in world.store.objects if "/intents/" in k]  # noqa: E731
    assert len(intents()) == (1 if stays else 0)
    cut_off[0] = False
    world.until(lambda: any(h.checkpoint for h in commits(world)))
    assert len(intents()) == (1 if stays else 0), "the save that was committed ended its own; the collector ends the other"


def test_the_end_of_a_quiet_job_wakes_the_loop(world, monkeypatch):
    agent = running(world, length=1000.0).agent
    agent.turn()
    assert not agent.woken
    monkeypatch.setattr("time.sleep", lambda _: agent.stop())
    agent.hear_end()
    assert "end awaited" in world.trail
    assert agent.woken
