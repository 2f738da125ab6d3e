"""Inputs and outputs: sizes, modes, and no path that leaves the job's folder."""

from __future__ import annotations

import errno
import os

import pytest
from spotsurfer_agent.files import staging
from spotsurfer_agent.files.staging import FilesError, place_inputs, publish
from spotsurfer_wire import object_keys
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.agent_world import JOB, DictStore


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "scratch" / "work"
    folder.mkdir(parents=True)
    return folder


def spec(**changes) -> Spec:
    return Spec(job=JOB, command=["x"], **changes)


def published(work, *patterns, store=None, **changes):
    wanted = spec(outputs=list(patterns), **changes)
    return publish(store or DictStore(), wanted, object_keys.output_prefix(JOB, 3), str(work.parent))


def test_inputs_of_any_size_arrive_with_their_modes(work, tmp_path):
    store = open_store(f"file://{tmp_path}/store")
    contents = {"a/b/big.bin": os.urandom(20 << 20), "empty": b"", "run.sh": b"#!/bin/sh\n", "with blank %41 ü.txt": b"x"}
    for name, data in contents.items():
        store.put(object_keys.input_key(JOB, name), data)
    wanted = spec(inputs={n: len(d) for n, d in contents.items()}, input_modes={"run.sh": 0o755}, folder="deep/er")
    place_inputs(store, wanted, str(work.parent))
    for name, data in contents.items():
        assert (work / "deep/er" / name).read_bytes() == data
    assert (work / "deep/er/run.sh").stat().st_mode & 0o7777 == 0o755
    assert (work / "deep/er/empty").stat().st_mode & 0o7777 == 0o644


def test_every_user_of_the_job_may_enter_their_folders(work):
    store = DictStore()
    store.put(object_keys.input_key(JOB, "a/b/x"), b"x")
    before = os.umask(0o077)  # as the agent's
    try:
        place_inputs(store, spec(inputs={"a/b/x": 1}, folder="deep"), str(work.parent))
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in work.rglob("*") if p.is_dir()} == {0o755}


def test_modes_bring_no_privilege(work):
    store = DictStore()
    store.put(object_keys.input_key(JOB, "su"), b"x")
    place_inputs(store, spec(inputs={"su": 1}, input_modes={"su": 0o6755}), str(work.parent))
    assert (work / "su").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("folder", ["../x", "/etc", "a/../../b"])
def test_a_folder_outside_is_refused(work, folder):
    with pytest.raises(FilesError, match="below the job's folder"):
        place_inputs(DictStore(), spec(folder=folder), str(work.parent))


def test_a_disk_that_fills_up_is_one_sentence(work):
    class Full(DictStore):
        def get_file(self, key, path):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FilesError, match="disk is full"):
        place_inputs(Full(), spec(inputs={"a": 1}), str(work.parent))


def test_outputs_by_pattern_with_folders_and_hidden_files(work):
    for name in ("out/a.txt", "out/sub/b.txt", "out/.hidden", "c.log", "d.tmp", "ü %20 x.txt"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    store = DictStore()
    found = published(work, "out", "*.log", "**/b.txt", "ü*", "nothing-*", store=store)
    assert sorted(found.sizes) == ["c.log", "out/.hidden", "out/a.txt", "out/sub/b.txt", "ü %20 x.txt"]
    assert found.missing == ["nothing-*"]
    for name, size in found.sizes.items():
        data = store.objects[object_keys.output_prefix(JOB, 3) + name]
        assert data == (work / name).read_bytes()
        assert size == len(data)


def test_outputs_are_relative_to_the_jobs_folder(work):
    (work / "here").mkdir()
    (work / "here/a").write_text("1")
    (work / "b").write_text("2")
    assert list(published(work, "*", folder="here").sizes) == ["a"]


@pytest.mark.parametrize("pattern", ["../*", "/etc/passwd", "a/../../*", ""])
def test_a_pattern_that_leaves_finds_nothing_and_does_not_keep_the_job_from_ending(work, pattern):
    (work.parent / "beside").write_text("x")
    (work / "a").write_text("x")
    found = published(work, pattern, "a")
    assert list(found.sizes) == ["a"]
    assert found.missing == [pattern]


def test_a_link_out_of_the_scratch_is_never_followed(work, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("key")
    (work / "out").mkdir()
    (work / "out/link").symlink_to(tmp_path / "outside/secret")
    (work / "out/folder").symlink_to(tmp_path / "outside")
    (work / "out/loop").symlink_to("loop")
    (work / "plain").write_text("x")
    (work / "out/inside").symlink_to("../plain")
    store = DictStore()
    found = published(work, "out", "out/folder/*", "out/*", store=store)
    assert list(found.sizes) == ["out/inside"]
    assert "key" not in str(store.objects)
    assert set(found.skipped) == {"out/link", "out/folder", "out/folder/secret", "out/loop"}
    assert found.missing == ["out/folder/*"]


def test_what_is_no_file_of_the_job_is_passed_over(work):
    os.mkfifo(work / "pipe")
    (work / "a").write_text("x")
    found = published(work, "*", "pip*")
    assert (list(found.sizes), found.skipped, found.unnamed) == (["a"], ["pipe"], [])
    assert found.missing == ["pip*"], "nothing came of it"


def test_a_file_under_a_name_that_no_key_can_hold_is_named(work):
    (work / os.fsdecode(b"bad-\xff")).write_text("x")
    (work / "two\nlines").write_text("x")
    found = published(work, "*")
    assert (found.sizes, found.missing, found.skipped) == ({}, [], [])
    assert len(found.unnamed) == 2
    assert all(name.isascii() for name in found.unnamed)


def test_outputs_go_through_a_real_store(work, tmp_path):
    (work / "big").write_bytes(os.urandom(12 << 20))
    (work / "empty").write_bytes(b"")
    store = open_store(f"file://{tmp_path}/store")
    found = published(work, "*", store=store)
    assert found.sizes == {"big": 12 << 20, "empty": 0}
    for name in found.sizes:
        assert store.get(object_keys.output_prefix(JOB, 3) + name) == (work / name).read_bytes()
    again = published(work, "*", store=store)
    assert again.sizes == found.sizes


ODD = ["a%2Fb", "a*b", "a?b", "a#b", "a\\b", "~", "a:b", "a&b;c", "[x]", "..."]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_survive_a_real_store(work, tmp_path, name):
    (work / name).write_text(name)
    store = open_store(f"file://{tmp_path}/store")
    assert published(work, "*", store=store).sizes == {name: len(name)}
    assert store.get(object_keys.output_prefix(JOB, 3) + name) == name.encode()


def test_job_folder_of_the_plain_case(work):
    assert staging.job_folder(str(work.parent), spec()) == work
