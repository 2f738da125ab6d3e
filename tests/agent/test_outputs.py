"""Results: patterns, digests, what a running job can't make the agent upload, and what is uploaded before the end."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import contextlib
import hashlib
import os

import pytest
from spotsurfer_agent.files import staging
from spotsurfer_agent.ports.engine import Still
from spotsurfer_wire import json_codec, messages, object_keys
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import HeadKind, Partial, Spec, Want
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError
from support.agent_world import ACTION, JOB, AgentKilled, DictStore, FakeEngine, World, cut, mend, running

TREE = ["a.fa", "out/b.fa", "out/deep/er/c.fa", "out/deep/.hidden/d.fa", "out/deep/e.txt"]


@pytest.fixture
def work(tmp_path):
    for name in TREE:
        (tmp_path / "scratch/work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "scratch/work" / name).write_text(name)
    return tmp_path / "scratch/work"


def published(work, *patterns, store=None, copies=None):
    return staging.publish(store or DictStore(), Spec(JOB, ["x"], outputs=list(patterns)), "p/", str(work.parent), copies)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/*.fa", {"a.fa", "out/b.fa", "out/deep/er/c.fa", "out/deep/.hidden/d.fa"}),
        ("out/**/*.fa", {"out/b.fa", "out/deep/er/c.fa", "out/deep/.hidden/d.fa"}),
        ("out/**", set(TREE) - {"a.fa"}),
        ("**", set(TREE)),
        ("out/**/deep/*.txt", {"out/deep/e.txt"}),
        ("out/**.fa", set()),
    ],
)
def test_two_stars_stand_for_folders_of_any_depth(work, pattern, found):
    assert set(published(work, pattern).sizes) == found


def test_each_file_has_its_digest(work):
    found = published(work, "**")
    for name in TREE:
        data = (work / name).read_bytes()
        assert found.files[name] == messages.OutputObject(len(data), hashlib.sha256(data).hexdigest())


def test_a_file_that_becomes_a_link_to_the_hosts_files_is_not_read(work, tmp_path, monkeypatch):
    """Between the look and the opening a job that runs on can change everything that it may write to."""
    (tmp_path / "secret").write_text("key")
    really = staging.find

    def swapped(spec, scratch):
        found = really(spec, scratch)
        (work / "a.fa").unlink()
        (work / "a.fa").symlink_to(tmp_path / "secret")
        (work / "out/b.fa").unlink()
        os.mkfifo(work / "out/b.fa")
        (work / "out/deep/e.txt").unlink()
        return found

    monkeypatch.setattr(staging, "find", swapped)
    store = DictStore()
    found = published(work, "**", store=store)
    assert set(found.sizes) == {"out/deep/er/c.fa", "out/deep/.hidden/d.fa"}
    assert set(found.skipped) == {"a.fa", "out/b.fa", "out/deep/e.txt"}
    assert b"key" not in store.objects.values()


def test_a_file_that_grows_while_it_is_sent_is_copied_first(work, tmp_path):
    class Growing(DictStore):
        def put_file(self, key, path):
            with (work / "a.fa").open("a") as f:
                f.write("more")
            return super().put_file(key, path)

    copies = tmp_path / "copies"
    copies.mkdir()
    store = Growing()
    found = published(work, "a.fa", store=store, copies=copies)
    assert hashlib.sha256(store.objects["p/a.fa"]).hexdigest() == found.digests["a.fa"]
    assert list(copies.iterdir()) == []


def test_many_files_arrive_whole_in_a_real_store(work, tmp_path):
    for i in range(200):
        (work / f"out/{i}.bin").write_bytes(os.urandom(1000 + i))
    store = open_store(f"file://{tmp_path}/store")
    found = published(work, "out/*.bin", store=store)
    assert len(found.files) == 200
    for name, one in found.files.items():
        data = store.get("p/" + name) or b""
        assert (len(data), hashlib.sha256(data).hexdigest()) == (one.size, one.sha256)


# ---------------------------------------------------------------- all or nothing


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, outputs=["*.txt"])


def writes(machine, name, text):
    (machine.folder / "scratch/work" / name).write_text(text)


def test_an_attempt_that_was_cut_off_and_comes_back_does_not_touch_its_successors_outputs(world):
    first = running(world, 1, length=30.0)
    writes(first, "one.txt", "of the first")
    writes(first, "two.txt", "of the first")

    def breaks_off(verb, key):
        if key.endswith("two.txt"):
            raise StoreError("cut off in the middle of its upload")

    world.store.before = breaks_off
    world.until(lambda: first.state is S.PUBLISHING)
    world.turn()
    mend(world)
    assert object_keys.output_prefix(JOB, 1) + "one.txt" in world.store.objects, "half of it is there, and nobody sees it"
    world.machines.remove(first)  # it stands still: its network, or all of it
    second = running(world, 2, length=30.0)
    for name in ("one.txt", "two.txt"):
        writes(second, name, "of the second")
    world.until(lambda: second.agent.over)
    theirs = {k: v for k, v in world.store.objects.items() if k.startswith(object_keys.output_prefix(JOB, 2))}
    entries = world.heads()
    world.machines.append(first)  # and now it is back
    world.until(lambda: first.agent.over)
    assert world.report(1).state is S.FENCED
    assert world.heads() == entries
    assert {k: v for k, v in world.store.objects.items() if k.startswith(object_keys.output_prefix(JOB, 2))} == theirs
    done = entries[-1].done
    assert (entries[-1].epoch, done.outputs) == (2, {"one.txt": 13, "two.txt": 13})
    assert done.digests["one.txt"] == hashlib.sha256(b"of the second").hexdigest()


def test_outputs_appear_all_or_not_at_all(world):
    """Whichever write is the last one before the machine dies: an entry that says done speaks of files that are all there."""
    published = 0
    for last in range(1, 14):
        folder = world.folder / str(last)
        folder.mkdir()
        inner = World(folder, outputs=["*.txt"])
        machine = running(inner, 1, length=5.0)
        for name in ("one.txt", "two.txt", "three.txt"):
            writes(machine, name, name)
        count = [0]

        def dies(verb, key, count=count, last=last):
            count[0] += verb in ("put", "create")
            if count[0] > last:
                raise AgentKilled

        inner.store.before = dies
        with contextlib.suppress(AgentKilled):
            inner.until(lambda machine=machine: machine.agent.over, 40)
        done = [h.done for h in inner.heads() if h.kind is HeadKind.DONE]
        there = {k for k in inner.store.objects if "/out/" in k}
        for entry in done:
            assert {object_keys.output_prefix(JOB, 1) + name for name in entry.outputs} == there
            assert len(there) == 3
        published += len(done)
    assert 0 < published < 13


# ---------------------------------------------------------------- before the end


def listed(world, number, attempt=1):
    data = world.store.objects.get(object_keys.partial_key(JOB, number, attempt))
    return json_codec.decode(Partial, data) if data is not None else None


def test_what_a_running_job_has_written_so_far(world):
    machine = running(world, 1, length=1000.0)
    writes(machine, "one.txt", "so far")
    world.turn()
    assert listed(world, 1) is None
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: world.report(1).partial == 1)
    told = listed(world, 1)
    assert (told.step, told.files) == ("main", {"one.txt": messages.OutputObject(6, hashlib.sha256(b"so far").hexdigest())})
    assert world.store.objects[object_keys.partial_prefix(JOB, 1, 1) + "one.txt"] == b"so far"
    assert machine.state is S.RUNNING
    writes(machine, "one.txt", "and on")
    for _ in range(5):
        world.turn()
    assert world.store.objects[object_keys.partial_prefix(JOB, 1, 1) + "one.txt"] == b"so far", "once a request"
    world.want(1, Want.RUN, 2, partial=2)
    world.until(lambda: world.report(1).partial == 2)
    assert world.store.objects[object_keys.partial_prefix(JOB, 2, 1) + "one.txt"] == b"and on"
    assert [k for k in world.store.objects if "/partial/000001-" in k] == [], "only the newest is kept"


def test_an_upload_that_fails_says_so_and_the_job_runs_on(world):
    machine = running(world, 1, length=1000.0)
    writes(machine, "one.txt", "so far")
    cut(world, "/partial/")
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: world.report(1).partial == 1)
    assert "could not be uploaded" in world.report(1).partial_error
    assert listed(world, 1) is None
    mend(world)
    world.want(1, Want.RUN, 2, partial=2)
    world.until(lambda: world.report(1).partial == 2)
    assert (world.report(1).partial_error, listed(world, 2).missing) == ("", [])
    assert machine.state is S.RUNNING


def test_who_does_not_own_the_job_any_more_uploads_nothing(world):
    machine = running(world, 1, length=1000.0)
    writes(machine, "one.txt", "so far")
    machine.agent.gate.shut("the attempt is fenced")
    world.want(1, Want.RUN, 1, partial=1)
    world.turn()
    assert [k for k in world.store.objects if "/partial/" in k] == []


def test_the_list_comes_last(world):
    machine = running(world, 1, length=1000.0)
    for name in ("one.txt", "two.txt"):
        writes(machine, name, name)
    seen = []
    world.store.after = lambda verb, key: seen.append(key) if "/partial/" in key and verb in ("put", "create") else None
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: world.report(1).partial == 1)
    assert seen[-1] == object_keys.partial_key(JOB, 1, 1)
    assert len(seen) == 3


def test_a_job_with_no_pattern_that_matches_yet_says_which(tmp_path):
    world = World(tmp_path, outputs=["*.txt", "deep/**/*.fa"])
    machine = running(world, 1, length=1000.0)
    writes(machine, "one.txt", "x")
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: world.report(1).partial == 1)
    assert listed(world, 1).missing == ["deep/**/*.fa"]
    assert listed(world, 1).files["one.txt"].size == 1


def test_an_object_of_an_odd_name_hinders_nobody(world):
    machine = running(world, 1, length=1000.0)
    writes(machine, "one.txt", "x")
    world.store.objects[object_keys.partials_prefix(JOB) + "odd/LIST"] = b"forged"
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: world.report(1).partial == 1)
    assert world.report(1).partial_error == ""
    assert listed(world, 1).files["one.txt"].size == 1


def test_what_there_was_before_the_end_goes_with_it(world):
    machine = running(world, 1, length=60.0)
    writes(machine, "one.txt", "so far")
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: world.report(1).partial == 1)
    assert [k for k in world.store.objects if "/partial/" in k]
    world.until(lambda: machine.agent.over)
    assert [k for k in world.store.objects if "/partial/" in k] == []
    assert world.heads()[-1].done.outputs == {"one.txt": 6}


def test_where_the_disk_keeps_no_moment_each_file_is_copied_first(world, monkeypatch):
    @contextlib.contextmanager
    def moving(engine):
        yield Still(engine.scratch(), False)

    monkeypatch.setattr(FakeEngine, "still", moving)
    machine = running(world, 1, length=60.0)
    writes(machine, "one.txt", "so far")

    def goes_on(verb, key):
        if verb == "put" and key.endswith("one.txt"):
            writes(machine, "one.txt", "and further")

    world.store.before = goes_on
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: world.report(1).partial == 1)
    data = world.store.objects[object_keys.partial_prefix(JOB, 1, 1) + "one.txt"]
    assert (data, listed(world, 1).files["one.txt"].sha256) == (b"so far", hashlib.sha256(b"so far").hexdigest())
    assert sorted(x.name for x in machine.folder.iterdir()) == ["scratch", "state.json"], "no copy is left"


@pytest.mark.parametrize("why", ["a notice", "a drain"])
def test_a_final_save_has_the_link_to_itself(world, why):
    machine = running(world, 1, length=1000.0)
    for i in range(50):
        writes(machine, f"{i}.txt", "so far")
    sent = []

    def goes(verb, key):
        if "/partial/" in key and verb == "put" and not sent.append(key) and len(sent) == 3:
            if why == "a notice":
                machine.service.said = ACTION
                machine.agent._given.watcher.look()
            else:
                world.want(1, Want.DRAIN, 2)
                machine.agent.mailbox.poll()
                machine.agent.tick()

    world.store.before = goes
    world.want(1, Want.RUN, 1, partial=1)
    world.until(lambda: machine.agent.over)
    assert world.report(1).state is S.DRAINED
    assert len(sent) < 3 + staging.THREADS
    assert "its final save comes first" in world.report(1).partial_error
    assert listed(world, 1) is None
