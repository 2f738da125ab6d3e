"""Bytes between a machine and the store, counted by all of its processes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_agent.store.traffic import Counter, Traffic, total
from spotsurfer_wire.store.obstore import PARTS_FAR


@pytest.fixture
def access(tmp_path: Path) -> StoreAccess:
    (tmp_path / "store").mkdir()
    return StoreAccess((tmp_path / "store").as_uri(), counted=str(tmp_path / "traffic"))


def test_each_way_to_read_and_to_write_counts(access: StoreAccess, tmp_path: Path) -> None:
    store, folder = access.open(), tmp_path / "traffic"
    file, back = tmp_path / "file", tmp_path / "back"
    file.write_bytes(b"x" * 1000)
    large = PARTS_FAR[0] + 1
    counted = Traffic()
    for ask, more in (
        (lambda: store.create("a", b"12345"), Traffic(0, 5, 0, 1)),
        (lambda: store.create("a", b"12345"), Traffic(0, 5, 0, 1)),  # it went there, although it was there already
        (lambda: store.create_later("b", memoryview(b"1234567")), Traffic(0, 7, 0, 1)),
        (lambda: store.put("c", b"123"), Traffic(0, 3, 0, 1)),
        (lambda: store.put_file("d", file), Traffic(0, 1000, 0, 1)),
        (lambda: os.truncate(file, large), Traffic()),
        (lambda: store.put_file("e", file), Traffic(0, large, 0, 4)),  # in two parts, with a begin and an end
        (lambda: store.sync(), Traffic()),
        (lambda: store.list(""), Traffic(0, 0, 0, 1)),
        (lambda: store.delete(["c"]), Traffic()),  # is free
        (lambda: store.get("a"), Traffic(5, 0, 1)),
        (lambda: store.get("none"), Traffic(0, 0, 1)),
        (lambda: store.get_range("b", 2, 3), Traffic(3, 0, 1)),
        (lambda: store.get_file("e", back), Traffic(large, 0, 1)),
        (lambda: store.get_file("none", back), Traffic(0, 0, 1)),
    ):
        ask()
        counted = Traffic(*map(sum, zip(counted, more, strict=True)))
        assert total(folder) == counted
    assert back.read_bytes() == file.read_bytes() and store.get("b") == b"1234567"


def use(told: str) -> None:
    store = StoreAccess.carried(json.loads(told)).open()
    store.put(f"of-{multiprocessing.current_process().pid}", b"12345678")


def test_other_processes_count_too_and_what_they_counted_stays(access: StoreAccess, tmp_path: Path) -> None:
    for _ in range(2):
        process = multiprocessing.get_context("spawn").Process(target=use, args=(json.dumps(access.carry()),))
        process.start()
        process.join()
        assert process.exitcode == 0
    access.open().put("x", b"1")
    assert total(tmp_path / "traffic") == Traffic(0, 17, 0, 3)


def test_threads_lose_nothing(tmp_path: Path) -> None:
    counter = Counter(tmp_path)
    threads = [threading.Thread(target=lambda: [counter.add(1, 2) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total(tmp_path) == Traffic(8000, 16000)


def test_nothing_was_counted(tmp_path: Path) -> None:
    assert total(tmp_path / "none") == Traffic(0, 0)


def test_a_full_disk_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in memory would end the process by SIGBUS."""
    counter, folder = Counter(tmp_path / "traffic"), tmp_path / "traffic"
    counter.add(read=1)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        counter.add(read=10, sent=5)
    assert total(folder) == Traffic(1, 0)
    counter.add(sent=1)
    assert total(folder) == Traffic(11, 6), "it comes with the next number"
    monkeypatch.setattr("os.open", full)
    Counter(tmp_path / "other").add(read=1)
    assert total(tmp_path / "other") == Traffic(0, 0)
