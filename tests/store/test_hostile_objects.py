"""Objects of somebody who can write to the store, and has no key: their readers refuse them, or go on without them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from spotsurfer_agent.control.mailbox import Heads
from spotsurfer_wire import head_log, json_codec, manifest, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Done, Head, HeadKind, Intent, OutputObject, Partial
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError
from support.builders import NOW
from support.dict_store import DictStore
from support.fuzz import mutated
from support.saves import JOB, KEYS, a_head, a_manifest

from spotsurfer.core.checkpoints.retention import RetentionRules
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database
from spotsurfer.store.agent_reports import Reports
from spotsurfer.store.checkpoint_inventory import survey
from spotsurfer.store.garbage_collector import Asked, Collector
from spotsurfer.store.head_logs import summary
from spotsurfer.store.job_output import Output, chain, published

SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 100))]
EACH = 100
GRANT = a_head(1, HeadKind.GRANT, 1, None, 0)
COMMIT = a_head(2, HeadKind.COMMIT, 1, "000001-000001", 1, cpu_seconds=3.5)
DONE = a_head(
    3, HeadKind.DONE, 1, "000001-000001", 1, done=Done(0, "exited", {"a.txt": 3}, {"out": 5}, [], {"a.txt": "ab" * 32})
)


def each(seed: int, good: bytes, look: Callable[[bytes], None]) -> None:
    rand = random.Random(seed)
    for _ in range(EACH):
        look(mutated(good, rand))


@pytest.mark.parametrize("entry", [GRANT, COMMIT, DONE], ids=lambda e: e.kind)
@pytest.mark.parametrize("seed", SEEDS)
def test_heads_are_read_or_refused_and_never_something_else(seed: int, entry: Head) -> None:
    def look(data: bytes) -> None:
        store = DictStore()
        for e in (GRANT, COMMIT, DONE)[: entry.number]:
            store.objects[object_keys.head_key(JOB, e.number)] = json_codec.encode(e)
        store.objects[object_keys.head_key(JOB, entry.number)] = data
        log = HeadLog(store, JOB)
        try:
            log.refresh()
        except ProtocolError:
            return
        summary(log.entries)
        published(log.entries)
        chain(log.entries, None)

    each(seed, json_codec.encode(entry), look)


@pytest.mark.parametrize("seed", SEEDS)
def test_manifests_without_a_seal_are_never_looked_into(seed: int) -> None:
    whole = manifest.encode(a_manifest("000001-000001", ["a", "b"]), KEYS)
    rand = random.Random(seed)
    for _ in range(EACH):
        data = bytearray(whole)
        for place in rand.sample(range(len(data)), rand.randint(1, 4)):
            data[place] ^= rand.randint(1, 255)
        with pytest.raises(ProtocolError, match="not written with this job's key"):
            manifest.decode(bytes(data), KEYS, JOB)


@pytest.mark.parametrize("seed", SEEDS)
def test_manifests_with_a_seal_and_nonsense_in_them_are_refused(seed: int) -> None:
    """Of a job that stole its own lineage's key: what it writes is a checkpoint, or it is refused."""
    data = manifest.encode(a_manifest("000001-000001", ["a", "b"]), KEYS)
    head, text = data[:5], zstandard.ZstdDecompressor().decompress(data[5 : -manifest.SEAL_BYTES])

    def look(wrong: bytes) -> None:
        body = head + zstandard.ZstdCompressor().compress(wrong)
        try:
            manifest.decode(body + manifest._seal(body, KEYS), KEYS, JOB)
        except ProtocolError:
            return

    each(seed, text, look)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_what_agents_say_beside_is_read_or_refused(seed: int) -> None:
    """Intents of saves and lists of outputs."""

    def look_at_intent(data: bytes) -> None:
        store = DictStore()
        store.objects[object_keys.intent_key(JOB, "000001-000001")] = data
        try:
            survey(store, JOB).known({})
        except ProtocolError:
            return

    def look_at_list(data: bytes) -> None:
        try:
            json_codec.decode(Partial, data)
        except ProtocolError:
            return

    each(seed, json_codec.encode(Intent("000001-000001", None, "")), look_at_intent)
    each(seed, json_codec.encode(Partial(1, 1, "", "", {"a.txt": OutputObject(3, "ab" * 32)}, [])), look_at_list)


ODD_KEYS = ["", "x", "-1", "1e3", "0x10", "²", "1" * 400, "0000000000000000/x", "000000000000000", "00000000000000000"]


@pytest.mark.parametrize("odd", ODD_KEYS)
def test_pieces_of_output_with_odd_names_hinder_nobody(odd: str) -> None:
    store: Any = DictStore()
    store.objects[object_keys.log_key(JOB, 1, "out", 0, 6)] = b"hello "
    store.objects[object_keys.log_key(JOB, 1, "out", 6, 11)] = b"world"
    store.objects[f"{object_keys.attempt_log_prefix(JOB, 1)}out-{odd}"] = b"forged"
    store.objects[f"{object_keys.log_prefix(JOB)}x/log/000001/out-{6:016d}"] = b"forged"
    assert Output(store).read(JOB, "out", [1], 0, 100) == b"hello world"


@pytest.mark.parametrize("odd", [*ODD_KEYS, "9" * 13, "9" * 20])
def test_reports_with_odd_names_hinder_nobody(odd: str) -> None:
    """A number that is too large for the database failed each tick for a day, and anew after each restart."""
    store: Any = DictStore()
    for name in (odd, f"{JOB}.{odd}"):
        store.objects[f"{object_keys.live_prefix()}{name}"] = b"forged"
    reports = Reports(store)
    reports.listen(NOW)
    with open_database(None).connect() as c:
        assert [key for key in reports.words() if rows.has_attempt(c, *key)] == []
    assert all(number < 10**12 for _, number in reports.words())


class Huge(DictStore):
    """Where each object is larger than memory: nobody may ask for all of one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def get(self, key: str) -> bytes | None:
        raise MemoryError(key)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self.asked.append(length)
        return bytes(length) if key in self.objects else None


HUGE: list[tuple[str, Callable[[Any], object]]] = [
    (object_keys.head_key(JOB, 1), lambda store: HeadLog(store, JOB).refresh()),
    (object_keys.head_key(JOB, 1), lambda store: HeadLog(store, JOB).append(GRANT)),
    (object_keys.head_key(JOB, 1), lambda store: Heads(store, JOB, 1).refresh()),
    (object_keys.manifest_key(JOB, "000001-000001"), lambda store: manifest.stored(store, JOB, "000001-000001")),
    (object_keys.intent_key(JOB, "000001-000001"), lambda store: survey(store, JOB)),
    (
        object_keys.condemned_key(JOB),
        lambda store: Collector(store, 0.0, lambda: None).step(Asked(JOB, RetentionRules(1), KEYS)),
    ),
]


@pytest.mark.parametrize(("key", "look"), HUGE, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_too_large_is_not_read(key: str, look: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had the credentials of one machine could end the controller, and again whenever it came back."""
    monkeypatch.setattr(manifest, "MANIFEST_BYTES_MAX", 1 << 20)
    store = Huge()
    store.objects[key] = b"?"
    with pytest.raises(ProtocolError, match="more than"):
        look(store)
    assert max(store.asked) <= head_log.HEAD_BYTES_MAX + 1


def test_a_report_that_grows_after_it_was_listed_is_not_read() -> None:
    store = Huge()
    store.objects[object_keys.live_key(JOB, 1)] = b"small"
    reports = Reports(store)
    reports.listen(NOW)
    word = reports.word(JOB, 1)
    assert word is not None and word.garbled and "more than" in word.unread


@pytest.mark.parametrize("name", ["../../../other/out/000001/x", "a/../../../../other/out/000001/x", "./x", "a//x", "a/\0"])
def test_a_name_with_ways_up_leads_nowhere(tmp_path: Path, name: str) -> None:
    """Of an output in a head entry, or of a checkpoint: it becomes part of a key, and a local store's key a path."""
    store = open_store(tmp_path.as_uri())
    store.put(object_keys.output_prefix("other", 1) + "x", b"theirs")
    store.put(object_keys.output_prefix(JOB, 1) + "x", b"ours")
    key = object_keys.output_prefix(JOB, 1) + name
    assert b"".join(Output(store).result(JOB, 1, "x")) == b"ours"
    for read in (lambda: store.get(key), lambda: store.get_range(key, 0, 9), lambda: [*Output(store).result(JOB, 1, name)]):
        with pytest.raises(StoreError):
            read()
