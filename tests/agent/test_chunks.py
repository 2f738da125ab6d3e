"""Files to chunks and back: exact, sparse, nothing sent twice, damage never unnoticed."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spotsurfer_agent import protocol, trees
from spotsurfer_agent.chunks import codec
from spotsurfer_agent.chunks.cut import PIECE_BYTES, PIECE_BYTES_MAX, cut
from spotsurfer_agent.chunks.fetcher import BadChunk, Fetcher
from spotsurfer_agent.chunks.pool import Pool
from spotsurfer_agent.chunks.sender import Sender
from spotsurfer_agent.manifest import Chunk, Entry
from spotsurfer_agent.store import StoreError, open_store

JOB = "j1"


def send(store, folder, known=None):
    sender = Sender(store, JOB, set() if known is None else known)
    return sender, sender.send(trees.walk(folder).entries, lambda e: folder / e.path)


@pytest.mark.parametrize("data", [b"x", bytes(range(256)) * 100, os.urandom(5000)])
def test_a_chunk_comes_back_as_it_was(data):
    stored = codec.encode(data)
    assert len(stored) <= len(data) + 1
    assert codec.decode(codec.digest(data), len(data), stored) == data


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(1, 255))
def test_no_changed_chunk_passes(data, at, flip):
    stored = bytearray(codec.encode(data))
    stored[at % len(stored)] ^= flip
    with contextlib.suppress(codec.Damaged):
        assert codec.decode(codec.digest(data), len(data), bytes(stored)) == data  # a change that changes nothing


@pytest.mark.parametrize("stored", [b"", b"\x07abc", b"\x01not zstd", b"\x00short"])
def test_damage_is_named(stored):
    with pytest.raises(codec.Damaged):
        codec.decode(codec.digest(b"whole"), 5, stored)


def test_a_bomb_does_not_unpack():
    import zstandard

    bomb = b"\x01" + zstandard.ZstdCompressor().compress(bytes(64 << 20))
    with pytest.raises(codec.Damaged):
        codec.decode(codec.digest(b"x"), 1000, bomb)


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
    assert [[c.offset for c in e.chunks] for e in entries] == [[PIECE_BYTES], [0]]
    known = {c.digest for e in entries for c in e.chunks}
    again, same = send(store, tmp_path, known)
    assert same == entries
    assert first.new_bytes > 0
    assert again.new_bytes == 0


def test_entries_that_have_chunks_are_not_read(tmp_path):
    chunk = Chunk("0" * 64, 0, 3)
    entry = Entry("gone", "file", size=3, chunks=[chunk])
    assert Sender(open_store("memory:///"), JOB, set()).send([entry], lambda e: tmp_path / e.path) == [entry]


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


@pytest.mark.parametrize(
    ("chunk", "size"),
    [
        (Chunk("../../x", 0, 1), 10),
        (Chunk("A" * 64, 0, 1), 10),
        (Chunk("a" * 64, -1, 1), 10),
        (Chunk("a" * 64, 0, 0), 10),
        (Chunk("a" * 64, 8, 3), 10),
        (Chunk("a" * 64, 0, PIECE_BYTES_MAX + 1), 1 << 40),
    ],
)
def test_a_hostile_chunk_is_refused(chunk, size):
    with pytest.raises(BadChunk):
        Fetcher(open_store("memory:///"), JOB).check(chunk, size)


def test_a_missing_and_a_damaged_chunk_are_named(tmp_path):
    store = open_store("memory:///")
    (tmp_path / "f").write_bytes(b"content")
    _, [entry] = send(store, tmp_path)
    name = entry.chunks[0].digest
    for spoil in (lambda key: store.put(key, b"\x00contenT"), lambda key: store.delete([key])):
        spoil(protocol.chunk_key(JOB, name))
        target = tmp_path / f"to-{spoil.__code__.co_firstlineno}-{id(spoil)}"
        target.mkdir()
        with pytest.raises(BadChunk, match=name):
            trees.build(target, [entry], Fetcher(store, JOB))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3 * PIECE_BYTES), st.binary(min_size=1, max_size=50)), max_size=5))
def test_any_file_comes_back(tmp_path_factory, writes):
    store = open_store("memory:///")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    with (source / "f").open("wb") as f:
        for at, data in writes:
            f.seek(at)
            f.write(data)
    _, entries = send(store, source)
    trees.build(target, entries, Fetcher(store, JOB))
    assert (target / "f").read_bytes() == (source / "f").read_bytes()
