"""Files to chunks and back: exact, sparse, nothing sent twice, damage never unnoticed."""

from __future__ import annotations

import contextlib
import os
import threading
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spotsurfer_agent import protocol, trees
from spotsurfer_agent.chunks import codec
from spotsurfer_agent.chunks.cut import PIECE_BYTES, cut
from spotsurfer_agent.chunks.fetcher import BadChunk, Fetcher
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.pool import Pool
from spotsurfer_agent.chunks.sender import Sender
from spotsurfer_agent.chunks.table import Content
from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.manifest import Entry, Extents, Stored, sizes
from spotsurfer_agent.store import StoreError, open_store

JOB = "j1"
KEYS = Keys.derive(b"", JOB)


def send(store, folder, known=None):
    sender = Sender(store, JOB, KEYS, known or {})
    return sender, sender.send(trees.walk(folder).entries, lambda e: folder / e.path)


@pytest.mark.parametrize("data", [b"x", bytes(range(256)) * 100, os.urandom(5000)])
def test_a_chunk_comes_back_as_it_was(data):
    stored = codec.encode(data)
    assert len(stored) <= len(data) + 1
    assert codec.decode(codec.digest(data, KEYS), len(data), stored, KEYS) == data


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(1, 255))
def test_no_changed_chunk_passes(data, at, flip):
    stored = bytearray(codec.encode(data))
    stored[at % len(stored)] ^= flip
    with contextlib.suppress(codec.Damaged):
        assert codec.decode(codec.digest(data, KEYS), len(data), bytes(stored), KEYS) == data  # a change that changes nothing


@pytest.mark.parametrize("stored", [b"", b"\x07abc", b"\x01not zstd", b"\x00short"])
def test_damage_is_named(stored):
    with pytest.raises(codec.Damaged):
        codec.decode(codec.digest(b"whole", KEYS), 5, stored, KEYS)


def test_a_bomb_does_not_unpack():
    import zstandard

    bomb = b"\x01" + zstandard.ZstdCompressor().compress(bytes(64 << 20))
    with pytest.raises(codec.Damaged):
        codec.decode(codec.digest(b"x", KEYS), 1000, bomb, KEYS)


def test_cuts_cover_all_data_and_skip_holes(tmp_path):
    path = tmp_path / "f"
    with path.open("wb") as f:
        f.write(b"a" * 10)
        f.seek(10 * PIECE_BYTES + 7)
        f.write(b"b")
    fd = os.open(path, os.O_RDONLY)
    pieces = list(cut(fd, os.fstat(fd).st_size))
    os.close(fd)
    assert pieces[0] == (0, PIECE_BYTES)
    assert pieces[-1] == (10 * PIECE_BYTES, 8)
    assert len(pieces) == 2
    assert all(first % PIECE_BYTES == 0 for first, _ in pieces)


def test_zeros_are_not_sent_and_known_pieces_neither(tmp_path):
    store = open_store("memory:///")
    (tmp_path / "a").write_bytes(bytes(PIECE_BYTES) + b"tail")
    (tmp_path / "b").write_bytes(b"other")
    first, entries = send(store, tmp_path)
    assert [[x.offset for x in e.extents] for e in entries] == [[PIECE_BYTES], [0]]
    known = {c.digest: c for c in first.table.rows}
    again, same = send(store, tmp_path, known)
    assert same == entries
    assert first.new_bytes > 0
    assert again.new_bytes == 0


def test_files_whose_content_is_known_are_not_read(tmp_path):
    content = Content(Extents.of([(0, 3, 0, 1)]), [Stored("0" * 64, 4)])
    sender = Sender(open_store("memory:///"), JOB, KEYS, {})
    sender.table.index_of(Stored("1" * 64, 9))
    [entry] = sender.send([Entry("gone", "file", size=3)], lambda e: tmp_path / e.path, {"gone": content})
    assert list(entry.extents) == [(0, 3, 1, 1)]


class Dying:
    """Takes some writes, then none."""

    def __init__(self, room):
        self.room, self.lock = room, threading.Lock()

    def create(self, key, data):
        with self.lock:
            self.room -= 1
            if self.room < 0:
                raise StoreError("full of sorrow")
        return True


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_failing_store_ends_the_sending(tmp_path, room):
    (tmp_path / "f").write_bytes(os.urandom(80 * PIECE_BYTES))
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
        trees.build(
            tmp_path, [Entry("f", "file", size=10, extents=extents)], table, Fetcher(open_store("memory:///"), JOB, KEYS)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_and_a_damaged_chunk_are_named(tmp_path):
    store = open_store("memory:///")
    (tmp_path / "f").write_bytes(b"content")
    sender, [entry] = send(store, tmp_path)
    name = sender.table.rows[0].digest
    for spoil in (lambda key: store.put(key, b"\x00contenT"), lambda key: store.delete([key])):
        spoil(protocol.chunk_key(JOB, name))
        target = tmp_path / f"to-{spoil.__code__.co_firstlineno}-{id(spoil)}"
        target.mkdir()
        with pytest.raises(BadChunk, match=name):
            trees.build(target, [entry], sender.table.rows, Fetcher(store, JOB, KEYS))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3 * PIECE_BYTES), st.binary(min_size=1, max_size=50)), max_size=5))
def test_any_file_comes_back(tmp_path_factory, writes):
    store = open_store("memory:///")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    with (source / "f").open("wb") as f:
        for at, data in writes:
            f.seek(at)
            f.write(data)
    sender, entries = send(store, source)
    trees.build(target, entries, sender.table.rows, Fetcher(store, JOB, KEYS))
    assert (target / "f").read_bytes() == (source / "f").read_bytes()
