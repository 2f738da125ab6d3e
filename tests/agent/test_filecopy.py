"""Copies of single files: what is in them, and what becomes of holes, on a disk that shares blocks and on one that does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent.linux import file_copy
from spotsurfer_agent.linux.file_copy import BLOCK_BYTES, PIECE_BYTES, ShortFile, copy, update

HOLE_BYTES = 64 << 20
WAYS = ("as it comes", "no shared blocks", "nothing of the kernel's")


def refuse(number: int):
    def refused(*_args: object) -> int:
        raise OSError(number, os.strerror(number))

    return refused


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != WAYS[0]:
        monkeypatch.setattr(file_copy.fcntl, "ioctl", refuse(errno.EOPNOTSUPP))
    if request.param == WAYS[2]:
        monkeypatch.setattr(file_copy.os, "copy_file_range", refuse(errno.EXDEV))
    return request.param


def copied(source: Path, target: Path) -> Path:
    with source.open("rb") as f:
        copy(f.fileno(), target)
    return target


def test_data_and_holes(way, tmp_path):
    source, data = tmp_path / "a", os.urandom(3 * PIECE_BYTES + 17)
    with source.open("wb") as f:
        f.seek(HOLE_BYTES)
        f.write(data)
        f.truncate(3 * HOLE_BYTES)
    target = copied(source, tmp_path / "b")
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 < HOLE_BYTES
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"x"])
def test_what_was_there_goes(way, content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(b"more than that")
    assert copied(tmp_path / "a", tmp_path / "b").read_bytes() == content


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_file_that_becomes_shorter_is_no_whole_copy(by_kernel, tmp_path, monkeypatch):
    source = tmp_path / "a"
    source.write_bytes(os.urandom(2 * PIECE_BYTES))
    real = os.copy_file_range if by_kernel else refuse(errno.EXDEV)

    def piecewise(a: int, b: int, count: int, *at: int) -> int:
        os.truncate(source, PIECE_BYTES)
        return real(a, b, min(count, PIECE_BYTES), *at)

    monkeypatch.setattr(file_copy.fcntl, "ioctl", refuse(errno.ENOTTY))
    monkeypatch.setattr(file_copy.os, "copy_file_range", piecewise)
    with pytest.raises(ShortFile):
        copied(source, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("call", ["ioctl", "copy_file_range"])
def test_a_full_disk_is_an_error_and_not_another_way(call, tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setattr(file_copy.fcntl, "ioctl", refuse(errno.EOPNOTSUPP))
    monkeypatch.setattr(file_copy.fcntl if call == "ioctl" else file_copy.os, call, refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left") as e:
        copied(tmp_path / "a", tmp_path / "b")
    assert e.value.errno == errno.ENOSPC


@pytest.mark.parametrize("size", [0, 5, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 17])
@pytest.mark.parametrize("before", [b"", b"x" * 10, os.urandom(5 * BLOCK_BYTES)])
def test_a_copy_becomes_equal_again_and_only_what_differs_is_written(
    tmp_path: Path, size: int, before: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, written = tmp_path / "a", tmp_path / "b", list[int]()
    write = os.pwrite

    def seen(fd: int, data: Any, at: int) -> int:
        written.append(at)
        return write(fd, data, at)

    monkeypatch.setattr(file_copy.os, "pwrite", seen)
    source.write_bytes(os.urandom(size))
    target.write_bytes(before)
    with source.open("r+b") as f:
        update(f.fileno(), target)
        assert target.read_bytes() == source.read_bytes()
        written.clear()
        update(f.fileno(), target)
        assert written == []
        if size > 2 * BLOCK_BYTES:
            f.seek(BLOCK_BYTES + 7)
            f.write(b"changed")
            f.flush()
            update(f.fileno(), target)
            assert written == [BLOCK_BYTES]
    assert target.read_bytes() == source.read_bytes()
