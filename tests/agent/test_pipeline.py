"""Many chunks at once: bounded, packed, shared, and durable before anybody may speak of them."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from spotsurfer_agent.chunks.fingerprints import NOTHING
from spotsurfer_agent.chunks.writer import Cancelled, Pace, Writer
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.save import session
from spotsurfer_wire import object_keys
from spotsurfer_wire.chunks import budget as limits_module
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Extents, Stored
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreDenied, StoreError
from support.saves import a_manifest

JOB = "j1"
KEYS = Keys.derive(b"k" * 32, JOB)
LIMITS = Limits(memory_bytes=64 << 20)
MEGA = 1 << 20


class _Spy:
    """A store that counts, and does what `on` says before each verb."""

    def __init__(self, inner=None):
        self.inner, self.calls, self.on, self.lock = inner or open_store("memory:///"), [], {}, threading.Lock()

    def __getattr__(self, verb):
        def call(*args):
            with self.lock:
                self.calls.append((verb, *args[:1]))
            self.on.get(verb, lambda *a: None)(*args)
            return getattr(self.inner, verb)(*args)

        return call

    def count(self, verb):
        return sum(c[0] == verb for c in self.calls)


Spy: Any = _Spy  # it is whatever it spies on


def noise(size, seed):
    return random.Random(seed).randbytes(size)


# ---------------------------------------------------------------- writing


def test_small_chunks_share_an_object_and_equal_ones_are_sent_once():
    store, pieces = Spy(), [noise(1000 + i, i) for i in range(50)]
    with Writer(store, JOB, KEYS, LIMITS, {}) as writer:
        futures = [writer.add(p) for p in pieces + pieces]
    stored = [f.result() for f in futures]
    assert stored[:50] == stored[50:]
    assert len({s.pack for s in stored}) == 1 == store.count("create_later")
    assert [writer.index_of(s) for s in stored[:50]] == list(range(50))
    with Reader(store, JOB, KEYS, LIMITS) as reader:
        assert [reader.plain(s) for s in stored[:50]] == pieces
    assert (store.count("get_range"), store.count("get")) == (1, 1), "one part alone, then the whole pack"


def test_packs_do_not_grow_without_end():
    with Writer(Spy(), JOB, KEYS, Limits(compression="none"), {}) as writer:
        futures = [writer.add(noise(200_000, i)) for i in range(60)]
    parts = [f.result() for f in futures]
    assert len({p.pack for p in parts}) == 3
    assert max(p.at + p.length for p in parts) <= 4 * MEGA


def test_flush_brings_the_results_of_small_chunks():
    with Writer(Spy(), JOB, KEYS, LIMITS, {}) as writer:
        first = writer.add(b"small")
        writer.flush()
        assert first.result(10).size == 5
        writer.flush()
        assert writer.add(b"large" * MEGA).result(10).size == 5 * MEGA


def test_what_is_known_is_not_sent():
    known = Writer(Spy(), JOB, KEYS, LIMITS, {})
    with known:
        there = known.add(noise(MEGA, 1))
    store = Spy()
    with Writer(store, JOB, KEYS, LIMITS, {there.result().digest: there.result()}) as writer:
        assert writer.add(noise(MEGA, 1)).result(10) == there.result()
    assert store.count("create_later") == writer.new_bytes == writer.sent_bytes == 0


@pytest.mark.parametrize("sizes", [(MEGA,), (3000, 2000), (MEGA, 3000)])
def test_what_is_about_to_be_removed_is_sent_under_another_name(sizes):
    """Chunks, and packs that would get the same name again."""
    store, pieces = Spy(), [noise(size, i) for i, size in enumerate(sizes)]

    def send(condemned):
        with Writer(store, JOB, KEYS, LIMITS, {}, condemned) as writer:
            futures = [writer.add(p) for p in pieces]
        return [f.result() for f in futures]

    old = send(frozenset())
    condemned = frozenset(s.pack or s.digest for s in old)
    new = send(condemned)
    assert not condemned.intersection(s.pack or s.digest for s in new)
    store.inner.delete([object_keys.pack_key(JOB, s.pack) if s.pack else object_keys.chunk_key(JOB, s.digest) for s in old])
    with Reader(store, JOB, KEYS, LIMITS) as reader:
        assert [reader.plain(s) for s in new] == pieces


def test_nothing_is_durable_before_the_last_sync():
    store = Spy()
    with Writer(store, JOB, KEYS, LIMITS, {}) as writer:
        for i in range(5):
            writer.add(noise(MEGA, i))
        writer.add(b"small")
    verbs = [c[0] for c in store.calls]
    assert verbs == ["create_later"] * 6 + ["sync"]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A final save of a job of which nothing runs: one chunk is all that there is to send. It is kept: nothing is killed."""

    def send(save, *_):
        save._writer.add(noise(MEGA, 1))
        return a_manifest("000001-000001", [], JOB)

    monkeypatch.setattr(session, "first_to_go", contextlib.nullcontext)
    monkeypatch.setattr(session.Saving, "_reserved", lambda *_: contextlib.nullcontext(mock.Mock(waited_seconds=0.0)))
    monkeypatch.setattr(session, "Intake", mock.Mock())
    monkeypatch.setattr(session.Saving, "_freeze", lambda *_: {})
    monkeypatch.setattr(session.Saving, "_snapshot", lambda *_: None)
    monkeypatch.setattr(session.Saving, "_all_there", lambda *_: None)
    monkeypatch.setattr(session.Saving, "_send", send)

    def make(store, talk):
        monkeypatch.setattr(session.shim_protocol, "Conversation", lambda _: contextlib.nullcontext(talk))
        bases = SimpleNamespace(of=lambda _: NOTHING)
        cgroup, scratch = SimpleNamespace(pids=list), mock.Mock(path=tmp_path)
        shared = mock.MagicMock()
        shared.catch.return_value.filled.return_value = []
        place: Any = SimpleNamespace(
            shared=shared,
            mounts=(),
            folder=tmp_path,
            store=store,
            job=JOB,
            keys=KEYS,
            limits=LIMITS,
            bases=bases,
            scratch=scratch,
            cgroup=cgroup,
            memory_bytes=0,
            device=session.NO_DEVICE,
        )
        request: Any = SimpleNamespace(
            checkpoint="000001-000001",
            base=None,
            condemned=(),
            final=True,
            keep=True,
            progress=lambda _: None,
            commit=lambda _: True,
        )
        session.Saving(place, request).run()

    return make


def test_a_manifest_is_written_when_its_chunks_are_durable(make):
    store = Spy()
    make(store, mock.Mock())
    assert [c[0] for c in store.calls] == ["create_later", "sync", "create"]


def test_no_manifest_is_left_of_a_save_of_which_a_chunk_fails_late(make):
    store, talk, spoken_of = Spy(), mock.Mock(), threading.Event()

    def fail(*_):
        spoken_of.wait(0.2)
        raise StoreError("full of sorrow")

    store.on = {"create_later": fail, "create": lambda *_: spoken_of.set()}
    with pytest.raises(EngineError, match="the save failed, the job runs on: full of sorrow"):
        make(store, talk)
    assert store.count("create") == 0
    assert talk.ask.call_args_list == [
        mock.call("status"),
        mock.call("verdict", None, checkpoint="000001-000001", good=False),
    ]


def test_memory_on_its_way_is_bounded_and_every_buffer_is_given_back():
    gate, given_back, store = threading.Event(), [], Spy()
    store.on["create_later"] = lambda *a: gate.wait(30)
    added = []

    def fill(writer):
        for i in range(40):
            writer.add(noise(4 * MEGA, i), lambda: given_back.append(1))
            added.append(i)

    with Writer(store, JOB, KEYS, Limits(32 * MEGA, puts=64, compression="none"), {}) as writer:
        thread = threading.Thread(target=fill, args=(writer,))
        thread.start()
        end = time.monotonic() + 20
        while len(added) < 16 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(added) == 16 == limits_module.MEMORY_BYTES_MIN // (4 * MEGA)
        assert not given_back
        gate.set()
        thread.join(30)
    assert len(given_back) == 40


@pytest.mark.parametrize("failure", [StoreError("full of sorrow"), StoreDenied("not yours")], ids=["error", "denied"])
@pytest.mark.parametrize("verb", ["create_later", "sync"])
def test_the_first_failure_ends_it_all(verb, failure):
    store, back, futures = Spy(), [], []

    def fail(*args):
        raise failure

    store.on[verb] = fail
    with pytest.raises(type(failure), match=str(failure)), Writer(store, JOB, KEYS, LIMITS, {}) as writer:
        for data in (noise(MEGA, 0), noise(MEGA, 1), b"small"):  # one by one: the first may have failed already
            futures.append(writer.add(data, lambda: back.append(1)))
        if verb == "create_later":
            with contextlib.suppress(Cancelled):
                futures[0].exception(10)
                while True:
                    futures.append(writer.add(noise(MEGA, 9), lambda: back.append(1)))
    assert all(f.done() for f in futures)
    assert len(back) == len(futures)


def test_who_gives_up_gets_every_buffer_back_and_hears_why():
    store, back, futures = Spy(), [], []
    with pytest.raises(KeyError), Writer(store, JOB, KEYS, LIMITS, {}) as writer:
        futures = [writer.add(noise(MEGA, i), lambda: back.append(1)) for i in range(30)]
        raise KeyError("something else")
    assert len(back) == 30
    assert all(f.done() for f in futures)
    assert store.count("sync") == 0
    with pytest.raises(Cancelled):
        writer.add(b"more")


# ---------------------------------------------------------------- reading


def written(store, pieces, keys=KEYS):
    with Writer(store, JOB, keys, LIMITS, {}) as writer:
        futures = [writer.add(p) for p in pieces]
    return [f.result() for f in futures]


def spoilt(how, store, chunk, other):
    key = object_keys.chunk_key(JOB, chunk.digest)
    data = store.get(key)
    {
        "flipped": lambda: store.put(key, data[:-1] + bytes([data[-1] ^ 1])),
        "cut off": lambda: store.put(key, data[:-1]),
        "empty": lambda: store.put(key, b""),
        "another chunk": lambda: store.put(key, store.get(object_keys.chunk_key(JOB, other.digest))),
        "missing": lambda: store.delete([key]),
    }[how]()


@pytest.mark.parametrize("keys", [KEYS, Keys.derive(b"k" * 32, JOB, encrypts=True)], ids=["plain", "encrypted"])
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("flipped", "damaged"),
        ("cut off", "damaged"),
        ("empty", "damaged"),
        ("another chunk", "damaged"),
        ("missing", "is missing"),
    ],
)
def test_a_store_that_lies_is_found_out(how, sentence, keys):
    store = open_store("memory:///")
    one, other = written(store, [noise(MEGA, 1), noise(MEGA, 2)], keys)
    spoilt(how, store, one, other)
    with Reader(store, JOB, keys, LIMITS) as reader:
        with pytest.raises(BadChunk, match=f"chunk {one.digest} .*{sentence}"):
            reader.plain(one)
        assert reader.plain(other) == noise(MEGA, 2)


def test_a_wrong_key_reads_nothing():
    store = open_store("memory:///")
    for keys in (KEYS, Keys.derive(b"k" * 32, JOB, encrypts=True)):
        [one] = written(store, [noise(MEGA, 1) + bytes([keys.encrypts])], keys)
        with Reader(store, JOB, Keys.derive(b"x" * 32, JOB), LIMITS) as reader, pytest.raises(BadChunk, match="damaged"):
            reader.plain(one)


def test_many_who_want_the_same_share_one_fetch():
    store = Spy()
    [one] = written(store, [noise(MEGA, 1)])
    ready = threading.Barrier(9)
    store.on["get"] = lambda *a: time.sleep(0.2)
    got = []

    def ask():
        ready.wait(10)
        got.append(reader.plain(one))

    with Reader(store, JOB, KEYS, LIMITS) as reader:
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for t in threads:
            t.start()
        ready.wait(10)
        for t in threads:
            t.join(10)
        assert reader.plain(one) == got[0]
    assert got == [noise(MEGA, 1)] * 8
    assert store.count("get") == 1


def test_a_failed_fetch_is_tried_anew():
    store = Spy()
    [one] = written(store, [noise(MEGA, 1)])

    def fail(*args):
        raise StoreError("gone for lunch")

    store.on["get"] = fail
    with Reader(store, JOB, KEYS, LIMITS) as reader:
        with pytest.raises(StoreError, match="lunch"):
            reader.plain(one)
        del store.on["get"]
        assert reader.plain(one) == noise(MEGA, 1)


def test_fetching_ahead_stays_within_its_memory_and_goes_on_as_it_is_used():
    store = Spy()
    pieces = [noise(MEGA, i) for i in range(40)]
    chunks = written(store, pieces)
    with Reader(store, JOB, KEYS, Limits(memory_bytes=16 * MEGA)) as reader:
        reader.ahead(chunks)
        end = time.monotonic() + 10
        while store.count("get") < 8 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)
        assert store.count("get") == 8, "half of the memory"
        assert [reader.plain(c) for c in chunks] == pieces
    assert store.count("get") == 40


def test_a_file_is_put_together_from_parts_of_chunks(tmp_path):
    store = Spy()
    a, b = noise(MEGA, 1), noise(3000, 2)
    table = written(store, [a, b])
    extents = Extents.of([(5, 10, 1, 100), (4096, 4096, 0, 8192), (100_000, 1000, 1, 2000), (20, 5, 1, 0)])
    with Reader(store, JOB, KEYS, LIMITS) as reader, (tmp_path / "f").open("wb") as f:
        reader.write(table, extents, f.fileno())
    expected = bytearray(101_000)
    for e in extents:
        expected[e.offset : e.offset + e.length] = (a, b)[e.chunk][e.skip : e.skip + e.length]
    assert (tmp_path / "f").read_bytes() == expected


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("setting", "seconds", "bytes_sent", "flying", "expected"),
    [
        ("auto", 1.0, 50e6, 16, "zstd"),  # the link is what is waited for
        ("auto", 1.0, 50e6, 3, "lz4"),  # we are
        ("auto", 1.0, 2e9, 16, "lz4"),
        ("auto", 0.1, 1e6, 16, "lz4"),  # too early to tell
        ("lz4", 1.0, 50e6, 16, "lz4"),
        ("none", 1.0, 50e6, 16, "none"),
    ],
)
def test_the_link_decides_on_the_compression(setting, seconds, bytes_sent, flying, expected):
    now = [0.0]
    pace = Pace(Limits(compression=setting), lambda: now[0])
    with contextlib.ExitStack() as stack:
        for _ in range(flying):
            stack.enter_context(pace.put(0))
        with pace.put(int(bytes_sent)):
            now[0] += seconds
        assert pace.how() == expected


@pytest.mark.parametrize(("processors", "threads"), [(1, 2), (2, 2), (6, 3), (16, 8), (96, 8)])
def test_threads_of_no_configuration(monkeypatch, processors, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    assert Limits.of_settings(0, 0, "auto").threads == threads


def test_limits_of_a_configuration():
    assert Limits.of_settings(100 << 20, 3, "zstd") == Limits(100 << 20, 3, compression="zstd")
    assert Limits.of_settings(1, 1, "auto") == Limits(limits_module.MEMORY_BYTES_MIN, 1, compression="auto")
    assert Limits.of_settings(0, 2, "auto").memory_bytes >= limits_module.MEMORY_BYTES_MIN


def test_a_chunk_that_is_described_wrongly_is_not_looked_for():
    with Reader(open_store("memory:///"), JOB, KEYS, LIMITS) as reader, pytest.raises(BadChunk, match="missing"):
        reader.plain(Stored("0" * 64, 5))


@pytest.mark.parametrize(
    ("setting", "free", "room"),
    [
        (512 << 20, 8 << 30, 512 << 20),
        (512 << 20, 1 << 30, 256 << 20),
        (512 << 20, 100 << 20, 64 << 20),
        (1, 8 << 30, 64 << 20),
    ],
)
def test_what_is_on_its_way_never_takes_the_memory_that_the_job_needs(
    monkeypatch: pytest.MonkeyPatch, setting: int, free: int, room: int
) -> None:
    monkeypatch.setattr(limits_module, "free_bytes", lambda: free)
    assert Limits(memory_bytes=setting).room_bytes == room
