"""Objects of a local store: whole or not there, durable when the store says so."""

from __future__ import annotations

import os
import shutil

import pytest
from spotsurfer_wire.store import obstore
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError

MEGA = 1 << 20


@pytest.mark.parametrize("size", [0, 3, 256 << 10, (256 << 10) + 1, MEGA])
def test_a_local_store_writes_once_and_whole(tmp_path, size):
    store = open_store((tmp_path / "store").as_uri())
    data = memoryview(bytearray(os.urandom(size)))
    assert store.create_later("jobs/a/chunks/ab/cd", data) is True
    assert store.create_later("jobs/a/chunks/ab/cd", b"other") is False
    store.sync()
    assert store.get("jobs/a/chunks/ab/cd") == data
    assert store.get_range("jobs/a/chunks/ab/cd", 1, 5) == bytes(data[1:6])
    assert [x.key for x in store.list("jobs/")] == ["jobs/a/chunks/ab/cd"]
    assert (store.get("jobs/a/no"), store.get_range("jobs/a/no", 0, 1)) == (None, None)


def test_more_than_there_is_takes_no_memory(tmp_path):
    """Who reads no more than an honest object has asks for all of that."""
    store = open_store(tmp_path.as_uri())
    store.put("jobs/a", b"data")
    assert (store.get_range("jobs/a", 0, 1 << 45), store.get_range("jobs/a", 9, 1 << 45)) == (b"data", b"")


@pytest.mark.parametrize("url", ["memory:///", "file"])
@pytest.mark.parametrize("key", ["plain/key", "odd key/a b"])
def test_every_store_and_key_has_the_same_rules(tmp_path, url, key):
    store = open_store((tmp_path / "store").as_uri() if url == "file" else url)
    assert store.create_later(key, memoryview(b"data")) is True
    assert store.create_later(key, b"other") is False
    store.sync()
    assert (store.get(key), store.get_range(key, 1, 2)) == (b"data", b"at")


def test_names_are_made_durable_folder_by_folder_up_to_the_root(tmp_path, monkeypatch):
    store, synced = open_store(tmp_path.as_uri()), []
    real = obstore.fsync
    monkeypatch.setattr(obstore, "fsync", lambda p: (synced.append(str(p.relative_to(tmp_path))), real(p)))
    store.create_later("j/ab/1", b"x")
    store.create_later("j/ab/2", b"x")
    store.create_later("j/cd/1", b"x")
    assert synced == []
    store.sync()
    assert sorted(synced) == [".", "j", "j/ab", "j/cd"]
    store.sync()
    assert len(synced) == 4


def test_a_folder_that_was_removed_meanwhile_is_made_again(tmp_path):
    store = open_store(tmp_path.as_uri())
    store.create_later("j/ab/1", b"x")
    shutil.rmtree(tmp_path / "j")
    assert store.create_later("j/ab/2", b"y") is True
    store.sync()
    assert store.get("j/ab/2") == b"y"


def test_a_disk_without_nameless_files_is_written_another_way(tmp_path, monkeypatch):
    store, real = open_store(tmp_path.as_uri()), os.open

    def without(path, flags, *rest, **named):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(obstore.os, "open", without)
    assert store.create_later("a/b", b"data") is True
    assert store.create_later("a/b", b"other") is False
    assert (tmp_path / "a/b").read_bytes() == b"data"


def test_a_store_that_is_in_the_way_is_an_error(tmp_path):
    store = open_store(tmp_path.as_uri())
    (tmp_path / "jobs").write_text("in the way")
    with pytest.raises(StoreError):
        store.create_later("jobs/a/b", b"x")


def test_an_object_has_a_name_only_when_all_of_it_is_durable(tmp_path, monkeypatch):
    """A head entry had its name first: after a power failure it could be there, and empty."""
    store, done = open_store(tmp_path.as_uri()), []

    def noted(name, real):
        return lambda *a, **k: (done.append(name), real(*a, **k))[1]

    for name in ("fdatasync", "link"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    monkeypatch.setattr(obstore, "fsync", noted("fsync", obstore.fsync))
    assert store.create("jobs/j/head/1.json", b"entry") is True
    assert done[:2] == ["fdatasync", "link"] and done[2:] == ["fsync"] * 5
    assert store.create("jobs/j/head/1.json", b"other") is False
    assert done[7:] == ["fsync"] * 5, "it may be our own, of which we have not heard"
    assert store.get("jobs/j/head/1.json") == b"entry"
