"""Files to chunks and back: exact, sparse, nothing sent twice, damage never unnoticed."""

from __future__ import annotations

import contextlib
import os
import threading
from array import array
from dataclasses import replace

import lz4.block
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spotsurfer_agent.chunks.chunker import Sender
from spotsurfer_agent.chunks.writer import Content, Writer
from spotsurfer_agent.files import tree
from spotsurfer_agent.files.scratch import Scratch
from spotsurfer_agent.files.tree import Pool
from spotsurfer_wire import object_keys
from spotsurfer_wire.chunks import codec
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.chunks.reader import BadChunk, Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Entry, Extents, Stored, sizes
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError

JOB = "j1"
KEYS = Keys.derive(b"", JOB)
SECRET = Keys.derive(b"s" * 32, JOB, encrypts=True)
LIMITS = Limits(memory_bytes=64 << 20)


def send(store, folder, known=None):
    with Writer(store, JOB, KEYS, LIMITS, known or {}) as writer:
        return writer, Sender(writer).send(tree.walk(folder).entries, lambda e: folder / e.path)


def stored_of(data, size=None):
    return Stored(codec.digest(data, KEYS), len(data) if size is None else size)


TEXT = b"so it goes, and so it went, " * 4000
NOISE = os.urandom(300_000)


@pytest.mark.parametrize("keys", [KEYS, SECRET], ids=["plain", "encrypted"])
@pytest.mark.parametrize("how", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("data", [b"x", bytes(range(256)) * 100, TEXT, NOISE, NOISE + TEXT], ids=len)
def test_a_chunk_comes_back_as_it_was(data, how, keys):
    name = codec.digest(data, keys)
    stored = codec.encode(data, name, keys, how)
    assert len(stored) <= len(data) + 29
    assert codec.decode(stored, Stored(name, len(data)), keys) == data
    if not keys.encrypts and (how == "none" or data in (NOISE, b"x")):
        assert stored is data, "what does not shrink is not even copied"
    if data is TEXT:
        assert (len(stored) < len(data) / 10) is (how != "none")
        assert (TEXT[:100] in bytes(stored)) is (not keys.encrypts and how == "none")


@given(st.binary(max_size=400).map(lambda x: x + x), st.integers(0, 900), st.integers(1, 255), st.sampled_from([KEYS, SECRET]))
def test_no_changed_chunk_passes(data, at, flip, keys):
    data = data or b"-"
    name = codec.digest(data, keys)
    stored = bytearray(codec.encode(data, name, keys, "lz4"))
    stored[at % len(stored)] ^= flip
    with contextlib.suppress(codec.Damaged):
        assert codec.decode(bytes(stored), Stored(name, len(data)), keys) == data  # a change that changes nothing


@pytest.mark.parametrize(
    "stored", [b"", b"\x07abc", b"\x01not zstd", b"\x02not lz4", b"\x80abc", b"\x82" + bytes(60), b"short"]
)
def test_damage_is_named(stored):
    with pytest.raises(codec.Damaged):
        codec.decode(stored, stored_of(b"whole...."), KEYS)


def test_another_chunk_under_a_right_name_is_not_taken():
    one, other = b"one chunk", b"two chunk"
    for keys in (KEYS, SECRET):
        stored = codec.encode(other, codec.digest(other, keys), keys, "lz4")
        with pytest.raises(codec.Damaged):
            codec.decode(stored, Stored(codec.digest(one, keys), len(one)), keys)


def test_names_differ_from_lineage_to_lineage():
    assert codec.digest(b"x", Keys.derive(b"s" * 32, "a")) != codec.digest(b"x", Keys.derive(b"s" * 32, "b"))
    assert codec.digest(b"x", Keys.derive(b"s" * 32, "a")) != codec.digest(b"x", Keys.derive(b"t" * 32, "a"))


def test_both_keys_of_a_name_are_the_lineages_secret():
    ours, strangers = Keys.derive(b"s" * 32, "a"), Keys.derive(b"t" * 32, "a")
    mixed = [replace(ours, content=strangers.content), replace(ours, name=strangers.name)]
    assert len({codec.digest(b"x", k) for k in (ours, strangers, *mixed)}) == 4


@given(st.sets(st.binary(max_size=50), min_size=2))
def test_each_content_has_a_name_of_its_own(contents):
    tails = [data + bytes(n) for data in contents for n in range(3)]
    assert len({codec.digest(data, SECRET) for data in tails}) == len(set(tails)), "the padding of a hash must not hide zeros"


def test_names_are_those_of_yesterday():
    """A change of what names are made of is a change of the store's form: the manifest's mark has to tell."""
    name = "0cf13897fb64449e16ef067ef5a6e380ea753f516b74b8f5dd38314c3d30ad8a"
    assert codec.digest(b"x" * 5000, Keys.derive(b"s" * 32, "a")) == name


BOMBS = {
    "zstd": b"\x01" + zstandard.ZstdCompressor().compress(bytes(64 << 20)),
    "lz4": b"\x02" + lz4.block.compress(bytes(64 << 20), store_size=False),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_does_not_unpack(bomb):
    with pytest.raises(codec.Damaged, match="unpack"):
        codec.decode(bomb, stored_of(b"x", 1000), KEYS)


def test_zeros_are_not_sent_and_known_pieces_neither(tmp_path):
    store = open_store("memory:///")
    (tmp_path / "a").write_bytes(bytes(100 * PAGE) + b"tail")
    (tmp_path / "b").write_bytes(b"other")
    (tmp_path / "c").write_bytes(bytes(100))
    first, entries = send(store, tmp_path)
    assert [[(x.offset, x.length) for x in e.extents] for e in entries] == [[(100 * PAGE, 4)], [(0, 5)], []]
    known = {c.digest: c for c in first.table.rows}
    again, same = send(store, tmp_path, known)
    assert same == entries
    assert first.new_bytes == first.sent_bytes > 0
    assert again.new_bytes == again.sent_bytes == 0


def test_files_whose_content_is_known_are_not_read(tmp_path):
    content = Content(Extents.of([(0, 3, 0, 1)]), [Stored("0" * 64, 4)])
    with Writer(open_store("memory:///"), JOB, KEYS, LIMITS, {}) as writer:
        writer.index_of(Stored("1" * 64, 9))
        [entry] = Sender(writer).send([Entry("gone", "file", size=3)], lambda e: tmp_path / e.path, {"gone": content})
    assert list(entry.extents) == [(0, 3, 1, 1)]


def test_a_known_file_is_where_the_store_has_it_not_where_a_save_that_failed_had_put_it(tmp_path):
    scratch = Scratch(tmp_path, ("false",))
    scratch.make()
    (scratch.path / "work/f").write_bytes(b"abc")
    stamp, extents = tree.walk(scratch.path).stamps["work/f"], Extents.of([(0, 3, 0, 0)])
    scratch.index["work/f"] = (stamp, Content(extents, [Stored("0" * 64, 3, "lost")]))
    kept = {"0" * 64: Stored("0" * 64, 3, "kept")}
    assert scratch.capture("c", kept, stays_frozen=True)().known == {"work/f": Content(extents, [Stored("0" * 64, 3, "kept")])}
    assert scratch.capture("c", {}, stays_frozen=True)().known == {}


class Dying:
    """Takes some writes, then none."""

    def __init__(self, room):
        self.room, self.lock = room, threading.Lock()

    def sync(self): ...

    def create_later(self, key, data):
        with self.lock:
            self.room -= 1
            if self.room < 0:
                raise StoreError("full of sorrow")
        return True


@pytest.mark.parametrize("room", [0, 1, 20])
def test_a_failing_store_ends_the_sending(tmp_path, room):
    (tmp_path / "f").write_bytes(os.urandom(80 << 20))
    with pytest.raises(StoreError, match="sorrow"):
        send(Dying(room), tmp_path)


def test_a_pool_bounds_what_is_in_flight():
    running, most, lock, go = [0], [0], threading.Lock(), threading.Event()

    def work():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        go.wait(0.01)
        with lock:
            running[0] -= 1

    with Pool(workers=8, in_flight=3) as pool:
        for _ in range(30):
            pool.submit(work)
    assert 1 <= most[0] <= 3
    assert running[0] == 0


BIG = 1 << 63
HOSTILE_EXTENTS = {
    "of no chunk": [(0, 1, 2, 0)],
    "empty": [(0, 0, 0, 0)],
    "beyond the file": [(8, 3, 0, 0)],
    "wraps around": [(BIG, BIG, 0, 0)],
    "long": [(0, 2**64 - 1, 0, 0)],
    "beyond its chunk": [(0, 4, 0, 97)],
    "skips wrap around": [(0, 8, 0, 2**64 - 4)],
    "overlap": [(0, 4, 0, 0), (3, 4, 1, 0)],
    "not in order": [(4, 2, 0, 0), (0, 2, 1, 0)],
}


@pytest.mark.parametrize("rows", HOSTILE_EXTENTS.values(), ids=HOSTILE_EXTENTS)
def test_hostile_extents_are_refused(tmp_path, rows):
    extents = Extents(array("Q", [x for row in rows for x in row]))
    table = [Stored("a" * 64, 100), Stored("b" * 64, 100)]
    with pytest.raises(ProtocolError):
        extents.validate(10, sizes(table))
    with pytest.raises(BadChunk):
        tree.build(
            tmp_path, [Entry("f", "file", size=10, extents=extents)], table, Reader(open_store("memory:///"), JOB, KEYS, LIMITS)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_and_a_damaged_chunk_are_named(tmp_path):
    store = open_store("memory:///")
    (tmp_path / "f").write_bytes(b"content")
    sender, [entry] = send(store, tmp_path)
    name = sender.table.rows[0].digest
    pack = object_keys.pack_key(JOB, sender.table.rows[0].pack)
    for spoil in (
        lambda key: store.put(key, b"contenT"),
        lambda key: store.put(key, b"conten"),
        lambda key: store.delete([key]),
    ):
        spoil(pack)
        target = tmp_path / f"to-{spoil.__code__.co_firstlineno}-{id(spoil)}"
        target.mkdir()
        with pytest.raises(BadChunk, match=name):
            tree.build(target, [entry], sender.table.rows, Reader(store, JOB, KEYS, LIMITS))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3 * PAGE), st.binary(min_size=1, max_size=50)), max_size=5))
def test_any_file_comes_back(tmp_path_factory, writes):
    store = open_store("memory:///")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    with (source / "f").open("wb") as f:
        for at, data in writes:
            f.seek(at)
            f.write(data)
    sender, entries = send(store, source)
    tree.build(target, entries, sender.table.rows, Reader(store, JOB, KEYS, LIMITS))
    assert (target / "f").read_bytes() == (source / "f").read_bytes()
