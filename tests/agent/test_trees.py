"""Folders to entries and back; a manifest can't reach out of its root."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat

import pytest
from spotsurfer_agent.chunks.chunker import Sender
from spotsurfer_agent.chunks.writer import Writer
from spotsurfer_agent.files import tree
from spotsurfer_agent.files.tree import UnsafePath, Unsavable
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.chunks.reader import Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Entry
from spotsurfer_wire.store.obstore import open_store

KEYS = Keys.derive(b"", "j")


def copy(source, target):
    store = open_store("memory:///")
    with Writer(store, "j", KEYS, Limits(), {}) as writer:
        entries = Sender(writer).send(tree.walk(source).entries, lambda e: source / e.path)
    target.mkdir(exist_ok=True)
    tree.build(target, entries, writer.table.rows, Reader(store, "j", KEYS))
    return entries


def test_everything_comes_back(tmp_path):
    a = tmp_path / "a"
    (a / "deep" / "er").mkdir(parents=True)
    (a / "deep" / "file").write_bytes(b"hello")
    os.chown(a / "deep" / "file", 1234, 4321)
    (a / "deep" / "file").chmod(0o4751)  # after the owner: a change of owner takes the bit away
    os.link(a / "deep" / "file", a / "zzz-same")
    (a / "empty").touch()
    (a / "link").symlink_to("/nowhere/at all")
    os.mkfifo(a / "fifo", 0o640)
    os.mknod(a / "socket", stat.S_IFSOCK | 0o620)
    os.chown(a / "socket", 1234, 4321)
    os.setxattr(a / "empty", "user.colour", b"\x00blue\xff")
    with (a / "sparse").open("wb") as f:
        f.truncate(1 << 30)
    (a / os.fsdecode(b"not utf-8 \xff")).write_bytes(b"x")
    os.utime(a / "empty", ns=(1, 1_234_567_890_123_456_789))
    os.utime(a / "deep", ns=(1, 987_654_321_000_000_001))
    (a / "deep").chmod(0o1710)
    b = tmp_path / "b"
    copy(a, b)
    again, before = copy(b, tmp_path / "c"), copy(a, tmp_path / "d")
    assert [dataclasses.replace(e, inode=0) for e in again] == [dataclasses.replace(e, inode=0) for e in before]
    assert (b / "zzz-same").stat().st_ino == (b / "deep" / "file").stat().st_ino
    st = (b / "deep" / "file").stat()
    assert (stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid) == (0o4751, 1234, 4321)
    assert (b / "sparse").stat().st_blocks == 0
    assert os.getxattr(b / "empty", "user.colour") == b"\x00blue\xff"
    assert (b / "deep").stat().st_mtime_ns == 987_654_321_000_000_001
    assert str((b / "link").readlink()) == "/nowhere/at all"
    st = (b / "socket").stat()
    assert (stat.S_IFMT(st.st_mode), stat.S_IMODE(st.st_mode), st.st_uid) == (stat.S_IFSOCK, 0o620 & ~0o022, 1234)


def test_the_folder_itself_comes_back_where_it_is_an_entry(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a").chmod(0o2751)
    os.setxattr(tmp_path / "a", "user.colour", b"blue")
    os.utime(tmp_path / "a", ns=(1, 987_654_321_000_000_001))
    tree.build(
        tmp_path / "b", [tree.top(tmp_path / "a"), Entry("x", "dir", 0o700)], [], Reader(open_store("memory:///"), "j", KEYS)
    )
    assert tree.top(tmp_path / "a") == tree.top(tmp_path / "b")
    with pytest.raises(UnsafePath):
        tree.check([Entry("x", "dir"), Entry(".", "dir")], [])


def test_a_moving_tree_is_what_does_not_vanish(tmp_path, monkeypatch):
    for name in ("a", "b", "d/e", "f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    real = tree._entry

    def entry(root, path, *rest):
        if path == "a":
            (root / "b").unlink(missing_ok=True)
        if path == "f":
            shutil.rmtree(root / "d", ignore_errors=True)
        return real(root, path, *rest)

    monkeypatch.setattr(tree, "_entry", entry)
    walked = tree.walk(tmp_path, moving=True)
    assert [e.path for e in walked.entries] == ["a", "d", "f"]
    assert list(walked.stamps) == ["a", "f"]
    (tmp_path / "b").write_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        tree.walk(tmp_path)


def test_a_device_is_named(tmp_path):
    os.mknod(tmp_path / "dev", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with pytest.raises(Unsavable, match="dev"):
        tree.walk(tmp_path)


def D(path):
    return Entry(path, "dir", 0o755)


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("../x", "file")],
        [Entry("/etc/x", "file")],
        [Entry("", "dir")],
        [Entry(".", "file")],
        [Entry("a//b", "file")],
        [Entry("a/../../x", "file")],
        [Entry("nul\0", "file")],
        [Entry("a/b", "file")],
        [Entry("a", "symlink", target="/etc"), Entry("a/passwd", "file")],
        [Entry("a", "file"), Entry("a", "file")],
        [D("a"), Entry("a", "symlink", target="/etc")],
        [Entry("a", "hardlink", target="../../etc/passwd")],
        [Entry("l", "symlink", target="/etc"), Entry("a", "hardlink", target="l/passwd")],
        [D("d"), Entry("a", "hardlink", target="d")],
        [Entry("a", "block")],
    ],
)
def test_a_hostile_manifest_writes_nothing(tmp_path, entries):
    with pytest.raises(UnsafePath):
        tree.build(tmp_path, entries, [], Reader(open_store("memory:///"), "j", KEYS))
    assert list(tmp_path.iterdir()) == []


def test_no_link_is_followed_on_the_way(tmp_path):
    """Even if something put one there after the check."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "d").symlink_to(outside)
    with pytest.raises(OSError):
        tree.build(root, [D("d"), Entry("d/x", "file")], [], Reader(open_store("memory:///"), "j", KEYS))
    assert list(outside.iterdir()) == []


def test_an_empty_file_is_made_below_the_root_whatever_links_say(tmp_path):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (root / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "please").write_text("precious")
    (root / "away").symlink_to(elsewhere)
    (root / "sub/please").symlink_to(elsewhere / "please")
    for _ in range(2):
        tree.make_empty(root, "sub/please", 1234, 4321)
        st = (root / "sub/please").lstat()
        assert (st.st_uid, st.st_gid, st.st_size, stat.S_ISREG(st.st_mode)) == (1234, 4321, 0, True)
    with pytest.raises(OSError, match="Not a directory"):
        tree.make_empty(root, "away/please", 1234, 4321)
    with pytest.raises(tree.UnsafePath):
        tree.make_empty(root, "../elsewhere/please", 1234, 4321)
    assert (elsewhere / "please").read_text() == "precious"


def test_only_the_very_file_is_opened_to_be_filled_again(tmp_path):
    (tmp_path / "d").mkdir()
    file = tmp_path / "d/a"
    file.write_text("old")
    entry = Entry("d/a", "file", inode=file.stat().st_ino)
    os.close(tree.open_known(tmp_path, entry))
    other = tmp_path / "d/b"
    other.write_text("theirs")
    other.replace(file)
    with pytest.raises(OSError, match="was replaced by another file"):
        tree.open_known(tmp_path, entry)
    file.unlink()
    file.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic"):
        tree.open_known(tmp_path, entry)
    assert not any(x.name.endswith("making") for x in tmp_path.rglob("*"))
