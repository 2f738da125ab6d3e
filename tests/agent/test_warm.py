"""Fetching ahead: what is held, what is answered from it, and that it is never needed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from spotsurfer_agent.chunks.writer import Writer
from spotsurfer_agent.control.facts import AgentRules, Facts, Notice, Task
from spotsurfer_agent.control.standby import Standby, objects
from spotsurfer_agent.control.state_machine import Event, State, happened
from spotsurfer_agent.ports.engine import EngineError, Status
from spotsurfer_agent.ports.engine import WorkloadState as W
from spotsurfer_agent.store import cache
from spotsurfer_agent.store.cache import DiskCache
from spotsurfer_agent.store.layers import CachedStore
from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.chunks.reader import Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.final_save_forecast import Fit
from spotsurfer_wire.manifest import Entry, Extents, Manifest, Stored
from spotsurfer_wire.messages import AgentState, Desired, Head, HeadKind, Want, Warm
from spotsurfer_wire.store.port import StoreError
from support.agent_world import JOB, DictStore

KEYS = Keys.derive(b"", JOB)
PACK = "ab" * 32


def chunk(n: int) -> Stored:
    return Stored(f"{n:064x}", 1000)


def image(name: str, *chunks: Stored) -> Manifest:
    return Manifest(
        id=name, job=JOB, epoch=1, sequence=1, kind="live", engine="fake", facts={}, image=[], scratch=[], log={},
        init_pipes={}, cpu_seconds=0.0, frozen_seconds=0.0, image_bytes=0, at="", chunks=list(chunks),
    )  # fmt: skip


class Scene:
    """A store with checkpoints, and a machine that stands by."""

    def __init__(self, folder: Path, bytes_max: int = 1 << 20) -> None:
        self.store, self.cache = DictStore(), DiskCache(folder / "cache", bytes_max)
        self.cached = CachedStore(self.store, self.cache)
        self.head: Head | None = None
        self.standby = Standby(self.cached, JOB, KEYS, lambda: self.head)
        self.standby.resume()
        self.read: list[str] = []
        self.store.before = lambda verb, key: self.read.append(key) if verb == "get" else None

    def commit(self, name: str, *chunks: Stored) -> None:
        for c in chunks:
            if not c.pack:
                self.store.objects[object_keys.chunk_key(JOB, c.digest)] = c.digest.encode()[:8] * 100
        self.store.objects[object_keys.manifest_key(JOB, name)] = manifest.encode(image(name, *chunks), KEYS)
        number = self.head.number + 1 if self.head else 1
        self.head = Head(number, HeadKind.COMMIT, 1, name, 1, False, None, 0.0, "n", "")

    def look(self) -> Warm:
        self.read.clear()
        self.standby.look()
        return self.standby.warm


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_everything_of_the_newest_checkpoint_is_fetched_once(scene: Scene) -> None:
    scene.commit("000001-000001", chunk(1), chunk(2))
    assert scene.look() == Warm("000001-000001", 2000, 2000)
    scene.look()
    assert scene.read == []


def test_of_a_new_checkpoint_only_what_is_new(scene: Scene) -> None:
    scene.commit("000001-000001", chunk(1), chunk(2))
    scene.look()
    scene.commit("000001-000002", chunk(2), chunk(3))
    assert scene.look() == Warm("000001-000002", 2000, 2000)
    chunks = [k for k in scene.read if "/chunks/" in k]
    assert chunks == [object_keys.chunk_key(JOB, chunk(3).digest)]


def test_a_pack_is_fetched_once_for_all_its_chunks(scene: Scene) -> None:
    packed = [replace(chunk(n), pack=PACK, at=n * 10, length=10) for n in range(3)]
    scene.store.objects[object_keys.pack_key(JOB, PACK)] = bytes(range(30))
    scene.commit("000001-000001", *packed)
    assert scene.look() == Warm("000001-000001", 3000, 3000)
    assert [k for k in scene.read if "/packs/" in k] == [object_keys.pack_key(JOB, PACK)]
    scene.store.objects.clear()
    assert scene.cached.get_range(object_keys.pack_key(JOB, PACK), 10, 10) == bytes(range(10, 20))


def test_reads_are_answered_from_the_disk_and_what_is_missing_from_the_store(scene: Scene) -> None:
    scene.commit("000001-000001", chunk(1))
    scene.look()
    key = object_keys.chunk_key(JOB, chunk(1).digest)
    was = scene.store.objects.pop(key)
    assert scene.cached.get(key) == was
    scene.standby.clear()
    assert scene.cached.get(key) is None
    scene.store.objects[key] = b"again"
    assert scene.cached.get(key) == b"again"
    assert not (scene.cache.folder).exists()


def test_what_changes_is_never_answered_from_the_disk(scene: Scene) -> None:
    head = object_keys.head_key(JOB, 1)
    scene.cache.put(head, b"old")
    scene.store.objects[head] = b"new"
    assert scene.cached.get(head) == b"new"


def test_a_range_that_is_not_whole_on_the_disk_comes_from_the_store(scene: Scene) -> None:
    key = object_keys.pack_key(JOB, PACK)
    scene.cache.put(key, b"torn")
    scene.store.objects[key] = b"whole object"
    assert scene.cached.get_range(key, 6, 6) == b"object"


def test_a_bad_disk_does_not_make_an_image_look_bad(scene: Scene) -> None:
    scene.commit("000001-000001", chunk(1))
    scene.look()
    key = object_keys.chunk_key(JOB, chunk(1).digest)
    file = scene.cache.folder / key
    kept = bytearray(file.read_bytes())
    for flipped in (kept[:5] + b"!" + kept[6:], kept[:-9], b""):
        file.write_bytes(flipped)
        assert scene.cached.get(key) == scene.store.objects[key]
        assert key in scene.read


@pytest.mark.parametrize("hurt", [lambda b: b[:5] + bytes([b[5] ^ 1]) + b[6:], lambda b: b[: len(b) // 2], lambda b: b""])
def test_a_restore_does_not_notice_that_the_disk_hurt_all_that_was_fetched_ahead(
    tmp_path: Path, hurt: Callable[[bytes], bytes]
) -> None:
    """Chunks of their own and chunks in packs, damaged as the disk likes: the store has them, so no image is called bad."""
    scene = Scene(tmp_path)
    pieces = [random.Random(n).randbytes(size) for n, size in enumerate((1 << 18, 1 << 18, 3000, 2000))]
    with Writer(scene.store, JOB, KEYS, Limits(), {}) as writer:
        futures = [writer.add(p) for p in pieces]
    stored = [f.result() for f in futures]
    for key, data in list(scene.store.objects.items()):
        scene.cache.put(key, data)
    files = [p for p in scene.cache.folder.rglob("*") if p.is_file()]
    assert len(files) == 3  # two chunks and a pack
    for file in files:
        file.write_bytes(hurt(file.read_bytes()))
    with Reader(scene.cached, JOB, KEYS, Limits()) as reader:
        assert [reader.plain(c) for c in stored] == pieces


def test_a_full_cache_holds_what_it_can_and_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path, bytes_max=2500)
    scene.commit("000001-000001", *(chunk(n) for n in range(9)))
    warm = scene.look()
    assert warm.checkpoint == "000001-000001", "nobody must wait for what there is no room for"
    assert 0 < warm.held_bytes < warm.needed_bytes == 9000
    assert scene.cache.held_bytes <= 2500


def test_room_for_the_jobs_files_stays_free_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, bytes_max=9000)
    disk = 9000
    monkeypatch.setattr(cache, "free_bytes", lambda _: disk - scene.cache.held_bytes)
    scene.commit("000001-000001", *(chunk(n) for n in range(9)))
    image_with_files = replace(
        image("000001-000001", *(chunk(n) for n in range(9))),
        scratch=[Entry("work/x", "file", size=6000, extents=Extents.of((n * 1000, 1000, n, 0) for n in range(6)))],
    )
    scene.store.objects[object_keys.manifest_key(JOB, "000001-000001")] = manifest.encode(image_with_files, KEYS)
    assert scene.look().checkpoint == "000001-000001"
    assert 0 < scene.cache.held_bytes <= disk - 6000


def test_old_chunks_make_room_for_new_ones(tmp_path: Path) -> None:
    scene = Scene(tmp_path, bytes_max=4000)
    scene.commit("000001-000001", chunk(1), chunk(2), chunk(3))
    scene.look()
    scene.commit("000001-000002", chunk(4), chunk(5), chunk(6))
    assert scene.look() == Warm("000001-000002", 3000, 3000)


def test_a_store_that_fails_costs_only_time(scene: Scene) -> None:
    scene.commit("000001-000001", chunk(1), chunk(2))
    fails = [True]

    def stumble(verb: str, key: str) -> None:
        if fails[0] and "/chunks/" in key:
            raise StoreError("no route")

    scene.store.before = stumble
    assert scene.look().checkpoint is None
    fails[0] = False
    assert scene.look().checkpoint == "000001-000001"


def test_who_got_the_job_fetches_no_more(scene: Scene) -> None:
    scene.commit("000001-000001", chunk(1))
    scene.standby.stop()
    assert scene.look() == Warm(None, 0, 0)
    assert scene.read == []


def test_a_commit_in_the_middle_makes_it_turn_to_the_new_one(scene: Scene) -> None:
    scene.commit("000001-000001", *(chunk(n) for n in range(40)))
    scene.standby.threads = 1
    turned = [False]

    def overtake(verb: str, key: str) -> None:
        if "/chunks/" in key and not turned[0]:
            turned[0] = True
            scene.commit("000001-000002", *(chunk(n) for n in range(41)))

    scene.store.before = overtake
    assert scene.look().checkpoint is None
    assert scene.look() == Warm("000001-000002", 41_000, 41_000)


@pytest.mark.parametrize("data", [b"forged" * 20, manifest.encode(image("000001-000009", chunk(1)), KEYS)])
def test_a_manifest_that_is_forged_or_anothers_is_not_followed(scene: Scene, data: bytes) -> None:
    scene.commit("000001-000001", chunk(1))
    scene.store.objects[object_keys.manifest_key(JOB, "000001-000001")] = data
    assert scene.look() == Warm(None, 0, 0)


def test_no_key_leaves_the_folder(scene: Scene) -> None:
    with pytest.raises(ValueError, match="no key"):
        scene.cache.put("jobs/../../etc/passwd", b"x")
    assert scene.cache.get("jobs//x") is None


def test_what_a_manifest_needs_by_key() -> None:
    found = objects(image("c", chunk(1), replace(chunk(2), pack=PACK), replace(chunk(3), pack=PACK)), JOB)
    assert found == {object_keys.chunk_key(JOB, chunk(1).digest): 1000, object_keys.pack_key(JOB, PACK): 2000}


# ---- when a noticed machine drains by itself

QUICK = Fit(0.5, 1, 2.0, 115.0, "fits", 8.0, 0.0, 2.0, 1.0)
OLD = replace(QUICK, durable_seconds=30.0, reserve_seconds=50.0, gain_seconds=25.0, live_seconds=30.0)
HERE = State(name=AgentState.RUNNING, booted=True, freeze_at=900.0)


def noticed(left: float, fit: Fit | None = QUICK, patient: bool = True, **more: object) -> Facts:
    head = Head(3, HeadKind.GRANT, 2, "000001-000001", 1, False, None, 5.0, "n3", "")
    rules = AgentRules(attempt=2, interval_seconds=1000.0, patient=patient)
    base = Facts(now=1000.0, rules=rules, head=head, head_read=True, status=Status(W.RUNNING), lease_age_seconds=1.0, fit=fit)
    return replace(base, notice=Notice("interruption", "x", 1000.0 + left), **more)  # type: ignore[arg-type]


def test_with_a_notice_the_job_runs_on_while_there_is_time() -> None:
    assert happened(HERE, noticed(100)) is None
    assert happened(HERE, noticed(8)) is Event.DRAIN
    assert happened(HERE, noticed(100, fit=None)) is Event.DRAIN, "nobody knows how long it takes"
    assert happened(HERE, noticed(100, patient=False)) is Event.DRAIN
    assert happened(HERE, noticed(100, desired=Desired(1, Want.DRAIN))) is Event.DRAIN, "the next machine is warm"


def test_a_final_save_that_would_be_in_vain_is_not_begun_before_the_very_end() -> None:
    huge = replace(OLD, durable_seconds=200.0, reserve_seconds=305.0, live_seconds=200.0, gain_seconds=0.0, least_seconds=110.0)
    saving = replace(HERE, name=AgentState.SAVING)
    assert happened(HERE, noticed(111, huge)) is Event.DRAIN, "it may just be done"
    assert happened(HERE, noticed(109, huge)) is None
    assert happened(HERE, noticed(109, huge, patient=False)) is None
    assert happened(saving, noticed(109, huge, busy=Task.LIVE)) is None, "a live save that began before may still be done"
    assert happened(HERE, noticed(6, huge)) is None
    assert happened(HERE, noticed(5, huge)) is Event.DRAIN, "the machine may die late"
    assert happened(HERE, noticed(109, huge, status=Status(W.EXITED))) is Event.EXITED, "that is what it ran on for"
    assert happened(HERE, noticed(109, huge, desired=Desired(1, Want.DRAIN))) is Event.DRAIN, "its user may ask for it"


def test_an_old_base_is_renewed_first_if_there_is_time_for_both() -> None:
    assert happened(HERE, noticed(100, OLD)) is Event.SAVE_DUE
    assert happened(HERE, noticed(75, OLD)) is None
    assert happened(HERE, noticed(49, OLD)) is Event.DRAIN


def test_a_live_save_under_way_is_reckoned_with() -> None:
    saving = replace(HERE, name=AgentState.SAVING)
    assert happened(saving, noticed(90, OLD, busy=Task.LIVE)) is None
    assert happened(saving, noticed(79, OLD, busy=Task.LIVE)) is Event.DRAIN


def test_a_drain_that_began_for_want_of_time_is_not_given_up() -> None:
    assert happened(replace(HERE, name=AgentState.DRAINING), noticed(60, OLD)) is None


def test_what_else_the_job_needs_comes_first_and_without_it_the_machine_is_cold(scene: Scene) -> None:
    scene.commit("000001-000001", chunk(1))

    def fails() -> None:
        raise EngineError("store", "the registry does not answer")

    scene.standby.prepare = fails
    assert scene.look() == Warm(None, 0, 0)
    assert scene.read == []
    scene.standby.prepare = lambda: scene.read.append("prepared")
    assert scene.look().checkpoint == "000001-000001"
    assert scene.read[0] == "prepared"
