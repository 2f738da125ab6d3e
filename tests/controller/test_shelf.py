"""Copies, protection, proof and the check of the store, against a store in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from spotsurfer_wire import json_codec, messages, object_keys, sealed_objects
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.manifest import MARK, SECRET, decode, encode
from spotsurfer_wire.messages import AgentConfig, HeadKind, Report, Spec
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from spotsurfer_wire.store.port import Listed, StoreError
from sqlalchemy import Engine, delete
from support.builders import an_attempt
from support.saves import JOB, KEYS, Writer, a_manifest, named

from spotsurfer.config.settings import RetentionSection
from spotsurfer.controller.checkpoints import rehearsal
from spotsurfer.controller.checkpoints.checkpoint_api import CheckpointApi
from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointGc, CheckpointStore, lives
from spotsurfer.controller.checkpoints.forks import FIRST, Forks, Order
from spotsurfer.controller.checkpoints.operations import CalledOff, Operation, Operations
from spotsurfer.controller.checkpoints.rehearsal import Rehearsals
from spotsurfer.model.errors import NotFound, RehearsalFailed, StoreDamaged, UsageError
from spotsurfer.model.job import AttemptState, Job, JobId, JobSpec, JobState
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import jobs as rows
from spotsurfer.state import journal, ledger_facts, observations, schema, timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.head_logs import HeadLogs, summary
from spotsurfer.store.job_output import Output, chain

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Room:
    store: ObstoreStore
    engine: Engine
    writer: Writer
    keeper: CheckpointGc
    forks: Forks
    shelf: CheckpointApi

    def work(self, what: str, **options: bool) -> dict[str, Any]:
        begun = self.shelf.store_work(what, JobId(JOB), options.get("read", False), options.get("dry_run", False))
        done = self.shelf.progress(begun.id, 20.0)
        assert done.result is not None
        return dict(done.result)

    def moments(self) -> list[str]:
        with self.engine.connect() as c:
            return [m.text for _, m in timeline.read(c, JobId(JOB), 0)]


@pytest.fixture
def room() -> Room:
    store, engine, clock = open_store("memory:///"), open_database(None), ManualClock(NOW)
    store.create(
        object_keys.spec_key(JOB), json_codec.encode(Spec(JOB, ["work"], outputs=["x"], checkpoint_interval_seconds=9.0))
    )
    store.create(object_keys.input_key(JOB, "a/b"), b"input")
    with engine.begin() as c:
        rows.add_job(c, Job(JobId(JOB), JobSpec("job", ("work",), on_end=("tell",)), JobState.ACTIVE, 1, NOW))
        rows.add_attempt(c, an_attempt(1, job=JobId(JOB)))
    checkpoints = CheckpointStore(engine, clock, store, HeadLogs(store), lambda _: KEYS, lambda: None)
    keeper = CheckpointGc(checkpoints, RetentionSection(newest=1, wait=0.0))
    forks = Forks(checkpoints, keeper, lambda name: JobId(f"{name}-copy"), lambda: None)
    shelf = CheckpointApi(checkpoints, keeper, forks, Rehearsals(checkpoints, forks, keeper, _never), Operations())
    writer = Writer(store)
    writer.grant()
    return Room(store, engine, writer, keeper, forks, shelf)


def _never(job: str) -> Job:
    raise AssertionError(job)


def an_operation() -> Operation:
    return Operation("1", "fork")


def test_the_keeper_notes_how_many_bytes_a_job_keeps(room: Room) -> None:
    clock = room.keeper._checkpoints.clock
    assert isinstance(clock, ManualClock)

    def there() -> int:
        kept = (object_keys.chunks_prefix, object_keys.packs_prefix, object_keys.checkpoints_prefix)
        return sum(x.size for prefix in kept for x in room.store.list(prefix(JOB)) if not x.key.endswith("PROVEN"))

    with room.engine.connect() as c:
        job = rows.load_job(c, JobId(JOB))
    room.writer.save_all(["a", "b"])
    sizes = [there()]
    room.keeper.collect(job)
    clock.advance(60)
    room.keeper.prove(job, room.writer.save_all(["b", "c"]), 1, "it went on")
    sizes.append(there())
    for _ in range(4):  # the first checkpoint goes, then its chunk is condemned, removed, and all is looked through
        room.keeper.collect(job)
        clock.advance(60)
    with room.engine.connect() as c:
        found = ledger_facts.stored(c)[JobId(JOB)]
    assert [size for _, size in found][:2] == sizes
    assert found[-1][1] == there() < sizes[1]
    assert found[0][0] == NOW


def test_a_copy_has_everything_of_its_own_and_its_origins_keys(room: Room) -> None:
    room.writer.save_all(["a", "b"])
    room.writer.save_all(["b", "c"])
    made = room.forks.fork(Order(JOB, "1", "twin"), an_operation())
    assert (made.id, made.lineage, made.state) == ("twin-copy", JOB, JobState.QUEUED)
    image = decode(room.store.get(object_keys.manifest_key(made.id, FIRST)) or b"", KEYS, made.id)
    assert (image.job, image.id, image.epoch, image.lineage) == (made.id, FIRST, 0, JOB)
    room.store.delete([x.key for x in room.store.list(object_keys.job_prefix(JOB))])
    assert all(room.store.get(object_keys.chunk_key(made.id, named(c).digest)) for c in "ab")
    assert room.store.get(object_keys.input_key(made.id, "a/b")) == b"input"
    log = HeadLog(room.store, made.id)
    log.refresh()
    assert (summary(log.entries).checkpoint, summary(log.entries).checkpoints) == (FIRST, (FIRST,))


def test_a_copy_keeps_what_its_names_meant(room: Room) -> None:
    for key in (object_keys.image_key, object_keys.inputs_key):
        room.store.create(key(JOB), key("what").encode())
    room.writer.save_all(["a"])
    made = room.forks.fork(Order(JOB), an_operation())
    assert room.store.get(object_keys.image_key(made.id)) == b"jobs/what/IMAGE.json"
    assert room.store.get(object_keys.inputs_key(made.id)) == b"jobs/what/INPUTS.json"


def test_the_secrets_of_a_copy_are_sealed_for_the_copy(room: Room) -> None:
    room.store.create(object_keys.secrets_key(JOB), sealed_objects.seal_secrets({"TOKEN": b"1"}, KEYS, JOB))
    room.writer.save_all(["a"])
    made = room.forks.fork(Order(JOB), an_operation())
    assert sealed_objects.fetch_secrets(room.store, KEYS, made.id) == {"TOKEN": b"1"}
    room.store.put(object_keys.secrets_key(made.id), room.store.get(object_keys.secrets_key(JOB)) or b"")
    with pytest.raises(sealed_objects.SecretsLost):
        sealed_objects.fetch_secrets(room.store, KEYS, made.id)


def test_secrets_go_when_nothing_is_left_that_could_go_on_with_them(room: Room) -> None:
    key, clock = object_keys.secrets_key(JOB), room.keeper._checkpoints.clock
    assert isinstance(clock, ManualClock)
    room.store.create(key, sealed_objects.seal_secrets({"TOKEN": b"1"}, KEYS, JOB))
    room.writer.save_all(["a"])
    protected = room.shelf.protect(JobId(JOB), "1", True)
    with room.engine.begin() as c:
        job = rows.load_job(c, JobId(JOB))
        rows.save_job(c, replace(job, state=JobState.SUCCEEDED, ended_at=NOW))
    room.keeper.look()
    assert room.store.get(key), "it ended just now"
    clock.advance(RetentionSection.model_validate({}).ended + 1)
    room.keeper.look()
    assert room.store.get(key), "a checkpoint that its user keeps may be forked"
    room.shelf.protect(JobId(JOB), protected, False)
    room.keeper.look()
    assert room.store.get(key) is None


@pytest.mark.parametrize("waived", [False, True])
def test_the_copy_of_a_job_with_secrets_is_encrypted_as_it_is(room: Room, waived: bool) -> None:
    spec = JobSpec("job", ("work",), secrets={"A": {"from": "env:A", "as": "environment"}}, secrets_in_plain_images=waived)
    with room.engine.begin() as c:
        rows.save_job(c, replace(rows.load_job(c, JobId(JOB)), spec=spec))
    room.writer.save_all(["a"])
    made = room.forks.fork(Order(JOB), an_operation())
    data = room.store.get(object_keys.manifest_key(made.id, FIRST)) or b""
    assert (data[len(MARK) : len(MARK) + 1] == SECRET) is not waived
    assert made.spec.must_encrypt is not waived


def test_a_copy_keeps_what_was_printed_by_then(room: Room) -> None:
    for offset, text in ((0, b"one\n"), (4, b"two\nthree\n")):
        room.store.create(object_keys.log_key(JOB, 1, "out", offset, offset + len(text)), text)
    name = room.writer.save_all(["a"])
    image = decode(room.store.get(object_keys.manifest_key(JOB, name)) or b"", KEYS, JOB)
    room.store.put(object_keys.manifest_key(JOB, name), encode(replace(image, log={"out": 8}), KEYS))
    made = room.forks.fork(Order(JOB), an_operation())
    log = HeadLog(room.store, made.id)
    log.refresh()
    assert Output(room.store).read(made.id, "out", chain(log.entries, None), 0, 100) == b"one\ntwo\n"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 41])
def test_a_copy_has_a_name_that_a_job_may_have(room: Room, name: str) -> None:
    room.writer.save_all(["a"])
    with pytest.raises(UsageError, match="expected up to 40 letters"):
        room.forks.fork(Order(JOB, name=name), an_operation())


def test_a_rehearsal_publishes_nothing_and_tells_nobody(room: Room) -> None:
    room.writer.save_all(["a"])
    made = room.forks.fork(Order(JOB, rehearsal=True), an_operation())
    assert (made.spec.on_end, made.spec.outputs, made.spec.retries) == ((), (), 0)
    spec = json_codec.decode(Spec, room.store.get(object_keys.spec_key(made.id)) or b"")
    assert (spec.job, spec.outputs, spec.checkpoint_interval_seconds) == (made.id, [], None)
    assert spec.rehearses == JOB, "who adopts the store must know it from a job"


def test_a_rehearsal_that_nobody_sees_alive_is_ended_in_time(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its restore hangs, say: it is given up after a while, thrown away, and the job and its checkpoint are as before."""
    ended: list[str] = []

    def cancel(job: str) -> Job:
        ended.append(job)
        with room.engine.begin() as c:
            return rows.save_job(c, replace(rows.load_job(c, JobId(job)), state=JobState.CANCELLED))

    monkeypatch.setattr(rehearsal, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(rehearsal, "LOOK_SECONDS", 0.05)
    room.writer.save_all(["a"])
    rehearsals = Rehearsals(room.keeper._checkpoints, room.forks, room.keeper, cancel)
    began = time.monotonic()
    with pytest.raises(RehearsalFailed, match="not seen alive within"):
        rehearsals.rehearse(JOB, an_operation())
    assert 0.5 <= time.monotonic() - began < 5.0
    child = f"{JOB}-copy"
    assert ended == [child]
    assert room.store.list(object_keys.job_prefix(child))
    rehearsals.tidy()
    assert room.store.list(object_keys.job_prefix(child)) == []
    with room.engine.connect() as c:
        assert rows.load_job(c, JobId(JOB)).state is JobState.ACTIVE
        assert [m.data for _, m in timeline.read(c, JobId(JOB), 0) if m.kind == "rehearsed"] == [{"alive": False}]


def test_only_the_machines_of_a_rehearsal_have_a_short_and_lonely_life(room: Room) -> None:
    room.writer.save_all(["a"])
    config = AgentConfig(JOB, 1, "memory:///")
    with room.engine.connect() as c:
        job = rows.load_job(c, JobId(JOB))
    assert (rehearsal.of_job(config, job).life_seconds, rehearsal.of_job(config, job).walled) == (0.0, False)
    child = rehearsal.of_job(config, room.forks.fork(Order(JOB, rehearsal=True), an_operation()))
    assert child.walled
    assert rehearsal.LIMIT_SECONDS < child.life_seconds < 2 * rehearsal.LIMIT_SECONDS, "whoever watches gives up first"


def test_a_copy_that_fails_leaves_nothing(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.writer.save_all(["a"])
    with pytest.raises(NotFound, match="no checkpoint '7'"):
        room.forks.fork(Order(JOB, "7"), an_operation())
    operation = an_operation()
    operation.called_off.set()
    with pytest.raises(CalledOff):
        room.forks.fork(Order(JOB), operation)

    def full(*_: object) -> None:
        raise StoreError("no")

    monkeypatch.setattr(room.forks, "_output", full)
    with pytest.raises(Exception, match="can't be copied"):
        room.forks.fork(Order(JOB), an_operation())
    assert not room.store.list("jobs/job-copy/")
    with room.engine.connect() as c:
        assert [j.id for j in rows.all_jobs(c)] == [JOB]
        assert journal.unfinished(c) == []


def test_what_a_crash_left_of_a_copy_is_removed_at_the_start(room: Room) -> None:
    with room.engine.begin() as c:
        journal.begin(c, f"fork/{JOB}/half-1", NOW)
    room.store.create("jobs/half-1/chunks/ab/abc", b"x")
    room.forks.again()
    assert not room.store.list("jobs/half-1/")


def test_proof_is_kept_in_the_store_and_older_ones_go(room: Room) -> None:
    old, new = room.writer.save_all(["a"]), room.writer.save_all(["b"])
    with room.engine.begin() as c:
        rows.add_attempt(c, an_attempt(2, AttemptState.RUNNING, job=JobId(JOB), from_checkpoint=new))
        observations.set_usage(c, a_report(arriving_bytes=5), NOW)
    room.keeper.look()
    assert room.store.get(object_keys.proven_key(JOB, new)) is None
    with room.engine.begin() as c:
        observations.set_usage(c, a_report(), NOW)
    for _ in range(4):
        room.keeper.look()
    assert room.store.get(object_keys.proven_key(JOB, new)) is not None
    assert room.store.get(object_keys.manifest_key(JOB, old)) is None
    assert room.store.get(object_keys.chunk_key(JOB, named("a").digest)) is None
    assert [t for t in room.moments() if "dropped" in t] == [f"checkpoint {old} was dropped: {new} is newer and proven"]
    assert [(c.id, c.proven) for c in room.shelf.checkpoints(JOB)] == [(new, True)]


def a_report(**changes: object) -> Report:
    values: dict[str, object] = {"state": messages.AgentState.RUNNING, "restore_seconds": 1.0, "sequence": 1, "head": 1}
    return Report(job=JOB, attempt=2, instance="i", agent_version="0", **{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"arriving_bytes": 0}, True),
        ({"arriving_bytes": 1}, False),
        ({"state": messages.AgentState.RESTORING}, False),
        ({"state": messages.AgentState.BROKEN}, False),
        ({"restore_seconds": None}, False),
    ],
)
def test_when_a_restored_job_lives(changes: dict[str, object], expected: bool) -> None:
    assert lives(an_attempt(2), a_report(**changes)) is expected


def test_protection_by_number(room: Room) -> None:
    name = room.writer.save_all(["a"])
    assert room.shelf.protect(JOB, "1", True) == name
    assert [(c.protected, c.why) for c in room.shelf.checkpoints(JOB)] == [(True, "protected by its user")]
    room.shelf.protect(JOB, name, False)
    assert room.store.get(object_keys.protected_key(JOB, name)) is None
    with pytest.raises(NotFound, match="no checkpoint '2'"):
        room.shelf.protect(JOB, "2", True)


Harm = Callable[[ObstoreStore, str], None]


def missing(store: ObstoreStore, _: str) -> None:
    store.delete([object_keys.chunk_key(JOB, named("a").digest)])


def empty(store: ObstoreStore, _: str) -> None:
    store.put(object_keys.chunk_key(JOB, named("a").digest), b"")


def forged(store: ObstoreStore, name: str) -> None:
    data = store.get(object_keys.manifest_key(JOB, name)) or b""
    store.put(object_keys.manifest_key(JOB, name), data[:-1] + bytes([data[-1] ^ 1]))


def swapped(store: ObstoreStore, name: str) -> None:
    store.put(object_keys.manifest_key(JOB, name), encode(a_manifest("000001-000009", ["a", "b"]), KEYS))


def foreign(store: ObstoreStore, name: str) -> None:
    store.put(object_keys.manifest_key(JOB, name), encode(a_manifest(name, ["a", "b"], job="job-copy"), KEYS))


def gone(store: ObstoreStore, name: str) -> None:
    store.delete([object_keys.manifest_key(JOB, name)])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (missing, "is missing"),
        (empty, "that can't be"),
        (forged, "not written with this job's key"),
        (swapped, "the manifest of checkpoint 000001-000009 for that of 000001-000001"),
        (foreign, "a manifest of job job-copy for one of job"),
        (gone, "manifest is missing"),
    ],
)
def test_a_check_names_what_is_wrong(room: Room, harm: Harm, said: str) -> None:
    name = room.writer.save_all(["a", "b"])
    assert room.work("check")["damage"] == []
    harm(room.store, name)
    (damage,) = room.work("check")["damage"]
    assert (damage["job"], damage["checkpoint"]) == (JOB, name)
    assert said in damage["what"]


@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_each_checkpoint_that_shares_what_is_damaged_is_named(room: Room, harm: str) -> None:
    first, _, last = (room.writer.save_all(names) for names in (["a", "b"], ["b"], ["a", "c"]))
    key = object_keys.chunk_key(JOB, named("a").digest)
    if harm == "gone":
        room.store.delete([key])
    damage = room.work("check", read=harm == "changed")["damage"]
    found = [d["checkpoint"] for d in damage if named("a").digest in d["what"]]
    assert found == [first, last]


@pytest.mark.parametrize("place", range(5))
def test_a_save_that_ends_during_a_check_is_no_damage(room: Room, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    room.writer.save_all(["a"])
    looked, listed = 0, room.store.list

    def interrupted(prefix: str, after: str | None = None) -> list[Listed]:
        nonlocal looked
        looked += 1
        if looked == place + 1:
            room.writer.save_all(["a", "b"])
        return listed(prefix, after)

    monkeypatch.setattr(room.store, "list", interrupted)
    assert room.work("check")["damage"] == []
    assert looked > place


def test_reading_finds_what_sizes_hide(room: Room) -> None:
    room.writer.save_all(["a"])
    found = room.work("check", read=True)["damage"]  # the content is not what the name promises
    assert len(found) == 1
    assert "damaged" in found[0]["what"]


@pytest.mark.parametrize(("harm", "said"), [(forged, "changed"), (swapped, "the manifest of checkpoint 000001-000009")])
def test_a_manifest_that_cant_be_used_stops_collection_and_copies_with_their_own_code(
    room: Room, harm: Harm, said: str
) -> None:
    harm(room.store, room.writer.save_all(["a", "b"]))
    with pytest.raises(StoreDamaged, match="store check"):
        room.work("gc")
    with pytest.raises(StoreDamaged, match=said):
        room.forks.fork(Order(JOB), an_operation())
    assert said in room.shelf.checkpoints(JOB)[0].damage
    assert room.work("stats")["total"]["image_bytes"] == 0, "what is not known is not counted"


def test_figures(room: Room) -> None:
    room.writer.save_all(["a", "b"])
    room.writer.save_all(["b"])
    total = room.work("stats")["total"]
    assert (total["checkpoints"], total["image_bytes"], total["unique_bytes"], total["chunk_bytes"]) == (2, 24, 16, 12)
    assert total["dedup_ratio"] == 1.5
    assert total["kinds"]["inputs"] == 5


def test_what_removes_takes_whole_names_and_what_looks_a_beginning(room: Room) -> None:
    room.writer.save_all(["a"])
    beginning = JobId(JOB[:2])
    for what, dry_run in (("check", False), ("stats", False), ("gc", True)):
        begun = room.shelf.store_work(what, beginning, False, dry_run)
        assert room.shelf.progress(begun.id, 20.0).result is not None
    with pytest.raises(NotFound):
        room.shelf.store_work("gc", beginning, False, False)
    assert room.work("gc")["dry_run"] is False


# ---------------------------------------------------------------- a database from a backup


def test_what_a_job_lives_on_that_was_taken_up_again_since_the_backup_is_not_removed(room: Room) -> None:
    """It ended a month ago by the database. By the store it goes on, on a machine of which no row speaks."""
    manifest = object_keys.manifest_key(JOB, room.writer.save_all(["a"]))
    with room.engine.begin() as c:
        rows.save_job(c, replace(rows.load_job(c, JobId(JOB)), state=JobState.SUCCEEDED, ended_at=NOW - timedelta(days=30)))
    grant(room.store, JOB, 2)
    before = room.store.list(object_keys.job_prefix(JOB))
    for _ in range(3):
        room.keeper.look()
    assert room.store.list(object_keys.job_prefix(JOB)) == before
    with pytest.raises(ProtocolError, match=r"knows attempt 2 of .*it is from a backup"):
        room.keeper.collect(_load(room))
    with room.engine.begin() as c:
        rows.add_attempt(c, an_attempt(2, job=JobId(JOB)))
    room.keeper.look()
    assert room.store.get(manifest) is None, "it is known, and it ended long ago"


def _load(room: Room) -> Job:
    with room.engine.connect() as c:
        return rows.load_job(c, JobId(JOB))


def grant(store: ObstoreStore, job: str, epoch: int) -> None:
    """A machine gets the job after the newest entry."""
    log = HeadLog(store, job)
    log.refresh()
    assert log.newest is not None
    entry = replace(log.newest, number=log.newest.number + 1, kind=HeadKind.GRANT, epoch=epoch, nonce=f"grant-{epoch}")
    assert store.create(object_keys.head_key(job, entry.number), json_codec.encode(entry))


@pytest.mark.parametrize("began", [True, False])
def test_a_copy_that_became_a_job_since_the_backup_is_not_removed_at_the_start(room: Room, began: bool) -> None:
    """The backup was made while it was copied: to the database it is what a crash left."""
    room.writer.save_all(["a"])
    made = room.forks.fork(Order(JOB), an_operation())
    if began:
        grant(room.store, made.id, 1)
    with room.engine.begin() as c:
        journal.begin(c, f"fork/{JOB}/{made.id}", NOW)
        c.execute(delete(schema.job).where(schema.job.c.id == made.id))
    room.forks.again()
    assert bool(room.store.list(object_keys.job_prefix(made.id))) is began
