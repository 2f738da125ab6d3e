"""Output of the job on its way to the disk: by absolute offset, complete, and nobody waits for a disk but who must."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spotsurfer_agent import segments, spool
from spotsurfer_agent.spool import Output, Spool

SECONDS = 10.0


class Disk:
    """Stands before `os.write` of the thread that writes segments: open, shut (it hangs) or full."""

    def __init__(self) -> None:
        self.open, self.full, self.refused = threading.Event(), False, 0
        self.open.set()

    def write(self, fd: int, data: bytes) -> int:
        self.open.wait(SECONDS)
        if self.full:
            self.refused += 1
            raise OSError(28, "No space left on device")
        return os.writev(fd, [data])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    stand_in = Disk()
    monkeypatch.setattr(segments, "os", _Os(stand_in))
    monkeypatch.setattr(segments, "RETRY_SECONDS", 0.01)
    return stand_in


class _Os:
    """The module `os`, but for `write`."""

    def __init__(self, disk: Disk) -> None:
        self.write = disk.write

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


class Loop:
    """What the shim's loop does with the output."""

    def __init__(self) -> None:
        self.calls: dict[int, Callable[[], None]] = {}
        self.moved = 0
        self.output = Output(self._watch, self._unwatch, self._moved)

    def _watch(self, fd: int, ready: Callable[[], None]) -> None:
        self.calls.setdefault(fd, ready)

    def _unwatch(self, fd: int) -> None:
        self.calls.pop(fd, None)

    def _moved(self) -> None:
        self.moved += 1

    def turn(self, seconds: float = 0.0) -> None:
        ready, _, _ = select.select(list(self.calls), [], [], seconds)
        for fd in ready:
            if fd in self.calls:
                self.calls[fd]()

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not what():
            assert time.monotonic() < end, "it never came true"
            self.turn(0.01)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[tuple[Loop, int]]:
    """A loop, and the end that the job writes to."""
    mine = Loop()
    mine.output.open(tmp_path, {"out": 0})
    end = os.dup(mine.output.ends["out"])
    os.set_blocking(end, False)
    mine.output.listen()
    yield mine, end
    os.close(end)
    mine.output.close()


def settled(s: Spool) -> None:
    end = time.monotonic() + SECONDS
    while not s.is_kept:
        assert time.monotonic() < end, "the disk never took it"
        time.sleep(0.002)


def test_output_is_kept_by_absolute_offset_over_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 10)
    s = Spool(tmp_path, "out", 100)
    os.write(s.write_fd, b"0123456789abcdefghijKLM")
    s.drain()
    assert s.position == 123
    settled(s)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"out-{n:016d}" for n in (100, 110, 120)]
    assert segments.read(tmp_path, "out", 105, 100) == b"56789"
    assert segments.read(tmp_path, "out", 110, 3) == b"abc"
    assert segments.read(tmp_path, "out", 123, 10) == b""
    assert segments.read(tmp_path, "out", 50, 10) == b""
    assert segments.read(tmp_path, "err", 0, 10) == b""
    s.close_writer()
    s.drain()
    assert s.ended
    s.close()


@pytest.mark.alone
def test_a_disk_that_hangs_holds_up_neither_the_job_nor_the_loop(tmp_path, disk, loop):
    mine, end = loop
    disk.open.clear()
    began = time.monotonic()
    for number in range(200):
        os.write(end, b"line %d\n" % number)  # would fail with a full pipe
        mine.turn()
    mine.output.drain()
    assert time.monotonic() - began < SECONDS / 2, "somebody waited for the disk"
    assert not mine.output.is_kept()
    assert segments.read(tmp_path, "out", 0, 100) == b""
    disk.open.set()
    mine.until(mine.output.is_kept)
    text = b"".join(b"line %d\n" % n for n in range(200))
    assert segments.read(tmp_path, "out", 0, 1 << 20) == text
    assert mine.output.positions == {"out": len(text), "err": 0}


def test_what_is_held_is_bounded_then_the_job_waits_at_its_pipe(tmp_path, disk, loop, monkeypatch):
    monkeypatch.setattr(spool, "HELD_BYTES", 1 << 17)
    mine, end = loop
    disk.open.clear()
    written = 0
    with pytest.raises(BlockingIOError):
        while written < 1 << 21:
            written += os.write(end, b"x" * 4096)
            mine.turn()
    assert mine.output.positions["out"] <= (1 << 17) + spool.READ_BYTES
    disk.open.set()
    mine.until(lambda: mine.output.positions["out"] == written and mine.output.is_kept())
    assert segments.read(tmp_path, "out", 0, 1 << 22) == b"x" * written


def test_a_full_disk_loses_no_output_and_is_said_at_a_freeze(tmp_path, disk, loop):
    mine, end = loop
    os.write(end, b"first")
    mine.until(lambda: mine.output.positions["out"] == 5 and mine.output.is_kept())
    disk.full = True
    os.write(end, b"second")
    mine.until(lambda: disk.refused > 2)
    with pytest.raises(OSError, match="No space left"):
        mine.output.drain()
    disk.full = False
    mine.until(mine.output.is_kept)
    mine.output.drain()
    assert segments.read(tmp_path, "out", 0, 100) == b"firstsecond"


def test_who_waits_for_the_disk_is_called(disk, loop):
    mine, end = loop
    disk.open.clear()
    os.write(end, b"the last words")
    mine.until(lambda: mine.output.positions["out"] == 14)
    assert not mine.output.is_kept()
    mine.turn(0.05)
    assert mine.moved == 0
    disk.open.set()
    mine.until(lambda: mine.moved > 0)
    assert mine.output.is_kept()
