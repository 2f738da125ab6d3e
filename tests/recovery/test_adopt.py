"""What a store tells of its jobs when nobody else does, and whom it tells it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from recovery.conftest import Host, between
from spotsurfer_wire import json_codec, manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Entry, Extent, Extents, Stored
from spotsurfer_wire.messages import AgentConfig, Done, Head, HeadKind, Spec
from support.builders import NOW, a_job
from support.saves import a_manifest
from support.tree import ROOT

from spotsurfer.controller import wiring
from spotsurfer.controller.checkpoints.rehearsal import of_job
from spotsurfer.controller.jobs.secrets import Vault
from spotsurfer.controller.jobs.submission import Submission
from spotsurfer.model import errors as e
from spotsurfer.model.job import HeldBy, InputFetch, Job, JobId, JobPort, JobSpec, JobStep, MarketChoice, Parent, SharedMount
from spotsurfer.ports.clock import ManualClock
from spotsurfer.recovery.adopt import Adopted, Least, adopt, take_up
from spotsurfer.state import db
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import lock_state, new_family, open_database
from spotsurfer.store import master_key
from spotsurfer.store.open_store import open_for

Hosts = Callable[..., Host]
# What only the controller's database had -> what the page calls it.
LOST = {
    "cpus": "processors", "memory_bytes": "memory", "out_of_memory": "`out_of_memory`",
    "gpu": "`gpu`", "licences": "`licences`", "market": "market", "priority": "priority",
    "retries": "retries", "tags": "tags", "project": "project",
    "budget_usd_micros": "budget", "price_max_usd_micros": "`price_max_usd`",
    "deadline_seconds": "deadline", "work_seconds": "`work`", "instance_types": "`instance_types`", "on_end": "`on_end`",
    "registry_auth": "`registry_auth`", "idle_seconds": "`[idle]`", "idle_cpu": "`[idle]`", "idle_gpu": "`[idle]`",
    "stuck_seconds": "`stuck_after`",
    "size_policy": "`[size]`", "size_memory_min_bytes": "`[size]`", "size_memory_max_bytes": "`[size]`",
    "size_cpus_min": "`[size]`", "size_cpus_max": "`[size]`", "size_parameters": "`[size]`",
    "array": "`array`", "after": "`after`", "begin": "`begin`", "time_limit_seconds": "`time_limit`",
    "warn_signal": "`[warn]`", "warn_seconds": "`[warn]`",
    "home_files": "`home_files`", "stdout": "`stdout`", "stderr": "`stderr`", "output_append": "`output_append`",
    "secrets_in_plain_images": "`secrets_in_plain_images`",
}  # fmt: skip
# Each value is another one than the default.
FULL = JobSpec(
    name="my-asm",
    command=("work", "--hard"),
    folder="sub",
    fetches=(InputFetch("s3://b/k", "k", "ab", "v1", {"region": "r"}),),
    mounts=(SharedMount("ref", "nfs4", "fs:/x", "/ref", "soft", False),),
    outputs=("*.txt",),
    outputs_optional=True,
    gpus=1,
    checkpoint_interval_seconds=7.0,
    environment={"A": "b"},
    user="nobody",
    engine="app",
    tcp="keep",
    cpu="portable",
    before_freeze=("sync",),
    after_restore=("echo",),
    before_thaw=("true",),
    hook_seconds=9.0,
    app_signal="USR1",
    app_command=("save",),
    app_file="save.now",
    app_deadline_seconds=11.0,
    app_done_file="saved",
    app_done_output="saved .*",
    app_done_exit=3,
    app_restart_command=("go", "on"),
    steps=(JobStep("setup", ("mk",), False, True), JobStep("main", ("work", "--hard"))),
    image="docker://r/i",
    entry_point=("sh",),
    devices=("nvidia.com/gpu=all",),
    ports=(JobPort("port-80", 80),),
    home="/home/ada/wf",
    home_exclude=(".git",),
    home_tree="0" * 64,
)


@pytest.fixture
def old(host: Hosts) -> Host:
    """A controller with a store that lived, and is lost but for its key."""
    return host("old").lived()


@pytest.fixture
def new(host: Hosts, old: Host) -> Host:
    made = host("new")
    made.data.mkdir(mode=0o700)
    made.settings.key_path.write_bytes(old.settings.key_path.read_bytes())
    made.settings.key_path.chmod(0o600)
    return made


def adopted(host: Host, least: Least | None = None) -> Adopted:
    return adopt(host.settings, least or Least(), NOW, between)


def has(host: Host, job: str, heads: Sequence[Head] = (), speaks: int | None = None) -> None:
    """The store has a job with this head log; the attempt that speaks has left a report."""
    store = open_for(host.settings)
    store.create(object_keys.spec_key(job), json_codec.encode(Spec(job, ["work"])))
    for head in heads:
        store.create(object_keys.head_key(job, head.number), json_codec.encode(head))
    if speaks is not None:
        store.put(object_keys.live_key(job, speaks), b"{}")


def head(number: int, kind: HeadKind, checkpoint: str | None = None, done: Done | None = None, **more: bool) -> Head:
    return Head(
        number,
        kind,
        1,
        checkpoint,
        1 if checkpoint else 0,
        more.get("final", False),
        done,
        1.0,
        "n",
        "2026-01-01T11:00:00+00:00",
    )


GRANT = head(1, HeadKind.GRANT)


def ended(code: int | None, reason: str = "exited", undelivered: str = "") -> list[Head]:
    return [GRANT, head(2, HeadKind.DONE, done=Done(code, reason, undelivered=undelivered))]


# ---------------------------------------------------------------- what a job is


def test_a_job_comes_back_but_for_what_only_the_controller_knew(tmp_path: Path, old: Host, new: Host) -> None:
    store = open_for(new.settings)
    vault, spool = Vault(lambda lineage: Keys.derive(b"k" * 32, lineage), {}.__getitem__), tmp_path / "spool"
    plain = {f.name for f in dataclasses.fields(JobSpec) if getattr(FULL, f.name) == getattr(JobSpec("", ()), f.name)}
    assert plain == LOST.keys() | {"inputs", "secrets"}, "a new field of a job: is it lost, or does the store tell it?"
    submission = Submission(open_database(None), ManualClock(NOW), store, spool, vault, lambda *_: None, lambda: (), 600.0)
    submission.upload(JobId("my-asm-0a1b2c"), "in/a", iter([b"x"]), 1)
    store.put(object_keys.home_file_key(object_keys.home_scope("", FULL.home), FULL.home_tree), b"a tree")
    sent = dataclasses.replace(
        FULL,
        inputs=("in/a",),
        priority=5,
        retries=2,
        market=MarketChoice.SPOT,
        memory_bytes=1 << 34,
        secrets={"TOKEN": {"from": "env:TOKEN", "as": "environment"}},
    )
    submission.submit(JobId("my-asm-0a1b2c"), sent, {"in/a": 0o644}, {"TOKEN": b"hidden"})
    (back,) = adopted(new, Least(cpus=3, memory_bytes=2 << 30)).jobs
    kept = {f.name: getattr(sent, f.name) for f in dataclasses.fields(JobSpec) if f.name not in LOST}
    kept["secrets"] = {"TOKEN": {"from": "store", "as": "environment"}}
    assert back.spec == dataclasses.replace(FULL, **kept, cpus=3, memory_bytes=2 << 30)
    assert back.spec.must_encrypt
    with open_database(new.data / "state.db").connect() as c:
        assert rows.load_job(c, back.id) == back


def test_the_page_names_all_that_is_lost() -> None:
    page = (ROOT / "docs" / "recovery.md").read_text()
    told = page.partition("\nWhat the store does not have is lost: ")[2].partition("\n\n")[0]
    assert [name for name, words in LOST.items() if words not in told] == []


@pytest.mark.parametrize(
    ("heads", "speaks", "state", "wish", "reason"),
    [
        ([], None, "queued", "hold", "does not say how large its machine must be: `resume` lets it go on"),
        ([GRANT], None, "queued", "hold", "how large"),
        ([GRANT], 1, "queued", "run", ""),
        ([GRANT], 2, "queued", "hold", "how large"),
        (
            [GRANT, head(2, HeadKind.COMMIT, "000001-000001", final=True)],
            1,
            "queued",
            "hold",
            "can't be read with this store.key",
        ),
        ([GRANT, head(2, HeadKind.COMMIT, "000001-000001")], 1, "queued", "run", ""),  # its machine may have it, whole
        (ended(0), None, "succeeded", "run", "exit code 0"),
        (ended(0), 1, "queued", "run", ""),
        (ended(7), None, "failed", "run", "exit code 7"),
        (ended(0, undelivered="no x"), None, "failed", "run", "no x"),
        (ended(None, "cancelled"), None, "cancelled", "run", "cancelled"),
    ],
)
def test_where_a_job_stands(
    old: Host, new: Host, heads: list[Head], speaks: int | None, state: str, wish: str, reason: str
) -> None:
    has(new, "asm-0a1b2c", heads, speaks)
    (job,) = adopted(new).jobs
    assert (job.state, job.wish, job.held_by) == (state, wish, HeldBy.USER)
    assert reason in job.reason
    assert (job.ended_at is not None) == (state != "queued")


def with_image(host: Host, job: str, lineage: str, *more: Head) -> None:
    """Its newest checkpoint has 2 GiB of memory; what its log says after that is `more`."""
    key = master_key.load(host.settings.key_path)
    chunk = Stored("ab" * 32, 16 << 20)
    pages = Entry("p", "file", size=2 << 30, extents=Extents.of(Extent(n << 24, 1 << 24, 0, 0) for n in range(128)))
    image = a_manifest("000001-000001", [], job, image=[pages], chunks=[chunk], lineage=lineage)
    body = manifest.encode(image, key.keys_of(lineage or job))
    open_for(host.settings).create(object_keys.manifest_key(job, "000001-000001"), body)
    first = dataclasses.replace(head(1, HeadKind.COMMIT, "000001-000001"), epoch=0) if lineage else GRANT  # a copy begins so
    has(host, job, [first, head(2, HeadKind.COMMIT, "000001-000001", final=True), *more])


def test_its_machine_has_room_for_what_was_saved(old: Host, new: Host) -> None:
    with_image(new, "asm-0a1b2c", "")
    (job,) = adopted(new).jobs
    assert (job.spec.memory_bytes, job.lineage) == (5 << 29, "")
    assert "2.5 GiB" in job.reason


def test_a_copy_goes_on_with_the_keys_of_its_origin(old: Host, new: Host) -> None:
    has(new, "asm-0a1b2c")
    with_image(new, "copy-0a1b2c", "asm-0a1b2c")
    found = {j.id: j for j in adopted(new).jobs}
    assert (found[JobId("copy-0a1b2c")].lineage, found[JobId("asm-0a1b2c")].lineage) == ("asm-0a1b2c", "")


def test_a_copy_that_was_told_to_begin_anew_has_the_keys_of_its_origin_still(old: Host, new: Host) -> None:
    """Its older checkpoints are there, and new ones are sealed as they are."""
    has(new, "asm-0a1b2c")
    with_image(new, "copy-0a1b2c", "asm-0a1b2c", head(3, HeadKind.GRANT))
    found = {j.id: j for j in adopted(new).jobs}
    assert found[JobId("copy-0a1b2c")].lineage == "asm-0a1b2c"


def test_what_can_not_be_opened_is_tried_with_its_own_key_alone(old: Host, new: Host) -> None:
    """A thousand jobs that are lost with their key would be a million tries."""
    tried: list[str] = []

    def keys_of(lineage: str) -> Keys:
        tried.append(lineage)
        return Keys.derive(b"k" * 32, lineage)

    jobs = [f"asm-{n:06d}" for n in range(5)]
    for job in jobs:
        with_image(new, job, "")
    with open_database(None).begin() as c:
        done = take_up(c, open_for(new.settings), keys_of, Least(), NOW, between)
    assert all("can't be read with this store.key" in j.reason for j in done.jobs)
    assert tried == jobs


@pytest.mark.parametrize("speaks", [None, 1])
def test_a_rehearsal_is_ended_and_gets_no_machine_like_that_of_a_real_job(old: Host, new: Host, speaks: int | None) -> None:
    """Its machine is walled off: the program must not meet the world twice. The controller that would end it is lost."""
    spec = Spec("asm-rehearsal-0a1b2c", ["work"], rehearses="asm-0a1b2c")
    has(new, spec.job, [GRANT], speaks)
    open_for(new.settings).put(object_keys.spec_key(spec.job), json_codec.encode(spec))
    (job,) = adopted(new).jobs
    assert (job.state, job.wish) == ("queued", "cancel")
    assert job.parent == Parent(JobId("asm-0a1b2c"), "", rehearsal=True)
    assert of_job(AgentConfig(job.id, 2, "memory:///"), job).walled


def test_what_can_not_be_read_is_in_nobodys_way(old: Host, new: Host) -> None:
    store = open_for(new.settings)
    has(new, "good-0a1b2c")
    store.create(object_keys.spec_key("bad-0a1b2c"), b"{")
    store.create(object_keys.input_key("half-0a1b2c", "a"), b"of a submission that never came to its end")
    store.create("jobs/UPPER/SPEC.json", b"{}")
    has(new, "odd-0a1b2c", [dataclasses.replace(GRANT, at="some day")], 1)
    done = adopted(new)
    assert [j.id for j in done.jobs] == ["good-0a1b2c", "odd-0a1b2c"]
    assert list(done.unread) == ["bad-0a1b2c"]


def test_jobs_that_the_database_has_stay_as_they_are(old: Host, new: Host) -> None:
    has(old, "job")
    has(old, "later-0a1b2c")
    os.close(lock_state(old.data))
    assert [j.id for j in adopted(old).jobs] == ["later-0a1b2c"]
    with open_database(old.data / "state.db").connect() as c:
        assert rows.load_job(c, JobId("job")) == dataclasses.replace(a_job(), number=1)
    assert adopted(old).jobs == []


# ---------------------------------------------------------------- whose the store is


def test_the_store_says_whose_it_is(old: Host, new: Host) -> None:
    """As a user did: the key alone in a new folder is refused; then it is adopted, and accepted."""
    with pytest.raises(e.StoreOwned, match=r"its store\.key is enough for `spotsurfer adopt`"):
        wiring.build(new.settings)
    family = db.look_read_only(old.data / "state.db").family
    assert adopted(new).family == family
    controller = wiring.build(new.settings)
    controller.stop()
    assert controller.service.info().family == family


def test_without_the_key_nothing_is_adopted(old: Host, new: Host) -> None:
    new.settings.key_path.unlink()
    with pytest.raises(e.ConfigError, match=r"store\.key is not there: bring it back"):
        adopted(new)
    master_key.load(new.settings.key_path)
    with pytest.raises(e.StoreOwned, match="made with another key"):
        adopted(new)
    assert not (new.data / "state.db").exists()


def test_a_store_of_nobody_has_nothing_to_adopt(new: Host) -> None:
    open_for(new.settings).delete([object_keys.store_key()])
    with pytest.raises(e.NotFound, match="belongs to nobody"):
        adopted(new)


def test_a_database_with_jobs_of_another_family_is_left_alone(old: Host, new: Host) -> None:
    engine = open_database(new.data / "state.db")
    mine = new_family(engine)
    with engine.begin() as c:
        rows.add_job(c, a_job())
    engine.dispose()
    with pytest.raises(e.Conflict, match=f"has 1 job of the controller family {mine}"):
        adopted(new)
    assert db.look_read_only(new.data / "state.db").family == mine


def test_a_controller_that_runs_is_not_in_its_way(old: Host, new: Host) -> None:
    lock = lock_state(new.data)
    with pytest.raises(e.ControllerRunning):
        adopted(new)
    os.close(lock)


def test_half_an_adoption_is_none(old: Host, new: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    has(new, "asm-0a1b2c")
    has(new, "asm-3d4e5f")

    def one_and_no_more(connection: object, job: Job) -> Job:
        if job.id == "asm-3d4e5f":
            raise KeyboardInterrupt
        return add(connection, job)  # type: ignore[arg-type]

    add = rows.add_job
    with monkeypatch.context() as m:
        m.setattr(rows, "add_job", one_and_no_more)
        with pytest.raises(KeyboardInterrupt):
            adopted(new)
    assert db.look_read_only(new.data / "state.db").jobs == 0
    assert len(adopted(new).jobs) == 2
