"""Output of the job on its way to the disk: by absolute offset, complete, and nobody waits for a disk but who must."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from spotsurfer_agent.shim import output
from spotsurfer_agent.shim.output import Output, Spool
from spotsurfer_wire import log_pieces

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
    monkeypatch.setattr(output, "os", _Os(stand_in))
    monkeypatch.setattr(output, "RETRY_SECONDS", 0.01)
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
    while s.disk.waiting_bytes:
        assert time.monotonic() < end, "the disk never took it"
        time.sleep(0.002)


def test_output_is_kept_by_absolute_offset_over_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "SEGMENT_BYTES", 10)
    s = Spool(tmp_path, "out", 100)
    os.write(s.write_fd, b"0123456789abcdefghijKLM")
    assert s.take()
    assert s.position == 123
    settled(s)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"out-{n:016d}" for n in (100, 110, 120)]
    assert output.read_segments(tmp_path, "out", 105, 100) == b"56789"
    assert output.read_segments(tmp_path, "out", 110, 3) == b"abc"
    assert output.read_segments(tmp_path, "out", 123, 10) == b""
    assert output.read_segments(tmp_path, "out", 50, 10) == b""
    assert output.read_segments(tmp_path, "err", 0, 10) == b""
    assert output.written_bytes(tmp_path) == 123
    s.close_writer()
    assert not s.take()
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
    assert output.read_segments(tmp_path, "out", 0, 100) == b""
    disk.open.set()
    mine.until(mine.output.is_kept)
    text = b"".join(b"line %d\n" % n for n in range(200))
    assert output.read_segments(tmp_path, "out", 0, 1 << 20) == text
    assert {s: mine.output.positions()[s] for s in ("out", "err")} == {"out": len(text), "err": 0}


def test_what_is_held_is_bounded_then_the_job_waits_at_its_pipe(tmp_path, disk, loop, monkeypatch):
    monkeypatch.setattr(output, "HELD_BYTES", 1 << 17)
    mine, end = loop
    disk.open.clear()
    written = 0
    with pytest.raises(BlockingIOError):
        while written < 1 << 21:
            written += os.write(end, b"x" * 4096)
            mine.turn()
    assert mine.output.positions()["out"] <= (1 << 17) + output.READ_BYTES
    disk.open.set()
    mine.until(lambda: mine.output.positions()["out"] == written and mine.output.is_kept())
    assert output.read_segments(tmp_path, "out", 0, 1 << 22) == b"x" * written


def test_a_full_disk_loses_no_output_and_is_said_at_a_freeze(tmp_path, disk, loop):
    mine, end = loop
    os.write(end, b"first")
    mine.until(lambda: mine.output.positions()["out"] == 5 and mine.output.is_kept())
    disk.full = True
    os.write(end, b"second")
    mine.until(lambda: disk.refused > 2)
    with pytest.raises(OSError, match="No space left"):
        mine.output.drain()
    disk.full = False
    mine.until(mine.output.is_kept)
    mine.output.drain()
    assert output.read_segments(tmp_path, "out", 0, 100) == b"firstsecond"


def test_who_waits_for_the_disk_is_called(disk, loop):
    mine, end = loop
    disk.open.clear()
    os.write(end, b"the last words")
    mine.until(lambda: mine.output.positions()["out"] == 14)
    assert not mine.output.is_kept()
    mine.turn(0.05)
    assert mine.moved == 0
    disk.open.set()
    mine.until(lambda: mine.moved > 0)
    mine.until(mine.output.is_kept)


def rows_of(folder: Path) -> list[output.Row]:
    return list(log_pieces.time_rows(output.read_segments(folder, output.TIMES, 0, 1 << 20)))


def test_the_record_says_which_line_was_printed_between_which(tmp_path: Path) -> None:
    mine = Loop()
    mine.output.open(tmp_path, {"out": 0})
    ends = {name: os.dup(fd) for name, fd in mine.output.ends.items()}
    mine.output.listen()
    written, told = {"out": 0, "err": 0}, []
    for stream in ("err", "out", "out", "err", "out", "err", "err"):
        os.write(ends[stream], b"a line\n")
        written[stream] += 7
        told.append((written["out"], written["err"]))
        mine.until(lambda: {s: mine.output.positions()[s] for s in written} == written)
    mine.until(mine.output.is_kept)
    found = rows_of(tmp_path)
    assert [(r.out, r.err) for r in found] == [(0, 0), *told]
    assert [r.milliseconds for r in found] == sorted(r.milliseconds for r in found)
    assert mine.output.positions()[output.TIMES] == len(found) * output.ROW_BYTES
    for fd in ends.values():
        os.close(fd)
    mine.output.close()


def test_a_stream_that_grows_alone_takes_few_rows_and_positions_close_one(tmp_path: Path) -> None:
    record = output.Times(tmp_path, 0, 0, 0)
    for length in range(1, 500):
        record.note("out", length, 0)
    record.close_row()
    before = record.position
    record.note("out", 600, 0)
    assert record.position == before + output.ROW_BYTES, "what is printed after a save is no part of a row before it"
    record.disk.tell()
    until_written(record)
    found = rows_of(tmp_path)
    assert len(found) < 20
    assert [r.out for r in found[-2:]] == [499, 600]
    record.disk.close()


def test_a_job_that_changes_between_its_streams_all_the_time_has_a_bounded_record(tmp_path: Path) -> None:
    record = output.Times(tmp_path, 0, 0, 0, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    for n in range(1, 5000):
        record.note("out" if n % 2 else "err", (n + 1) // 2, n // 2)
    record.disk.tell()
    until_written(record)
    found = rows_of(tmp_path)
    assert output.ROWS_A_SECOND <= len(found) < 2 * output.ROWS_A_SECOND
    assert found[-1][1:] == (2500, 2499), "what was merged is covered all the same"
    record.disk.close()


def test_what_nobody_recorded_is_marked(tmp_path: Path) -> None:
    record = output.Times(tmp_path, 0, 100, 7)
    until_written(record)
    assert rows_of(tmp_path) == [output.Row(0, 100, 7)]
    record.disk.close()


def until_written(record: output.Times) -> None:
    end = time.monotonic() + SECONDS
    while record.disk.waiting_bytes:
        assert time.monotonic() < end, "the disk never took it"
        time.sleep(0.002)
